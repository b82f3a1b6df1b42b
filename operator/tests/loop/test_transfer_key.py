"""The Secret with the transfer key: made and never read, so its name tells whose it is. Workers keep theirs."""

from __future__ import annotations

import copy

import pytest

from tandem_operator.loop import observe as observing
from tandem_operator.loop.observe import owner_of
from tandem_operator.loop.refs import Ref

from .test_passes import converge

REF = Ref("serving", "chat")
FOREIGN = {"metadata": {"name": "chat-transfer-key", "namespace": "serving"}, "stringData": {"key": "known to others"}}


def volume(name):
    return [
        {"name": "tmp", "emptyDir": {}},
        *([{"name": "transfer-key", "secret": {"secretName": name}}] if name else []),
    ]


def deployment(name):
    return {"spec": {"template": {"spec": {"volumes": volume(name)}}}}


def groups(name):
    return {"spec": {"leaderWorkerTemplate": {"leaderTemplate": {"spec": {"volumes": volume(name)}}}}}


OWN = owner_of(REF, "uid-1", ()).key_secret
FORMER = "chat-transfer-key"


@pytest.mark.parametrize(
    ("pools", "found"),
    [
        pytest.param([], OWN, id="a new resource"),
        pytest.param([deployment(OWN), deployment(OWN)], OWN, id="it has its own"),
        pytest.param([deployment(FORMER), deployment(FORMER)], FORMER, id="the first version made it"),
        pytest.param([groups(FORMER)], FORMER, id="groups of the first version"),
        pytest.param([deployment(FORMER), deployment("")], FORMER, id="workers of another engine have none"),
        pytest.param([deployment("")], OWN, id="another engine's workers alone"),
        pytest.param([deployment("other"), deployment("other")], OWN, id="somebody else's is not taken"),
        pytest.param([deployment(FORMER), deployment("other")], FORMER, id="an edit of one restarts no other"),
        pytest.param([deployment(OWN), deployment(FORMER)], OWN, id="somebody changed one of them"),
    ],
)
def test_which_secret(pools, found):
    assert owner_of(REF, "uid-1", pools).key_secret == found


def secrets_of_workers(api):
    return {
        volume["secret"]["secretName"]
        for d in api.of("Deployment")
        for volume in d["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "transfer-key"
    }


async def test_a_foreign_secret_of_the_former_name_is_not_taken(api, start):
    api.store("Secret", copy.deepcopy(FOREIGN))
    await converge(api, await start())
    (own,) = secrets_of_workers(api)
    assert own != FORMER
    assert api.find("Secret", own)["stringData"]["key"] != FOREIGN["stringData"]["key"]


@pytest.fixture
async def made_before(api, start, monkeypatch):
    """A resource that the first version of the operator made."""
    with monkeypatch.context() as version:
        version.setattr(observing, "owner_of", lambda ref, uid, _pools: owner_of(ref, uid, [deployment(FORMER)]))
        await converge(api, await start())
    assert secrets_of_workers(api) == {FORMER}


async def test_workers_that_the_first_version_made_are_not_restarted(api, start, made_before):
    pods, secrets = {p["metadata"]["uid"] for p in api.of("Pod")}, api.of("Secret")
    before = len(api.writes)
    await converge(api, await start())
    assert {p["metadata"]["uid"] for p in api.of("Pod")} == pods
    assert api.of("Secret") == secrets
    assert len(api.writes) == before


async def test_the_limit_they_may_run_on_a_foreign_secret_of_that_name(api, start, made_before):
    """What was there before the first version's resource was taken for its own, and cannot be told from it."""
    api.store("Secret", copy.deepcopy(FOREIGN))
    await converge(api, await start())
    assert secrets_of_workers(api) == {FORMER}


async def test_without_their_deployments_they_come_back_with_a_secret_of_their_own(api, start, made_before):
    """The way out of it."""
    for item in api.of("Deployment"):
        await api.delete(item)
    api.settle()
    await converge(api, await start())
    (own,) = secrets_of_workers(api)
    assert own != FORMER
    assert api.find("Secret", own) is not None
