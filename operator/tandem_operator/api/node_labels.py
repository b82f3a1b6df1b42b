"""How clusters label the nodes that have an accelerator: several keys for an entry, any of which is enough.

From public sources where SOURCES names one, the rest from memory; tried on none of these clouds. The catalogue
ConfigMap can correct any of it. `nvidia.com/gpu.product` is the driver's name of the card, `-` for blanks: one name a
card (older drivers leave out "NVIDIA"), so a second one is another driver's or a public manifest's. AMD's labeller
writes MI300X as ..._OAM, on Azure's virtual functions (device 74b5) as ..._VF, and its older releases under the key
beta.amd.com. An autoscaler that has no such node yet knows only its cloud's labels, so these are what lets a pool grow
from nothing.

A key is left out where its value is two entries' at once: Karpenter's name `a100` and Azure's `A100`, `H100`
(karpenter.azure.com/sku-gpu-name) are cards of two sizes and shapes. There the instance type tells, which each of
these clouds' autoscalers knows as well.
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
AMD_DEVICE: Final = "amd.com/gpu.device-id"  # a PCI id; the labeller writes both, where it can
AMD_DEVICE_BETA: Final = f"beta.{AMD_DEVICE}"
_MI300X: Final = ("AMD_Instinct_MI300X_OAM", "AMD_Instinct_MI300X_VF", "AMD_Instinct_MI300X")
_MI300X_IDS: Final = ("74a1", "74b5")  # the card; a virtual function of it
TYPE: Final = "node.kubernetes.io/instance-type"  # EKS node groups, AKS, OKE, CoreWeave

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"  # set by GPU feature discovery

# Where each key, and its values, are from: a repository on GitHub and the file in it, or a vendor's page.
SOURCES: Final[Mapping[str, str]] = {
    PRODUCT_LABEL: (
        "suffixes: NVIDIA/k8s-device-plugin, docs/gfd_labels.md; names: the power table of ai-dynamo/dynamo; A100 of "
        "40 GB and of PCIe, H200 NVL and second names: manifests and tests of several public repositories"
    ),
    GKE: "AI-Hypercomputer/xpk, system_characteristics.py; skypilot-org/skypilot, sky/provision/kubernetes/utils.py",
    KARPENTER: (
        "aws/karpenter-provider-aws, website/content/en/docs/reference/instance-types.md; gb200, which it does not "
        "list yet, from memory"
    ),
    EKS_AUTO: "the key: Amazon EKS user guide, Auto Mode; the values: those of Karpenter",
    COREWEAVE: (
        "A100_PCIE_80GB: coreweave/kubernetes-cloud, release notes; H100_NVLINK_80GB: a test of skypilot-org/skypilot; "
        "H200: a setup file of llm-d's benchmark; A100_NVLINK_80GB from memory"
    ),
    COREWEAVE_CLASS: (
        "skypilot-org/skypilot, as above (CoreWeaveLabelFormatter); with an underscore: coreweave/kubernetes-cloud, "
        "coreweave-kubernetes/node-types.md"
    ),
    AMD: "_OAM: AMD's device plugin, its page on the labeller; _VF: tests of public schedulers; without: from memory",
    AMD_BETA: "as without beta",
    AMD_DEVICE: "74a1: AMD's device plugin, as above; 74b5: vllm-project/vllm, its table of ROCm devices",
    AMD_DEVICE_BETA: "as without beta",
    TYPE: (
        "OCI shapes: sgl-project/ome, pkg/utils; oracle-quickstart/oci-hpc-oke and other public manifests; CoreWeave: "
        "public Terraform modules; Azure: public size tables, GPU by GPU; EC2: Karpenter's table and code"
    ),
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
        TYPE: (
            *("p5.48xlarge", "p5.4xlarge", "Standard_ND96isr_H100_v5"),
            *("BM.GPU.H100.8", "BM.GPU.H100-NC.8", "BM.GPU.H100T.8", "gd-8xh100ib-i128"),
        ),
    },
    "h100-pcie": {COREWEAVE_CLASS: ("H100_PCIE",)},  # no other of the clouds sells it
    "h100-nvl": {TYPE: ("Standard_NC40ads_H100_v5", "Standard_NC80adis_H100_v5", "Standard_NCC40ads_H100_v5")},
    "h200-sxm": {
        GKE: ("nvidia-h200-141gb",),
        **_aws("h200"),
        COREWEAVE: ("H200",),
        COREWEAVE_CLASS: ("H200",),
        TYPE: (
            *("p5e.48xlarge", "p5en.48xlarge", "Standard_ND96isr_H200_v5"),
            *("BM.GPU.H200.8", "BM.GPU.H200-NC.8", "gd-8xh200ib-i128"),
        ),
    },
    # None of the clouds sells it: h200-nvl is found by the driver's name alone.
    "a100-sxm-80gb": {
        GKE: ("nvidia-a100-80gb",),
        COREWEAVE: ("A100_NVLINK_80GB",),
        COREWEAVE_CLASS: ("A100_NVLINK_80GB",),
        TYPE: ("p4de.24xlarge", "Standard_ND96amsr_A100_v4", "BM.GPU.A100-v2.8", "gd-8xa100-i128"),
    },
    "a100-sxm-40gb": {
        GKE: ("nvidia-tesla-a100",),
        COREWEAVE_CLASS: ("A100_NVLINK",),
        TYPE: ("p4d.24xlarge", "Standard_ND96asr_v4", "BM.GPU4.8", "BM.GPU.B4.8"),
    },
    "a100-pcie-80gb": {
        COREWEAVE: ("A100_PCIE_80GB",),
        COREWEAVE_CLASS: ("A100_PCIE_80GB",),
        TYPE: ("Standard_NC24ads_A100_v4", "Standard_NC48ads_A100_v4", "Standard_NC96ads_A100_v4"),
    },
    "a100-pcie-40gb": {COREWEAVE_CLASS: ("A100_PCIE_40GB",)},
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
        TYPE: (
            *("p6e-gb200.36xlarge", "Standard_ND128isr_NDR_GB200_v6", "gb200-4x"),
            *("BM.GPU.GB200.4", "BM.GPU.GB200-v2.4", "BM.GPU.GB200-v3.4"),
        ),
    },
    "l40s": {
        **_aws("l40s"),
        COREWEAVE_CLASS: ("L40S",),
        TYPE: (*(f"g6e.{size}" for size in _SIZES), "BM.GPU.L40S.4", "BM.GPU.L40S-NC.4", "gd-8xl40s-i128"),
    },
    # The sizes g6f and gr6f have a share of a card.
    "l4": {
        GKE: ("nvidia-l4",),
        **_aws("l4"),
        TYPE: (*(f"g6.{size}" for size in _SIZES), "gr6.4xlarge", "gr6.8xlarge"),
    },
    "mi300x": {
        AMD: _MI300X,
        AMD_BETA: _MI300X,
        AMD_DEVICE: _MI300X_IDS,
        AMD_DEVICE_BETA: _MI300X_IDS,
        TYPE: ("Standard_ND96isr_MI300X_v5", "BM.GPU.MI300X.8"),
    },
}

# Nodes that a cloud may take away at short notice, as each cloud labels and taints them.
SPOT: Final = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
