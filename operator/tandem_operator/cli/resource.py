"""A resource from a file or from the cluster, checked as the operator checks it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import yaml

from tandem_operator.api.constants import GROUP, KIND, PLURAL, VERSION
from tandem_operator.api.v1alpha1 import DisaggregatedInference, read

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 4 << 20
ASK_S = 10.0  # the API server's deadline


class ResourceError(ValueError):
    """The resource cannot be had; the message says where it was sought and what to do."""


def from_file(path: Path) -> DisaggregatedInference:
    """The first DisaggregatedInference of a YAML file. Raises ResourceError or InvalidResourceError."""
    text = path.read_text(encoding="utf-8")
    if len(text) > MOST_BYTES:
        raise ResourceError(f"{path} is larger than {MOST_BYTES} bytes")
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ResourceError(f"{path} is no YAML: {error}") from error
    for body in documents:
        if isinstance(body, dict) and body.get("kind") == KIND:
            metadata = body.get("metadata") or {}
            return read({**body, "metadata": {"namespace": "default", **metadata}})
    raise ResourceError(f"{path} has no {KIND}")


def from_cluster(namespace: str, name: str | None, context: str | None = None) -> list[DisaggregatedInference]:
    """One resource, or all of the namespace, from the cluster of the kubeconfig (or of the pod)."""
    from kubernetes import client, config  # noqa: PLC0415  # only this command needs a cluster
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        # The library reads KUBECONFIG once, when it is imported; a person's shell is read now.
        config.load_kube_config(config_file=os.environ.get("KUBECONFIG"), context=context)
    except config.ConfigException as error:
        raise ResourceError(f"no cluster to ask: {error}; set KUBECONFIG") from error
    api = client.CustomObjectsApi()
    try:
        if name is not None:
            return [
                read(api.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name, _request_timeout=ASK_S))
            ]
        found: dict[str, Any] = api.list_namespaced_custom_object(
            GROUP, VERSION, namespace, PLURAL, limit=500, _request_timeout=ASK_S
        )
        return [read(body) for body in found.get("items", [])]
    except client.ApiException as error:
        missing = f"{PLURAL}.{GROUP} {name or ''} in namespace {namespace}"
        raise ResourceError(f"{missing}: the API server says {error.status} {error.reason}") from error
    except HTTPError as error:
        raise ResourceError(f"the API server does not answer within {ASK_S:.0f} s: {error}") from error
