"""The simulator bench's inputs, and one small run of its child."""

import json

import pytest

from e2e.bench import simulator_inputs as inputs
from e2e.bench.simulator_child import Cell, digest, play
from tandem_operator.simulate.worker import Request

ROWS = "".join(f"2023-11-16 18:15:{46 + n:02d}.6805900,{100 + n},{n}\n" for n in range(5))
TRUTH = {"prompt_token_s": 1e-4, "step_base_s": 0.01, "step_slope_s": 1e-3}


@pytest.fixture
def data(tmp_path):
    (tmp_path / inputs.TRACE).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + ROWS)
    return tmp_path


def test_replay_is_the_trace_as_recorded(data):
    assert inputs.replay(data) == [(pytest.approx(0.001 + n), 100 + n, max(n, 1)) for n in range(5)]


def test_poisson_draws_lengths_apart_and_keeps_its_seed(data):
    load = inputs.poisson(data, 50, 20)
    assert len(load) == pytest.approx(1000, rel=0.15)
    assert {prompt for _, prompt, _ in load} == {100, 101, 102, 103, 104}
    assert len({(prompt, output) for _, prompt, output in load}) > 10
    assert inputs.poisson(data, 50, 20) == load != inputs.poisson(data, 50, 20, seed=1)


def test_formats(data, tmp_path):
    load = [(0.5, 1000, 3), (1.0, 10, 4)]
    inputs.write_ours(load, tmp_path / "a")
    inputs.write_splitwise(load, tmp_path / "b")
    inputs.write_mooncake(load, tmp_path / "c")
    assert (tmp_path / "a").read_text().splitlines() == ["0.5,1000,3", "1.0,10,4"]
    assert (tmp_path / "b").read_text().splitlines()[1:] == ["0,2,0,0.5,1,1000,3", "1,2,0,1.0,1,10,4"]
    lines = [json.loads(line) for line in (tmp_path / "c").read_text().splitlines()]
    assert [(one["timestamp"], one["hash_ids"]) for one in lines] == [(500, [0, 1]), (1000, [2])]


def test_a_cell_ends_every_request_and_repeats_itself(data):
    load = inputs.poisson(data, 20, 10)
    runs = [play(Cell(2, 1, 60.0, TRUTH), (Request(*one) for one in load)) for _ in range(2)]
    assert [len(run.ledger) for run in runs] == [len(load)] * 2
    assert digest(runs[0]) == digest(runs[1])
