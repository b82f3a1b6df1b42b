"""The API server by the operator's own client: for tests that ask more often than kubectl can be started."""

from __future__ import annotations

from kubernetes.aio import client as kubernetes
from kubernetes.aio import config

from e2e.harness.kube import Kube


async def connected(kube: Kube, token: str = "") -> kubernetes.ApiClient:
    """The operator's client, as the kubeconfig's user or with a token."""
    configuration = kubernetes.Configuration(client_session_kwargs={"trust_env": False})
    await config.load_kube_config(str(kube.kubeconfig), client_configuration=configuration, persist_config=False)
    if token:
        configuration.api_key["BearerToken"] = f"Bearer {token}"
    return kubernetes.ApiClient(configuration)
