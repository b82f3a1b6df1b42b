"""RBAC under the API server in memory: each request needs the right that the real one would ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from e2e.harness.kube import REPO
from e2e.tables.memory import Case, Memory, refusal

Right = tuple[str, str, str]  # group, resource[/subresource], verb
VERBS = {"POST": "create", "PUT": "update", "DELETE": "delete", "PATCH": "patch"}
PATH = re.compile(r"^/(?:api|apis/([^/]+))/[^/]+(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(?:/(status))?$")
ROLE, ROUTER_ROLE = REPO / "manifests/base/role.yaml", REPO / "manifests/base/router-role.yaml"


class Asked(NamedTuple):
    """What the API server asks its authorizer about a request."""

    group: str
    resource: str
    verb: str
    namespace: str
    name: str

    @property
    def right(self) -> Right:
        """What a rule must say, were it for all names."""
        return self[:3]


@cache
def rights_of(file: Path) -> frozenset[Right]:
    """All single rights of the roles in a file."""
    return frozenset(
        (group, resource, verb)
        for role in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        if role and role["kind"] in {"ClusterRole", "Role"}
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def needed(kube: Memory, verb: str, path: str) -> list[Asked]:
    """What the API server asks about whoever sends this request."""
    found = PATH.match(path)
    if found is None:
        raise ValueError(f"not a path of the API: {path}")
    group, namespace, plural, name, sub = found.groups(default="")
    resource = f"{plural}/{sub}" if sub else plural
    verbs = [VERBS.get(verb, "get" if name else "list")]
    if verb == "PATCH" and not sub and (plural, namespace, name) not in kube.items:
        verbs.append("create")  # an apply that makes the object; its name is asked about, too
    wanted = [Asked(group, resource, word, namespace, name) for word in verbs]
    if plural == "rolebindings" and verb in {"POST", "PATCH"}:
        # Nobody gives away what they do not have.
        wanted += [Asked(*right, namespace, "") for right in rights_of(ROUTER_ROLE)]
    return wanted


def guard(case: Case, held: Iterable[Right], used: set[Right], missed: set[Right]) -> None:
    """From here on the operator has these rights only; what it uses, and what it misses, is noted."""
    allowed = frozenset(held)

    def gate(verb: str, path: str) -> None:
        for right in (asked.right for asked in needed(case.kube, verb, path)):
            used.add(right)
            if right not in allowed:
                missed.add(right)
                raise refusal(403, "Forbidden", f"cannot {right[2]} {right[1]} in group {right[0]!r}")

    case.kube.gate = gate
