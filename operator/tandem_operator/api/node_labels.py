"""How clusters label the nodes that have an accelerator: several keys for an entry, any of which is enough.

From public sources where SOURCES names one, the rest from memory; tried on none of these clouds. The catalogue
ConfigMap can correct any of it. `nvidia.com/gpu.product` is the driver's name of the card, `-` for blanks: one name a
card (older drivers leave out "NVIDIA"), so a second one is another driver's or a public manifest's. AMD's labeller
writes MI300X as ..._OAM, on Azure's virtual functions (device 74b5) as ..._VF, and its older releases under the key
beta.amd.com. An autoscaler that has no such node yet knows only its cloud's labels, so these are what lets a pool grow
from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GKE: Final = "cloud.google.com/gke-accelerator"
KARPENTER: Final = "karpenter.k8s.aws/instance-gpu-name"
EKS_AUTO: Final = "eks.amazonaws.com/instance-gpu-name"
COREWEAVE: Final = "gpu.nvidia.com/model"
COREWEAVE_CLASS: Final = "gpu.nvidia.com/class"
AMD: Final = "amd.com/gpu.product-name"  # AMD's node labeller
AMD_BETA: Final = f"beta.{AMD}"  # ... and its older releases
_MI300X: Final = ("AMD_Instinct_MI300X_OAM", "AMD_Instinct_MI300X_VF", "AMD_Instinct_MI300X")
TYPE: Final = "node.kubernetes.io/instance-type"  # EKS node groups, AKS, OKE, CoreWeave

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"  # set by GPU feature discovery

# Where each key, and its values, are from: a repository on GitHub and the file in it, or a vendor's page.
SOURCES: Final[Mapping[str, str]] = {
    PRODUCT_LABEL: "suffixes: NVIDIA/k8s-device-plugin, docs/gfd_labels.md; names: the power table of ai-dynamo/dynamo",
    GKE: "AI-Hypercomputer/xpk, system_characteristics.py; skypilot-org/skypilot, sky/provision/kubernetes/utils.py",
    KARPENTER: "the key: skypilot-org/skypilot, as above; the values: from memory",
    EKS_AUTO: "the key: Amazon EKS user guide, Auto Mode; the values: those of Karpenter",
    COREWEAVE: "from memory of CoreWeave's pages",
    COREWEAVE_CLASS: (
        "skypilot-org/skypilot, as above (CoreWeaveLabelFormatter); H100_NVLINK_80GB, H100_PCIE, A100_NVLINK_80GB: "
        "coreweave/kubernetes-cloud, coreweave-kubernetes/node-types.md"
    ),
    AMD: "from memory of AMD's node labeller",
    AMD_BETA: "from memory of AMD's node labeller",
    TYPE: "OCI shapes: public manifests; EC2, Azure and CoreWeave: from memory",
}

NodeLabels = Mapping[str, tuple[str, ...]]
_SIZES: Final = ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")


def _aws(name: str) -> dict[str, tuple[str, ...]]:
    return {KARPENTER: (name,), EKS_AUTO: (name,)}


NODE_LABELS: Final[Mapping[str, NodeLabels]] = {
    "h100-sxm": {
        GKE: ("nvidia-h100-80gb", "nvidia-h100-mega-80gb"),
        **_aws("h100"),
        COREWEAVE: ("H100_NVLINK_80GB",),
        COREWEAVE_CLASS: ("H100", "H100_NVLINK_80GB"),
        TYPE: ("p5.48xlarge", "p5.4xlarge", "Standard_ND96isr_H100_v5", "BM.GPU.H100.8", "gd-8xh100ib-i128"),
    },
    "h100-pcie": {COREWEAVE_CLASS: ("H100_PCIE",)},
    "h100-nvl": {TYPE: ("Standard_NC40ads_H100_v5", "Standard_NC80adis_H100_v5")},
    "h200-sxm": {
        GKE: ("nvidia-h200-141gb",),
        **_aws("h200"),
        COREWEAVE: ("H200_NVLINK_141GB",),
        COREWEAVE_CLASS: ("H200",),
        TYPE: ("p5e.48xlarge", "p5en.48xlarge", "Standard_ND96isr_H200_v5", "BM.GPU.H200.8", "gd-8xh200ib-i128"),
    },
    # Karpenter's name "a100" is the 40 GB card as well: there, the instance type tells.
    "a100-sxm-80gb": {
        GKE: ("nvidia-a100-80gb",),
        COREWEAVE: ("A100_NVLINK_80GB",),
        COREWEAVE_CLASS: ("A100_NVLINK_80GB",),
        TYPE: ("p4de.24xlarge", "Standard_ND96amsr_A100_v4", "BM.GPU.A100-v2.8"),
    },
    "b200": {
        GKE: ("nvidia-b200",),
        **_aws("b200"),
        COREWEAVE_CLASS: ("B200",),
        TYPE: ("p6-b200.48xlarge", "BM.GPU.B200.8", "b200-8x"),
    },
    "gb200": {
        GKE: ("nvidia-gb200",),
        **_aws("gb200"),
        COREWEAVE_CLASS: ("GB200",),
        TYPE: ("p6e-gb200.36xlarge", "Standard_ND128isr_NDR_GB200_v6", "BM.GPU.GB200.4", "gb200-4x"),
    },
    "l40s": {**_aws("l40s"), COREWEAVE_CLASS: ("L40S",), TYPE: (*(f"g6e.{size}" for size in _SIZES), "BM.GPU.L40S.4")},
    "l4": {GKE: ("nvidia-l4",), **_aws("l4"), TYPE: tuple(f"g6.{size}" for size in _SIZES)},
    "mi300x": {AMD: _MI300X, AMD_BETA: _MI300X, TYPE: ("Standard_ND96isr_MI300X_v5", "BM.GPU.MI300X.8")},
}

# Nodes that a cloud may take away at short notice, as each cloud labels and taints them.
SPOT: Final = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
