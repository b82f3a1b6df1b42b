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
NetworkName = Annotated[
    str,
    Field(min_length=1, max_length=317, pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
NicName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")]


UNCOUNTED = ("None", "DRA")  # nothing is counted by an extended resource
NETWORKED = ("SRIOV", "HostDevice")
PLAIN = ("None", "EFA")  # no transport that reads a device list


def _is_named(rdma: Rdma) -> bool:
    return rdma.mode != "SharedDevice" or rdma.resource is not None


class Rdma(Part):
    """How a worker's pod gets at an RDMA device. Nodes are set up by whoever runs the cluster, never from here."""

    mode: RdmaMode = "None"
    """SharedDevice: a slot of cards that pods of a node share (RDMA shared device plugin; AKS, CoreWeave: rdma/ib).
    SRIOV: virtual functions. HostDevice: whole cards, or GKE's networks. DRA: a claim for each rank that pairs its
    accelerator with a card below the same PCIe root. EFA: Elastic Fabric Adapters of AWS. None: no RDMA.
    Default: None."""
    resource: ResourceName | None = None
    """Extended resource that each worker asks for. Example: rdma/hca_shared_devices_a. Required with SharedDevice; with
    SRIOV and HostDevice unset where a webhook adds it for the networks; with EFA vpc.amazonaws.com/efa unless set."""
    device_class: ObjectName | None = None
    """With DRA: DeviceClass of the cards. Example: mrdma.google.com. The accelerators' is in hardware.deviceClass."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """How many of the resource; of a shared device this is a slot, not a card; with DRA cards of each rank. Default: 1.
    """
    devices: list[NicName] = Field(default_factory=list, max_length=16, json_schema_extra=ATOMIC)
    """Devices and ports to use (UCX_NET_DEVICES, NCCL_IB_HCA). Example: ["mlx5_0:1"]. A fixed list may not be the cards
    nearest to each accelerator. Default: the transport's choice, which is the nearest."""
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """RoCE GID index (UCX_IB_GID_INDEX, NCCL_IB_GID_INDEX); on most RoCE v2 networks 3. Default: the transport's
    choice."""
    networks: list[NetworkName] = Field(default_factory=list, max_length=16, json_schema_extra=ATOMIC)
    """Secondary networks of the pods, in the order of their interfaces: NetworkAttachmentDefinitions (name, or
    namespace/name), or GKE Networks. Example: [rdma-0, rdma-1]. Default: none."""
    attachment: Literal["Multus", "GKE"] = "Multus"
    """Who attaches the networks. Multus: by the annotation k8s.v1.cni.cncf.io/networks; GKE: by
    networking.gke.io/interfaces, beside the default network at eth0. Default: Multus."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="resource is required with mode SharedDevice, and has no meaning with None and DRA",
            holds=lambda rdma: rdma.resource is None if rdma.mode in UNCOUNTED else _is_named(rdma),
            cel=f"self.mode in {list(UNCOUNTED)} ? !has(self.resource) : "
            "self.mode != 'SharedDevice' || has(self.resource)",
            field=".resource",
        ),
        Rule(
            message="modes SRIOV and HostDevice need a resource, or networks that bring it",
            holds=lambda rdma: rdma.mode not in NETWORKED or bool(rdma.resource or rdma.networks),
            cel=f"!(self.mode in {list(NETWORKED)}) || has(self.resource) "
            "|| (has(self.networks) && size(self.networks) > 0)",
            field=".networks",
        ),
        Rule(
            message="deviceClass is required with mode DRA, and has no meaning with others",
            holds=lambda rdma: (rdma.mode == "DRA") == (rdma.device_class is not None),
            cel="(self.mode == 'DRA') == has(self.deviceClass)",
            field=".deviceClass",
        ),
        Rule(
            message="devices and gidIndex have no meaning without RDMA, nor with EFA",
            holds=lambda rdma: rdma.mode not in PLAIN or not (rdma.devices or rdma.gid_index is not None),
            cel=f"!(self.mode in {list(PLAIN)}) "
            "|| ((!has(self.devices) || size(self.devices) == 0) && !has(self.gidIndex))",
            field=".devices",
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
