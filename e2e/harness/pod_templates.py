"""What serving pods are made of, recorded: where the operator makes them otherwise, an upgrade to it restarts pods.

`python -m e2e.harness.pod_templates` records it anew. Deliberately, that is: the release's notes then say so.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from e2e.harness.kube import REPO
from e2e.tables.fields import base
from e2e.tables.paths import put
from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.api.v1alpha1 import read
from tandem_operator.cli.rendered import NOBODY, rendered
from tandem_operator.loop.catalogue import accelerators_of
from tandem_operator.templates import children
from tandem_operator.templates.children import Images
from tandem_operator.templates.names import Owner, digest_of

Object = dict[str, Any]
COMMAND = "python -m e2e.harness.pod_templates"
RECORD = REPO / "e2e/tests/goldens/pod_templates.yaml"
MADE = f"# Made by `{COMMAND}`: a change here restarts the pods of everybody who upgrades.\n"
IMAGES = Images("worker:1", "router:1")
IN_FULL = ("tandem chat-prefill", "tandem chat-router")  # other engines' workers: operator/tests/goldens


def resources() -> dict[str, Object]:
    """A resource for each way in which workers are made."""
    wire = {"backend": "nixl", "rdma": {"mode": "SharedDevice", "resource": "rdma/hca"}}
    found = {"tandem": base()}
    for name in ("vllm", "sglang"):
        body = put(base(), "spec.engine", {"name": name, "image": f"{name}:1"})
        found[name] = put(body, "spec.transfer", wire)
    spread = json.loads(json.dumps(found["vllm"]))
    for pool in spread["spec"]["pools"]:
        pool["parallelism"] = {"tensor": 16}
    return found | {"spread": spread}


def templates() -> dict[str, Object]:
    """Each pod template, by resource and child."""
    made = {name: rendered(read(body), IMAGES) for name, body in resources().items()} | {"former": former_pools()}
    return {
        f"{name} {item['metadata']['name']}{of}": template
        for name, items in made.items()
        for item in items
        for of, template in templates_in(item.get("spec", {}))
    }


def former_pools() -> list[Object]:
    """Pools of a resource that the first version made: their workers keep its transfer key's name."""
    spec = read(base()).spec
    sizes = {pool.name: pool.replicas.start for pool in spec.pools}
    owner = Owner("chat", "serving", NOBODY, former_key=True)
    return children.pools_of(owner, spec, accelerators_of(spec, CATALOGUE), IMAGES, sizes)


def templates_in(spec: Object) -> list[tuple[str, Object]]:
    """Those of a Deployment, or of groups of pods."""
    group = spec.get("leaderWorkerTemplate", {})
    found = {"": spec.get("template"), " leader": group.get("leaderTemplate"), " rank": group.get("workerTemplate")}
    return [(of, template) for of, template in found.items() if template]


def now() -> Object:
    """What there is to record."""
    found = templates()
    digests = {name: digest_of(template)[:16] for name, template in found.items()}
    whole: Object = json.loads(json.dumps({name: found[name] for name in IN_FULL}))
    return {"digests": digests, "templates": whole}


def recorded() -> Object:
    """What was recorded last."""
    found: Object = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(MADE + yaml.safe_dump(now(), sort_keys=False, width=120), encoding="utf-8")
