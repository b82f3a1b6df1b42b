"""The workers: `spec.pools`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tandem_operator.api.base import DNS_LABEL, LabelValue, ObjectName, Part, Rule, whole
from tandem_operator.api.constants import MAX_POOL_NAME, RESERVED_POOL_NAMES
from tandem_operator.api.spec_template import PodTemplate

PoolRole = Literal["Prefill", "Decode", "Both"]
AcceleratorName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Degree = Annotated[int, Field(ge=1, le=1024)]
WorkerCount = Annotated[int, Field(ge=0, le=1000)]
Figure = Annotated[int, Field(ge=1, le=10_000_000)]


class Hardware(Part):
    """The accelerator of one rank: an entry of the catalogue, or its figures in full."""

    accelerator: AcceleratorName
    """Entry of the hardware catalogue (ConfigMap tandem-catalogue): h100-sxm, h200-sxm, … Another name is refused,
    unless teraflops, memoryGibibytes, memoryGigabytesPerSecond and linkGigabytesPerSecond are all here."""
    teraflops: Figure | None = None
    """Peak dense TFLOP/s of one accelerator at the model's dtype. Default: the catalogue's figure."""
    memory_gibibytes: Figure | None = None
    """Memory of one accelerator, GiB. Default: the catalogue's figure."""
    memory_gigabytes_per_second: Figure | None = None
    """Memory bandwidth of one accelerator, GB/s. Default: the catalogue's figure."""
    link_gigabytes_per_second: Figure | None = None
    """One accelerator's share of the network, GB/s. Default: the catalogue's figure."""
    scale_up_gigabytes_per_second: Figure | None = None
    """One accelerator's bandwidth to the others of its server or rack, GB/s in one direction (NVLink, xGMI; else PCIe).
    Default: the catalogue's figure, else that of the network."""
    per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Accelerators of one server; a worker of more spans nodes. Default: the catalogue's figure, else 8."""
    watts: Figure | None = None
    """Power of one accelerator, W; for rebalance.objective Power. Default: the catalogue's figure, else unknown."""
    price_millidollars_per_hour: Figure | None = None
    """Price of one accelerator hour in thousandths of a dollar. Default: the catalogue's figure, else unknown."""
    resource_name: (
        Annotated[str, Field(min_length=3, max_length=253, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")] | None
    ) = None
    """Extended resource that a pod asks for. Example: amd.com/gpu. Default: the catalogue's, else none."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=8)] = Field(default_factory=dict)
    """Labels of the nodes that have it, instead of those by which the catalogue finds them (nvidia.com/gpu.product and
    what each cloud says). Example: {example.com/accelerator: h100}. Default: any of the catalogue's forms."""
    device_class: ObjectName | None = None
    """With transfer.rdma.mode DRA: DeviceClass of the accelerators. Example: gpu.nvidia.com. Default: by the extended
    resource's vendor, gpu.nvidia.com or gpu.amd.com."""
    capacity_type: Literal["Any", "OnDemand", "Spot"] = "Any"
    """Whether the nodes may be ones that a cloud takes away at short notice. OnDemand: never; Spot: only, and their
    taints are tolerated; as Karpenter, EKS, GKE and AKS label them. Default: Any, and no taint is tolerated."""

    @property
    def is_complete(self) -> bool:
        """Are the figures without which nothing can be planned all here?"""
        return None not in (
            self.teraflops,
            self.memory_gibibytes,
            self.memory_gigabytes_per_second,
            self.link_gigabytes_per_second,
        )


class Parallelism(Part):
    """How one worker is spread over accelerators; their product (expert reuses ranks) is a worker's accelerators."""

    tensor: Degree = 1
    """Ranks that share each layer. Default: 1."""
    pipeline: Degree = 1
    """Ranks that follow each other, each with some of the layers. Default: 1."""
    expert: Degree = 1
    """Ranks over which the experts of a mixture are spread; reuses the others' ranks. Default: 1."""
    data: Degree = 1
    """Replicas of the attention inside one worker. Default: 1."""

    @property
    def gpus(self) -> int:
        """Accelerators of one worker."""
        return self.tensor * self.pipeline * self.data


def _in_order(replicas: Replicas) -> bool:
    initial = replicas.min if replicas.initial is None else replicas.initial
    return replicas.min <= initial <= replicas.max


class Replicas(Part):
    """Bounds of a pool's Deployment, in workers. Git holds these; the chosen count is status.decision.target."""

    min: WorkerCount
    """Fewest workers of the pool, at any time."""
    max: Annotated[int, Field(ge=1, le=1000)]
    """Most workers of the pool, at any time."""
    # No schema default: an API server that fills in a count makes GitOps tools see a difference for ever.
    initial: WorkerCount | None = None
    """Workers to begin with, until the first decision from measurements. Default: min."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must be min <= initial <= max",
            holds=_in_order,
            cel="self.min <= self.max "
            "&& (!has(self.initial) || (self.min <= self.initial && self.initial <= self.max))",
        ),
    )

    @property
    def start(self) -> int:
        """Workers to begin with."""
        return self.min if self.initial is None else self.initial


class Pool(Part):
    """Workers of one kind, made by one Deployment."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_POOL_NAME, pattern=DNS_LABEL)]
    """Name of the pool, unique in the resource; its Deployment is <resource>-<name>. Example: prefill."""
    role: PoolRole
    """What the pool's workers do at first: Prefill, Decode, or Both (Colocated mode only). Role flips change what a
    worker does, not which pool it belongs to."""
    hardware: Hardware
    """The accelerator of the pool's workers."""
    parallelism: Parallelism = whole(Parallelism)
    """How one worker is spread over accelerators. Default: one accelerator a worker."""
    replicas: Replicas
    """Bounds of the pool, in workers."""
    template: PodTemplate = whole(PodTemplate)
    """Overlay on the pool's pods. Default: none."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message=f"these names are the operator's: {', '.join(RESERVED_POOL_NAMES)}",
            holds=lambda pool: pool.name not in RESERVED_POOL_NAMES,
            cel=f"!(self.name in {list(RESERVED_POOL_NAMES)})",
            field=".name",
        ),
    )
