"""What a resource's `template` lays over a pod: these fields and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tandem_operator.templates.allowed import refused
from tandem_operator.templates.merge import conflicts, copied, merged

if TYPE_CHECKING:
    from tandem_operator.api.spec_template import EnvVar, PodTemplate

Object = dict[str, Any]
# Volumes that a template may replace: scratch space, whose size is the user's matter.
SCRATCH: Final = frozenset({"tmp", "shm"})
CONFINED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
PLAIN: Final = ("affinity", "priorityClassName", "runtimeClassName", "schedulerName")
LISTS: Final = ("topologySpreadConstraints", "imagePullSecrets", "volumes")
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS: Final = "nodeSelectorTerms"


class TemplateRefusedError(ValueError):
    """The template asks for what it may not, or contradicts the operator; reported as Stalled/TemplateRefused."""


def overlaid(
    deployment: Object, template: PodTemplate, *, defaults: Object | None = None, allowed: frozenset[str] = frozenset()
) -> Object:
    """The Deployment with the overlay on its pods, above `defaults` and below the operator's own values.

    Raises TemplateRefusedError, naming every field of the template that is not allowed or would not be followed.
    """
    changed: Object = copied(deployment)
    own = changed["spec"]["template"]
    laid = _laid(template, own["spec"]["containers"][0]["name"])
    below = _taken_out(own, defaults or {})
    problems = refused(laid, allowed)
    _add_up(own["spec"], laid["spec"])
    if problems := problems + _disputes(own, laid):
        raise TemplateRefusedError(f"{changed['metadata']['name']}: template: {'; '.join(problems)}")
    changed["spec"]["template"] = merged(own, merged(laid, below))
    return changed


def _laid(template: PodTemplate, main: str) -> Object:
    """The template as a half of a pod, nothing in it that is unset."""
    wire = _without_null(template.to_wire())
    container = {
        "name": main,
        "resources": {side: _as_text(amounts) for side, amounts in wire.get("resources", {}).items() if amounts},
        "env": [_variable(variable) for variable in template.env],
        "volumeMounts": wire.get("volumeMounts", []),
    }
    spec = {name: wire[name] for name in (*PLAIN, *LISTS, "nodeSelector", "tolerations") if wire.get(name)}
    others = [merged(other, {"securityContext": CONFINED}) for other in wire.get("containers", [])]
    # What is said of the main container among the further ones belongs to the same container.
    same = [other for other in wire.get("containers", []) if other.get("name") == main]
    spec["containers"] = [_full(merged(container, same[0]) if same else container), *same[1:]]
    spec["containers"] += [other for other in others if other.get("name") != main]
    return {"metadata": _full({"labels": wire.get("labels"), "annotations": wire.get("annotations")}), "spec": spec}


def _taken_out(own: Object, defaults: Object) -> Object:
    """`defaults`, and the scratch volumes out of the operator's own half: a template may replace both."""
    volumes = own["spec"].get("volumes", [])
    own["spec"]["volumes"] = [volume for volume in volumes if volume["name"] not in SCRATCH]
    scratch = [volume for volume in volumes if volume["name"] in SCRATCH]
    return dict(merged({"spec": {"volumes": scratch}}, defaults))


def _add_up(own: Object, laid: Object) -> None:
    """Tolerations and node affinity of both halves hold together; they move from `laid` to `own`."""
    if tolerations := laid.pop("tolerations", None):
        mine = own.get("tolerations", [])
        own["tolerations"] = mine + [one for one in tolerations if one not in mine]
    mine = _at(own, "affinity", "nodeAffinity", REQUIRED).get(TERMS)
    terms = _at(laid, "affinity", "nodeAffinity", REQUIRED).get(TERMS)
    if mine and isinstance(terms, list) and all(_is_term(term) for term in terms):
        del laid["affinity"]["nodeAffinity"][REQUIRED]
        own["affinity"]["nodeAffinity"][REQUIRED][TERMS] = [_both(one, other) for one in mine for other in terms]


def _at(holder: Any, *path: str) -> Object:
    """The object at a path of what nobody has checked; empty where there is none."""
    for name in path:
        holder = holder.get(name) if isinstance(holder, dict) else None
    return holder if isinstance(holder, dict) else {}


def _is_term(term: Any) -> bool:
    return isinstance(term, dict) and all(isinstance(value, list) for value in term.values())


def _both(one: Object, other: Object) -> Object:
    """A node term that asks for what both ask for; the API server's terms are alternatives."""
    names = [*one, *(name for name in other if name not in one)]
    return {name: one.get(name, []) + other.get(name, []) for name in names}


def _disputes(own: Object, laid: Object) -> list[str]:
    """What the template says otherwise than the operator, and what only one container may have."""
    main, *others = laid["spec"]["containers"]
    devices = _at(own["spec"]["containers"][0], "resources", "limits")
    taken = [name for other in others for name in _at(other, "resources", "limits") if name in devices and "/" in name]
    names = [str(container.get("name")) for container in [main, *others]]
    found = [f"{path} is the operator's own" for path in conflicts(own, laid)]
    found += [f"{name} is the main container's alone" for name in taken]
    return found + [f"containers[{name}] is there twice" for name in set(names) if names.count(name) > 1]


def _variable(variable: EnvVar) -> Object:
    if variable.value_from is not None:
        return {"name": variable.name, "valueFrom": variable.value_from}
    return {"name": variable.name, "value": variable.value}


def _as_text(amounts: Object) -> Object:
    """Quantities as text, as the API server keeps them."""
    return {name: str(amount) for name, amount in amounts.items()}


def _full(holder: Object) -> Object:
    return {name: value for name, value in holder.items() if value}


def _without_null(value: Any) -> Any:
    """Null is unset, as the API server has it."""
    if isinstance(value, dict):
        return {name: _without_null(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_null(inner) for inner in value if inner is not None]
    return value
