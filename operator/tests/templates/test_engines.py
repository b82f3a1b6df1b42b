"""What each engine's workers run: the whole command line, the environment, the ports and the probes."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import read
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.templates import children
from tests.templates.test_children import BODY, IMAGES, OWNER, container

VLLM = "vllm serve /models/m --served-model-name m --dtype bfloat16 --max-model-len 2048 --host $(POD_IP) --port 8000"
SGLANG = (
    "python3 -m sglang.launch_server --model-path /models/m --served-model-name m --dtype bfloat16 "
    "--context-length 2048 --host $(POD_IP) --port 8000 --enable-metrics"
)
KV = '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":"fail"}'
SPREAD = {"tensor": 2, "pipeline": 2, "data": 2, "expert": 4}


def worker(engine, *, pool=0, backend="nixl", parallelism=None, mode="Disaggregated", args=(), devices=(), efa=False):
    """The container of a pool's worker under an engine."""
    spec = copy.deepcopy(BODY["spec"])
    rdma = {"mode": "SharedDevice", "resource": "rdma/ib", "devices": list(devices)} if devices else {}
    rdma = {"mode": "EFA", "count": 4} if efa else rdma
    spec |= {"mode": mode, "transfer": {"backend": backend, "rdma": rdma}}
    spec["engine"] = {"name": engine, "image": "engine:1", "args": list(args)}
    spec["pools"][pool]["parallelism"] = parallelism or {}
    if mode == "Colocated":
        spec["pools"] = [{**spec["pools"][0], "role": "Both"}]
    found = read({**BODY, "spec": spec}).spec
    pools = children.pools_of(OWNER, found, accelerators_of(found, CATALOGUE), IMAGES, {p.name: 1 for p in found.pools})
    return container(pools[pool])


@pytest.mark.parametrize(
    ("made", "words"),
    [
        pytest.param(worker("vllm"), f"{VLLM} --max-num-seqs 256 {KV}", id="vllm prefill"),
        pytest.param(worker("vllm", pool=1), f"{VLLM} --max-num-seqs 256 {KV}", id="vllm decode: alike, it flips"),
        pytest.param(
            worker("tandem", parallelism={"tensor": 4}, backend="tcp"),
            "tandem-worker --model file:///models/m --served-name m --dtype bfloat16 --max-context 2048 --host "
            "$(POD_IP) --port 8000 --kv-port 8001 --transfer-backend tcp --tensor-parallel 4",
            id="tandem's ranks",
        ),
        pytest.param(
            worker("vllm", parallelism=SPREAD),
            f"{VLLM} --tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2 "
            f"--enable-expert-parallel --max-num-seqs 256 {KV}",
            id="vllm spread",
        ),
        pytest.param(
            worker("vllm", mode="Colocated", args=["--max-num-seqs=32"]),
            f"{VLLM} --max-num-seqs=32",
            id="vllm colocated, its own batch",
        ),
        pytest.param(
            worker("sglang", devices=["mlx5_0:1", "mlx5_1:1"]),
            f"{SGLANG} --max-running-requests 256 --disaggregation-mode prefill --disaggregation-transfer-backend nixl "
            "--disaggregation-bootstrap-port 8998 --disaggregation-ib-device mlx5_0,mlx5_1",
            id="sglang prefill",
        ),
        pytest.param(
            worker("sglang", pool=1, backend="mooncake", parallelism=SPREAD),
            f"{SGLANG} --tp-size 4 --pp-size 2 --dp-size 2 --enable-dp-attention --ep-size 4 "
            "--max-running-requests 256 --disaggregation-mode decode --disaggregation-transfer-backend mooncake "
            "--disaggregation-bootstrap-port 8998",
            id="sglang decode, spread",
        ),
        pytest.param(worker("sglang", mode="Colocated"), f"{SGLANG} --max-running-requests 256", id="sglang colocated"),
    ],
)
def test_the_command_line(made, words):
    assert " ".join([*made["command"], *made["args"]]) == words


