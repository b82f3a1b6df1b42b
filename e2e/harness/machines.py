"""Nodes that are objects of the API and nothing else: the real scheduler binds pods to them, and nobody runs them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from e2e.harness.kube import Kube

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """One node: its labels, what its device plugins count, and what its DRA drivers list, `driver: [PCIe roots]`."""

    name: str
    labels: dict[str, str]
    resources: dict[str, str] = field(default_factory=dict)
    devices: dict[str, list[str]] = field(default_factory=dict)

    def node(self) -> Object:
        """The Node without its status."""
        metadata = {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, **self.labels}}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}

    def status(self) -> Object:
        """Ready, and room for some pods."""
        room = {"cpu": "16", "memory": "64Gi", "pods": "20", **self.resources}
        return {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}

    def slices(self) -> list[Object]:
        """One ResourceSlice for each driver."""
        return [
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{self.name}-{driver}"},
                "spec": {
                    "driver": driver,
                    "nodeName": self.name,
                    "pool": {"name": self.name, "generation": 1, "resourceSliceCount": 1},
                    "devices": [
                        {"name": f"device-{number}", "attributes": {PCIE_ROOT: {"string": root}}}
                        for number, root in enumerate(roots)
                    ],
                },
            }
            for driver, roots in self.devices.items()
        ]


def device_class(driver: str) -> Object:
    """The DeviceClass of all devices of a driver, by the driver's name."""
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}]
    metadata = {"name": driver}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": metadata,
        "spec": {"selectors": selectors},
    }


@contextlib.contextmanager
def machines(kube: Kube, *wanted: Machine) -> Iterator[None]:
    """They are there while the body runs."""
    objects = [item for machine in wanted for item in (machine.node(), *machine.slices())]
    objects += [device_class(driver) for driver in sorted({driver for one in wanted for driver in one.devices})]
    try:
        kube.apply(yaml.safe_dump_all(objects))
        for machine in wanted:
            change = json.dumps({"status": machine.status()})
            kube.run("patch", "node", machine.name, "--subresource=status", "--type=merge", "-p", change)
        yield
    finally:
        kube.run("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=yaml.safe_dump_all(objects))
