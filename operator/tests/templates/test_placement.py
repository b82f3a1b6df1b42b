"""Where pods go, as a table: which nodes fit, what is tolerated, what is preferred."""

from __future__ import annotations

import pytest

from tandem_operator.api.catalogue import CATALOGUE, UnknownAcceleratorError
from tandem_operator.api.node_labels import PRODUCT_LABEL
from tandem_operator.api.spec_pool import Hardware
from tandem_operator.loop.catalogue import accelerator_of
from tandem_operator.templates.placement import KEPT, node_terms, router_defaults, tolerations, worker_defaults

FULL = {"teraflops": 1, "memoryGibibytes": 1, "memoryGigabytesPerSecond": 1, "linkGigabytesPerSecond": 1}


def hardware(**fields):
    return Hardware.model_validate({"accelerator": "h100-sxm", **fields})


def fits(labels, wanted):
    """Does a node with these labels pass, as the scheduler judges terms?"""

    def holds(one):
        return (labels.get(one["key"]) in one["values"]) == (one["operator"] == "In")

    terms = node_terms(accelerator_of(wanted, CATALOGUE), wanted)
    return not terms or any(all(map(holds, term["matchExpressions"])) for term in terms)


GKE_H100 = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


@pytest.mark.parametrize(
    ("labels", "wanted", "answer"),
    [
        pytest.param({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, {}, True, id="feature discovery"),
        pytest.param({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}, {}, False, id="a shared card"),
        pytest.param({"nvidia.com/gpu.product": "NVIDIA-H100-PCIe"}, {}, False, id="another card"),
        pytest.param(GKE_H100, {}, True, id="GKE"),
        pytest.param({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, {}, True, id="GKE mega"),
        pytest.param({"karpenter.k8s.aws/instance-gpu-name": "h100"}, {}, True, id="Karpenter"),
        pytest.param({"eks.amazonaws.com/instance-gpu-name": "h100"}, {}, True, id="EKS Auto Mode"),
        pytest.param({"node.kubernetes.io/instance-type": "p5.48xlarge"}, {}, True, id="an EKS node group"),
        pytest.param({"node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, {}, True, id="AKS"),
        pytest.param({"node.kubernetes.io/instance-type": "BM.GPU.H100.8"}, {}, True, id="OKE"),
        pytest.param({"gpu.nvidia.com/model": "H100_NVLINK_80GB"}, {}, True, id="CoreWeave"),
        pytest.param({}, {}, False, id="a node without labels"),
        pytest.param({}, {"accelerator": "cpu"}, True, id="cpu: any node"),
        pytest.param({}, {"nodeSelector": {"card": "h100"}}, True, id="the resource's own selector stands for all"),
        pytest.param(GKE_H100, {"capacityType": "OnDemand"}, True, id="on demand"),
        pytest.param(
            GKE_H100 | {"cloud.google.com/gke-spot": "true"}, {"capacityType": "OnDemand"}, False, id="not spot"
        ),
        pytest.param(GKE_H100 | {"cloud.google.com/gke-spot": "true"}, {"capacityType": "Spot"}, True, id="spot"),
        pytest.param(GKE_H100, {"capacityType": "Spot"}, False, id="spot alone"),
        pytest.param({"karpenter.sh/capacity-type": "spot"}, {"capacityType": "Spot"}, False, id="spot, no card"),
        pytest.param(
            {"karpenter.sh/capacity-type": "spot"}, {"accelerator": "cpu", "capacityType": "Spot"}, True, id="spot, cpu"
        ),
    ],
)
def test_nodes_that_fit(labels, wanted, answer):
    assert fits(labels, hardware(**wanted)) is answer


FORMS = [
    pytest.param(name, key, value, id=f"{name} {value}")
    for name, entry in CATALOGUE.items()
    for key, values in {PRODUCT_LABEL: entry.products, **entry.labels}.items()
    for value in values
]


@pytest.mark.parametrize(("name", "key", "value"), FORMS)
def test_each_form_lets_one_entrys_pods_in(name, key, value):
    """One expression a key, with all its values; terms for the keys, any of which is enough."""
    wanted = [hardware(accelerator=other) for other in CATALOGUE if other != "cpu"]
    assert [one.accelerator for one in wanted if fits({key: value}, one)] == [name]
    terms = node_terms(CATALOGUE[name], hardware(accelerator=name))
    assert [len(term["matchExpressions"]) for term in terms] == [1] * len(terms)
    assert len({term["matchExpressions"][0]["key"] for term in terms}) == len(terms)


@pytest.mark.parametrize(
    ("wanted", "resource", "keys"),
    [
        pytest.param({}, "nvidia.com/gpu", ["nvidia.com/gpu"], id="the catalogue's"),
        pytest.param({"resourceName": "example.com/gpu"}, "example.com/gpu", ["example.com/gpu"], id="the resource's"),
        pytest.param({"accelerator": "mine", **FULL}, "", [], id="not in the catalogue, no device"),
        pytest.param({"accelerator": "mine", "resourceName": "a.b/c", **FULL}, "a.b/c", ["a.b/c"], id="with a device"),
        pytest.param({"accelerator": "mi300x"}, "amd.com/gpu", ["amd.com/gpu"], id="AMD"),
    ],
)
def test_the_device_and_its_taint(wanted, resource, keys):
    found = hardware(**wanted)
    accelerator = accelerator_of(found, CATALOGUE)
    assert accelerator.resource == resource
    assert [one["key"] for one in tolerations(accelerator, found)] == keys


def test_a_half_described_accelerator_is_unknown():
    with pytest.raises(UnknownAcceleratorError, match="mine"):
        accelerator_of(hardware(accelerator="mine", teraflops=1), CATALOGUE)


def test_spot_nodes_are_tolerated_where_they_are_asked_for():
    found = hardware(capacityType="Spot")
    keys = {one["key"] for one in tolerations(accelerator_of(found, CATALOGUE), found)}
    assert "cloud.google.com/gke-spot" in keys


def test_defaults():
    worker = worker_defaults("chat")
    assert worker["metadata"]["annotations"] == KEPT
    (near,) = worker["spec"]["affinity"]["podAffinity"].values()
    weights = [term["weight"] for term in near]
    assert weights == sorted(weights, reverse=True), "nearer weighs more"
    assert {str(t["podAffinityTerm"]["labelSelector"]) for t in near} == {
        "{'matchLabels': {'tandem.dev/resource': 'chat', 'tandem.dev/component': 'worker'}}"
    }
    spread = router_defaults("chat")["spec"]["topologySpreadConstraints"]
    assert {one["whenUnsatisfiable"] for one in spread} == {"ScheduleAnyway"}
