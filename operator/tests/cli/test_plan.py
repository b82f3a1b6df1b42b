"""`tandem plan` and `tandem simulate` as a user types them: traces, JSON, a resource that the API takes, a report."""

import json

import pytest
import yaml

from tandem_operator.api.v1alpha1 import read
from tandem_operator.plan.engine_args import chunk_of, with_chunk
from tests.cli.test_commands import RESOURCE, run

SMALL = ["--workload", "isl=200 osl=100 rps=0.5"]
LARGE = ["--workload", "isl=8000 osl=300 rps=20", "--gpus", "400"]


@pytest.fixture
def resource_file(tmp_path):
    path = tmp_path / "cr.yaml"
    path.write_text(yaml.safe_dump(resource()))
    return path


def resource(**spec):
    body = {key: RESOURCE[key] for key in ("apiVersion", "kind", "metadata")}
    slo = {"ttftMilliseconds": 2000, "tpotMilliseconds": 20, "percentile": 95}
    return {**body, "spec": {**RESOURCE["spec"], "slo": slo, **spec}}


def mooncake(path, count=60, shared=True):
    rows = [
        {"timestamp": 500 * n, "input_length": 1536, "output_length": 20, "hash_ids": [0, 1, 10 + n] if shared else []}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("load", "mode", "roles"),
    [
        pytest.param(SMALL, "Colocated", ["Both"], id="small"),
        pytest.param(LARGE, "Disaggregated", ["Prefill", "Decode"], id="large"),
    ],
)
def test_the_advice_is_a_resource_that_the_api_takes(resource_file, load, mode, roles):
    result = run("plan", "-f", resource_file, *load, "--output", "yaml")
    assert result.exit_code == 0, result.output
    made = read(yaml.safe_load(result.stdout))
    assert (made.spec.mode, [pool.role for pool in made.spec.pools]) == (mode, roles)
    assert made.to_wire() == read(made.to_wire()).to_wire()
    assert made.spec.model.served_name == "llama-70b"
    # The new resource asks for what the answer says, and its own advice is the same.
    answer = json.loads(run("plan", "-f", resource_file, *load, "-o", "json").stdout)
    assert [p.replicas.start for p in made.spec.pools] == [w["replicas"] for w in answer["best"]["workers"].values()]
    assert [p.parallelism.tensor for p in made.spec.pools] == [w["tensor"] for w in answer["best"]["workers"].values()]


def test_a_colocated_resource_is_judged_as_written(tmp_path, resource_file):
    path = tmp_path / "colocated.yaml"
    path.write_text(run("plan", "-f", resource_file, *SMALL, "-o", "yaml").stdout)
    answer = json.loads(run("plan", "-f", path, *SMALL, "-o", "json").stdout)
    assert answer["mode"] == "Colocated"
    assert answer["as_written"] == answer["best"]


@pytest.mark.parametrize(
    ("engine", "args", "chunk", "after"),
    [
        pytest.param("tandem", [], 256, ["--chunk-tokens=512"], id="default"),
        pytest.param("tandem", ["--chunk-tokens", "64", "--x"], 64, ["--x", "--chunk-tokens=512"], id="two words"),
        pytest.param("vllm", ["--x=1"], None, ["--x=1", "--max-num-batched-tokens=512"], id="not told"),
        pytest.param("sglang", ["--chunked-prefill-size=-1"], None, ["--chunked-prefill-size=512"], id="no chunks"),
    ],
)
def test_the_chunk_size_is_an_argument_of_the_engine(engine, args, chunk, after):
    assert chunk_of(engine, args) == chunk
    assert with_chunk(engine, args, 512) == after
    assert chunk_of(engine, after) == 512


def test_json_has_the_whole_answer(resource_file):
    answer = json.loads(run("plan", "-f", resource_file, *LARGE, "-o", "json").stdout)
    best = answer["best"]
    assert answer["feasible"]
    assert best["expected"]["ttft_ms"] <= 2000
    assert best["faster"]["ttft_ms"] < best["expected"]["ttft_ms"] < best["slower"]["ttft_ms"]
    assert 0 < best["transfer"]["share_of_ttft"] < 0.1
    assert best["usd_per_million_tokens"] == pytest.approx(best["usd_per_hour"] * 1e6 / 3600 / 20 / 8300)
    assert {"traffic", "lengths", "prefix reuse", "consistency"} == set(answer["signals"])


def test_a_trace_tells_rate_lengths_and_reuse(resource_file, tmp_path):
    path = mooncake(tmp_path / "trace.jsonl")
    traffic = json.loads(run("plan", "-f", resource_file, "--workload", path, "-o", "json").stdout)["traffic"]
    assert traffic["mean_rate"] == pytest.approx(60 / 29.5)
    assert traffic["reuse"]["unbounded"] == pytest.approx(59 * 1024 / 60 / 1536)
    assert traffic["hits"] == traffic["reuse"]["cached"] > 0
    result = run("plan", "-f", resource_file, "--workload", path, "--prefix-hits", 0.1)
    assert "sized with 10 %" in result.output


def test_all_accelerators_of_the_catalogue_can_be_asked_for(resource_file):
    result = run("plan", "-f", resource_file, *SMALL, "--accelerators", "l40s,h200-sxm", "--objective", "power")
    assert result.exit_code == 0, result.output
    assert "meets the SLO" in result.output


@pytest.mark.parametrize(
    ("args", "objective"), [((), None), (("--objective", "price"), None), (("--objective", "power"), "Power")], ids=str
)
def test_what_is_saved_is_in_the_resource_that_is_written(resource_file, args, objective):
    result = run("plan", "-f", resource_file, *SMALL, "-o", "yaml", *args)
    spec = yaml.safe_load(result.stdout)["spec"]
    assert spec.get("rebalance", {}).get("objective") == objective


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(["--workload", "nowhere.csv"], "nowhere.csv: no such file", id="no file"),
        pytest.param(["--workload", "isl=1 osl=1 rps=0"], "rps is 0", id="no traffic"),
        pytest.param([*SMALL, "--accelerators", "h9000"], "unknown accelerator 'h9000'", id="accelerator"),
        pytest.param(
            [*SMALL, "--accelerators", "l4", "--model", "llama-3.1-405b"],
            "do not fit on 8 × l4 (192 GB)",
            id="does not fit",
        ),
        pytest.param([*SMALL, "--gpus", "1"], "allows no worker", id="no GPUs"),
        pytest.param(
            ["--workload", "isl=90000 osl=20 rps=0.1", "-o", "yaml"],
            "closest feasible SLO",
            id="no resource for no plan",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(resource_file, args, words):
    result = run("plan", "-f", resource_file, *args)
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_broken_trace_is_one_sentence(resource_file, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n-5,10,10\n")
    for args in (("plan", "-f", resource_file, "--workload", path), ("simulate", "--trace", path)):
        result = run(*args)
        assert result.exit_code == 2
        assert "trace.csv, row 3, field arrival_s: '-5' is a negative time" in result.output


def test_simulate_plays_any_form_and_writes_a_report(tmp_path):
    report = tmp_path / "report.html"
    result = run("simulate", "--trace", mooncake(tmp_path / "t.jsonl", shared=False), "--html", report, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["requests_arrived"] == 60
    assert "trace" not in result.stderr
    assert report.read_text().startswith("<!doctype html>")
