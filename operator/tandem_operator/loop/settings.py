"""The operator's settings, from the environment (prefix TANDEM_): what belongs to whoever runs the cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from tandem_operator.templates.allowed import ALLOWABLE
from tandem_operator.templates.children import Images
from tandem_operator.templates.rdma_nodes import POLICIES, Functions, Sharing

PREFIX = "TANDEM_"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_./-]{0,251}[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
# Of the cluster-wide operators' Lease: one place, wherever they are installed, so that there is never a second Lease.
WIDE_LEASE_NAMESPACE = "kube-system"
TAGGED = re.compile(r"[^\s@]+/[^\s@/:]+:[^\s@/:]+")  # an image as the network operator wants it: with a tag
LABELS = rf"^({_LABEL}(,{_LABEL})*)?$"


class SettingsError(ValueError):
    """A variable is missing or wrong; the message names it."""


class VirtualFunctions(BaseModel):
    """TANDEM_RDMA_VIRTUAL_FUNCTIONS, as JSON: what the SR-IOV network operator is to make of the cards."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    resource_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{1,63}$")]
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")] = "sriov-network-operator"
    vendor: Annotated[str, Field(pattern=r"^[0-9a-f]{4}$")] = "15b3"
    pf_names: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.#-]{1,32}$")], ...], Field(max_length=32)
    ] = ()
    num_vfs: Annotated[int, Field(ge=1, le=128)] = 8
    link_type: Annotated[str, Field(pattern="^(eth|ib)$")] = "eth"
    mtu: Annotated[int, Field(ge=1280, le=9978)] = 9000


