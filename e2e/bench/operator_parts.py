"""What the operator's bench starts and ends: a bare control plane, the stand-in, the operator, a Prometheus."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from e2e.harness import cluster as clusters
from e2e.harness.kube import REPO
from e2e.harness.parts import process_of
from e2e.harness.ports import free_port
from e2e.harness.waiting import until

CONFIG = """\
kinds: {cpu: {resources: {cpu: "1", memory: 1Gi}}}
nodes: [{name: cpu-0, kind: cpu}]
"""
TICKS = os.sysconf("SC_CLK_TCK")
PARTS = ("manager", "scheduler")


@contextlib.contextmanager
def bare_control_plane(directory: Path, port: int) -> Iterator[clusters.Cluster]:
    """The one-machine cluster's etcd and API server: what would answer in the stand-in's place is ended."""
    if "KUBECONFIG" in os.environ:
        raise SystemExit("bench-operator ends controllers: it needs the one-machine cluster, so unset KUBECONFIG")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "bench.yaml"
        config.write_text(CONFIG)
        up = clusters.up(directory, port, config)
    try:
        up.kube.apply((REPO / "crds/tandem.dev_disaggregatedinferences.yaml").read_text())
        up.kube.run("apply", "--server-side", "-f", "manifests/base/router-role.yaml")
        up.command("node", "kill", "cpu-0")
        for part in PARTS:
            os.kill(process_of(directory, part), signal.SIGKILL)
        yield up
    finally:
        up.down()


@contextlib.contextmanager
def stand_in(kubeconfig: Path) -> Iterator[None]:
    """Whoever makes pods of Deployments."""
    with ended(subprocess.Popen([sys.executable, "-m", "e2e.bench.operator_pods", str(kubeconfig)], cwd=REPO)):
        yield


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive its use."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


@dataclass(frozen=True, slots=True)
class Operator:
    """The running operator, seen from outside."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """CPU seconds since its start, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mib(self, which: str = "VmRSS") -> float:
        """Memory; `VmHWM` for the most that it ever was."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{which}:")) / 1024

    def passes(self) -> int:
        """Passes so far, by its own metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return int(sum(float(x.split()[-1]) for x in lines if x.startswith("tandem_operator_reconcile_seconds_count")))


@contextlib.contextmanager
def operator(kubeconfig: Path, namespace: str, prometheus: str, log: Path) -> Iterator[Operator]:
    """The operator as it is shipped, against this API server."""
    port = free_port()
    settings = {
        "TANDEM_PROMETHEUS_URL": prometheus,
        "TANDEM_NAMESPACE": namespace,
        "TANDEM_ELECT": "false",
        "TANDEM_LISTEN_HOST": "127.0.0.1",
        "TANDEM_LISTEN_PORT": str(port),
    }
    with log.open("wb") as out:
        command = [sys.executable, "-c", "from tandem_operator.loop.main import main; raise SystemExit(main())"]
        environment = {**os.environ, **settings, "KUBECONFIG": str(kubeconfig)}
        with ended(subprocess.Popen(command, env=environment, cwd=REPO, stdout=out, stderr=out)) as process:
            found = Operator(process.pid, port)
            until("the operator answers", lambda: answers(found.passes), 60)
            yield found


def answers(look: Callable[[], Any]) -> bool:
    """Does it answer at all?"""
    with contextlib.suppress(OSError):
        look()
        return True
    return False


@contextlib.asynccontextmanager
async def prometheus(samples: Callable[[], list[Any]]) -> AsyncIterator[str]:
    """Answers every query with these samples; gives its address."""

    async def query(_: web.Request) -> web.Response:
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": samples()}})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", query)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def no_traffic(namespace: str, names: list[str]) -> list[Any]:
    """Targets that are up, and a router that nobody asks anything."""
    now = time.time()
    facts = {"up": "8", "arrivals": "0", "requests": "0"}
    return [
        {"metric": {"namespace": namespace, "resource": name, "fact": fact}, "value": [now, value]}
        for name in names
        for fact, value in facts.items()
    ]
