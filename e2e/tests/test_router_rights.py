"""A router's rights on the real API server: its own list and watch go through, and without one right it says which."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import yaml

from e2e.harness.kube import Kube
from e2e.harness.waiting import until
from e2e.tables.installations import Role, about, rules_of
from e2e.tables.rights import ROUTER_ROLE
from tandem_router.access import Access
from tandem_router.discovery import Discovery, Selection
from tandem_router.workers import Registry

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

NAME, NEAR = "router-rights", "router-rights"
SEEN_S = 30.0  # until the authorizer has seen a role that changed
SHIPPED = Role("router", NEAR, rules_of(ROUTER_ROLE))
RIGHTS = list(SHIPPED.rights())
LABELS = {"tandem.dev/resource": NAME, "tandem.dev/component": "worker", "tandem.dev/role": "decode"}


@pytest.fixture(scope="module")
def token(kube: Kube) -> Iterator[str]:
    """Of an account in a namespace of its own, with one worker."""
    kube.apply(yaml.safe_dump_all([about("v1", "Namespace", NEAR), about("v1", "ServiceAccount", NAME, NEAR)]))
    until("the namespace takes pods", lambda: kube.find("serviceaccount", "default", NEAR), 30)
    kube.apply(worker("early"))
    try:
        yield kube.run("create", "token", NAME, "-n", NEAR, "--duration=1h").strip()
    finally:
        kube.run("delete", "namespace", NEAR, "--wait=false")


def bind(kube: Kube, role: Role) -> None:
    """The account has this role from now on."""
    kube.apply(yaml.safe_dump_all(role.objects(NAME, NAME, NEAR)))


def worker(name: str) -> str:
    """A worker's pod that fits no node."""
    container = {"name": "worker", "image": "none"}
    pod = about("v1", "Pod", name, NEAR)
    pod["metadata"]["labels"] = LABELS
    return yaml.safe_dump({**pod, "spec": {"nodeSelector": {"nowhere": "at-all"}, "containers": [container]}})


def access(kube: Kube, token: str) -> Access:
    """The API server as a pod with this token sees it."""
    cluster = yaml.safe_load(kube.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    return Access(cluster["server"], ssl.create_default_context(cadata=authority), token)


@asynccontextmanager
async def following(kube: Kube, token: str) -> AsyncIterator[Registry]:
    """A router's view of the workers, kept in step as long as the body runs."""
    registry = Registry()
    async with aiohttp.ClientSession(trust_env=False) as session:
        task = asyncio.create_task(Discovery(session, access(kube, token), Selection(NEAR, NAME), registry).run())
        try:
            yield registry
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def seen(what: str, holds: Callable[[], bool]) -> None:
    """Until it holds, while the router follows."""
    await asyncio.to_thread(until, what, holds, SEEN_S, 0.05)


def names(registry: Registry) -> set[str]:
    return {found.name for found in registry.workers}


async def test_with_its_role_it_sees_workers_that_are_and_that_come(kube: Kube, token: str) -> None:
    bind(kube, SHIPPED)
    async with following(kube, token) as registry:
        await seen("the list", lambda: "early" in names(registry))
        kube.apply(worker("late"))
        await seen("the watch", lambda: "late" in names(registry))


@pytest.mark.parametrize("right", RIGHTS, ids=["-".join(map(str, right)) for right in RIGHTS])
async def test_without_one_right_it_says_which(
    kube: Kube, token: str, caplog: pytest.LogCaptureFixture, right: tuple[int, str, str]
) -> None:
    bind(kube, SHIPPED)
    async with following(kube, token) as registry:
        await seen("its role", lambda: "early" in names(registry))
    bind(kube, SHIPPED.without(*right))
    _, resource, verb = right
    async with following(kube, token):
        await seen("the refusal", lambda: f'cannot {verb} resource \\"{resource}\\"' in caplog.text)
    assert "is the service account bound to the ClusterRole tandem-router?" in caplog.text
