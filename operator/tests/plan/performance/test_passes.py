"""One pass: its parts by hand, and what must always hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.api.catalogue import find
from tandem_operator.plan.performance.costs import ExpertCosts, Roof, costs_of
from tandem_operator.plan.performance.deployment import Deployment
from tandem_operator.plan.performance.efficiency import efficiency_of
from tandem_operator.plan.performance.parallel import Parallelism
from tandem_operator.plan.performance.passes import Batch, imbalance, pass_time
from tandem_operator.plan.performance.precision import Precision
from tandem_operator.plan.performance.public import find_model

MODELS = ("llama-3.1-70b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b", "qwen3.5-397b-a17b")
BF16 = Precision()


def costs(model="llama-3.1-70b", device="h200-sxm", precision=BF16, **ranks):
    return costs_of(Deployment(find_model(model), find(device), precision, Parallelism(**ranks)))


def seconds(unit, **batch):
    return pass_time(unit, Batch(**batch)).total


def test_roof():
    roof = Roof(token_s=1e-6, read_s=1e-3)
    assert (roof.seconds(0), roof.seconds(1), roof.seconds(5000)) == (0, 1e-3, 5e-3)


def test_linear_layers_by_hand():
    shares = efficiency_of("hopper")
    parts = 80 * (8192 * (2 * 8192 + 2 * 1024) + 3 * 8192 * 28672)  # projections and MLPs
    unit = costs(tensor=4)
    assert unit.linear.token_s == pytest.approx(2 * parts / 4 / (989.5e12 * shares.compute("bfloat16")))
    assert unit.linear.read_s == pytest.approx(2 * parts / 4 / (4.8e12 * shares.reading("bfloat16")))


def test_decode_reads_the_cache():
    shares = efficiency_of("hopper")
    unit = costs(tensor=4)
    more = seconds(unit, decoding=8, context=2000) - seconds(unit, decoding=8, context=1000)
    assert more == pytest.approx(8 * 1000 * 327_680 / 4 / (4.8e12 * shares.kv_mbu))


def test_prompt_attention_by_hand():
    shares = efficiency_of("hopper")
    unit = costs()
    assert unit.pair_s == pytest.approx(80 * 64 * 4 * 128 / (989.5e12 * shares.attention_mfu))


def test_imbalance():
    unit = ExpertCosts(256, 8, 8, 1e-6, 1e-6)
    assert imbalance(unit, 1) == pytest.approx(1 + (2 * 2.0794) ** 0.5, rel=0.001)
    assert imbalance(unit, 1e6) == pytest.approx(1, abs=0.01)
    assert imbalance(ExpertCosts(256, 8, 1, 1e-6, 1e-6), 1) == 1


def test_narrower_weights_are_read_faster():
    wide, narrow = (
        costs("deepseek-v3", "b200", tensor=8),
        costs("deepseek-v3", "b200", Precision("bfloat16", "float4_e2m1"), tensor=8),
    )
    assert seconds(narrow, decoding=8, context=1000) < seconds(wide, decoding=8, context=1000)


@given(st.sampled_from(MODELS), st.integers(1, 512), st.integers(1, 512), st.integers(1, 100_000))
def test_a_larger_batch_is_never_faster_a_step(model, one, two, context):
    small, large = sorted((one, two))
    unit = costs(model, "b200", tensor=8)
    assert seconds(unit, decoding=small, context=context) <= seconds(unit, decoding=large, context=context) + 1e-12


@given(st.sampled_from(MODELS), st.integers(1, 32_768), st.integers(1, 256))
def test_more_tensor_ranks_never_compute_slower(model, prompt, decoding):
    batch = Batch(prompt_tokens=prompt, pairs=prompt * prompt / 2, decoding=decoding, context=4000)
    one, two = (pass_time(costs(model, "b200", tensor=ranks), batch) for ranks in (2, 4))
    assert two.linear <= one.linear
    assert two.experts <= one.experts
    assert two.attention <= one.attention


@given(st.sampled_from(MODELS), st.integers(1, 16_000), st.integers(1, 16_000))
def test_a_longer_prompt_is_never_faster(model, one, two):
    short, long = sorted((one, two))
    unit = costs(model, "h200-sxm", tensor=8)
    assert seconds(unit, prompt_tokens=short, pairs=short**2 / 2) <= seconds(
        unit, prompt_tokens=long, pairs=long**2 / 2
    )


def test_attention_data_parallel_reads_the_same_experts_for_all_ranks():
    alone, shared = costs("deepseek-v3", "b200", data=8, expert=8), costs("deepseek-v3", "b200", tensor=8, expert=8)
    batch = Batch(decoding=4, context=1000)
    assert pass_time(alone, batch).experts > pass_time(shared, batch).experts
