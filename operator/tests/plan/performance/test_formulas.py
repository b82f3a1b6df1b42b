"""Hand-computed examples of each formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api.catalogue import find
from tandem_operator.plan.performance import kv
from tandem_operator.plan.performance.collectives import all_reduce_s, all_to_all_s, link_efficiency, transfer_s
from tandem_operator.plan.performance.config import Experts
from tandem_operator.plan.performance.deployment import Deployment, room_tokens, weight_bytes
from tandem_operator.plan.performance.efficiency import efficiency_of
from tandem_operator.plan.performance.parallel import Parallelism
from tandem_operator.plan.performance.precision import Precision, UnknownFormatError, format_of, rate_of
from tandem_operator.plan.performance.public import find_model
from tandem_operator.plan.performance.weights import attention_parameters, experts_touched

LLAMA, DEEPSEEK, OSS = find_model("llama-3.1-70b"), find_model("deepseek-v3"), find_model("gpt-oss-120b")
H100, B200 = find("h100-sxm"), find("b200")


@pytest.mark.parametrize(
    ("model", "stored", "size"),
    [
        pytest.param(LLAMA, "bfloat16", 327_680, id="GQA: 2 x 80 layers x 8 heads x 128 x 2 B"),
        pytest.param(LLAMA, "float8_e4m3", 163_840, id="GQA, FP8"),
        pytest.param(DEEPSEEK, "bfloat16", 70_272, id="MLA: 61 x (512 + 64) x 2 B"),
    ],
)
def test_token_bytes(model, stored, size):
    assert kv.token_bytes(model, stored) == size


def test_window_layers_read_no_more_than_their_window():
    layer = 2 * 8 * 64 * 2
    assert kv.read_bytes(OSS, 1000) == layer * (18 * 1000 + 18 * 128)


def test_sparse_attention_reads_no_more_than_it_attends_to():
    sparse = find_model("deepseek-v3.2")
    assert kv.read_bytes(sparse, 50_000) == kv.read_bytes(sparse, 2048)


@pytest.mark.parametrize(
    ("model", "tensor", "share"),
    [
        pytest.param(LLAMA, 4, 1 / 4, id="heads divide"),
        pytest.param(LLAMA, 16, 1 / 8, id="more ranks than KV heads: copies"),
        pytest.param(DEEPSEEK, 8, 1.0, id="a latent is on every rank"),
    ],
)
def test_rank_share(model, tensor, share):
    assert kv.rank_share(model, tensor) == share


def test_attention_parameters():
    assert attention_parameters(LLAMA) == 8192 * (64 * 128 * 2 + 2 * 8 * 128)
    assert attention_parameters(DEEPSEEK) == pytest.approx(187.1e6, rel=0.001)


def test_experts_touched():
    assert experts_touched(Experts(256, 8, 2048), 1) == pytest.approx(8)
    assert experts_touched(Experts(256, 8, 2048), 32) == pytest.approx(163.3, abs=0.1)


@given(st.integers(2, 512), st.integers(1, 16), st.floats(0, 1e6))
def test_experts_touched_never_exceed_the_total(total, chosen, tokens):
    experts = Experts(total, min(chosen, total), 1024)
    assert 0 <= experts_touched(experts, tokens) <= total
    assert experts_touched(experts, tokens) <= experts.chosen * max(tokens, 1) + 1e-6


def test_all_reduce():
    # 64 tokens x 8192 x 2 B over 8 ranks: 1.75 x 1 MiB at 360 GB/s behind the latency.
    shares = efficiency_of("hopper")
    assert all_reduce_s(2**20, 8, H100, shares) == pytest.approx(shares.reduce_s + 1.75 * 2**20 / 360e9)
    assert all_reduce_s(2**20, 1, H100, shares) == 0
    assert all_to_all_s(2**20, 8, H100, shares) == pytest.approx(shares.reduce_s + 0.875 * 2**20 / 360e9)


def test_a_group_beyond_the_server_uses_the_network():
    shares = efficiency_of("hopper")
    assert all_reduce_s(2**20, 16, H100, shares) > 4 * all_reduce_s(2**20, 8, H100, shares)


def test_link_efficiency():
    assert link_efficiency(1e6) == pytest.approx(0.45)
    assert link_efficiency(1e9) == pytest.approx(0.9, rel=0.002)
    assert transfer_s(1e9, 1e6, 50e9) == pytest.approx(1 / (50 * 0.45))
    assert transfer_s(0, 1e6, 50e9) == 0


@given(st.floats(1, 1e12), st.floats(1, 1e12))
def test_longer_messages_use_a_link_better(one, two):
    low, high = sorted((one, two))
    assert link_efficiency(low) <= link_efficiency(high) < 1


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("nvfp4", "float4_e2m1"),
        ("fp8_block", "float8_e4m3"),
        ("int4_wo", "int4"),
        ("w4a16_mxfp4", "mxfp4"),
        ("", "bfloat16"),
        ("float16", "bfloat16"),
    ],
)
def test_format_of(name, known):
    assert format_of(name) == known


def test_unknown_format():
    with pytest.raises(UnknownFormatError, match="'fp3' is not known"):
        format_of("fp3")


@pytest.mark.parametrize(
    ("stored", "device", "rate"),
    [
        ("float4_e2m1", B200, "float4_e2m1"),
        ("float4_e2m1", H100, "bfloat16"),
        ("mxfp4", H100, "float8_e4m3"),
        ("int4", H100, "bfloat16"),
        ("float8_e4m3", find("a100-sxm-80gb"), "bfloat16"),
    ],
)
def test_products_run_at_the_narrowest_rate_that_the_device_has(stored, device, rate):
    assert rate_of(stored, device.flops) == rate


def test_weights_and_room():
    where = Deployment(LLAMA, H100, Precision(), Parallelism(tensor=4))
    assert weight_bytes(where) == pytest.approx(141.1e9 / 4, rel=0.001)
    # 0.9 x 85.9 GB less 5 % of 85.9 GB and 35.3 GB of weights, at 81,920 B a token and rank.
    assert room_tokens(where) == pytest.approx((85.9e9 * 0.85 - 35.28e9) / 81920, rel=0.001)
    assert room_tokens(Deployment(LLAMA, H100, Precision(), Parallelism())) == 0
