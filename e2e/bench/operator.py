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
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from e2e.bench.operator_api import APPLY, MERGE, Api, connect, side_by_side
from e2e.bench.operator_parts import Operator, bare_control_plane, no_traffic, operator, prometheus, stand_in
from e2e.bench.performance import put
from e2e.bench.table import Row, against, write
from e2e.harness.kube import REPO
from e2e.tables.memory import Case
from tandem_operator.edges.kinds import KINDS, RESOURCE
from tandem_operator.loop.fleet import HISTORY
from tandem_operator.simulate.quantile import percentile

BARE, OURS = "bench-bare", "bench-ours"
PODS: Final = {"prefill": 3, "decode": 3, "router": 2}
OWN: Final = frozenset(  # what the operator writes, and nobody else here
    {
        *("serviceaccounts", "services", "secrets", "rolebindings", "poddisruptionbudgets", "networkpolicies"),
        *("deployments", "disaggregatedinferences/status", "events"),
    }
)
LARGEST_MIB = 256.0
READY_DEADLINE_S = 900.0
QUIET_S, QUIET_DEADLINE_S = 5.0, 60.0
# After so long without traffic or an edit no look is news any more (loop/fleet.py); the resource's interval is 15 s.
SETTLED_S = (HISTORY + 1) * 15 * 1.03
FIRST, UID = "m0000", "uid-of-the-owner"
Object = dict[str, Any]


def resource(namespace: str, number: int) -> Object:
    """The sample's shape: two pools, six workers, two routers."""
    pools = [("prefill", "Prefill", "h100-sxm"), ("decode", "Decode", "h200-sxm")]
    return {
        "apiVersion": KINDS[RESOURCE].api_version,
        "kind": RESOURCE,
        "metadata": {"name": FIRST.replace("0000", f"{number:04}"), "namespace": namespace},
        "spec": {
            "model": {"source": "file:///models/m", "servedName": "m"},
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


async def children_of(namespace: str) -> list[tuple[str, bytes]]:
    """Path and body of all that the first resource needs, as the operator applies it (to an API server in memory)."""
    body = resource(namespace, 0)
    body["metadata"]["uid"] = UID
    case = Case(body)
    await case.one_pass()
    return [
        (path_of(item), json.dumps(without_server_fields(item)).encode())
        for (plural, _, _), item in case.kube.items.items()
        if plural not in {case.plural, "events"}
    ]


def path_of(item: Object) -> str:
    """Where an object is."""
    return KINDS[item["kind"]].path(item["metadata"]["namespace"], item["metadata"]["name"])


def without_server_fields(item: Object) -> Object:
    """What a client applies."""
    theirs = {"uid", "resourceVersion", "generation", "creationTimestamp"}
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k not in theirs}}


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
    seen, pattern = Seen(), await children_of(BARE)
    async with watching(seen.pods_of(api, BARE)):
        began = time.monotonic()
        bodies = await create_all(api, BARE, count)
        await side_by_side([lambda b=body: apply_bare(api, b, pattern) for body in bodies])  # type: ignore[misc]
        pods = count * sum(PODS.values())
        done = await wait_for("all pods", lambda: len(seen.pods) >= pods, READY_DEADLINE_S)
    return done - began


async def apply_bare(api: Api, body: Object, pattern: list[tuple[str, bytes]]) -> None:
    """One resource's children, and one status."""
    name, uid = body["metadata"]["name"], body["metadata"]["uid"]
    for path, data in pattern:
        mine = data.replace(UID.encode(), uid.encode()).replace(FIRST.encode(), name.encode())
        await api.ask("PATCH", f"{path.replace(FIRST, name)}?fieldManager=bench&force=true", mine, APPLY)
    about = {k: body[k] for k in ("apiVersion", "kind")} | {"metadata": {"name": name}}
    path = KINDS[RESOURCE].path(BARE, name) + "/status?fieldManager=bench&force=true"
    await api.ask("PATCH", path, about | {"status": {"observedGeneration": 1}}, APPLY)


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


async def own(api: Api) -> Counter[str]:
    """Writes of the operator's kinds so far, by kind."""
    return Counter({name: count for name, count in (await api.writes()).items() if name in OWN})


