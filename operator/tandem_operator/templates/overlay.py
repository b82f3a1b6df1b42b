"""What a resource's `template` lays over a pod: these fields and no others."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem_operator.api.spec_template import PodTemplate, Resources

Object = dict[str, Any]


def overlaid(deployment: Object, template: PodTemplate) -> Object:
    """The Deployment with the overlay on its pods; the operator's own values win over the overlay's.

    A device that the operator asks for, a label, an annotation and an environment variable of its own are not replaced.
    """
    changed = deepcopy(deployment)
    pod = changed["spec"]["template"]
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    pod["metadata"]["annotations"] = dict(template.annotations) | pod["metadata"]["annotations"]
    if resources := merged_resources(container.get("resources", {}), template.resources):
        container["resources"] = resources
    if template.node_selector:
        spec["nodeSelector"] = dict(template.node_selector) | spec.get("nodeSelector", {})
    if template.tolerations:
        spec["tolerations"] = spec.get("tolerations", []) + [
            toleration.to_wire() for toleration in template.tolerations
        ]
    own = {variable["name"] for variable in container["env"]}
    # An environment variable may refer to an earlier one, so the operator's come first.
    container["env"] += [{"name": e.name, "value": e.value} for e in template.env if e.name not in own]
    return changed


def merged_resources(own: Object, laid: Resources) -> Object:
    """Limits and requests of both; quantities are text, as the API server keeps them."""
    merged = {}
    for side, amounts in (("limits", laid.limits), ("requests", laid.requests)):
        found = {name: str(amount) for name, amount in amounts.items()} | {
            k: str(v) for k, v in own.get(side, {}).items()
        }
        if found:
            merged[side] = found
    return merged
