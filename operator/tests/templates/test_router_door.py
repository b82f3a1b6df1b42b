"""API keys and TLS of the router: mounted, named by flags, and gone again when they are unset."""

from __future__ import annotations

import pytest

from tandem_operator.templates import children

from .test_children import IMAGES, OWNER, spec

KEYS, TLS = {"apiKeysSecretRef": {"name": "keys"}}, {"tls": {"secretName": "cert"}}


@pytest.mark.parametrize(
    ("router", "secrets", "flags", "ports", "endpoint"),
    [
        pytest.param({}, [], [], ["http"], "http://chat-router.serving.svc:8000/v1", id="neither"),
        pytest.param(KEYS, ["keys"], ["--api-keys-dir"], ["http"], "http://chat-router.serving.svc:8000/v1", id="keys"),
        pytest.param(TLS, ["cert"], ["--tls-dir"], ["https"], "https://chat-router.serving.svc:8443/v1", id="TLS"),
        pytest.param(
            KEYS | TLS,
            ["keys", "cert"],
            ["--api-keys-dir", "--tls-dir"],
            ["https"],
            "https://chat-router.serving.svc:8443/v1",
            id="both",
        ),
    ],
)
def test_keys_and_certificate(router, secrets, flags, ports, endpoint):
    found = spec(router=router)
    pod = children.router_deployment(OWNER, found, IMAGES)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {v["name"]: v["secret"] for v in pod["volumes"] if "secret" in v}
    assert [secret["secretName"] for secret in volumes.values()] == secrets
    assert all(secret["defaultMode"] == 0o440 for secret in volumes.values())
    mounts = {m["mountPath"]: m for m in container["volumeMounts"] if m["name"] in volumes}
    folders = {word: container["args"][n + 1] for n, word in enumerate(container["args"]) if word.endswith("-dir")}
    assert list(folders) == flags
    assert set(folders.values()) == set(mounts)
    assert all(mount["readOnly"] for mount in mounts.values())
    service = next(s for s in children.services(OWNER, found) if s["metadata"]["name"] == "chat-router")
    assert [port["name"] for port in service["spec"]["ports"]] == ports
    assert set(ports) <= {port["name"] for port in container["ports"]}, "the Service targets ports by name"
    assert children.endpoint(OWNER, found) == endpoint
