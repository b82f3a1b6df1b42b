"""How to reach the API server: the pod's service account, or the file that KUBECONFIG names."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccessError(Exception):
    """There is no way to the API server; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Access:
    """The API server's address, TLS (True: aiohttp's default) and token."""

    url: str
    tls: ssl.SSLContext | bool
    token: str = ""
    token_file: Path | None = None

    def headers(self) -> dict[str, str]:
        """Authorization, if by token; a token file is read each time, since the kubelet renews it."""
        token = self.token_file.read_text().strip() if self.token_file else self.token
        return {"Authorization": f"Bearer {token}"} if token else {}


def find_access(environment: Mapping[str, str], account: Path = ACCOUNT) -> Access:
    """KUBECONFIG if it is set, else the service account. Raises AccessError."""
    if named := environment.get("KUBECONFIG"):
        return from_kubeconfig(Path(named.split(os.pathsep)[0]))
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    token = account / "token"
    if not host or not token.is_file():
        raise AccessError(
            f"no way to the API server: neither KUBECONFIG nor KUBERNETES_SERVICE_HOST with {token} is there; "
            "run in a pod with a service account, or set KUBECONFIG"
        )
    where = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
    return Access(f"https://{where}:{port}", tls, token_file=token)


def from_kubeconfig(path: Path) -> Access:
    """The current context of a kubeconfig. Raises AccessError, also for users by `exec` or `auth-provider`."""
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"] or {}
        url = cluster["server"].rstrip("/")
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise AccessError(f"KUBECONFIG {path}: {type(error).__name__}: {error}") from error
    if unknown := user.keys() & {"exec", "auth-provider", "username", "password"}:
        raise AccessError(
            f"KUBECONFIG {path}: user by {', '.join(sorted(unknown))} is not supported; use a token or a certificate"
        )
    token_file = Path(path.parent, user["tokenFile"]) if "tokenFile" in user else None
    return Access(url, _tls(cluster, user, path.parent), user.get("token", ""), token_file)


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = next((entry for entry in config[kind] if entry["name"] == name), None)
    if found is None:
        raise KeyError(f"{kind} has no {name}")
    return found


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext | bool:
    if not cluster["server"].startswith("https:"):
        return True
    authority = _bytes(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if name := cluster.get("tls-server-name"):
        raise AccessError(f"tls-server-name {name} in a kubeconfig is not supported")
    certificate, key = _bytes(user, "client-certificate", folder), _bytes(user, "client-key", folder)
    if certificate and key:
        # ssl reads key pairs from files only; this one lives for two lines and is readable by us alone.
        with tempfile.NamedTemporaryFile() as both:
            both.write(certificate + b"\n" + key)
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _bytes(entry: Mapping[str, Any], name: str, folder: Path) -> bytes | None:
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data)
    return Path(folder, entry[name]).read_bytes() if name in entry else None
