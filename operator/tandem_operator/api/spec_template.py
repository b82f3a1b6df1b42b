"""What a pool or the router may lay over its pods: `template`. Nothing outside this list can be reached."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from tandem_operator.api.base import LabelKey, LabelValue, ObjectName, Opaque, Part, Quantity, Rule, whole
from tandem_operator.api.constants import GROUP

ATOMIC: JsonDict = {"x-kubernetes-list-type": "atomic"}
RESERVED_ENV = ("POD_", "TANDEM_")
GPU_RESOURCE = "nvidia.com/gpu"

Amounts = Annotated[dict[str, Quantity], Field(max_length=16)]


def _no_gpus(resources: Resources) -> bool:
    return GPU_RESOURCE not in resources.limits and GPU_RESOURCE not in resources.requests


class Resources(Part):
    """CPU, memory and extended resources of the main container."""

    limits: Amounts = Field(default_factory=dict)
    """Most that the container may use, by resource name. Example: {cpu: 8, memory: 64Gi}. Default: none."""
    requests: Amounts = Field(default_factory=dict)
    """What the scheduler sets aside, by resource name. Default: the limits."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message=f"{GPU_RESOURCE} follows from parallelism and hardware and cannot be set here",
            holds=_no_gpus,
            cel=f"(!has(self.limits) || !('{GPU_RESOURCE}' in self.limits)) "
            f"&& (!has(self.requests) || !('{GPU_RESOURCE}' in self.requests))",
        ),
    )


class Toleration(Part):
    """A taint that the pods accept; as in a pod's spec."""

    key: LabelKey | None = None
    """The taint's key; unset with operator Exists means every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal: key and value must match; Exists: the key is enough. Default: Equal."""
    value: LabelValue | None = None
    """The taint's value, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The effect to accept. Default: all of them."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """With NoExecute: seconds that a pod stays after the taint appears. Default: for ever."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="a toleration without a key needs operator Exists",
            holds=lambda t: t.key is not None or t.operator == "Exists",
            cel="has(self.key) || self.operator == 'Exists'",
            field=".operator",
        ),
        Rule(
            message="a toleration with operator Exists has no value",
            holds=lambda t: t.operator == "Equal" or not t.value,
            cel="self.operator == 'Equal' || !has(self.value) || self.value == ''",
            field=".operator",
        ),
    )


class EnvVar(Part):
    """An environment variable of the main container."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Its name; POD_* and TANDEM_* are the operator's."""
    value: Annotated[str, Field(max_length=4096)] = ""
    """Its value, as it is. Default: empty."""
    value_from: Opaque | None = None
    """A source for the value instead: fieldRef, resourceFieldRef, configMapKeyRef or secretKeyRef, as in a pod's spec.
    Example: {secretKeyRef: {name: proxy, key: url}}."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="value and valueFrom exclude each other",
            holds=lambda e: e.value_from is None or not e.value,
            cel="!has(self.valueFrom) || self.value == ''",
            field=".valueFrom",
        ),
        Rule(
            message="names that begin with POD_ or TANDEM_ are the operator's",
            holds=lambda e: not e.name.startswith(RESERVED_ENV),
            cel=" && ".join(f"!self.name.startsWith('{prefix}')" for prefix in RESERVED_ENV),
            field=".name",
        ),
    )


def _keys_are_free(template: PodTemplate) -> bool:
    return not any(key.startswith(f"{GROUP}/") for key in [*template.annotations, *template.labels])


Objects = Annotated[list[Opaque], Field(max_length=16)]


class PodTemplate(Part):
    """An overlay on the pods that the operator makes: these fields and no others.

    Lists merge with the operator's by the same keys as in kubectl's patches; what contradicts the operator's own values
    is refused (Stalled/TemplateRefused).
    """

    resources: Resources = whole(Resources)
    """CPU, memory and extended resources of the main container; GPUs and RDMA devices are added by the operator."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=16)] = Field(default_factory=dict)
    """Labels that a node must have, besides those that the accelerator asks for. Example: {karpenter.sh/nodepool: gpu}.
    Default: none."""
    tolerations: list[Toleration] = Field(default_factory=list, max_length=16, json_schema_extra=ATOMIC)
    """Taints that the pods accept, besides the accelerator's own (nvidia.com/gpu). Default: none."""
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Environment variables of the main container. Example: [{name: UCX_LOG_LEVEL, value: info}]. They replace those
    that follow from spec.transfer.rdma (UCX_*, NCCL_*). Default: none."""
    annotations: Annotated[dict[str, Annotated[str, Field(max_length=16_384)]], Field(max_length=32)] = Field(
        default_factory=dict
    )
    """Annotations of the pods. Example: {kueue.x-k8s.io/podset-preferred-topology: rack}. They replace the operator's
    for autoscalers (safe-to-evict, do-not-disrupt). Default: none."""
    labels: Annotated[dict[str, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels of the pods, besides the operator's. Those for Kueue are also the Deployment's, and the groups' alone
    where a replica spans nodes. Example: {kueue.x-k8s.io/queue-name: gpu}. Default: none."""
    affinity: Opaque | None = None
    """Affinity of the pods, as in a pod's spec. A required node affinity holds besides the accelerator's; a preferred
    pod affinity replaces the operator's (pods of one resource near each other). Default: none."""
    topology_spread_constraints: Objects = Field(default_factory=list, json_schema_extra=ATOMIC)
    """Spread of the pods over zones and nodes, as in a pod's spec; one for a topologyKey replaces the operator's for
    that key. Default: routers spread over nodes and zones, workers do not spread."""
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pods: who is preempted for whom. Default: the cluster's own default class."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pods, where containers on GPU nodes need another runtime. Example: nvidia. Default: none."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pods. Example: volcano. Default: default-scheduler."""
    image_pull_secrets: Objects = Field(default_factory=list, json_schema_extra=ATOMIC)
    """Secrets of the resource's namespace for the image registry, as in a pod's spec. Example: [{name: registry}].
    Default: none."""
    volumes: Objects = Field(default_factory=list, json_schema_extra=ATOMIC)
    """Further volumes, as in a pod's spec; one called tmp or shm replaces the operator's scratch space of that name.
    hostPath, a server of one's own (nfs) and service account tokens need the cluster operator's permission. Default:
    none."""
    volume_mounts: Objects = Field(default_factory=list, json_schema_extra=ATOMIC)
    """Mounts of the further volumes in the main container, as in a pod's spec. Default: none."""
    containers: Objects = Field(default_factory=list, json_schema_extra=ATOMIC)
    """Further containers beside the main one, as in a pod's spec; they get no capability and no privilege unless they
    ask and the cluster operator permits. One called worker (router) adds to the main container. Default: none."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message=f"annotations and labels that begin with {GROUP}/ are the operator's",
            holds=_keys_are_free,
            cel=f"(!has(self.annotations) || self.annotations.all(k, !k.startsWith('{GROUP}/'))) "
            f"&& (!has(self.labels) || self.labels.all(k, !k.startsWith('{GROUP}/')))",
        ),
    )
