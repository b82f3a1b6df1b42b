"""Ways in which the operator is installed: the roles that it is given, and every kind of request that it then makes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from e2e.harness.kube import REPO
from e2e.tables.fields import settled
from e2e.tables.kills import STORIES
from e2e.tables.memory import Case, Object, copied
from e2e.tables.rights import ROLE, Asked, needed
from tandem_operator.edges.kinds import KINDS
from tandem_operator.loop.handlers import WATCHED, selector_of
from tandem_operator.loop.leader import Leader
from tandem_operator.loop.nodes import prepare_once
from tandem_operator.loop.settings import Settings, from_environment

LEASE_ROLE, FILES = REPO / "manifests/base/lease-role.yaml", REPO / "charts/tandem/files"
RBAC = "rbac.authorization.k8s.io"
NEAR = "serving"  # the namespace of an operator of its own, and of the stories
FUNCTIONS = '{"resourceName": "hca_vf", "numVfs": %d}'
# What whoever runs the cluster asks for, one after another: cards shared, shared otherwise, and no more.
SETUPS: tuple[dict[str, str], ...] = tuple(
    {"RDMA_SETUP": "true", "RDMA_NODE_POOLS": pools, "RDMA_VENDORS": vendors} | more
    for way in ({}, {"RDMA_NETWORK_OPERATOR": "true"}, {"RDMA_VIRTUAL_FUNCTIONS": FUNCTIONS})
    for pools, vendors, number in (("a=b", "15b3", 4), ("a=b", "8086", 8), ("", "15b3", 4))
    for more in ({name: word % number if "%d" in word else word for name, word in way.items()},)
)


def about(version: str, kind: str, name: str, namespace: str = "") -> Object:
    """An object with nothing in it."""
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
    }


@dataclass(frozen=True, slots=True)
class Role:
    """A shipped role, as it is bound."""

    name: str
    namespace: str  # '': everywhere
    rules: tuple[Object, ...]

    def rights(self) -> Iterator[tuple[int, str, str]]:
        """Each single right: the rule's number, a resource, a verb."""
        for number, rule in enumerate(self.rules):
            yield from ((number, resource, verb) for resource in rule["resources"] for verb in rule["verbs"])

    def without(self, number: int, resource: str, verb: str) -> Role:
        """The role without one right."""
        rule = self.rules[number]
        others = {**rule, "resources": [name for name in rule["resources"] if name != resource]}
        rest = {**rule, "resources": [resource], "verbs": [word for word in rule["verbs"] if word != verb]}
        kept = [part for part in (others, rest) if part["resources"] and part["verbs"]]
        return replace(self, rules=(*self.rules[:number], *kept, *self.rules[number + 1 :]))

    def objects(self, prefix: str, account: str, at: str) -> tuple[Object, Object]:
        """The role, and its binding to an account in the namespace `at`."""
        kind, name = "Role" if self.namespace else "ClusterRole", f"{prefix}-{self.name}"
        role = {**about(f"{RBAC}/v1", kind, name, self.namespace), "rules": list(self.rules)}
        binding = about(f"{RBAC}/v1", f"{kind}Binding", name, self.namespace)
        whom = [{"kind": "ServiceAccount", "name": account, "namespace": at}]
        return role, {**binding, "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": whom}

    def allows(self, asked: Asked) -> bool:
        """Does one of its rules say so?"""
        return self.namespace in {"", asked.namespace} and any(
            asked.group in rule["apiGroups"]
            and asked.resource in rule["resources"]
            and asked.verb in rule["verbs"]
            and asked.name in rule.get("resourceNames", [asked.name])
            for rule in self.rules
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it goes out, and what the API server asks its authorizer about it."""

    verb: str
    path: str
    query: dict[str, str]
    body: Object | None
    content: str
    asked: frozenset[Asked]

    def __str__(self) -> str:
        """For the report of a test; an apply that makes its object needs more than one that changes it."""
        what = "watch" if "watch" in self.query else self.verb
        makes = what == "PATCH" and any(asked.verb == "create" for asked in self.asked)
        return f"{'make' if makes else what} {self.path}"


@dataclass(frozen=True, slots=True)
class Installation:
    """Roles, and the settings that go with them."""

    name: str
    roles: tuple[Role, ...]
    settings: dict[str, str]
    setups: tuple[dict[str, str], ...] = ()

    def refused(self, requests: list[Request], changed: Role) -> set[str]:
        """The requests that the API server must refuse, were one role like this."""
        roles = [changed if role.name == changed.name else role for role in self.roles]
        return {str(r) for r in requests if not all(any(role.allows(a) for role in roles) for a in r.asked)}


def rules_of(file: Path) -> tuple[Object, ...]:
    """The rules in a chart's file, or of the role in a manifest."""
    first = next(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    return tuple(first["rules"] if isinstance(first, dict) else first)


WIDE = Installation(
    "cluster-wide",
    (Role("operator", "", rules_of(ROLE)), Role("lease", "kube-system", rules_of(LEASE_ROLE))),
    {},
)
ONE = Installation(
    "one-namespace",
    (
        Role("operator", NEAR, rules_of(FILES / "operator-rules.yaml")),
        Role("lease", NEAR, rules_of(LEASE_ROLE)),
        Role("rdma", "kube-system", rules_of(FILES / "rdma-rules.yaml")),
        Role("rdma-policies", "sriov-network-operator", rules_of(FILES / "rdma-policy-rules.yaml")),
        Role("rdma-nodes", "", rules_of(FILES / "rdma-node-rules.yaml")),
    ),
    {"NAMESPACE": NEAR},
    SETUPS,
)


async def requests_of(installation: Installation) -> list[Request]:
    """One request of each kind: all that the stories, the Lease, the nodes' set-up and the watches ask for."""
    found: dict[object, Request] = {}
    settings = settings_of(installation.settings)
    for story in STORIES:
        case = noted(Case(story.body(), settings), found)
        await settled(case)
        if story.begin is not None:
            story.begin(case)
        await case.converge()
    case = noted(Case(STORIES[0].body(), settings), found)
    for _ in ("makes the Lease", "is back and goes on"):
        await elected(Leader(case.kube, settings.lease_namespace, "one"))
    for setup in installation.setups:
        if (sharing := settings_of(setup).rdma_sharing) is not None:
            await prepare_once(case.world, sharing)
    return [*found.values(), *watches(settings.namespace)]


def settings_of(variables: dict[str, str]) -> Settings:
    """Settings by short names."""
    return from_environment({f"TANDEM_{name}": value for name, value in variables.items()})


async def elected(leader: Leader) -> None:
    """It asks for the Lease until it has it."""
    running = asyncio.create_task(leader.run())
    await leader.elected.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def noted(case: Case, found: dict[object, Request]) -> Case:
    """The case, its requests noted: one for each set of questions, whatever the objects' names are in a story."""

    def note(verb: str, path: str, query: dict[str, str], body: Object | None, content: str) -> None:
        asked = frozenset(needed(case.kube, verb, path))
        kinds = frozenset(a if a.namespace != NEAR else a._replace(name="") for a in asked)
        found.setdefault((verb, kinds), Request(verb, path, dict(query), copied(body), content, asked))

    case.kube.heard = note
    return case


def watches(namespace: str) -> Iterator[Request]:
    """What kopf asks for, and no pass; of a version that is none, so that the API server ends it at once."""
    for kind in WATCHED:
        place = KINDS[kind]
        query = {"watch": "1", "resourceVersion": "none", "labelSelector": selector_of(kind)}
        asked = Asked(place.group, place.plural, "watch", namespace, "")
        yield Request("GET", place.path(namespace or None), query, None, "application/json", frozenset({asked}))