async def own_writes(api: Api) -> int:
    """The same, all together, and those of pods: where nothing starts any more, only the operator could write them."""
    return (await own(api)).total() + (await api.writes())["pods"]


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
    seen = Seen()
    async with watching(seen.resources(api, OURS), seen.deployments(api, OURS)):
        writes, passes, cpu = await own(api), run.passes(), run.cpu_s()
        began = time.monotonic()
        names = sorted(body["metadata"]["name"] for body in await create_all(api, OURS, count))
        done = await wait_for("all Ready", lambda: len(seen.ready) >= count, READY_DEADLINE_S)
        rows = [against("speed of the bare client that is reached", bare_s / (done - began), "", 1.0, count)]
        rows += [against("all Ready", done - began, "s", bare_s, count)]
        await until_quiet(api)
        made = run.passes() - passes
        rows += rows_of_writes(await own(api) - writes, count, len(await children_of(OURS)) + 1)
        rows += [Row("passes per resource", made / count, "", n=count)]
        rows += [Row("CPU per pass while all come up", 1000 * (run.cpu_s() - cpu) / made, "ms", n=made)]
        times = sorted(await react(api, seen, names, options.changes))
        rows += [against(f"reaction p{p}", of_ms(times, p), "ms", 1000.0, len(times)) for p in (50, 99)]
        await until_quiet(api)
    # Without the watches above: a stream that is silent so long is cut.
    rows += await idle(api, run, options.idle, "first of it: ")
    await asyncio.sleep(max(0.0, SETTLED_S - options.idle))
    rows += await idle(api, run, options.idle)
    return [
        *rows,
        against("RSS, at most", run.rss_mib("VmHWM"), "MiB", LARGEST_MIB),
        Row("RSS, idle", run.rss_mib(), "MiB"),
    ]


def of_ms(times: list[float], share: int) -> float:
    """A percentile of some seconds, in milliseconds."""
    found = percentile(times, share)
    if found is None:
        raise ValueError("nothing was timed")
    return 1000 * found


def rows_of_writes(written: Counter[str], count: int, minimum: int) -> list[Row]:
    """All of a resource beside the bare minimum (its children, and one status), and what is not a child."""
    rows = [against("API writes per resource", written.total() / count, "", minimum, count)]
    more = {"of its status": written["disaggregatedinferences/status"], "of events": written["events"]}
    return rows + [Row(f"... {what}", number / count, "", n=count) for what, number in more.items()]


async def after_restart(api: Api, run: Operator, count: int) -> list[Row]:
    """Another process over all that is there: what it costs until it is idle, and what it writes, which is nothing."""
    writes = await own_writes(api)
    await wait_for("a pass over each", lambda: run.passes() >= count, READY_DEADLINE_S)
    await until_quiet(api)
    return [
        Row("after a restart: CPU until every resource had its pass", run.cpu_s(), "s"),
        Row("after a restart: writes", float(await own_writes(api) - writes), ""),
        against("after a restart: RSS, at most", run.rss_mib("VmHWM"), "MiB", LARGEST_MIB),
        Row("after a restart: RSS, idle", run.rss_mib(), "MiB"),
    ]


async def idle(api: Api, run: Operator, seconds: float, when: str = "") -> list[Row]:
    """What it costs where nothing happens; at first the planner still waits for what minutes of peace confirm."""
    writes, passes, cpu, began = await own_writes(api), run.passes(), run.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    share = 100 * (run.cpu_s() - cpu) / (time.monotonic() - began)
    return [
        against("idle CPU", share, "% of a core", 2.0) if not when else Row(f"{when}idle CPU", share, "% of a core"),
        Row(f"{when}idle passes", float(run.passes() - passes), f"in {seconds:.0f} s"),
        Row(f"{when}idle writes", float(await own_writes(api) - writes), f"in {seconds:.0f} s"),
    ]


async def bench(options: argparse.Namespace, kubeconfig: Path) -> list[Row]:
    """Bare client first, then the operator, on one API server."""
    names = [f"m{number:04}" for number in range(options.resources)]
    async with connect(kubeconfig) as api, prometheus(lambda: no_traffic(OURS, names)) as url:
        for namespace in (BARE, OURS):
            await api.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        bare_s = await bare(api, options.resources)
        log = REPO / "build/bench/operator.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with operator(kubeconfig, OURS, url, log) as run:
            rows = await measure(api, run, options.resources, bare_s, options)
        with operator(kubeconfig, OURS, url, log.with_suffix(".again.log")) as run:
            return rows + await after_restart(api, run, options.resources)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.operator", description=__doc__)
    parser.add_argument("--resources", type=int, default=500)
    parser.add_argument("--changes", type=int, default=100, help="spec changes whose reaction is timed")
    parser.add_argument("--idle", type=float, default=300, help="seconds that idleness is watched: a resync's period")
    parser.add_argument("--dir", type=Path, default=REPO / "build/bench/operator")
    parser.add_argument("--port", type=int, default=16743)
    parser.add_argument("--page", action="store_true", help="write the table into docs/reference/performance.md")
    options = parser.parse_args()
    with bare_control_plane(options.dir, options.port) as up, stand_in(up.kube.kubeconfig):
        rows = asyncio.run(bench(options, up.kube.kubeconfig))
    write("operator", rows)
    if options.page:
        put("operator", f"python -m e2e.bench.operator --resources {options.resources} --page", rows)


if __name__ == "__main__":
    main()