class Settings(BaseModel):
    """Each field is the variable TANDEM_<FIELD>; one that is not known is refused, so that a typing error shows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prometheus_url: str = "http://prometheus-operated.monitoring.svc:9090"
    worker_image: Annotated[str, Field(min_length=1)] = "tandem-worker:latest"
    router_image: Annotated[str, Field(min_length=1)] = "tandem-router:latest"
    metrics_window_seconds: Annotated[int, Field(ge=5, le=3600)] = 60
    resync_seconds: Annotated[int, Field(ge=10, le=86_400)] = 300
    record_path: str = ""  # '': decisions are not recorded
    catalogue_path: str = ""  # folder of the mounted ConfigMap tandem-catalogue; '': the built-in catalogue
    worker_threads: Annotated[int, Field(ge=0, le=256)] = 0  # 0: torch's own default
    template_allow: str = ""  # what a template may ask for, by comma: HostPath, HostPort, Root, Privileged, …
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9-]{0,63}$")] = ""  # '': all namespaces
    fleet_gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # that all resources share; 0: no shared budget
    elect: bool = True  # work only while holding the Lease; false: a single process outside the cluster
    reconcile_workers: Annotated[int, Field(ge=1, le=64)] = 4
    monitor_labels: Annotated[str, Field(pattern=LABELS, max_length=1000)] = ""  # of PodMonitors and rules: a=b,c=d
    rdma_node_pools: Annotated[str, Field(pattern=LABELS, max_length=1000)] = ""  # nodes whose RDMA cards are shared
    rdma_setup: bool = False  # with no node pools: what the operator once made there is taken away
    rdma_virtual_functions: str = ""  # '': cards are shared; else JSON of VirtualFunctions
    rdma_network_operator: bool = False  # the NVIDIA network operator runs the plugin, by node policies
    rdma_resource: Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")] = "rdma/hca_shared_devices_a"
    rdma_vendors: Annotated[str, Field(pattern=r"^[0-9a-f]{4}(,[0-9a-f]{4})*$")] = "15b3"
    rdma_plugin_image: Annotated[str, Field(min_length=1)] = "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3"
    listen_host: str = "0.0.0.0"
    listen_port: Annotated[int, Field(ge=1, le=65_535)] = 8080
    pod_name: str = "tandem-operator"
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"

    @field_validator("prometheus_url")
    @classmethod
    def _is_web_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
            raise ValueError("must be http(s)://host[:port][/path], without a user or a query")
        return url

    @field_validator("template_allow")
    @classmethod
    def _is_allowable(cls, text: str) -> str:
        if unknown := sorted(set(filter(None, text.split(","))) - set(ALLOWABLE)):
            raise ValueError(f"{', '.join(unknown)} is not one of {', '.join(ALLOWABLE)}")
        return text

    @field_validator("namespace")
    @classmethod
    def _is_not_the_leases(cls, name: str) -> str:
        if name == WIDE_LEASE_NAMESPACE:
            raise ValueError(f"{name} holds the cluster-wide operators' Lease: one of its own would keep them waiting")
        return name

    @property
    def lease_namespace(self) -> str:
        """Where the Lease is: operators of one scope meet there."""
        return self.namespace or WIDE_LEASE_NAMESPACE

    @property
    def labels_of_monitors(self) -> dict[str, str]:
        """Labels by which this cluster's Prometheus operator selects its objects."""
        return dict(pair.split("=", 1) for pair in self.monitor_labels.split(",") if pair)

    @field_validator("rdma_node_pools")
    @classmethod
    def _are_few(cls, text: str) -> str:
        if text.count(",") >= POLICIES:
            raise ValueError(f"at most {POLICIES} node pools")
        return text

    @field_validator("rdma_virtual_functions")
    @classmethod
    def _is_readable(cls, text: str) -> str:
        if text:
            VirtualFunctions.model_validate_json(text)
        return text

    @model_validator(mode="after")
    def _is_one_way(self) -> Settings:
        if self.rdma_network_operator and self.rdma_virtual_functions:
            raise ValueError("RDMA_NETWORK_OPERATOR shares cards, RDMA_VIRTUAL_FUNCTIONS splits them: one of both")
        if self.rdma_network_operator and not TAGGED.fullmatch(self.rdma_plugin_image):
            raise ValueError("RDMA_PLUGIN_IMAGE must be repository/name:tag where the network operator runs it")
        return self

    @property
    def rdma_sharing(self) -> Sharing | None:
        """Which nodes' cards are prepared, and how; None where nobody asks for it, or for what is there to be taken."""
        pools = tuple(
            (key, value) for key, _, value in (p.partition("=") for p in self.rdma_node_pools.split(",") if p)
        )
        if not pools and not self.rdma_setup:
            return None
        vendors = tuple(self.rdma_vendors.split(","))
        image, by = self.rdma_plugin_image, self.rdma_network_operator
        return Sharing(pools, self.rdma_resource, vendors, image, self._functions(), network_operator=by)

    def _functions(self) -> Functions | None:
        if not self.rdma_virtual_functions:
            return None
        asked = VirtualFunctions.model_validate_json(self.rdma_virtual_functions)
        return Functions(
            resource=asked.resource_name,
            namespace=asked.namespace,
            vendor=asked.vendor,
            pf_names=asked.pf_names,
            count=asked.num_vfs,
            link=asked.link_type,
            mtu=asked.mtu,
        )

    @property
    def images(self) -> Images:
        """What pods are made of."""
        allowed = frozenset(filter(None, self.template_allow.split(",")))
        return Images(self.worker_image, self.router_image, self.worker_threads, allowed)


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Settings from variables; raise SettingsError naming every one that is wrong or unknown."""
    # Service links of the cluster look like TANDEM_OPERATOR_PORT; the pod switches them off (enableServiceLinks).
    given = {name.removeprefix(PREFIX).lower(): value for name, value in environment.items() if name.startswith(PREFIX)}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        told = [(*found["loc"], "")[0] for found in error.errors()]  # no place where two variables do not fit together
        problems = (f"{PREFIX}{str(name).upper()}: {e['msg']}" for name, e in zip(told, error.errors(), strict=True))
        raise SettingsError("; ".join(problems)) from error
