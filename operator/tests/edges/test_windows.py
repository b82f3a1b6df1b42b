"""From Prometheus' lines to the planner's facts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tandem_operator.edges.errors import PrometheusError
from tandem_operator.edges.prometheus import Facts, parse
from tandem_operator.edges.windows import bandwidth_of, metrics_verdict, model_of, window_of
from tandem_operator.plan.facts import Answer, Slo

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SLO = Slo(500, 40, 90)


def line(fact, value, **labels):
    return {
        "metric": {"namespace": "ns", "resource": "chat", "fact": fact, **labels},
        "value": [1767225600.0, str(value)],
    }


MODEL = {
    "parameters": "135",
    "layers": "30",
    "hidden_size": "576",
    "heads": "9",
    "kv_heads": "3",
    "head_dim": "64",
    "vocab": "49152",
    "element_bytes": "2",
}
BUSY = [
    line("up", 4),
    line("arrivals", 5),
    line("requests", 4),
    line("prompt_tokens", 400),
    line("output_tokens", "NaN"),
    line("ttft", 2, le="0.1"),
    line("ttft", 4, le="0.5"),
    line("ttft", 4, le="+Inf"),
    line("tpot", 1, le="0.04"),
    line("tpot", 4, le="+Inf"),
    line("slo", 3, met="both"),
    line("slo", 1, met="ttft"),
    line("prefill_busy", 0.5, role="prefill"),
    line("prefill_busy", 0.1, role="decode"),
    line("decode_busy", 1.5, role="decode"),
    line("waiting_tokens", 70, role="prefill"),
    line("workers", 1, role="prefill"),
    line("workers", 2, role="decode"),
    line("load", 7, pod="chat-decode-a"),
    line("model", 1, **MODEL),
    line("backend", 1, backend="tcp"),
]


def facts(lines):
    return parse(lines).get(("ns", "chat"))


def test_a_window_of_a_busy_resource():
    window = window_of(facts(BUSY), SLO, NOW, 20)
    assert (window.arrival_rate, window.request_rate, window.prompt_tokens, window.output_tokens) == (5, 4, 100, None)
    assert window.ttft_ms == 420  # 0.1 + 0.4 × (3.6 - 2) / 2
    assert window.tpot_ms == 41, "beyond the highest bound: above it"
    assert window.attainment == 0.75
    assert (window.prefill.busy, window.decode.busy) == (0.5, 1.5), "a decode worker's own prefill is not the role's"
    assert (window.prefill.waiting_tokens, window.prefill.waiting) == (70, None)
    assert (window.prefill_workers, window.decode_workers) == (1, 2)
    assert facts(BUSY).labelled("load") == {"chat-decode-a": 7}
    assert model_of(facts(BUSY)).layers == 30


def test_colocated_workers_count_with_both_roles():
    window = window_of(facts([line("up", 1), line("workers", 2, role="both")]), SLO, NOW, 20)
    assert (window.prefill_workers, window.decode_workers) == (2, 2)


@pytest.mark.parametrize(
    ("lines", "answer", "reason"),
    [
        pytest.param([], Answer.UNKNOWN, "NoSamples", id="the resource is absent"),
        pytest.param([line("up", 0)], Answer.UNKNOWN, "NoSamples", id="all targets are down"),
        pytest.param([line("up", 2)], Answer.UNKNOWN, "NoSamples", id="up, but no rates yet"),
        pytest.param([line("up", 2), line("arrivals", "NaN")], Answer.UNKNOWN, "NoSamples", id="NaN is not known"),
        pytest.param([line("up", 2), line("arrivals", 0)], Answer.YES, "NoTraffic", id="up and idle"),
        pytest.param(
            [line("up", 2), line("arrivals", 0), line("requests", 1)], Answer.YES, "Fresh", id="the last ones finish"
        ),
        pytest.param([line("up", 2), line("arrivals", 3)], Answer.YES, "Fresh", id="traffic"),
    ],
)
def test_metrics_verdict(lines, answer, reason):
    verdict = metrics_verdict(facts(lines))
    assert (verdict.answer, verdict.reason) == (answer, reason)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([{"metric": {}, "values": [[1, "2"]]}], id="a matrix"),
        pytest.param([{"metric": {"a": 1}, "value": [1, "2"]}], id="labels that are no text"),
        pytest.param(["x"], id="text"),
    ],
)
def test_what_is_no_vector_is_refused(answer):
    with pytest.raises(PrometheusError):
        parse(answer)


def test_no_facts_no_model():
    assert model_of(Facts()) is None
    assert model_of(Facts(model={"layers": "x"})) is None


@pytest.mark.parametrize(
    ("counts", "routers", "expected"),
    [
        # A minute in bins of 5 s; expected: the counts' sample variance over their mean.
        pytest.param([5] * 12, 1, 0.0, id="even"),
        pytest.param([0, 10] * 6, 1, 25 * 12 / 11 / 5, id="bunches of ten"),
        pytest.param([3, 7] * 6, 1, 4 * 12 / 11 / 5, id="less than Poisson"),
        pytest.param([3, 7] * 6, 2, 1 + 2 * (4 * 12 / 11 / 5 - 1), id="two routers, each of which saw these"),
        pytest.param([1, 0] * 6, 1, None, id="too few"),
    ],
)
def test_how_unevenly_requests_arrive(counts, routers, expected):
    lines = [
        line("arrivals", routers * sum(counts) / 60),
        line("arrival_squares", routers * sum(n * n for n in counts) / 60),
        line("arrival_bin", 5),
        line("routers", routers),
    ]
    found = window_of(facts(lines), SLO, NOW, 60).arrival_cv2
    assert found == (expected if expected is None else pytest.approx(expected))


def test_bins_too_long_for_the_window_tell_nothing():
    lines = [line("arrivals", 5), line("arrival_squares", 30), line("arrival_bin", 5), line("routers", 1)]
    assert window_of(facts(lines), SLO, NOW, 20).arrival_cv2 is None


TWO_POOLS = [
    line("up", 3),
    line("prefill_busy", 0.5, role="prefill", pool="fast"),
    line("prefill_busy", 0.2, role="prefill", pool="slow"),
    line("prefill_tokens", 900, role="prefill", pool="fast"),
    line("decode_busy", 0.7, role="decode", pool="decode"),
]


def test_pools_of_one_role_are_told_apart_and_added_up():
    window = window_of(facts(TWO_POOLS), SLO, NOW, 20)
    assert window.prefill.busy == pytest.approx(0.7)
    assert {name: use.busy for name, use in window.prefill_of.items()} == {"fast": 0.5, "slow": 0.2}
    assert (window.prefill_of["fast"].tokens_rate, window.prefill_of["slow"].tokens_rate) == (900, None)
    assert window.decode_of == {}, "one pool has the role: the sum says all"


@pytest.mark.parametrize(
    ("prompts", "tokens", "squares", "expected"),
    [
        pytest.param(2, 200, 20_000, 0.0, id="all alike"),
        pytest.param(2, 200, 60_000, 2.0, id="as uneven as can be told"),
        pytest.param(0.5, 50, 5000, None, id="ten prompts in the window are too few"),
        pytest.param(2, 0, 0, None, id="no tokens"),
    ],
)
def test_how_much_prompts_vary(prompts, tokens, squares, expected):
    lines = [line("prompts", prompts), line("prompt_tokens", tokens), line("prompt_squares", squares)]
    assert window_of(facts(lines), SLO, NOW, 20).prompt_cv2 == expected


@pytest.mark.parametrize(("measured", "expected"), [(1.2345e9, 1.2e9), (None, None)])
def test_the_bandwidth_in_two_digits(measured, expected):
    lines = [line("up", 1), *([line("bandwidth", measured)] if measured else [])]
    assert bandwidth_of(facts(lines)) == expected
