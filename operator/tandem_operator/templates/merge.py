"""Two halves of a pod laid over each other, lists merged as the API server's own schema says: by a key of their items.

The tables are the API server's `x-kubernetes-patch-merge-key` and `x-kubernetes-patch-strategy` of everything below a
pod template; a test on a real API server holds them to its OpenAPI.
"""

from __future__ import annotations

from typing import Any, Final

MERGE_KEYS: Final = {
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "evictionResponders": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
# Of these lists an item replaces the whole item of its key: a volume has one source, never two.
RETAIN_KEYS: Final = frozenset({"resourceClaims", "volumes"})
# The schema lets a variable's value and its source merge, which no API server takes afterwards.
ONE_SOURCE: Final = RETAIN_KEYS | {"env"}


def merged(over: Any, under: Any, field: str = "") -> Any:
    """Both halves in one; where they differ, `over` wins. Neither is changed.

    Objects merge field by field, lists of MERGE_KEYS item by item: those of `over` first, in its order, then what
    `under` adds. Any other list is one value.
    """
    return copied(_merged(over, under, field))


def copied(value: Any) -> Any:
    """A copy in which no object or list is shared: of what JSON can hold, and so a few times faster than deepcopy."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def _merged(over: Any, under: Any, field: str) -> Any:
    if isinstance(over, dict) and isinstance(under, dict):
        both = {name: _merged(value, under[name], name) if name in under else value for name, value in over.items()}
        return both | {name: value for name, value in under.items() if name not in over}
    return _merged_items(over, under, field) if _merges(over, under, field) else over


def conflicts(over: Any, under: Any, field: str = "", at: str = "") -> list[str]:
    """Where `under` says something else than `over`, which would win: the paths of those values."""
    if isinstance(over, dict) and isinstance(under, dict):
        both = [name for name in under if name in over]
        return [path for name in both for path in conflicts(over[name], under[name], name, f"{at}.{name}".lstrip("."))]
    if _merges(over, under, field):
        key = MERGE_KEYS[field]
        mine = {item[key]: item for item in over}
        pairs = [(mine[item[key]], item) for item in under if item[key] in mine]
        return [path for one, other in pairs for path in _item_conflicts(one, other, field, f"{at}[{one[key]}]")]
    return [] if over == under else [at]


def _merges(over: Any, under: Any, field: str) -> bool:
    """Are both lists of this field, with a key in each item? What has none is for the API server to refuse."""
    return field in MERGE_KEYS and all(
        isinstance(items, list)
        and all(isinstance(item, dict) and isinstance(item.get(MERGE_KEYS[field]), str | int) for item in items)
        for items in (over, under)
    )


def _merged_items(over: list[Any], under: list[Any], field: str) -> list[Any]:
    key = MERGE_KEYS[field]
    below = {} if field in ONE_SOURCE else {item[key]: item for item in under}
    mine = {item[key] for item in over}
    found = [_merged(item, below[item[key]], "") if item[key] in below else item for item in over]
    return found + [item for item in under if item[key] not in mine]


def _item_conflicts(one: Any, other: Any, field: str, at: str) -> list[str]:
    if field in ONE_SOURCE:
        return [] if one == other else [at]
    return conflicts(one, other, at=at)
