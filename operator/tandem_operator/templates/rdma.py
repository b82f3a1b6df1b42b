"""How a worker's pod gets at its RDMA devices: resources, claims, networks, environment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tandem_operator.api.constants import LABEL_POOL
from tandem_operator.templates.names import digest_of

if TYPE_CHECKING:
    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Pool
    from tandem_operator.api.spec_template import Resources
    from tandem_operator.api.spec_transfer import Rdma, Transfer
    from tandem_operator.templates.names import Owner

Object = dict[str, Any]
EFA: Final = "vpc.amazonaws.com/efa"
HUGE: Final = "hugepages-2Mi"
HUGE_FOR_EFA: Final = "5120Mi"
# A GPU and its card below one PCIe root: the way between them does not cross the processor.
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
GPU_CLASSES: Final = {"nvidia.com/gpu": "gpu.nvidia.com", "amd.com/gpu": "gpu.amd.com"}
# UCX must be able to copy to and from the accelerator's memory, or it falls back to the host's.
COPIES: Final = {"nvidia.com/gpu": ("cuda_copy", "cuda_ipc"), "amd.com/gpu": ("rocm_copy", "rocm_ipc")}
MULTUS: Final = "k8s.v1.cni.cncf.io/networks"
GKE: Final = "networking.gke.io"


# Run by the engine's own image and as the engine is: the same limit, the same capabilities in effect.
MEMLOCK: Final = """\
import resource
limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
status = open("/proc/self/status").read().splitlines()
effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff"))
if 0 <= limit < {least} and not effective >> 14 & 1:
    print(f"this container may lock {{limit >> 10}} KiB of memory (RLIMIT_MEMLOCK) and CAP_IPC_LOCK is not in effect: "
          "RDMA cannot register the KV cache; raise LimitMEMLOCK of the nodes' container runtime")
    raise SystemExit({code})
"""
LEAST_LOCKED: Final = 2**30  # bytes; no KV cache that is worth a transfer is smaller


def preflight(spec: Spec) -> list[str]:
    """The command that looks at the memory that may be locked, for engines that do not; fails where RDMA is required.

    Empty: nothing is locked, or the engine looks itself.
    """
    if spec.engine.name == "tandem" or spec.mode == "Colocated" or spec.transfer.rdma.mode == "None":
        return []
    code = 1 if spec.transfer.require == "RDMA" else 0
    return ["python3", "-c", MEMLOCK.format(least=LEAST_LOCKED, code=code)]


def resources(rdma: Rdma, accelerator: Accelerator, gpus: int) -> Object:
    """The main container's resources: accelerators and RDMA devices, counted or claimed."""
    if rdma.mode == "DRA":
        return {"claims": [{"name": claim["name"]} for claim in claims("", gpus)]}
    counted = {accelerator.resource: str(gpus)} if accelerator.resource else {}
    name = rdma.resource or (EFA if rdma.mode == "EFA" else None)
    if name is not None:
        counted[name] = str(rdma.count)
    return {"limits": counted, "requests": counted} if counted else {}


def claims(template: str, gpus: int) -> list[Object]:
    """A pod's claims: one for each rank, so that each accelerator has the card beside it."""
    return [{"name": f"rank-{rank}", "resourceClaimTemplateName": template} for rank in range(gpus)]


def claim_template(owner: Owner, pool: Pool, rdma: Rdma, accelerator: Accelerator) -> Object:
    """What one rank claims. Its spec cannot be changed, so its name tells what is in it, and another gets another."""
    one = {"name": "gpu", "exactly": {"deviceClassName": pool.hardware.device_class or gpu_class(accelerator)}}
    cards = {"deviceClassName": rdma.device_class} | ({"count": rdma.count} if rdma.count > 1 else {})
    spec = {
        "devices": {
            "requests": [one, {"name": "nic", "exactly": cards}],
            "constraints": [{"requests": ["gpu", "nic"], "matchAttribute": PCIE_ROOT}],
        }
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": owner.metadata(f"{pool.name}-{digest_of(spec)[:8]}", pool.name, {LABEL_POOL: pool.name}),
        "spec": {"spec": spec},
    }


def gpu_class(accelerator: Accelerator) -> str:
    """The DeviceClass of an accelerator, by its vendor's driver."""
    return GPU_CLASSES.get(accelerator.resource, GPU_CLASSES["nvidia.com/gpu"])


def networks(rdma: Rdma) -> dict[str, str]:
    """Secondary networks, as Multus or GKE reads them."""
    if not rdma.networks:
        return {}
    if rdma.attachment == "Multus":
        return {MULTUS: ",".join(rdma.networks)}
    names = ["default", *rdma.networks]
    interfaces = [{"interfaceName": f"eth{index}", "network": name} for index, name in enumerate(names)]
    return {f"{GKE}/default-interface": "eth0", f"{GKE}/interfaces": json.dumps(interfaces, separators=(",", ":"))}


def environment(transfer: Transfer, accelerator: Accelerator) -> dict[str, str]:
    """What the transports read. NCCL's are for tensor parallelism alone: no KV travels by it."""
    rdma = transfer.rdma
    if rdma.mode == "None":
        return {}
    if rdma.mode == "EFA":  # UCX cannot; libfabric does
        return {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}
    fallback = () if transfer.require == "RDMA" else ("tcp",)
    ways = ("rc_mlx5", "rc", *COPIES.get(accelerator.resource, ()), "sm", "self", *fallback)
    found = {"UCX_TLS": ",".join(ways)}
    if rdma.devices:
        found |= {"UCX_NET_DEVICES": ",".join(rdma.devices), "NCCL_IB_HCA": ",".join(rdma.devices)}
    if rdma.gid_index is not None:
        found |= {"UCX_IB_GID_INDEX": str(rdma.gid_index), "NCCL_IB_GID_INDEX": str(rdma.gid_index)}
    return found


def defaults(transfer: Transfer, accelerator: Accelerator, laid: Resources) -> Object:
    """What holds unless the pool's template says otherwise: the transports' environment, and EFA's huge pages."""
    container: Object = {"name": "worker"}
    if env := environment(transfer, accelerator):
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    if transfer.rdma.mode == "EFA":
        container["resources"] = {"limits": {HUGE: HUGE_FOR_EFA}, "requests": {HUGE: HUGE_FOR_EFA}}
        # Huge pages are not granted to a container that asks for neither CPU nor memory.
        if not {"cpu", "memory"} & {*laid.limits, *laid.requests}:
            container["resources"]["requests"]["cpu"] = "100m"
    return {"spec": {"containers": [container]}}
