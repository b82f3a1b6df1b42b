"""Stands in for controller-manager, scheduler and kubelets: each Deployment gets its pods, and they say they are ready.

A process of its own, so that none of its work is counted as the operator's: `python -m e2e.bench.operator_pods CONFIG`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from e2e.bench.operator_api import CONNECTIONS, MERGE, Api, connect
from tandem_operator.edges.kinds import KINDS

Object = dict[str, Any]
Key = tuple[str, str]
READY = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")]


class Pods:
    """Counts the pods that it made of each Deployment; a Deployment is worked on by one worker at a time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._deployments: dict[Key, Object] = {}
        self._made: defaultdict[Key, list[str]] = defaultdict(list)
        self._dirty: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._number = 0

    async def watch(self) -> None:
        """Hear of every Deployment of Tandem's, for ever."""
        async for event in self._api.watch("Deployment", None, "app.kubernetes.io/managed-by"):
            item = event["object"]
            key = (item["metadata"]["namespace"], item["metadata"]["name"])
            if event["type"] == "DELETED":
                self._deployments.pop(key, None)
                self._made.pop(key, None)
                continue
            self._deployments[key] = item
            if item["metadata"]["generation"] != item.get("status", {}).get("observedGeneration"):
                self.mark(key)

    def mark(self, key: Key) -> None:
        """Say that a Deployment needs work."""
        if key not in self._queued:
            self._queued.add(key)
            self._dirty.put_nowait(key)

    async def work(self) -> None:
        """One worker, for ever."""
        while True:
            key = await self._dirty.get()
            self._queued.discard(key)
            if (item := self._deployments.get(key)) is not None:
                await self.settle(key, item)

    async def settle(self, key: Key, item: Object) -> None:
        """Pods as the spec wants them, then the Deployment's status."""
        made, wanted = self._made[key], item["spec"]["replicas"]
        while len(made) > wanted:
            await self._api.ask("DELETE", KINDS["Pod"].path(key[0], made.pop()) + "?gracePeriodSeconds=0")
        while len(made) < wanted:
            made.append(await self.make(item))
        generation = item["metadata"]["generation"]
        same = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), wanted)
        status = {"status": {"observedGeneration": generation, **same}}
        await self._api.ask("PATCH", KINDS["Deployment"].path(*key) + "/status", status, MERGE)

    async def make(self, item: Object) -> str:
        """One pod of the Deployment's template, ready."""
        self._number += 1
        metadata, template = item["metadata"], item["spec"]["template"]
        name = f"{metadata['name']}-{self._number:05}"
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}
        about = {**template["metadata"], "name": name, "ownerReferences": [owner]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}
        await self._api.ask("POST", KINDS["Pod"].path(metadata["namespace"]), pod)
        address = f"10.{self._number >> 16 & 255}.{self._number >> 8 & 255}.{self._number & 255}"
        status = {"status": {"phase": "Running", "podIP": address, "conditions": READY}}
        await self._api.ask("PATCH", KINDS["Pod"].path(metadata["namespace"], name) + "/status", status, MERGE)
        return name


async def run(kubeconfig: Path) -> None:
    """Until the process is ended."""
    async with connect(kubeconfig) as api, asyncio.TaskGroup() as group:
        pods = Pods(api)
        group.create_task(pods.watch())
        for _ in range(CONNECTIONS):
            group.create_task(pods.work())


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
