"""What each engine's workers run: the whole command line, the environment, the ports and the probes."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import InvalidResourceError, read
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.templates import children
from tandem_operator.templates.engines.versions import check_version
from tandem_operator.templates.groups import nodes_of
from tests.templates.test_children import BODY, IMAGES, OWNER, container

VLLM = "vllm serve /models/m --served-model-name m --dtype bfloat16 --max-model-len 2048 --host $(POD_IP) --port 8000"
SGLANG = (
    "python3 -m sglang.launch_server --model-path /models/m --served-model-name m --dtype bfloat16 "
    "--context-length 2048 --host $(POD_IP) --port 8000 --enable-metrics"
)
KV = '--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":"fail"}'
SPREAD = {"tensor": 2, "pipeline": 2, "data": 2, "expert": 4}


def spec_of(
    engine, *, pool=0, backend="nixl", parallelism=None, mode="Disaggregated", args=(), devices=(), efa=False,
    image="engine:1", version="",
):  # fmt: skip
    """A resource's spec under an engine."""
    spec = copy.deepcopy(BODY["spec"])
    rdma = {"mode": "SharedDevice", "resource": "rdma/ib", "devices": list(devices)} if devices else {}
    rdma = {"mode": "EFA", "count": 4} if efa else rdma
    spec |= {"mode": mode, "transfer": {"backend": backend, "rdma": rdma}}
    spec["engine"] = {"name": engine, "image": image, "version": version, "args": list(args)}
    spec["pools"][pool]["parallelism"] = parallelism or {}
    if mode == "Colocated":
        spec["pools"] = [{**spec["pools"][0], "role": "Both"}]
    return read({**BODY, "spec": spec}).spec


def worker(engine, *, pool=0, **said):
    """The container of a pool's worker under an engine."""
    found = spec_of(engine, pool=pool, **said)
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


@pytest.mark.parametrize(
    ("image", "version", "knows"),
    [
        pytest.param("engine:1", "", True, id="nobody tells"),
        pytest.param("vllm/vllm-openai:v0.12.0", "", False, id="an older tag"),
        pytest.param("vllm/vllm-openai:v0.13.0", "", True, id="the first that knows"),
        pytest.param("mirror.example.com:5000/ai/vllm-openai-rocm:v0.12.0-rc1", "", False, id="a mirror's"),
        pytest.param("vllm/vllm-openai:latest", "", True, id="no version"),
        pytest.param("vllm/vllm-openai:v0.12.0", "0.20.1", True, id="the resource knows better"),
        pytest.param("example.com/serving:0.3.1", "", True, id="another's tag is its own"),
        pytest.param("example.com/serving:0.3.1", "0.12", False, id="the resource tells"),
        pytest.param("example.com/serving:0.3.1", "0.13", True, id="the first that knows, in two numbers"),
    ],
)
def test_an_older_vllm_is_not_told_what_it_does_not_know(image, version, knows):
    line = " ".join(worker("vllm", image=image, version=version)["args"])
    assert ("kv_load_failure_policy" in line) is knows
    assert "NixlConnector" in line


@pytest.mark.parametrize(
    ("engine", "said", "words"),
    [
        pytest.param("vllm", {"version": "0.8.5"}, "0.9.0 is the first that can", id="no connector"),
        pytest.param("vllm", {"version": "0.8.5", "mode": "Colocated"}, "", id="which colocated workers do not need"),
        pytest.param("vllm", {"version": "0.10.2", "efa": True}, "0.11.0 is the first", id="no choice of backend"),
        pytest.param("vllm", {"version": "0.10.2"}, "", id="which only EFA needs"),
        pytest.param("sglang", {"image": "lmsysorg/sglang:v0.4.5-cu124"}, "0.4.6 is the first", id="sglang"),
        pytest.param("sglang", {"image": "lmsysorg/sglang:v0.5.6-cu126"}, "", id="a newer sglang"),
        pytest.param("tandem", {"backend": "tcp"}, "", id="tandem has the operator's version"),
    ],
)
def test_a_version_that_cannot_is_refused_with_one_that_can(engine, said, words):
    spec = spec_of(engine, **said)
    if not words:
        check_version(spec)
        return
    with pytest.raises(InvalidResourceError, match=words):
        check_version(spec)


@pytest.mark.parametrize(("version", "words"), [("0.11.0", "0.11.1 is the first that can"), ("0.11.1", "")])
def test_a_replica_over_nodes_needs_a_vllm_that_can(version, words):
    spec = spec_of("vllm", version=version, parallelism={"tensor": 16})
    if words:
        with pytest.raises(InvalidResourceError, match=words):
            nodes_of(spec, spec.pools[0], CATALOGUE["h100-sxm"])
    else:
        assert nodes_of(spec, spec.pools[0], CATALOGUE["h100-sxm"]) == 2
