"""The commands as a user types them; `status` against a small API server on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from typer.testing import CliRunner

from tandem_operator.cli.main import app

RUNNER = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})

RESOURCE = {
    "apiVersion": "tandem.dev/v1alpha1",
    "kind": "DisaggregatedInference",
    "metadata": {"name": "chat", "namespace": "serving"},
    "spec": {
        "model": {
            "source": "hf://meta-llama/Llama-3.1-70B-Instruct",
            "revision": "1605565",
            "servedName": "llama-70b",
        },
        "engine": {"name": "vllm", "image": "vllm/vllm-openai", "args": ["--max-num-seqs=64"]},
        "transfer": {"backend": "nixl"},
        "pools": [
            {
                "name": name,
                "role": role,
                "hardware": {"accelerator": kind},
                "parallelism": {"tensor": 4},
                "replicas": {"min": 1, "max": 8, "initial": 2},
            }
            for name, role, kind in (("prefill", "Prefill", "h100-sxm"), ("decode", "Decode", "h200-sxm"))
        ],
        "slo": {"ttftMilliseconds": 500, "tpotMilliseconds": 40, "percentile": 95},
    },
    "status": {
        "ratio": "2:1",
        "pools": {"prefill": {"desired": 1, "ready": 1}},
        "observed": {"ttftMilliseconds": 1020, "tpotMilliseconds": 84, "attainmentPercent": "97.3"},
        "decision": {
            "id": "d-7",
            "action": "Flip",
            "reason": "TargetsMissed",
            "message": "prefill 1→2, decode 2→1: TTFT",
            "target": {"pools": {"prefill": 1, "decode": 2}, "roles": {"prefill": 2, "decode": 1}},
            "at": "2026-01-01T12:00:00Z",
            "alternatives": [
                {"target": {"pools": {}, "roles": {"prefill": 1, "decode": 2}}, "gpus": 3, "rejected": "attainment 0 %"}
            ],
        },
        "conditions": [
            {
                "type": "SLOMet",
                "status": "False",
                "observedGeneration": 1,
                "reason": "TTFTAboveTarget",
                "message": "TTFT p95 1,020 ms > 500 ms",
                "lastTransitionTime": "2026-01-01T12:00:00Z",
            }
        ],
    },
}


@pytest.fixture
def resource_file(tmp_path):
    path = tmp_path / "cr.yaml"
    path.write_text(yaml.safe_dump(RESOURCE))
    return path


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A loopback API server that knows one resource; KUBECONFIG points at it."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self):
            one = "/apis/tandem.dev/v1alpha1/namespaces/serving/disaggregatedinferences/chat"
            path = self.path.split("?")[0]
            found = RESOURCE if path == one else {"items": [RESOURCE]} if path == one.removesuffix("/chat") else None
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(found or {"reason": "NotFound"}).encode())

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "users": [{"name": "it", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    yield server
    server.shutdown()
    thread.join(timeout=5)
    server.server_close()


def run(*args):
    return RUNNER.invoke(app, [str(a) for a in args])


@pytest.mark.parametrize("args", [("chat", "-n", "serving"), ("-n", "serving")], ids=["one", "all"])
def test_status_repeats_the_words_of_the_resource(cluster, args):
    result = run("status", *args)
    assert result.exit_code == 0, result.output
    for word in ("chat", "2:1", "1,020 / 500 ms", "84 / 40 ms", "97.3 %", "Flip TargetsMissed"):
        assert word in result.output
    if "chat" in args:
        assert "SLOMet=False TTFTAboveTarget: TTFT p95 1,020 ms > 500 ms" in result.output
        assert "not 1:2 (3 GPUs): attainment 0 %" in result.output


def test_status_of_what_is_not_there_says_so(cluster):
    result = run("status", "nobody", "-n", "serving")
    assert result.exit_code == 2
    assert "nobody in namespace serving" in result.output


def test_plan_names_the_best_split(resource_file):
    result = run("plan", "-f", resource_file, "--workload", "isl=2000 osl=200 rps=10")
    assert result.exit_code == 0, result.output
    assert "meets the SLO" in result.output
    assert "PREFILL:DECODE" in result.output


def test_plan_says_when_nothing_is_enough(resource_file):
    result = run("plan", "-f", resource_file, "--workload", "isl=30000 osl=2000 rps=500")
    assert result.exit_code == 0, result.output
    assert "no allowed plan meets the SLO" in result.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(["--workload", "isl=2000"], "osl= is missing", id="workload"),
        pytest.param(["--workload", "isl=2 osl=2 rps=1", "--model", "gpt-9"], "no known shape", id="model"),
    ],
)
def test_plan_refuses_by_name(resource_file, args, words):
    result = run("plan", "-f", resource_file, *args)
    assert result.exit_code == 2
    assert words in result.output


def test_simulate_records_and_replay_agrees(tmp_path):
    record = tmp_path / "run.jsonl"
    load = ["--workload", "isl=512 osl=8 rps=2.45 for=90", "--truth", "prompt=1 step=30 slope=10"]
    result = run("simulate", *load, "--json", "--record", record)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert [(m["action"], m["prefill"], m["decode"]) for m in found["moves"]] == [("Flip", 2, 1)]
    assert 0 < found["attainment"] <= 1
    assert run("replay", record).exit_code == 0


def test_replay_of_another_policy_fails(tmp_path):
    record = tmp_path / "run.jsonl"
    run("simulate", "--workload", "isl=512 osl=8 rps=1 for=30", "--record", record)
    lines = record.read_text().splitlines()
    bent = json.loads(lines[-1])
    bent["decision"]["reason"] = "Whim"
    record.write_text("\n".join([*lines[:-1], json.dumps(bent)]))
    result = run("replay", record)
    assert result.exit_code == 1
    assert "Whim" in result.output


def test_simulate_prints_for_people_and_reads_a_trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:17:{n:02d}.0000000,200,10" for n in range(40)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    result = run("simulate", "--trace", path, "--seconds", 60)
    assert result.exit_code == 0, result.output
    assert "attainment" in result.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param([], "either --workload or --trace", id="no load"),
        pytest.param(["--workload", "isl=1 osl=1 rps=1", "--truth", "prompt=1"], "slope=", id="half a truth"),
        pytest.param(["--workload", "isl=1 osl=1 rps=1", "--workers", "three"], "invalid literal", id="workers"),
    ],
)
def test_simulate_refuses_by_name(args, words):
    result = run("simulate", *args)
    assert result.exit_code == 2
    assert words in result.output
