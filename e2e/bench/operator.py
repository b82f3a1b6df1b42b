"""`make bench-operator`: the operator over hundreds of resources, beside a bare client that applies the same objects.

etcd and the API server are real; pods are stood in for by one process that makes them and says that they are ready, for
both sides alike. Ratios hold within one run on one machine with nothing else on it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.bench.operator_api import APPLY, MERGE, Api, connect, side_by_side
from e2e.bench.operator_parts import Operator, bare_control_plane, no_traffic, operator, prometheus, stand_in
from e2e.bench.table import Row, against, write
from e2e.harness.kube import REPO
from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import read
from tandem_operator.edges.kinds import KINDS, RESOURCE
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.simulate.quantile import percentile
from tandem_operator.templates import children
from tandem_operator.templates.children import Images
from tandem_operator.templates.names import Owner

BARE, OURS = "bench-bare", "bench-ours"
PODS: Final = {"prefill": 3, "decode": 3, "router": 2}
OWN: Final = frozenset(  # what the operator writes, and nobody else here
    {
        *("serviceaccounts", "services", "secrets", "rolebindings", "poddisruptionbudgets"),
        *("deployments", "disaggregatedinferences/status", "events"),
    }
)
READY_DEADLINE_S = 900.0
QUIET_S, QUIET_DEADLINE_S = 5.0, 60.0
IMAGES = Images("tandem-worker:latest", "tandem-router:latest")
Object = dict[str, Any]


def resource(namespace: str, number: int) -> Object:
    """The sample's shape: two pools, six workers, two routers."""
    pools = [("prefill", "Prefill", "h100-sxm"), ("decode", "Decode", "h200-sxm")]
    return {
        "apiVersion": KINDS[RESOURCE].api_version,
        "kind": RESOURCE,
        "metadata": {"name": f"m{number:04}", "namespace": namespace},
        "spec": {
            "model": {"source": "file:///models/m", "servedName": f"m{number}"},
            "pools": [
                {
                    "name": name,
                    "role": role,
                    "hardware": {"accelerator": accelerator},
                    "replicas": {"min": 1, "max": 8, "initial": PODS[name]},
                }
                for name, role, accelerator in pools
            ],
            "slo": {"ttftMilliseconds": 500, "tpotMilliseconds": 40},
            "router": {"replicas": PODS["router"]},
        },
    }


def known(namespace: str, number: int) -> Object:
    """A resource with a uid that stands for the API server's."""
    body = resource(namespace, number)
    body["metadata"]["uid"] = "UID-OF-THE-OWNER"
    return body


def children_of(body: Object) -> list[Object]:
    """All that a resource needs, as the operator applies it."""
    owner = Owner(body["metadata"]["name"], body["metadata"]["namespace"], body["metadata"]["uid"])
    spec = read(body).spec
    made = [
        *children.access(owner),
        children.transfer_key(owner, "0" * 64),
        *children.services(owner, spec),
        *children.pools_of(owner, spec, accelerators_of(spec, CATALOGUE), IMAGES, PODS),
        children.router_deployment(owner, spec, IMAGES),
        *children.budgets(owner, spec),
    ]
    return [children.stamped(manifest) for manifest in made]


@dataclass(slots=True)
class Seen:
    """What the watches have shown so far, with when."""

    ready: dict[str, float] = field(default_factory=dict)
    pods: dict[str, float] = field(default_factory=dict)
    moved: dict[tuple[str, int], float] = field(default_factory=dict)  # (Deployment, generation)
    last: float = 0.0

    async def resources(self, api: Api, namespace: str) -> None:
        """Which resources are Ready, for ever."""
        async for event in api.watch(RESOURCE, namespace):
            item = event["object"]
            status = item.get("status", {})
            found = {c["type"]: c["status"] for c in status.get("conditions", [])}
            settled = status.get("observedGeneration") == item["metadata"]["generation"] and "Reconciling" not in found
            full = sum(status.get("roles", {}).values()) == PODS["prefill"] + PODS["decode"]
            if found.get("Ready") == "True" and settled and full:
                self.ready.setdefault(item["metadata"]["name"], time.monotonic())

    async def pods_of(self, api: Api, namespace: str) -> None:
        """Which pods are ready, for ever."""
        async for event in api.watch("Pod", namespace):
            item = event["object"]
            if item.get("status", {}).get("phase") == "Running":
                self.pods.setdefault(item["metadata"]["name"], time.monotonic())

    async def deployments(self, api: Api, namespace: str) -> None:
        """When each generation of each Deployment was seen, for ever."""
        async for event in api.watch("Deployment", namespace):
            metadata = event["object"]["metadata"]
            self.moved.setdefault((metadata["name"], metadata["generation"]), time.monotonic())


