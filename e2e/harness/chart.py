"""The Helm chart, as its users have it: every call by the real helm, every failure with what helm said."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from e2e.harness.kube import REPO, Kube

HELM = REPO / "build/bin/helm"
CHART = REPO / "charts/tandem"
RELEASE = "tandem"
Values = dict[str, Any]

# What manifests/overlays/local says of the operator; a test keeps both alike.
LOCAL: Values = {
    "image": "tandem-operator:local",
    "workerImage": "tandem-worker:local",
    "routerImage": "tandem-router:local",
    "prometheusUrl": "http://10.96.0.90:9090",
    "metricsWindowSeconds": 20,
    "resyncSeconds": 60,
    "workerThreads": 1,
}


class HelmError(RuntimeError):
    """helm ended with an error; the message is what it printed."""


def helm(*args: str, values: Values | None = None, kube: Kube | None = None, seconds: float = 60) -> str:
    """Run helm, values on its standard input, and give what it printed; raise HelmError when it failed."""
    given = [] if values is None else ["--values", "-"]
    done = subprocess.run(
        [str(HELM), *args, *given],
        input=json.dumps(values or {}),  # which is YAML: Go and Python do not agree on a bare 14e4
        capture_output=True,
        text=True,
        timeout=seconds,
        env=kube.environment() if kube else {**os.environ, "KUBECONFIG": os.devnull},
        cwd=REPO,
        check=False,
    )
    if done.returncode != 0:
        raise HelmError(f"helm {' '.join(args)}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def text(values: Values, *args: str, namespace: str = "tandem-system", chart: Path = CHART) -> str:
    """What `helm template` prints, which is all that Argo CD applies."""
    return helm("template", RELEASE, str(chart), "--namespace", namespace, *args, values=values)


def render(values: Values, *args: str, namespace: str = "tandem-system") -> list[dict[str, Any]]:
    """The objects of a rendering, in the order of the text."""
    return [item for item in yaml.safe_load_all(text(values, *args, namespace=namespace)) if item]
