"""All children of a resource, from its spec, the target and the operator's settings: pure, same in, same out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem_operator.api.catalogue import PRODUCT_LABEL
from tandem_operator.api.constants import COMPONENT_ROUTER, HTTP_PORT, HTTPS_PORT, KV_PORT, LABEL_POOL, LABEL_REVISION
from tandem_operator.templates.engines import program_of
from tandem_operator.templates.names import (
    APPLIED,
    TEMPLATE,
    Owner,
    router_labels,
    router_selector,
    worker_labels,
    worker_selector,
)
from tandem_operator.templates.overlay import overlaid
from tandem_operator.templates.render import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Pool
    from tandem_operator.api.spec_transfer import Transfer

Object = dict[str, Any]
ROUTER = COMPONENT_ROUTER
ROUTER_ROLE = "tandem-router"
KEY_SECRET = "transfer-key"  # noqa: S105 a name
WORKER = "worker"
WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class Images:
    """What the cluster operator's settings say about pods."""

    worker: str
    router: str
    worker_threads: int = 0  # 0: torch's own default
    template_allow: frozenset[str] = frozenset()  # what templates may ask for: names of allowed.ALLOWABLE


def router_args(owner: Owner, spec: Spec) -> list[str]:
    """Command-line arguments of a router."""
    own = {
        "--namespace": owner.namespace,
        "--resource": owner.name,
        "--host": "0.0.0.0",
        "--port": str(HTTP_PORT),
        "--ttft-ms": str(spec.slo.ttft_milliseconds),
        "--tpot-ms": str(spec.slo.tpot_milliseconds),
        "--engine": spec.engine.name,
    }
    if spec.router.api_keys_secret_ref:
        own["--api-keys-dir"] = "/etc/tandem/api-keys"
    if spec.router.tls:
        own["--tls-dir"] = "/etc/tandem/tls"
    return [word for pair in own.items() for word in pair]


def devices(transfer: Transfer, accelerator: Accelerator, gpus: int) -> dict[str, str]:
    """Extended resources of a worker: its GPUs, and a slot of the RDMA device where the transfer asks for one."""
    found = {accelerator.resource: str(gpus)} if accelerator.resource else {}
    if transfer.rdma.mode == "SharedDevice" and transfer.rdma.resource:
        found[transfer.rdma.resource] = str(transfer.rdma.count)
    return found


def pool_deployment(
    owner: Owner, spec: Spec, pool: Pool, accelerator: Accelerator, *, images: Images, replicas: int
) -> Object:
    """A pool's Deployment, its overlay on it."""
    selector = worker_selector(owner.name, pool.name)
    deployment = render(
        "worker",
        metadata=owner.metadata(pool.name, pool.name, {LABEL_POOL: pool.name}),
        replicas=replicas,
        selector=selector,
        pod_labels=worker_labels(owner.name, pool.name, pool.role.lower())
        | {LABEL_REVISION: revision_of(spec, images)},
        service_account=owner.child(WORKER),
        products=list(accelerator.products),
        product_label=PRODUCT_LABEL,
        gpu_resource=accelerator.resource,
        image=spec.engine.image or images.worker,
        program=program_of(spec, pool, spec.model.source, images.worker_threads),
        resource=owner.name,
        key_secret=owner.child(KEY_SECRET),
        devices=devices(spec.transfer, accelerator, pool.parallelism.gpus),
        rdma=spec.transfer.rdma.mode != "None",
    )
    return with_digest(overlaid(deployment, pool.template, allowed=images.template_allow))


def revision_of(spec: Spec, images: Images) -> str:
    """What two workers must agree on before one computes for the other: same revision, same KV cache."""
    model, engine = spec.model, spec.engine
    agreed: list[object] = [model.source, model.revision, model.served_name, model.dtype, model.max_context]
    agreed += [engine.name, engine.image or images.worker, list(engine.args), spec.transfer.backend]
    return digest_of(agreed)[:10]


