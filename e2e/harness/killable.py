"""The operator as it ships, outside the cluster with its own account's rights, killed right after a write of its own.

`python -m e2e.harness.killable N`: SIGKILL as soon as its Nth write to the API server was answered; 0: never.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from e2e.harness.kube import REPO, Kube
from e2e.harness.ports import free_port
from e2e.harness.world import SYSTEM
from tandem_operator.edges.kube import Kube as Edge
from tandem_operator.loop.main import main

DEPLOYMENT = ("deployment/tandem-operator", "-n", SYSTEM)


def killed_after(writes: int) -> None:
    """From now on, the write of this number is this process's last."""
    ask = Edge._ask  # noqa: SLF001 - every request goes through it
    done = 0

    async def counted(self: Edge, verb: str, *rest: Any, **options: Any) -> dict[str, Any]:
        nonlocal done
        answer = await ask(self, verb, *rest, **options)
        done += verb != "GET"
        if 0 < writes <= done:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    Edge._ask = counted  # type: ignore[method-assign]  # noqa: SLF001


@contextlib.contextmanager
def none_in_cluster(kube: Kube) -> Iterator[None]:
    """The cluster's own operator rests meanwhile."""
    kube.run("scale", *DEPLOYMENT, "--replicas=0")
    kube.run(
        "wait", "--for=delete", "pod", "-n", SYSTEM, "-l", "app.kubernetes.io/name=tandem-operator", "--timeout=60s"
    )
    try:
        yield
    finally:
        kube.run("scale", *DEPLOYMENT, "--replicas=1")
        kube.run("rollout", "status", *DEPLOYMENT, "--timeout=90s", seconds=100)


def environment(kube: Kube, scratch: Path) -> dict[str, str]:
    """Settings of the cluster's operator, without what only a pod has; its account's token in a kubeconfig."""
    account = yaml.safe_load(kube.kubeconfig.read_text())
    account["users"][0]["user"] = {"token": kube.run("create", "token", "tandem-operator", "-n", SYSTEM).strip()}
    own = scratch / "kubeconfig"
    own.write_text(yaml.safe_dump(account))
    listed = kube.json("get", *DEPLOYMENT)["spec"]["template"]["spec"]["containers"][0]["env"]
    given = {item["name"]: item["value"] for item in listed if "value" in item and not item["name"].endswith("_PATH")}
    alone = {"TANDEM_ELECT": "false", "TANDEM_LISTEN_HOST": "127.0.0.1", "KUBECONFIG": str(own)}
    return {**os.environ, **given, **alone}


@contextlib.contextmanager
def operator(settings: dict[str, str], kill_after: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of it; ended with the body, however that ends."""
    with log.open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "e2e.harness.killable", str(kill_after)],
            cwd=REPO,
            env={**settings, "TANDEM_LISTEN_PORT": str(free_port())},
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


if __name__ == "__main__":
    killed_after(int(sys.argv[1]))
    sys.exit(main())
