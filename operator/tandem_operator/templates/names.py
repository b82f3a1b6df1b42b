"""Names and labels of children: they come from the resource alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tandem_operator.api.constants import (
    API_VERSION,
    APP_NAME,
    COMPONENT_ROUTER,
    COMPONENT_WORKER,
    KIND,
    LABEL_APP_COMPONENT,
    LABEL_COMPONENT,
    LABEL_INSTANCE,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_POOL,
    LABEL_RESOURCE,
    LABEL_ROLE,
    MANAGED_BY,
)

ROUTER = COMPONENT_ROUTER
APPLIED = "tandem.dev/applied"  # annotation: digest of the manifest that was last applied
TEMPLATE = "tandem.dev/template"  # annotation of a pod: digest of the template that it was made of
KEY = "transfer-key"  # a worker's volume with the key that it shares with the resource's others


@dataclass(frozen=True, slots=True)
class Owner:
    """The resource that the children belong to."""

    name: str
    namespace: str
    uid: str
    former_key: bool = False  # its workers have the Secret of the name that the first version gave it

    @property
    def key_secret(self) -> str:
        """The transfer key's Secret. It is never read, so its name alone tells whose it is: that has the uid in it.

        Workers that have the former name keep it: another one is another pod template, and would restart them.
        """
        return self.child(KEY) if self.former_key else f"{self.child(KEY)}-{digest_of(self.uid)[:10]}"

    def child(self, part: str) -> str:
        """`chat` + `prefill` -> `chat-prefill`: same resource, same name, so a restart finds its children.

        Fits a DNS label (63 characters): the CRD caps a resource's name at 46, the longest part has 16.
        """
        return f"{self.name}-{part}"

    def metadata(self, part: str, component: str, extra: dict[str, str] | None = None) -> dict[str, Any]:
        """Metadata of a child. The owner reference makes deletion the cluster's work: no finalizer can hang."""
        return {
            "name": self.child(part),
            "namespace": self.namespace,
            "labels": common_labels(self.name, component) | (extra or {}),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    # Blocking deletion needs a right on the owner's finalizers, and nothing here waits for children.
                    "blockOwnerDeletion": False,
                }
            ],
        }


def common_labels(resource: str, component: str) -> dict[str, str]:
    """What every child carries; `component` is a pool's name or `router`."""
    return {
        LABEL_NAME: APP_NAME,
        LABEL_INSTANCE: resource,
        LABEL_APP_COMPONENT: component,
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_RESOURCE: resource,
    }


def worker_selector(resource: str, pool: str | None = None) -> dict[str, str]:
    """Selects the resource's workers, or one pool's. The role is never in it: a flip must not orphan a pod."""
    selected = {LABEL_RESOURCE: resource, LABEL_COMPONENT: COMPONENT_WORKER}
    return selected if pool is None else selected | {LABEL_POOL: pool}


def worker_labels(resource: str, pool: str, role: str) -> dict[str, str]:
    """Labels of a new worker pod; its role starts as its pool's."""
    return common_labels(resource, pool) | worker_selector(resource, pool) | {LABEL_ROLE: role}


def router_selector(resource: str) -> dict[str, str]:
    """Selects the resource's routers."""
    return {LABEL_RESOURCE: resource, LABEL_COMPONENT: COMPONENT_ROUTER}


def router_labels(resource: str) -> dict[str, str]:
    """Labels of a router pod."""
    return common_labels(resource, ROUTER) | router_selector(resource)


def digest_of(content: Any) -> str:
    """Hexadecimal, the same for the same content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