def with_digest(deployment: Object) -> Object:
    """The Deployment with its pod template's digest on the template, so that a pod tells what it was made of."""
    template = deployment["spec"]["template"]
    template["metadata"]["annotations"][TEMPLATE] = digest_of(template)[:16]
    return deployment


def router_deployment(owner: Owner, spec: Spec, images: Images) -> Object:
    """The router's Deployment, its overlay on it."""
    deployment = render(
        "router",
        metadata=owner.metadata(ROUTER, ROUTER),
        replicas=0 if spec.suspend else spec.router.replicas,
        selector=router_selector(owner.name),
        pod_labels=router_labels(owner.name),
        service_account=owner.child(ROUTER),
        image=images.router,
        args=router_args(owner, spec),
        resource=owner.name,
        keys_secret=spec.router.api_keys_secret_ref.name if spec.router.api_keys_secret_ref else "",
        tls_secret=spec.router.tls.secret_name if spec.router.tls else "",
    )
    return overlaid(deployment, spec.router.template, allowed=images.template_allow)


def access(owner: Owner) -> list[Object]:
    """Service accounts, and the router's right to see pods; a worker's account has no token and no right."""
    router = owner.child(ROUTER)
    return [
        render("serviceaccount", metadata=owner.metadata(WORKER, WORKER), token=False),
        render("serviceaccount", metadata=owner.metadata(ROUTER, ROUTER), token=True),
        render("rolebinding", metadata=owner.metadata(ROUTER, ROUTER), role=ROUTER_ROLE, service_account=router),
    ]


def endpoint(owner: Owner, spec: Spec) -> str:
    """Address of the OpenAI API."""
    scheme, port = ("https", HTTPS_PORT) if spec.router.tls else ("http", HTTP_PORT)
    return f"{scheme}://{owner.child(ROUTER)}.{owner.namespace}.svc:{port}/v1"


def services(owner: Owner, spec: Spec) -> list[Object]:
    """The router's Service, and a headless one for the workers."""
    http = {"http": HTTP_PORT}
    workers = worker_selector(owner.name)
    return [
        render(
            "service",
            metadata=owner.metadata(ROUTER, ROUTER),
            headless=False,
            selector=router_selector(owner.name),
            ports={"https": HTTPS_PORT} if spec.router.tls else http,
        ),
        render(
            "service",
            metadata=owner.metadata(WORKERS, WORKERS),
            headless=True,
            selector=workers,
            ports=http | {"kv": KV_PORT},
        ),
    ]


def budgets(owner: Owner, spec: Spec) -> list[Object]:
    """Disruption budgets: a node's drain takes one pod of each Deployment at a time."""
    pools = [
        render(
            "budget",
            metadata=owner.metadata(pool.name, pool.name),
            selector=worker_selector(owner.name, pool.name),
        )
        for pool in spec.pools
    ]
    return [*pools, render("budget", metadata=owner.metadata(ROUTER, ROUTER), selector=router_selector(owner.name))]


def transfer_key(owner: Owner, key: str) -> Object:
    """The Secret with the workers' shared key, 64 hex characters; made once, never applied, never read."""
    return render("secret", metadata=owner.metadata(KEY_SECRET, WORKER), key=key)


def pools_of(
    owner: Owner, spec: Spec, accelerators: Mapping[str, Accelerator], images: Images, replicas: Mapping[str, int]
) -> list[Object]:
    """All pools' Deployments, with these replicas."""
    return [
        pool_deployment(
            owner, spec, pool, accelerators[pool.hardware.accelerator], images=images, replicas=replicas[pool.name]
        )
        for pool in spec.pools
    ]


def stamped(manifest: Object) -> Object:
    """The manifest with its digest in an annotation: so what was taken out of it shows on the live object."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations", {}) | {APPLIED: digest_of(manifest)[:32]}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def digest_of(content: Any) -> str:
    """Hexadecimal, the same for the same content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
