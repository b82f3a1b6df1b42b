"""A hub's model on a real cluster: a Job pulls it into a claim, then workers start from there without the hub.

The hub is a stand-in in a pod (e2e/harness/hub.py), the model some random kilobytes; claim, Job and workers are real.
"""

from __future__ import annotations

import copy
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from e2e.harness.cluster import Cluster
from e2e.harness.hub import COMMIT, PORT
from e2e.harness.kube import REPO, Kube
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, forwarded, sample, wait_settled
from workers.tests.tiny import write_tiny

NAME = "hubbed"
FOLDER = REPO / "build/e2e-hub"


def write_model(folder: Path) -> None:
    """Random weights, and a tokenizer of bytes."""
    write_tiny(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def around() -> list[dict[str, Any]]:
    """The hub's pod and Service, and a claim on a folder of this machine."""
    about = {"name": "hub", "namespace": NAMESPACE}
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
    command = ["python", "-m", "e2e.harness.hub", str(FOLDER / "model")]
    container = {"name": "hub", "image": "tandem-worker:local", "command": command, "workingDir": str(REPO)}
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "weights"}
    asked = {"resources": {"requests": {"storage": "1Gi"}}}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**about, "labels": {"app": "hub"}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": about,
            "spec": {"selector": {"app": "hub"}, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "weights"},
            "spec": {**volume, "hostPath": {"path": str(FOLDER / "cache")}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "weights", "namespace": NAMESPACE},
            "spec": claim | asked,
        },
    ]


@pytest.fixture
def hub(kube: Kube) -> Iterator[None]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    write_model(FOLDER / "model")
    (FOLDER / "cache").mkdir()
    (FOLDER / "cache").chmod(0o777)  # a folder of the node: no fsGroup is applied to it
    text = yaml.safe_dump_all(around())
    kube.apply(text)
    yield
    gone = ("--ignore-not-found", "--wait=false")
    kube.run("delete", "pod/hub", "service/hub", "pvc/weights", "-n", NAMESPACE, *gone)
    kube.run("delete", "pv/weights", *gone)


def body() -> dict[str, Any]:
    """One worker for each role, of the hub's model."""
    found = copy.deepcopy(sample(NAME))
    for pool in found["spec"]["pools"]:
        pool["replicas"] = {"min": 1, "max": 1}
    found["spec"]["model"] = {
        "source": "hf://owner/name",
        "revision": COMMIT,
        "servedName": "tiny",
        "dtype": "float32",
        "maxContext": 512,
        "cache": {"persistentVolumeClaim": "weights"},
    }
    return found


def job_of(kube: Kube) -> dict[str, Any] | None:
    """The Job, once it has completed."""
    jobs = kube.items("jobs", NAMESPACE, f"tandem.dev/resource={NAME}")
    return next((job for job in jobs if (job.get("status") or {}).get("completionTime")), None)


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
def test_workers_start_from_what_the_job_has_pulled(tandem: Cluster, kube: Kube) -> None:
    kube.apply(yaml.safe_dump(body()))
    try:
        job = until("the Job has pulled the model", lambda: job_of(kube), 180)
        found = wait_settled(kube, NAME, seconds=240)
        pools = kube.items("deployments", NAMESPACE, f"tandem.dev/resource={NAME},tandem.dev/pool")
        assert len(pools) == 2
        ended = job["status"]["completionTime"]
        assert all(pool["metadata"]["creationTimestamp"] >= ended for pool in pools), "no worker before its model"
        assert found["status"]["modelRevision"] == COMMIT
        kube.run("delete", "pod/hub", "-n", NAMESPACE, "--wait=true")
        with forwarded(tandem, NAMESPACE, f"{NAME}-router", 8000) as url:
            asked = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 4}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", asked, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as response:
                assert json.load(response)["usage"]["completion_tokens"] > 0
    finally:
        kube.run("delete", "di", NAME, "-n", NAMESPACE, "--wait=false")
