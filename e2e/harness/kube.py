"""kubectl, as a user has it: every call with a deadline, every failure with what kubectl said."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
RESOURCE = "disaggregatedinferences.tandem.dev"


class KubectlError(RuntimeError):
    """kubectl ended with an error; the message is what it printed."""


class Kube:
    """One cluster behind one kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def environment(self) -> dict[str, str]:
        """The environment in which kubectl finds this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def run(self, *args: str, stdin: str | None = None, seconds: float = 60, check: bool = True) -> str:
        """Run kubectl and give what it printed; raise KubectlError when it failed, unless `check` is False."""
        done = subprocess.run(
            ["kubectl", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=self.environment(),
            cwd=REPO,
            check=False,
        )
        if check and done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def json(self, *args: str, seconds: float = 60) -> Any:
        """Run kubectl with `-o json` and parse the answer."""
        return json.loads(self.run(*args, "-o", "json", seconds=seconds))

    def find(self, kind: str, name: str, namespace: str) -> dict[str, Any] | None:
        """The object, or None where there is none."""
        out = self.run("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "json")
        return json.loads(out) if out.strip() else None

    def items(self, kind: str, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        """Objects of a kind in a namespace."""
        args = ["get", kind, "-n", namespace] + (["-l", selector] if selector else [])
        found: list[dict[str, Any]] = self.json(*args)["items"]
        return found

    def apply(self, manifest: str, *args: str) -> str:
        """Server-side apply of a manifest's text."""
        return self.run("apply", "--server-side", "--field-manager=e2e", "-f", "-", *args, stdin=manifest)

    def patch(self, kind: str, name: str, namespace: str, change: dict[str, Any]) -> None:
        """Merge-patch an object."""
        self.run("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps(change))


def condition(resource: dict[str, Any] | None, kind: str) -> dict[str, Any]:
    """A condition of an object, or one that says Unknown."""
    found = ((resource or {}).get("status") or {}).get("conditions") or []
    return next(
        (c for c in found if c["type"] == kind), {"type": kind, "status": "Unknown", "reason": "", "message": ""}
    )
