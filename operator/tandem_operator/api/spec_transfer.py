"""How the KV cache travels from prefill to decode workers: `spec.transfer`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from tandem_operator.api.base import ObjectName, Part, Rule, whole

Backend = Literal["nixl", "tcp", "shm", "mooncake"]
RdmaMode = Literal["SharedDevice", "SRIOV", "HostDevice", "DRA", "EFA", "None"]
ATOMIC: JsonDict = {"x-kubernetes-list-type": "atomic"}

ResourceName = Annotated[
    str,
    Field(
        min_length=3,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    ),
]
NicName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")]


class Rdma(Part):
    """How a worker's pod gets at an RDMA device. Nodes are set up by whoever runs the cluster, never from here."""

    mode: RdmaMode = "None"
    """SharedDevice: an extended resource of the RDMA shared device plugin; None: no RDMA device. Default: None."""
    resource: ResourceName | None = None
    """Extended resource that each worker asks for. Example: rdma/hca_shared_devices_a. Required unless mode is None."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """How many of the resource; of a shared device this is a slot, not a card. Default: 1."""
    devices: list[NicName] = Field(default_factory=list, max_length=16, json_schema_extra=ATOMIC)
    """Devices and ports to use, in the transport's spelling. Example: ["mlx5_0:1"]. Default: the transport's choice."""
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """RoCE GID index. Example: 3. Default: the transport's choice."""
    networks: list[ObjectName] = Field(default_factory=list, max_length=16, json_schema_extra=ATOMIC)
    """Secondary networks (NetworkAttachmentDefinitions) of the pods. Default: none."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="resource is required unless mode is None, and has no meaning with None",
            holds=lambda rdma: (rdma.mode == "None") == (rdma.resource is None),
            cel="(self.mode == 'None') == !has(self.resource)",
            field=".resource",
        ),
    )


class Transfer(Part):
    """How the KV cache travels from prefill to decode workers."""

    backend: Backend = "tcp"
    """What moves the bytes: nixl, tcp, shm or mooncake. Default: tcp."""
    rdma: Rdma = whole(Rdma)
    """RDMA devices of the workers. Default: none."""
    require: Literal["RDMA", "Any"] = "Any"
    """RDMA: never serve over TCP by accident; the condition KVTransferReady is False instead. Any: whatever works.
    Default: Any."""
