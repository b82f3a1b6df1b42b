"""The accuracy bench reads rows as their sources meant them, and says which row it cannot read."""

from dataclasses import replace

import pytest

from e2e.bench.accuracy import Pair, corrected, error_of, figures, main, spread
from e2e.bench.silicon import BadSiliconError, Measured, deployment_of, engine_of, parallel_of, read_rows, with_workers
from tandem_operator.plan.performance.closed_loop import Latency
from tandem_operator.plan.performance.parallel import Parallelism

ROW = {
    "silicon_data_source": "db-dump; silicon_concurrency=64; x",
    "backend": "sglang",
    "model_path": "deepseek-ai/DeepSeek-R1",
    "system": "b200_sxm",
    "precision": "",
    "mode": "agg",
    "isl": "1024",
    "osl": "1024",
    "gemm_quant_mode": "fp8",
    "moe_quant_mode": "fp8_block",
    "batch_size": "8",
    "tp_size": "8",
    "pp_size": "1",
    "attention_dp_size": "1",
    "moe_tp_size": "8",
    "moe_ep_size": "1",
}


def row(**changes):
    return Measured(2, {**ROW, **changes}, ttft_ms=200.0, tpot_ms=10.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, Parallelism(8, 1, 1, 8, 1), id="tensor"),
        pytest.param({"moe_tp_size": "1", "moe_ep_size": "8"}, Parallelism(8, 1, 1, 1, 8), id="experts"),
        pytest.param(
            {"tp_size": "64", "moe_ep_size": "8"}, Parallelism(8, 1, 1, 1, 8), id="tp x ep written for eight GPUs"
        ),
        pytest.param(
            {"tp_size": "1", "attention_dp_size": "64", "moe_ep_size": "8"},
            Parallelism(1, 1, 8, 1, 8),
            id="the same, DP",
        ),
        pytest.param(
            {"tp_size": "2", "attention_dp_size": "", "moe_tp_size": "4"}, Parallelism(2, 1, 2, 4, 1), id="DP left out"
        ),
    ],
)
def test_parallel_of(changes, expected):
    assert parallel_of(row(**changes)) == expected


def test_users():
    assert row(batch_size="8", attention_dp_size="4").users == 32
    assert row(batch_size="").users == 64
    assert row(batch_size="", silicon_data_source="", decode_batch_size="5", decode_num_workers="3").users == 15


def test_blank_precision_is_read_from_the_quant_columns():
    assert deployment_of(row()).precision.experts == "float8_e4m3"
    assert deployment_of(row(gemm_quant_mode="", moe_quant_mode="")).precision.experts == "bfloat16"


def test_fp4_experts_leave_attention_as_it_was():
    found = deployment_of(row(gemm_quant_mode="nvfp4", moe_quant_mode="nvfp4")).precision
    assert (found.linear, found.experts) == ("bfloat16", "float4_e2m1")


def test_launch_scripts():
    assert row().started(engine_of(row())).poll_steps == 10
    assert row(batch_size="64").started(engine_of(row())).poll_steps == 30
    own = row(silicon_data_source="x/aic-auto-gap-analysis/y")
    assert own.started(engine_of(own)).poll_steps == 1


def test_workers_come_from_the_nearest_row_that_states_them():
    base = row(mode="disagg", batch_size="")
    few, many = (
        replace(
            base, fields={**base.fields, "silicon_data_source": f"silicon_concurrency={n};", "decode_num_workers": w}
        )
        for n, w in (("16", "1"), ("512", "6"))
    )
    filled = with_workers([base, few, many])
    assert [r.text("decode_num_workers") for r in filled] == ["1", "1", "6"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"system": "h999_sxm"}, "row 2: unknown accelerator 'h999-sxm'", id="GPU"),
        pytest.param({"model_path": "acme/llm"}, "row 2: no public config is known", id="model"),
        pytest.param({"gemm_quant_mode": "fp3"}, "row 2: number format 'fp3'", id="format"),
        pytest.param({"tp_size": "two"}, "row 2: tp_size is 'two'", id="ranks"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(changes, words):
    with pytest.raises(BadSiliconError, match=words):
        deployment_of(row(**changes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("backend,system\n", "the header has no model_path", id="columns"),
        pytest.param(
            "backend,model_path,system,mode,isl,osl,silicon_ttft_ms,silicon_tpot_ms\nv,m,s,agg,1,1,-3,1\n",
            "row 2: silicon_ttft_ms is '-3'",
            id="measurement",
        ),
    ],
)
def test_bad_file(tmp_path, text, words):
    (path := tmp_path / "rows.csv").write_text(text)
    with pytest.raises(BadSiliconError, match=words):
        read_rows(path)
    assert main([str(path)]) == 1


def test_an_unanswered_row_counts_as_a_hundred_per_cent():
    pairs = [Pair(row(), None), Pair(row(), Latency(0.2, 0.01)), Pair(row(), None)]
    assert [error_of(pair, "TTFT") for pair in pairs] == [1.0, 0.0, 1.0]
    assert figures("x", pairs)[0].value == 100


def test_five_rows_correct_the_level():
    pairs = [Pair(row(batch_size=str(n)), Latency(0.1, 0.005)) for n in (4, 8, 16, 32, 64, 128)]
    seen = spread(pairs)
    after = corrected(seen, [pair for pair in pairs if pair not in seen])
    assert len(seen) == 5
    assert all(error_of(pair, "TPOT") < 0.12 for pair in after)
