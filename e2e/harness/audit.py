"""Who wrote what: the API server's own log of pods' writes, each under the name of the pod that its token is for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.harness.cluster import CONFIG, Cluster
from e2e.harness.parts import directory_of

POD = "authentication.kubernetes.io/pod-name"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},  # the controllers of the control plane
        {
            "level": "Metadata",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
        },
        {"level": "None"},
    ],
}


def declared(folder: Path) -> Path:
    """The configuration of the cluster of all tests, its API server keeping the log; written into this folder."""
    policy, config = folder / "policy.yaml", folder / "cluster.yaml"
    policy.write_text(yaml.safe_dump(POLICY))
    flags = ["--audit-log-path=logs/audit.log", f"--audit-policy-file={policy}"]
    config.write_text(yaml.safe_dump(yaml.safe_load(CONFIG.read_text()) | {"flags": {"apiserver": flags}}))
    return config


@dataclass(frozen=True, slots=True)
class Write:
    """A write that the API server answered, whatever it answered."""

    pod: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int  # 201: an object was made


class Audit:
    """The log from one moment on."""

    def __init__(self, cluster: Cluster) -> None:
        self._path = directory_of(cluster) / "logs/audit.log"
        self._began = 0
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self._began = self._path.stat().st_size

    def writes(self) -> list[Write]:
        """What pods have written since then."""
        with self._path.open("rb") as log:
            log.seek(self._began)
            found = [json.loads(line) for line in log if line.endswith(b"\n")]
        return [write_of(entry) for entry in found]

    def by(self, pod: str) -> list[Write]:
        """What one pod has written since then."""
        return [write for write in self.writes() if write.pod == pod]


def write_of(entry: dict[str, Any]) -> Write:
    """One line of the log."""
    about, user = entry.get("objectRef") or {}, entry["user"]
    (pod,) = user.get("extra", {}).get(POD) or [user["username"]]
    resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
    return Write(
        pod, entry["verb"], resource, about.get("namespace", ""), about.get("name", ""), entry["responseStatus"]["code"]
    )