@contextlib.asynccontextmanager
async def watching(*watches: Any) -> AsyncIterator[None]:
    """The watches run while the body does; one that fails ends the bench."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch) for watch in watches]
        yield
        for task in tasks:
            task.cancel()


async def wait_for(what: str, holds: Callable[[], bool], seconds: float) -> float:
    """Until it holds; the monotonic time of then. Raises TimeoutError with how far it came."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(what)
        await asyncio.sleep(0.02)
    return time.monotonic()


async def create_all(api: Api, namespace: str, count: int) -> list[Object]:
    """All resources, as fast as the API server takes them."""
    made: list[Object] = []

    async def one(number: int) -> None:
        made.append(await api.ask("POST", KINDS[RESOURCE].path(namespace), resource(namespace, number)))

    await side_by_side([lambda n=n: one(n) for n in range(count)])  # type: ignore[misc]
    return made


async def bare(api: Api, count: int) -> float:
    """Seconds until a client that renders, asks and decides nothing has applied everything and all pods are ready."""
    seen = Seen()
    async with watching(seen.pods_of(api, BARE)):
        rendered = prepared(count)
        began = time.monotonic()
        bodies = {body["metadata"]["name"]: body for body in await create_all(api, BARE, count)}

        async def one(name: str) -> None:
            uid = bodies[name]["metadata"]["uid"].encode()
            for manifest, data in rendered[name]:
                await api.apply(manifest, data.replace(b"UID-OF-THE-OWNER", uid))
            path = KINDS[RESOURCE].path(BARE, name) + "/status?fieldManager=bench&force=true"
            status = {k: bodies[name][k] for k in ("apiVersion", "kind")} | {
                "metadata": {"name": name},
                "status": {"observedGeneration": 1},
            }
            await api.ask("PATCH", path, status, APPLY)

        await side_by_side([lambda n=n: one(n) for n in bodies])  # type: ignore[misc]
        pods = count * sum(PODS.values())
        done = await wait_for("all pods", lambda: len(seen.pods) >= pods, READY_DEADLINE_S)
    return done - began


def prepared(count: int) -> dict[str, list[tuple[Object, bytes]]]:
    """Every child of every resource as bytes; only the owner's uid is not known yet."""
    found = {}
    for number in range(count):
        body = known(BARE, number)
        found[body["metadata"]["name"]] = [(m, json.dumps(m).encode()) for m in children_of(body)]
    return found


async def drop(api: Api, namespace: str) -> None:
    """Nothing of the bare client's is left for watches to carry (no garbage collector runs here)."""
    kinds = ("Pod", "Deployment", "Service", "ServiceAccount", "RoleBinding", "PodDisruptionBudget", "Secret", RESOURCE)
    for kind in kinds:
        path = KINDS[kind].path(namespace)
        if kind != "Service":
            await api.ask("DELETE", f"{path}?gracePeriodSeconds=0")
            continue
        for item in (await api.ask("GET", path))["items"]:  # Services cannot be deleted all at once
            await api.ask("DELETE", f"{path}/{item['metadata']['name']}")


async def react(api: Api, seen: Seen, names: list[str], changes: int) -> list[float]:
    """Seconds from a spec change to the router's Deployment that has it, one change after the other."""
    rng, found = random.Random(7), []
    for number in range(changes):
        name = rng.choice(names)
        router = f"{name}-router"
        known = max(generation for (deployment, generation) in seen.moved if deployment == router)
        change = {"spec": {"slo": {"tpotMilliseconds": 41 + number}}}
        began = time.monotonic()
        await api.ask("PATCH", KINDS[RESOURCE].path(OURS, name), change, MERGE)
        await wait_for(f"{router} follows", lambda k=(router, known + 1): k in seen.moved, 60)  # type: ignore[misc]
        found.append(seen.moved[router, known + 1] - began)
    return found


