"""The main path on the real control plane: apply, Ready, chat, and what bad requests get."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from e2e.demo.chat import ask
from e2e.harness.kube import Kube
from e2e.harness.world import NAMESPACE, SYSTEM, roles

LONG = "word " * 4000


def post(url: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(url + path, data=body, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_ready_with_one_prefill_and_two_decode_workers(kube: Kube, smollm2: dict) -> None:
    assert roles(kube, "smollm2") == (1, 2)
    status = smollm2["status"]
    assert status["ratio"] == "1:2"
    assert status["decision"]["target"]["roles"] == {"prefill": 1, "decode": 2}


def test_get_shows_the_columns(kube: Kube, smollm2: dict) -> None:
    head, line = kube.run("get", "di", "smollm2", "-n", NAMESPACE).splitlines()
    assert head.split() == ["NAME", "READY", "PREFILL", "DECODE", "RATIO", "TTFT", "TPOT", "AGE"]
    assert line.split()[:5] == ["smollm2", "True", "1", "2", "1:2"]


def test_workers_sit_on_the_right_nodes_with_gpu_and_rdma(kube: Kube, smollm2: dict) -> None:
    nodes = {n["metadata"]["name"]: n["metadata"]["labels"] for n in kube.json("get", "nodes")["items"]}
    products = {"prefill": "NVIDIA-H100-80GB-HBM3", "decode": "NVIDIA-H200"}
    pods = kube.items("pods", NAMESPACE, "tandem.dev/resource=smollm2,tandem.dev/component=worker")
    for pod in pods:
        product = nodes[pod["spec"]["nodeName"]]["nvidia.com/gpu.product"]
        assert product == products[pod["metadata"]["labels"]["tandem.dev/pool"]]
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["rdma/hca_shared_devices_a"]) == ("1", "1")
    assert len(pods) == 3


def test_a_chat_goes_through_both_workers(router_url: str) -> None:
    answer = ask(router_url, "smollm2", "What is the capital of France?", tokens=24)
    assert answer.text
    assert "-prefill-" in answer.prefill_worker
    assert "-decode-" in answer.decode_worker
    assert answer.kv_bytes > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        pytest.param("/v1/chat/completions", b"{not json", 400, "JSON", id="malformed JSON"),
        pytest.param(
            "/v1/completions",
            {"model": "smollm2", "prompt": LONG, "max_tokens": 4},
            400,
            "context",
            id="prompt over the context",
        ),
        pytest.param("/v1/completions", {"model": "gpt-9", "prompt": "x"}, 404, "gpt-9", id="unknown model"),
        pytest.param(
            "/v1/completions", {"model": "smollm2", "prompt": "x", "max_tokens": 0}, 400, "max_tokens", id="no tokens"
        ),
        pytest.param(
            "/v1/completions",
            {"model": "smollm2", "prompt": "x", "max_tokens": -3},
            400,
            "max_tokens",
            id="minus tokens",
        ),
        pytest.param("/v1/nothing", {}, 404, "", id="unknown path"),
    ],
)
def test_bad_requests_get_an_openai_error(router_url: str, path: str, body: Any, status: int, words: str) -> None:
    got, answer = post(router_url, path, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert got == status
    assert set(answer["error"]) >= {"message", "type", "param", "code"}
    assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    ("verb", "what", "allowed"),
    [
        ("get", "secrets", "no"),
        ("list", "secrets", "no"),
        ("create", "secrets", "yes"),
        ("create", "pods/exec", "no"),
        ("delete", "nodes", "no"),
        ("patch", "deployments.apps", "yes"),
        ("update", "disaggregatedinferences.tandem.dev", "no"),
        ("update", "clusterroles.rbac.authorization.k8s.io", "no"),
    ],
)
def test_the_operator_may_do_little(kube: Kube, verb: str, what: str, allowed: str) -> None:
    account = f"--as=system:serviceaccount:{SYSTEM}:tandem-operator"
    try:
        said = kube.run("auth", "can-i", verb, what, "-n", NAMESPACE, account)
    except RuntimeError:
        said = "no"  # kubectl says no with an exit code
    assert said.strip() == allowed


def test_every_service_selects_ready_pods_on_its_port(kube: Kube, smollm2: dict) -> None:
    for service in kube.items("services", NAMESPACE, "tandem.dev/resource=smollm2"):
        name = service["metadata"]["name"]
        slices = kube.items("endpointslices", NAMESPACE, f"kubernetes.io/service-name={name}")
        addresses = [
            a for s in slices for e in s.get("endpoints") or [] if e["conditions"]["ready"] for a in e["addresses"]
        ]
        selector = ",".join(f"{k}={v}" for k, v in service["spec"]["selector"].items())
        pods = kube.items("pods", NAMESPACE, selector)
        assert sorted(addresses) == sorted(p["status"]["podIP"] for p in pods), name
        assert addresses, name
