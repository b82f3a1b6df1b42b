"""Where a worker finds its model, and the Job that fills a shared cache."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import read
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.templates import children
from tandem_operator.templates.model import pull_job
from tandem_operator.templates.overlay import TemplateRefusedError
from tests.templates.test_children import BODY, OWNER, container

HUB = {"source": "hf://owner/name", "revision": "1605565"}
DIGEST = f"sha256:{'0a' * 32}"
IMAGE = {"source": f"oci://images.example:5000/models/llama@{DIGEST}"}
CLAIM = {"cache": {"persistentVolumeClaim": "models"}}
TOKEN = {"authSecretRef": {"name": "hub-token"}}
QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1"}


def spec(engine="tandem", **model):
    body = copy.deepcopy(BODY)
    body["spec"]["model"] |= model
    if engine != "tandem":
        body["spec"] |= {"engine": {"name": engine, "image": "engine:1"}, "transfer": {"backend": "nixl"}}
    return read(body).spec


def pod(found, *allowed):
    images = children.Images("worker:1", "router:1", template_allow=frozenset(allowed))
    made = children.pools_of(OWNER, found, accelerators_of(found, CATALOGUE), images, {p.name: 1 for p in found.pools})[
        0
    ]
    return made["spec"]["template"]


def environment(made):
    return {v["name"]: v.get("value") for v in made["env"] if v["name"].startswith("HF_")}


@pytest.mark.parametrize(
    ("model", "told", "env", "mounts"),
    [
        pytest.param({"source": "file:///models/m"}, "file:///models/m", {}, {}, id="in the image"),
        pytest.param(
            {"source": "pvc://weights/llama/8b"},
            "file:///model/llama/8b",
            {},
            {"model": ("/model", True)},
            id="a claim",
        ),
        pytest.param({"source": "pvc://weights"}, "file:///model", {}, {"model": ("/model", True)}, id="a whole claim"),
        pytest.param(IMAGE, "file:///model", {}, {"model": ("/model", True)}, id="an image"),
        pytest.param(
            {"source": f"{IMAGE['source']}/weights/8b"},
            "file:///model/weights/8b",
            {},
            {"model": ("/model", True)},
            id="a folder in an image",
        ),
        pytest.param(HUB, "hf://owner/name", QUIET, {}, id="a hub's, no cache"),
        pytest.param(
            HUB | CLAIM,
            "hf://owner/name",
            QUIET | {"HF_HOME": "/cache", "HF_HUB_OFFLINE": "1"},
            {"cache": ("/cache", True)},
            id="a hub's, pulled before: the worker asks no hub and writes nothing",
        ),
        pytest.param(
            HUB | {"cache": {"hostPath": "/var/models"}},
            "hf://owner/name",
            QUIET | {"HF_HOME": "/cache"},
            {"cache": ("/cache", False)},
            id="a hub's, on the node",
        ),
        pytest.param(HUB | TOKEN, "hf://owner/name", QUIET | {"HF_TOKEN": None}, {}, id="a gated one"),
    ],
)
def test_what_a_worker_is_told_and_mounts(model, told, env, mounts):
    made = pod(spec(**model), "HostPath")["spec"]
    worker = made["containers"][0]
    assert worker["args"][1] == told
    assert environment(worker) == env
    found = {m["name"]: (m["mountPath"], m.get("readOnly", False)) for m in worker["volumeMounts"]}
    assert {name: at for name, at in found.items() if name not in {"tmp", "shm", "transfer-key"}} == mounts
    assert {volume["name"] for volume in made["volumes"]} == set(found), "every mount has its volume"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("tandem", ["--model", "hf://owner/name", "--revision", "1605565"]),
        ("vllm", ["--revision", "1605565", "--served-model-name"]),
        ("sglang", ["--model-path", "owner/name", "--revision", "1605565"]),
    ],
)
def test_every_engine_serves_the_pinned_revision(engine, words):
    made = pod(spec(engine, **HUB))
    assert made["metadata"]["annotations"]["tandem.dev/model-revision"] == "1605565"
    assert made["spec"]["containers"][0]["args"][: len(words)] == words
    assert engine != "vllm" or made["spec"]["containers"][0]["command"][-1] == "owner/name"


@pytest.mark.parametrize("path", ["", "/weights/8b"])
def test_an_image_of_weights_is_a_volume_by_its_digest(path):
    made = pod(spec(source=IMAGE["source"] + path))["spec"]
    (volume,) = [v for v in made["volumes"] if v["name"] == "model"]
    reference = f"images.example:5000/models/llama@{DIGEST}"
    assert volume["image"] == {"reference": reference, "pullPolicy": "IfNotPresent"}


def test_the_token_is_a_reference():
    env = {v["name"]: v for v in container({"spec": {"template": pod(spec(**HUB, **TOKEN))}})["env"]}
    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hub-token", "key": "token"}}


def test_a_nodes_folder_needs_the_operators_word():
    with pytest.raises(TemplateRefusedError, match=r"spec\.model\.cache\.hostPath needs HostPath"):
        pod(spec(**HUB, cache={"hostPath": "/var/models"}))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({"source": "file:///m"}, id="in the image"),
        pytest.param(HUB, id="no cache"),
        pytest.param(HUB | {"cache": {"hostPath": "/x"}}, id="each node for itself"),
    ],
)
def test_no_job_where_no_cache_is_shared(model):
    assert pull_job(OWNER, spec(**model).model, "worker:1") is None


def test_the_job_writes_the_cache_and_its_name_tells_what_it_does():
    job = pull_job(OWNER, spec(**HUB, **CLAIM, **TOKEN).model, "worker:1")
    inner = job["spec"]["template"]["spec"]
    (found,) = inner["containers"]
    assert found["command"] == ["python", "-m", "tandem_worker.hub"]
    assert found["args"] == ["hf://owner/name", "--revision", "1605565"]
    assert environment(found) == QUIET | {"HF_TOKEN": None, "HF_HOME": "/cache"}
    assert {"name": "cache", "mountPath": "/cache"} in found["volumeMounts"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}} in inner["volumes"]
    assert inner["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["readOnlyRootFilesystem"] is True
    assert "tandem.dev/component" not in job["spec"]["template"]["metadata"]["labels"], "it is no worker"
    names = {
        pull_job(OWNER, spec(**(HUB | CLAIM | change)).model, image)["metadata"]["name"]
        for change, image in (({}, "worker:1"), ({"revision": "2"}, "worker:1"), ({}, "worker:2"), ({}, "worker:1"))
    }
    assert len(names) == 3, "a Job cannot change, so another one has another name"
    assert all(name.startswith("chat-model-") and len(name) == len("chat-model-") + 8 for name in names)
