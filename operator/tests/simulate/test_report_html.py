"""The report is one file that needs nothing else, and the same run gives the same bytes."""

import re

import pytest

from tandem_operator.simulate.report_html import html, shown
from tandem_operator.simulate.run import Run
from tests.plan.examples import SLO
from tests.simulate.test_key_scenario import OUTPUTS, PROMPTS, play


@pytest.fixture(scope="module")
def run():
    return play([PROMPTS, OUTPUTS])


def test_the_report_stands_alone_and_numbers_every_move(run):
    page = html(run, SLO, {"attainment": 0.973, "ttft_ms": 1020, "goodput_per_gpu": None}, "a <load> & more")
    assert page == html(run, SLO, {"attainment": 0.973, "ttft_ms": 1020, "goodput_per_gpu": None}, "a <load> & more")
    assert not re.search(r"<script|<link|@import|\bsrc=|href=\"(?!#)", page)
    assert "a &lt;load&gt; &amp; more" in page
    for words in ("97.3 %", "TTFT p90, ms", "1,020", "unknown", "Moves (2)", "TargetsMissed", "utilisation by role"):
        assert words in page
    for tick in run.moves:
        assert f"{tick.decision.target.prefill}:{tick.decision.target.decode}" in page


def test_a_run_without_ticks_has_a_report():
    assert "changed nothing" in html(Run(), SLO, {}, "nothing")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        pytest.param("attainment", 1.0, "100.0 %", id="share"),
        pytest.param("mean_gpus", 3.031, "3.03", id="small"),
        pytest.param("requests_finished", 19366, "19,366", id="count"),
        pytest.param("ttft_ms", None, "unknown", id="unknown"),
    ],
)
def test_figures(name, value, words):
    assert shown(name, value) == words