@pytest.mark.parametrize(
    ("made", "port", "ready", "env"),
    [
        pytest.param(worker("tandem", backend="tcp"), 8001, "/ready", {"HOME": "/tmp"}, id="tandem"),
        pytest.param(
            worker("vllm"),
            5600,
            "/health",
            {"VLLM_NIXL_SIDE_CHANNEL_HOST": "$(POD_IP)", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600", "USER": "tandem"},
            id="vllm",
        ),
        pytest.param(worker("sglang"), 8998, "/health", {"USER": "tandem"}, id="sglang"),
    ],
)
def test_ports_probes_and_environment(made, port, ready, env):
    assert {p["name"]: p["containerPort"] for p in made["ports"]} == {"http": 8000, "kv": port}
    assert made["startupProbe"]["httpGet"]["path"] == made["readinessProbe"]["httpGet"]["path"] == ready
    found = [variable["name"] for variable in made["env"]]
    assert {e["name"]: e.get("value") for e in made["env"]}.items() >= env.items()
    assert found.index("POD_IP") < found.index("HOME"), "a variable may refer to an earlier one alone"


def test_the_transfer_key_is_a_file_of_a_tandem_workers_alone():
    made = worker("tandem", backend="tcp")
    names = [variable["name"] for variable in made["env"]]
    assert "TANDEM_TRANSFER_KEY_FILE" in names
    assert "TANDEM_TRANSFER_KEY" not in names
    assert {"name": "transfer-key", "mountPath": "/etc/tandem/transfer", "readOnly": True} in made["volumeMounts"]
    assert "transfer-key" not in str(worker("vllm"))


def test_a_workers_gpus_are_the_product_of_its_ranks():
    assert worker("vllm", parallelism=SPREAD)["resources"]["limits"] == {"nvidia.com/gpu": "8"}


@pytest.mark.parametrize(
    ("efa", "extra"),
    [
        pytest.param(False, None, id="NIXL's own choice"),
        pytest.param(True, {"backends": ["LIBFABRIC"]}, id="UCX cannot speak EFA"),
    ],
)
def test_the_connector_is_json(efa, extra):
    words = worker("vllm", efa=efa)["args"]
    found = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert found["kv_connector"] == "NixlConnector"
    assert found.get("kv_connector_extra_config") == extra


def preflight_of(engine, require="RDMA", mode="SharedDevice"):
    """The init containers of a worker under an engine."""
    spec = copy.deepcopy(BODY["spec"])
    rdma = {"mode": mode, **({"resource": "rdma/ib"} if mode == "SharedDevice" else {})}
    spec |= {"engine": {"name": engine, "image": "engine:1"}}
    spec["transfer"] = {"backend": "nixl", "rdma": rdma, "require": require}
    found = read({**BODY, "spec": spec}).spec
    pools = children.pools_of(OWNER, found, accelerators_of(found, CATALOGUE), IMAGES, {p.name: 1 for p in found.pools})
    return pools[0]["spec"]["template"]["spec"].get("initContainers", [])


@pytest.mark.parametrize(
    ("engine", "mode", "there"),
    [
        ("vllm", "SharedDevice", True),
        ("sglang", "SharedDevice", True),
        ("tandem", "SharedDevice", False),
        ("vllm", "None", False),
    ],
)
def test_engines_that_do_not_look_at_their_limit_are_looked_after(engine, mode, there):
    found = preflight_of(engine, "RDMA" if mode != "None" else "Any", mode)
    assert [one["name"] for one in found] == (["memlock"] if there else [])
    for one in found:
        assert one["image"] == "engine:1", "nothing more to pull"
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        assert one["resources"]["limits"] == one["resources"]["requests"], "the pod may be Guaranteed"


@pytest.mark.parametrize(
    ("require", "kib", "ends", "words"),
    [
        pytest.param("RDMA", 64, 1, "may lock 64 KiB", id="too little, and RDMA must be"),
        pytest.param("Any", 64, 0, "may lock 64 KiB", id="too little is said"),
        pytest.param("RDMA", None, 0, "", id="no limit"),
    ],
)
def test_the_preflight_itself(require, kib, ends, words):
    _, flag, script = preflight_of("vllm", require)[0]["command"]
    bound = f"ulimit -l {kib or 'unlimited'}; " + (
        "exec setpriv --bounding-set -all --inh-caps -all " if kib else "exec "
    )
    command = ["sh", "-c", f'{bound}{sys.executable} {flag} "$0"', script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, words in done.stdout) == (ends, True), done.stderr
