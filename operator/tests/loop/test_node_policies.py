"""Cards shared by the NVIDIA network operator: policies of our own names; the cluster policy is read, never written."""

from __future__ import annotations

import json

import pytest

from tandem_operator.edges.errors import NotFoundError
from tandem_operator.loop.nodes import prepare_once
from tandem_operator.loop.settings import SettingsError, from_environment
from tandem_operator.templates.nic_policy import CLUSTER_KIND, CLUSTER_NAME, KIND, SECTION
from tandem_operator.templates.rdma_nodes import NAME, NAMESPACE, entry, manifests

HCA = "hca_shared_devices_a"


def sharing_of(pools, **variables):
    return from_environment(
        {"TANDEM_RDMA_SETUP": "true", "TANDEM_RDMA_NODE_POOLS": pools, "TANDEM_RDMA_NETWORK_OPERATOR": "true"}
        | variables
    ).rdma_sharing


TWO = sharing_of("pool=a,example.com/pool=b")


def policies_in(api):
    return {name: item for (kind, _, name), item in api.items.items() if kind == KIND}


def cluster_policy(api, spec):
    about = {"name": CLUSTER_NAME, "namespace": ""}
    api.store(CLUSTER_KIND, {"kind": CLUSTER_KIND, "metadata": about, "spec": spec})


def offering(*names):
    listed = [{"resourceName": name, "resourcePrefix": "rdma", "selectors": {"vendors": ["15b3"]}} for name in names]
    return {SECTION: {"image": "i", "config": json.dumps({"configList": listed})}, "nvIpam": {}}


async def test_one_policy_a_pool_written_once_and_taken_away(api, start):
    world = await start()
    assert await prepare_once(world, TWO) is None
    found = policies_in(api)
    assert [item["spec"]["nodeSelector"] for item in found.values()] == [{"pool": "a"}, {"example.com/pool": "b"}]
    for item in found.values():
        plugin = item["spec"][SECTION]
        assert json.loads(plugin["config"])["configList"] == [entry(TWO)]
        assert (plugin["repository"], plugin["version"]) == ("ghcr.io/mellanox", "v1.5.3")
        assert set(item["spec"]) == {"nodeSelector", SECTION}, "no drivers, no networks"
    before = len(api.writes)
    await prepare_once(world, TWO)
    assert len(api.writes) == before, "idle"
    await prepare_once(world, sharing_of("example.com/pool=b"))
    assert [item["spec"]["nodeSelector"] for item in policies_in(api).values()] == [{"example.com/pool": "b"}]
    await prepare_once(world, sharing_of(""))
    assert policies_in(api) == {}


def test_names_are_as_short_as_the_network_operator_wants_them():
    many = sharing_of(",".join(f"pool=p{number}" for number in range(16)))
    names = [item["metadata"]["name"] for item in manifests(many)]
    assert len(set(names)) == 16
    assert max(map(len, names)) <= 30


async def test_the_own_plugin_goes_when_the_network_operator_takes_over(api, start):
    world = await start()
    own = from_environment({"TANDEM_RDMA_NODE_POOLS": "pool=a"}).rdma_sharing
    await prepare_once(world, own)
    await prepare_once(world, TWO)
    assert not {("ConfigMap", NAMESPACE, NAME), ("DaemonSet", NAMESPACE, NAME)} & set(api.items)
    assert len(policies_in(api)) == 2


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param(offering(HCA), None, id="it offers the resource"),
        pytest.param(offering("ib"), ["ib", HCA], id="it offers another: that stays"),
        pytest.param({SECTION: {"image": "i"}}, [HCA], id="it offers none"),
    ],
)
async def test_a_cluster_policy_that_shares_cards_is_told_about_and_never_written(api, start, spec, told):
    cluster_policy(api, spec)
    said = await prepare_once(await start(), TWO)
    assert api.writes == []
    if told is None:
        assert said is None
        return
    command, _, patch = said.partition("-p '")
    assert command.endswith("kubectl patch nicclusterpolicy nic-cluster-policy --type=merge ")
    changed = json.loads(patch.removesuffix("'"))["spec"]
    assert set(changed) == {SECTION}
    assert set(changed[SECTION]) == {"config"}, "its image stays its own"
    assert [one["resourceName"] for one in json.loads(changed[SECTION]["config"])["configList"]] == told


async def test_a_configuration_that_cannot_be_read_is_not_replaced(api, start):
    cluster_policy(api, {SECTION: {"config": "{"}})
    said = await prepare_once(await start(), TWO)
    assert "cannot be read" in said
    assert json.loads(said[said.index("{") :]) == entry(TWO)
    assert api.writes == []


async def test_a_cluster_policy_without_the_plugin_is_no_obstacle(api, start):
    cluster_policy(api, {"nvIpam": {}})
    assert await prepare_once(await start(), TWO) is None
    assert len(policies_in(api)) == 2


async def test_an_older_network_operator_is_told_about_with_the_whole_patch(api, start):
    api.unserved.add(KIND)
    said = await prepare_once(await start(), TWO)
    assert said.startswith("no NicNodePolicy is served here")
    changed = json.loads(said.partition("-p '")[2].removesuffix("'"))
    assert changed["spec"][SECTION]["image"] == "k8s-rdma-shared-dev-plugin"
    assert NotFoundError.__name__ not in said


async def test_a_foreign_policy_of_our_name_is_left_alone(api, start):
    api.store(KIND, {"kind": KIND, "metadata": {"name": "tandem-rdma-0", "namespace": ""}, "spec": {}})
    world = await start()
    assert "somebody else's" in await prepare_once(world, TWO)
    await prepare_once(world, sharing_of(""))
    assert policies_in(api)["tandem-rdma-0"]["spec"] == {}
    assert api.writes == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        pytest.param({"TANDEM_RDMA_VIRTUAL_FUNCTIONS": '{"resourceName": "a"}'}, "one of both", id="two ways at once"),
        pytest.param({"TANDEM_RDMA_PLUGIN_IMAGE": "r/i@sha256:0"}, "repository/name:tag", id="a digest"),
        pytest.param({"TANDEM_RDMA_PLUGIN_IMAGE": "r.io:5000/i"}, "repository/name:tag", id="no tag"),
    ],
)
def test_settings_that_do_not_fit_together(variables, words):
    with pytest.raises(SettingsError, match=words):
        sharing_of("pool=a", **variables)