async def own_writes(api: Api) -> int:
    """Writes of the operator's kinds so far."""
    return sum(count for name, count in (await api.writes()).items() if name in OWN)


async def until_quiet(api: Api) -> None:
    """Until nobody has written for a while."""
    end = time.monotonic() + QUIET_DEADLINE_S
    before = -1
    while (now := await own_writes(api)) != before:
        if time.monotonic() > end:
            raise TimeoutError("the operator still writes")
        before = now
        await asyncio.sleep(QUIET_S)


async def measure(api: Api, run: Operator, count: int, bare_s: float, options: argparse.Namespace) -> list[Row]:
    """The operator's side, row by row."""
    seen, minimum = Seen(), len(children_of(known(OURS, 0))) + 1  # the children, and one status
    async with watching(seen.resources(api, OURS), seen.deployments(api, OURS)):
        writes, passes, cpu = await own_writes(api), run.passes(), run.cpu_s()
        began = time.monotonic()
        names = sorted(body["metadata"]["name"] for body in await create_all(api, OURS, count))
        done = await wait_for("all Ready", lambda: len(seen.ready) >= count, READY_DEADLINE_S)
        rows = [against("speed of the bare client that is reached", bare_s / (done - began), "", 1.0, count)]
        rows += [against("all Ready", done - began, "s", bare_s, count)]
        await until_quiet(api)
        written, made = await own_writes(api) - writes, run.passes() - passes
        rows += [against("API writes per resource", written / count, "", minimum, count)]
        rows += [Row("passes per resource", made / count, "", n=count)]
        rows += [Row("CPU per pass while all come up", (run.cpu_s() - cpu) / made, "s", n=made)]
        times = sorted(await react(api, seen, names, options.changes))
        rows += [Row(f"reaction p{p}", percentile(times, p), "s", n=len(times)) for p in (50, 99)]
        await until_quiet(api)
        rows += await idle(api, run, options.idle)
        rows += [against("RSS, at most", run.rss_mib("VmHWM"), "MiB", 256.0), Row("RSS, idle", run.rss_mib(), "MiB")]
    return rows


async def idle(api: Api, run: Operator, seconds: float) -> list[Row]:
    """What it costs where nothing happens."""
    writes, passes, cpu, began = await own_writes(api), run.passes(), run.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    share = 100 * (run.cpu_s() - cpu) / (time.monotonic() - began)
    return [
        against("idle CPU", share, "% of a core", 2.0),
        Row("idle passes", float(run.passes() - passes), f"in {seconds:.0f} s"),
        Row("idle writes", float(await own_writes(api) - writes), f"in {seconds:.0f} s"),
    ]


async def bench(options: argparse.Namespace, kubeconfig: Path) -> list[Row]:
    """Bare client first, then the operator, on one API server."""
    names = [f"m{number:04}" for number in range(options.resources)]
    async with connect(kubeconfig) as api, prometheus(lambda: no_traffic(OURS, names)) as url:
        for namespace in (BARE, OURS):
            await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        bare_s = await bare(api, options.resources)
        await drop(api, BARE)
        log = REPO / "build/bench/operator.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with operator(kubeconfig, OURS, url, log) as run:
            return await measure(api, run, options.resources, bare_s, options)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.operator", description=__doc__)
    parser.add_argument("--resources", type=int, default=500)
    parser.add_argument("--changes", type=int, default=100, help="spec changes whose reaction is timed")
    parser.add_argument("--idle", type=float, default=40, help="seconds that idleness is watched")
    parser.add_argument("--dir", type=Path, default=REPO / "build/bench/operator")
    parser.add_argument("--port", type=int, default=16743)
    options = parser.parse_args()
    with bare_control_plane(options.dir, options.port) as up, stand_in(up.kube.kubeconfig):
        write("operator", asyncio.run(bench(options, up.kube.kubeconfig)))


if __name__ == "__main__":
    main()
