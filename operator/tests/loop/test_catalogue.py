"""The cluster's catalogue: mounted entries over the built-in ones, and pods of an entry that only the cluster has."""

from __future__ import annotations

import json

import pytest

from tandem_operator.api.catalogue import CATALOGUE, BadCatalogueError, to_data
from tandem_operator.loop.catalogue import MAX_BYTES, load
from tandem_operator.loop.refs import Ref, Stalled
from tandem_operator.loop.resync import load_catalogue
from tandem_operator.loop.settings import Settings
from tests.loop.passes import converge

REF = Ref("serving", "chat")


def entry(like="l4", **fields):
    """An entry of the ConfigMap: a built-in one's figures, with these fields."""
    return json.dumps(json.loads(to_data()[like]) | fields)


NEW = entry(
    resource="example.com/npu",
    products=[],
    labels={"example.com/npu.model": ["n1", "n1-ultra"]},
    flops={"bfloat16": 5e14},
    memory_bytes=96e9,
)


@pytest.fixture
def folder(tmp_path):
    """Where the ConfigMap is mounted, with the bookkeeping of a real one; nothing is in it."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "..hidden").write_text("not an entry")
    return tmp_path


@pytest.fixture
def operator(start, folder):
    """Start an operator that reads the folder."""
    return lambda: start(Settings(catalogue_path=str(folder)))


def write(folder, entries):
    for name, content in entries.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def pod_of(api, child="chat-prefill"):
    return api.find("Deployment", child)["spec"]["template"]["spec"]


def limits_of(api):
    return pod_of(api)["containers"][0]["resources"]["limits"]


def labels_of(api):
    terms = pod_of(api)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return {e["key"]: e["values"] for term in terms["nodeSelectorTerms"] for e in term["matchExpressions"]}


def asks_for(accelerator):
    return lambda spec: spec["pools"][0]["hardware"].update(accelerator=accelerator)


@pytest.mark.parametrize(
    ("mounted", "differ"),
    [
        pytest.param({}, set(), id="an empty ConfigMap"),
        pytest.param(to_data(), set(), id="the built-in entries themselves"),
        pytest.param({"h100-sxm": entry("h100-sxm", watts=650)}, {"h100-sxm"}, id="one is changed"),
        pytest.param({"npu": NEW}, {"npu"}, id="one is added"),
        pytest.param({"npu": NEW, "l4": entry(price_per_hour=0.1)}, {"npu", "l4"}, id="one of each"),
    ],
)
def test_mounted_entries_lie_over_the_built_in_ones(folder, mounted, differ):
    write(folder, mounted)
    found = load(str(folder))
    assert set(found) == set(CATALOGUE) | differ
    assert {name for name in found if found[name] != CATALOGUE.get(name)} == differ


def test_without_a_folder_the_built_in_entries_hold(tmp_path):
    assert load("") == CATALOGUE
    assert load(str(tmp_path / "not-mounted")) == CATALOGUE


def test_an_entry_has_the_figures_that_it_was_given(folder):
    write(folder, {"h100-sxm": entry("h100-sxm", watts=650, resource="example.com/gpu")})
    found = load(str(folder))["h100-sxm"]
    assert (found.name, found.watts, found.resource) == ("h100-sxm", 650, "example.com/gpu")
    assert found.products == CATALOGUE["h100-sxm"].products


async def test_pods_of_a_new_entry_have_its_resource_and_its_nodes(api, operator, folder, edit):
    write(folder, {"npu": NEW})
    edit(asks_for("npu"))
    outcome = await converge(api, await operator())
    assert not isinstance(outcome, Stalled), outcome
    assert {name: str(count) for name, count in limits_of(api).items()} == {"example.com/npu": "1"}
    assert labels_of(api) == {"example.com/npu.model": ["n1", "n1-ultra"]}
    assert {"key": "example.com/npu", "operator": "Exists"} in pod_of(api)["tolerations"]
    assert "nvidia.com/gpu" in pod_of(api, "chat-decode")["containers"][0]["resources"]["limits"], "a built-in entry's"


async def test_running_pods_follow_the_configmap_at_the_next_list(api, operator, folder):
    world = await operator()
    await converge(api, world)
    before = api.state()
    write(folder, {"h100-sxm": entry("h100-sxm", resource="example.com/gpu", products=["H100-X"], labels={})})
    await converge(api, world)
    assert "example.com/gpu" in limits_of(api)
    assert labels_of(api) == {"nvidia.com/gpu.product": ["H100-X"]}
    (folder / "h100-sxm").unlink()
    await converge(api, world)
    assert api.state() == before, "the built-in entry holds again"


async def test_an_entry_that_is_taken_away_stalls_who_has_it_and_keeps_the_children(api, operator, folder, edit):
    write(folder, {"npu": NEW})
    edit(asks_for("npu"))
    world = await operator()
    await converge(api, world)
    pod = pod_of(api)
    (folder / "npu").unlink()
    outcome = await converge(api, world)
    assert isinstance(outcome, Stalled)
    assert outcome.reason == "UnknownAccelerator"
    assert pod_of(api) == pod
    write(folder, {"npu": NEW})
    assert not isinstance(await converge(api, world), Stalled)


UNREADABLE = [
    pytest.param("{", id="half an entry"),
    pytest.param("", id="nothing"),
    pytest.param("[]", id="another thing"),
    pytest.param("{}", id="no figures"),
    pytest.param(entry(watts="much"), id="a word for a figure"),
    pytest.param(entry(generation="x" * MAX_BYTES), id="more than is read of one"),
    pytest.param(b"\xff\xfe", id="no text"),
    pytest.param("[" * 60_000, id="deeper than can be read"),
]


@pytest.mark.parametrize("content", UNREADABLE)
def test_an_entry_that_cannot_be_read_is_named(folder, content):
    write(folder, {"bad": content, "npu": NEW})
    with pytest.raises(BadCatalogueError, match="bad"):
        load(str(folder))


@pytest.mark.parametrize("content", UNREADABLE)
async def test_a_configmap_that_cannot_be_read_leaves_the_former_in_force(api, operator, folder, caplog, content):
    write(folder, {"npu": NEW})
    world = await operator()
    former = world.catalogue
    write(folder, {"bad": content, "npu": entry(resource="example.com/other")})
    load_catalogue(world)
    assert world.catalogue == former
    assert world.catalogue["npu"].resource == "example.com/npu"
    assert str(folder) in caplog.text
    (folder / "bad").unlink()
    load_catalogue(world)
    assert world.catalogue["npu"].resource == "example.com/other"


async def test_no_pod_moves_while_the_configmap_cannot_be_read(api, operator, folder, edit):
    write(folder, {"npu": NEW})
    edit(asks_for("npu"))
    world = await operator()
    await converge(api, world)
    before, writes = api.state(), len(api.writes)
    write(folder, {"npu": "{"})
    outcome = await converge(api, world)
    assert not isinstance(outcome, Stalled), outcome
    assert (api.state(), len(api.writes)) == (before, writes)


async def test_an_operator_that_starts_on_one_that_cannot_be_read_has_the_built_in_entries(api, operator, folder):
    write(folder, {"npu": "{"})
    world = await operator()
    assert world.catalogue == CATALOGUE
    assert not isinstance(await converge(api, world), Stalled)


def test_a_misspelt_field_is_said_and_the_entry_stays(folder, caplog):
    write(folder, {"npu": entry(wats=700)})
    assert "npu" in load(str(folder))
    assert "wats" in caplog.text
