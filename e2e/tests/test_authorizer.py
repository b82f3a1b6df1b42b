"""Rights on the real API server: with the shipped roles every request goes through; without one right its own do not.

The requests are those that the operator makes in memory (e2e/tables/installations.py), sent by its own client with its
own token. Writes are dry runs. Without a right all requests for its kind are sent, and what else needs it. There is an
API server and no operator: what is answered is the authorizer's word alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
import yaml

from e2e.harness import cluster as clusters
from e2e.harness.client import connected
from e2e.harness.cluster import Cluster
from e2e.harness.foreign import definition
from e2e.harness.kube import REPO, Kube, condition
from e2e.harness.ports import free_port
from e2e.harness.waiting import until
from e2e.tables.installations import ONE, RBAC, WIDE, Installation, Request, Role, about, requests_of
from e2e.tables.rights import ROUTER_ROLE
from tandem_operator.edges import kube as edge
from tandem_operator.edges.errors import ApiError
from tandem_operator.templates import nic_policy
from tandem_operator.templates.rdma_nodes import POLICY

DIRECTORY = REPO / "build/authorizer"
ACCOUNTS = "operators"  # the namespace of the accounts, one an installation
# Kinds that Kubernetes itself does not serve: whether an apply may create is asked only where there is such a kind.
FOREIGN = ("LeaderWorkerSet", "PodMonitor", "PrometheusRule", POLICY, nic_policy.KIND, nic_policy.CLUSTER_KIND)
SEEN_S = 30.0  # until the authorizer has seen a role that changed
WIDTH = 8  # requests at a time
CASES = [(where, role, right) for where in (WIDE, ONE) for role in where.roles for right in role.rights()]

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Place:
    """An installation on the API server: its account's token, and what it is going to ask."""

    installation: Installation
    token: str
    requests: list[Request]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane of its own: kinds of others are served on it."""
    if "KUBECONFIG" in os.environ:
        pytest.skip("KUBECONFIG names a cluster: no roles and kinds are made on it")
    path = tmp_path_factory.mktemp("authorizer") / "cluster.yaml"
    path.write_text(yaml.safe_dump({"kinds": {"cpu": {}}, "nodes": [{"name": "cpu-0", "kind": "cpu"}]}))
    up = clusters.up(DIRECTORY, free_port(), path)
    try:
        yield up
    finally:
        up.down()
    assert clusters.leftovers(DIRECTORY) == []


@pytest.fixture(scope="module")
def places(server: Cluster) -> dict[str, Place]:
    """Both installations, on an API server that serves all kinds."""
    kube = server.kube
    kube.apply(yaml.safe_dump_all([definition(kind) for kind in FOREIGN]))
    kube.run("apply", "--server-side", "-k", "crds")
    kube.run("apply", "--server-side", "-f", str(ROUTER_ROLE))
    until("all kinds are served", lambda: are_served(kube), 60)
    names = {ACCOUNTS, *(role.namespace for role in (*WIDE.roles, *ONE.roles)), ONE.settings["NAMESPACE"]} - {""}
    kube.apply(yaml.safe_dump_all([about("v1", "Namespace", name) for name in names]))
    for namespace in ("kube-system", ONE.settings["NAMESPACE"]):
        kube.apply(yaml.safe_dump(about("coordination.k8s.io/v1", "Lease", "tandem-operator", namespace)))
    return {where.name: placed(kube, where) for where in (WIDE, ONE)}


def placed(kube: Kube, installation: Installation) -> Place:
    """Its account with the roles as they are shipped."""
    account = installation.name
    kube.apply(yaml.safe_dump(about("v1", "ServiceAccount", account, ACCOUNTS)))
    for role in installation.roles:
        kube.apply(yaml.safe_dump_all(role.objects(account, account, ACCOUNTS)))
    token = kube.run("create", "token", account, "-n", ACCOUNTS, "--duration=1h").strip()
    return Place(installation, token, asyncio.run(requests_of(installation)))


@pytest.fixture
async def admin(server: Cluster) -> AsyncIterator[edge.Kube]:
    """Whoever changes roles."""
    async with await connected(server.kube) as client:
        yield edge.Kube(client)


@pytest.mark.parametrize("name", [WIDE.name, ONE.name])
async def test_with_the_shipped_roles_every_request_goes_through(
    server: Cluster, places: dict[str, Place], name: str
) -> None:
    place = places[name]
    async with await connected(server.kube, place.token) as client:
        await until_refused(edge.Kube(client), place.requests, set())


@pytest.mark.parametrize(
    ("where", "role", "right"), CASES, ids=["-".join(map(str, (w.name, r.name, *right))) for w, r, right in CASES]
)
async def test_without_one_right_exactly_what_needs_it_is_refused(
    server: Cluster,
    places: dict[str, Place],
    admin: edge.Kube,
    where: Installation,
    role: Role,
    right: tuple[int, str, str],
) -> None:
    place, changed = places[where.name], role.without(*right)
    expected = where.refused(place.requests, changed)
    assert expected, "no request needs it: it is not to be shipped"
    concerned = [r for r in place.requests if str(r) in expected or any(a.resource == right[1] for a in r.asked)]
    async with await connected(server.kube, place.token) as client:
        try:
            await set_rules(admin, where, changed)
            await until_refused(edge.Kube(client), concerned, expected)
        finally:
            await set_rules(admin, where, role)


async def until_refused(kube: edge.Kube, requests: list[Request], expected: set[str]) -> None:
    """Until the API server refuses these requests and no others; its authorizer sees a changed role a moment later."""
    end = time.monotonic() + SEEN_S
    while (seen := await refused(kube, requests)) != expected:
        assert time.monotonic() < end, {"refused": seen - expected, "allowed": expected - seen}


async def refused(kube: edge.Kube, requests: list[Request]) -> set[str]:
    """Those that are answered with Forbidden."""
    gate = asyncio.Semaphore(WIDTH)

    async def one(request: Request) -> str:
        dry = {} if request.verb == "GET" else {"dryRun": "All"}
        async with gate:
            try:
                await kube._ask(request.verb, request.path, request.query | dry, request.body, request.content)
            except ApiError as error:
                if error.reason in {"Timeout", "Unreachable", "Unauthorized"}:
                    raise
                return str(request) if error.reason == "Forbidden" else ""
        return ""

    return set(await asyncio.gather(*map(one, requests))) - {""}


async def set_rules(admin: edge.Kube, where: Installation, role: Role) -> None:
    """The role as it is from now on."""
    item, _ = role.objects(where.name, where.name, ACCOUNTS)
    within = f"/namespaces/{role.namespace}" if role.namespace else ""
    path = f"/apis/{RBAC}/v1{within}/{item['kind'].lower()}s/{item['metadata']['name']}"
    await admin._ask("PATCH", path, {}, {"rules": item["rules"]}, edge.MERGE)


def are_served(kube: Kube) -> bool:
    """Does the API server answer for all kinds of others, and for ours?"""
    found = kube.json("get", "crd")["items"]
    return all(condition(item, "Established")["status"] == "True" for item in found)
