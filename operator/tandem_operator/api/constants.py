"""Names that every other room spells the same way; docs/reference/borders.md is where they are agreed."""

from __future__ import annotations

from typing import Final

GROUP: Final = "tandem.dev"  # whoever publishes must own this domain
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "DisaggregatedInference"
LIST_KIND: Final = f"{KIND}List"
SINGULAR: Final = "disaggregatedinference"
PLURAL: Final = "disaggregatedinferences"
SHORT_NAME: Final = "di"

# Server-side apply: one manager for objects, another for status, so that neither drops what the other owns.
FIELD_MANAGER: Final = "tandem-operator"
STATUS_MANAGER: Final = "tandem-operator-status"

LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_RESOURCE: Final = f"{GROUP}/resource"
LABEL_COMPONENT: Final = f"{GROUP}/component"
LABEL_POOL: Final = f"{GROUP}/pool"
LABEL_ROLE: Final = f"{GROUP}/role"  # patched and watched; in no selector
LABEL_REVISION: Final = f"{GROUP}/revision"  # workers of one revision may pair; in no selector

APP_NAME: Final = "tandem"
MANAGED_BY: Final = FIELD_MANAGER
COMPONENT_WORKER: Final = "worker"
COMPONENT_ROUTER: Final = "router"

HTTP_PORT: Final = 8000  # worker and router
HTTPS_PORT: Final = 8443  # router, with spec.router.tls
KV_PORT: Final = 8001  # worker to worker

# A child is `<resource>-<part>` and must be a DNS label (63): 46 + 1 + 16.
MAX_NAME: Final = 46
MAX_POOL_NAME: Final = 16
RESERVED_POOL_NAMES: Final = ("router", "worker", "workers")

SYSTEM_NAMESPACE: Final = "tandem-system"
CATALOGUE_NAME: Final = "tandem-catalogue"
