"""`tandem render`: what the operator would make of a resource, without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.loop.modes import in_effect
from tandem_operator.templates import children
from tandem_operator.templates.names import Owner

if TYPE_CHECKING:
    from tandem_operator.api.v1alpha1 import DisaggregatedInference

Object = dict[str, Any]
NOBODY = "00000000-0000-0000-0000-000000000000"  # the uid that a resource gets on its cluster


def rendered(resource: DisaggregatedInference, images: children.Images) -> list[Object]:
    """The children at their initial sizes, but for the transfer key, whose name comes from the uid.

    The catalogue is the built-in one; a cluster's own may differ. Of mode Auto it is what a new resource begins with.
    Raises UnknownAcceleratorError and TemplateRefusedError.
    """
    spec, meta = in_effect(resource, ()).spec, resource.metadata
    owner = Owner(meta.name, meta.namespace, meta.uid or NOBODY)
    accelerators = accelerators_of(spec, CATALOGUE)
    sizes = {pool.name: pool.replicas.start for pool in spec.pools}
    return [
        *children.access(owner),
        *children.services(owner, spec),
        *children.claim_templates(owner, spec, accelerators),
        *children.pools_of(owner, spec, accelerators, images, sizes),
        children.router_deployment(owner, spec, images),
        *children.budgets(owner, spec),
    ]
