"""How a worker gets at its RDMA devices, as a table of modes."""

from __future__ import annotations

import json

import pytest

from tandem_operator.api.catalogue import find
from tandem_operator.api.spec_pool import Pool
from tandem_operator.api.spec_template import Resources
from tandem_operator.api.spec_transfer import Rdma, Transfer
from tandem_operator.templates import rdma
from tandem_operator.templates.names import Owner

H100, MI300X, CPU = find("h100-sxm"), find("mi300x"), find("cpu")
OWNER = Owner("chat", "serving", "uid-1")
GPUS = {"nvidia.com/gpu": "4"}


def device(**fields):
    return Rdma.model_validate(fields)


def counted(**more):
    return {"limits": GPUS | more, "requests": GPUS | more}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, counted(), id="none"),
        pytest.param(
            {"mode": "SharedDevice", "resource": "rdma/ib"}, counted(**{"rdma/ib": "1"}), id="a slot of a shared card"
        ),
        pytest.param(
            {"mode": "SRIOV", "resource": "openshift.io/vf", "count": 4},
            counted(**{"openshift.io/vf": "4"}),
            id="virtual functions",
        ),
        pytest.param({"mode": "HostDevice", "networks": ["rdma-0"]}, counted(), id="the webhook adds it"),
        pytest.param({"mode": "EFA", "count": 16}, counted(**{"vpc.amazonaws.com/efa": "16"}), id="EFA"),
        pytest.param(
            {"mode": "DRA", "deviceClass": "nic"}, {"claims": [{"name": f"rank-{n}"} for n in range(4)]}, id="claims"
        ),
    ],
)
def test_resources(fields, expected):
    assert rdma.resources(device(**fields), H100, 4) == expected


def test_a_cpu_worker_without_rdma_asks_for_nothing():
    assert rdma.resources(device(), CPU, 1) == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param({"networks": ["a", "net/b"]}, {"k8s.v1.cni.cncf.io/networks": "a,net/b"}, id="Multus"),
        pytest.param(
            {"networks": ["rdma-0"], "attachment": "GKE"},
            {
                "networking.gke.io/default-interface": "eth0",
                "networking.gke.io/interfaces": json.dumps(
                    [
                        {"interfaceName": "eth0", "network": "default"},
                        {"interfaceName": "eth1", "network": "rdma-0"},
                    ],
                    separators=(",", ":"),
                ),
            },
            id="GKE",
        ),
    ],
)
def test_networks(fields, expected):
    assert rdma.networks(device(mode="HostDevice", **fields)) == expected


NVIDIA = "rc_mlx5,rc,cuda_copy,cuda_ipc,sm,self"


@pytest.mark.parametrize(
    ("fields", "require", "accelerator", "expected"),
    [
        pytest.param({}, "Any", H100, {}, id="none"),
        pytest.param({"mode": "SRIOV"}, "RDMA", H100, {"UCX_TLS": NVIDIA}, id="required: no way over TCP"),
        pytest.param({"mode": "SRIOV"}, "Any", H100, {"UCX_TLS": f"{NVIDIA},tcp"}, id="any way"),
        pytest.param({"mode": "SRIOV"}, "RDMA", MI300X, {"UCX_TLS": "rc_mlx5,rc,rocm_copy,rocm_ipc,sm,self"}, id="AMD"),
        pytest.param({"mode": "SRIOV"}, "RDMA", CPU, {"UCX_TLS": "rc_mlx5,rc,sm,self"}, id="no accelerator"),
        pytest.param(
            {"mode": "SharedDevice", "devices": ["mlx5_0:1", "mlx5_1:1"], "gidIndex": 3},
            "RDMA",
            H100,
            {
                "UCX_TLS": NVIDIA,
                "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
                "NCCL_IB_HCA": "mlx5_0:1,mlx5_1:1",
                "UCX_IB_GID_INDEX": "3",
                "NCCL_IB_GID_INDEX": "3",
            },
            id="devices and GID",
        ),
        pytest.param({"mode": "EFA"}, "RDMA", H100, {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"}, id="EFA"),
    ],
)
def test_environment(fields, require, accelerator, expected):
    transfer = Transfer.model_validate({"rdma": fields, "require": require})
    assert rdma.environment(transfer, accelerator) == expected


HUGE = {"hugepages-2Mi": "5120Mi"}


@pytest.mark.parametrize(
    ("laid", "requests"),
    [
        pytest.param({}, HUGE | {"cpu": "100m"}, id="huge pages need a request beside them"),
        pytest.param({"limits": {"memory": "64Gi"}}, HUGE, id="the template has one"),
    ],
)
def test_efa_gets_huge_pages(laid, requests):
    transfer = Transfer.model_validate({"rdma": {"mode": "EFA"}})
    (container,) = rdma.defaults(transfer, H100, Resources.model_validate(laid))["spec"]["containers"]
    assert container["resources"] == {"limits": HUGE, "requests": requests}


def pool(**hardware):
    return Pool.model_validate(
        {
            "name": "prefill",
            "role": "Prefill",
            "hardware": {"accelerator": "h100-sxm", **hardware},
            "replicas": {"min": 1, "max": 1},
        }
    )


def claimed(fields, accelerator=H100, **hardware):
    return rdma.claim_template(OWNER, pool(**hardware), device(mode="DRA", **fields), accelerator)


def test_a_rank_claims_its_accelerator_and_the_card_beside_it():
    found = claimed({"deviceClass": "mrdma.google.com"})
    assert found["spec"]["spec"]["devices"] == {
        "requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}},
            {"name": "nic", "exactly": {"deviceClassName": "mrdma.google.com"}},
        ],
        "constraints": [{"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}],
    }


def test_another_content_has_another_name_since_a_template_cannot_be_changed():
    names = [
        claimed({"deviceClass": "a"})["metadata"]["name"],
        claimed({"deviceClass": "b"})["metadata"]["name"],
        claimed({"deviceClass": "a", "count": 2})["metadata"]["name"],
        claimed({"deviceClass": "a"}, MI300X)["metadata"]["name"],
        claimed({"deviceClass": "a"}, deviceClass="c")["metadata"]["name"],
    ]
    assert len(set(names)) == len(names)
    assert names[0] == claimed({"deviceClass": "a"})["metadata"]["name"]
    assert all(name.startswith("chat-prefill-") for name in names)
