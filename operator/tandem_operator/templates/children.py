"""All children of a resource, from its spec, the target and the operator's settings: pure, same in, same out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem_operator.api.constants import (
    COMPONENT_ROUTER,
    HTTP_PORT,
    HTTPS_PORT,
    KV_PORT,
    LABEL_POOL,
    LABEL_REVISION,
    LABEL_ROLE,
)
from tandem_operator.plan.rollout import steps
from tandem_operator.templates import rdma
from tandem_operator.templates.engines import program_of
from tandem_operator.templates.groups import group_of, nodes_of
from tandem_operator.templates.merge import merged
from tandem_operator.templates.model import Weights, weights_of
from tandem_operator.templates.names import (
    APPLIED,
    KEY,
    TEMPLATE,
    Owner,
    digest_of,
    router_labels,
    router_selector,
    worker_labels,
    worker_selector,
)
from tandem_operator.templates.overlay import TemplateRefusedError, overlaid
from tandem_operator.templates.placement import node_terms, queued, router_defaults, tolerations, worker_defaults
from tandem_operator.templates.render import render

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Pool

Object = dict[str, Any]
ROUTER = COMPONENT_ROUTER
ROUTER_ROLE = "tandem-router"
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
    if spec.scale_to_zero is not None:
        own["--hold-seconds"] = str(spec.scale_to_zero.hold_seconds)
    if spec.router.api_keys_secret_ref:
        own["--api-keys-dir"] = "/etc/tandem/api-keys"
    if spec.router.tls:
        own["--tls-dir"] = "/etc/tandem/tls"
    return [word for pair in own.items() for word in pair]


def pool_deployment(
    owner: Owner, spec: Spec, pool: Pool, accelerator: Accelerator, *, images: Images, replicas: int, step: int = 1
) -> Object:
    """A pool's Deployment, its overlay on it; groups of pods where a replica spans nodes.

    Raises TemplateRefusedError for what the operator does not allow.
    """
    weights = allowed_weights(spec, images)
    nodes = nodes_of(spec, pool, accelerator)
    ranks = pool.parallelism.gpus // nodes  # of one pod
    selector = worker_selector(owner.name, pool.name)
    deployment = render(
        "worker",
        metadata=owner.metadata(pool.name, pool.name, {LABEL_POOL: pool.name}),
        replicas=replicas,
        step=step,
        selector=selector,
        pod_labels=worker_labels(owner.name, pool.name, pool.role.lower())
        | {LABEL_REVISION: revision_of(owner, spec, images)},
        service_account=owner.child(WORKER),
        node_terms=node_terms(accelerator, pool.hardware),
        node_selector=dict(pool.hardware.node_selector),
        tolerations=tolerations(accelerator, pool.hardware),
        image=spec.engine.image or images.worker,
        program=program_of(spec, pool, weights.source, images.worker_threads),
        weights=weights,
        model_revision=spec.model.revision or "",
        resource=owner.name,
        key_secret=owner.key_secret if spec.engine.name == "tandem" else "",
        resources=rdma.resources(spec.transfer.rdma, accelerator, ranks),
        claims=claims_of(owner, spec, pool, accelerator, ranks),
        networks=rdma.networks(spec.transfer.rdma),
        rdma=spec.transfer.rdma.mode,
        preflight=rdma.preflight(spec),
        shm_gibibytes=ranks,
    )
    laid_below = merged(worker_defaults(owner.name), rdma.defaults(spec.transfer, accelerator, pool.template.resources))
    laid = overlaid(deployment, pool.template, defaults=laid_below, allowed=images.template_allow)
    made = with_digest(queued(laid))
    return made if nodes == 1 else group_of(spec, made, nodes)


def claims_of(owner: Owner, spec: Spec, pool: Pool, accelerator: Accelerator, ranks: int) -> list[Object]:
    """A pod's resource claims; none unless devices are claimed."""
    if spec.transfer.rdma.mode != "DRA":
        return []
    template = rdma.claim_template(owner, pool, spec.transfer.rdma, accelerator)
    return rdma.claims(template["metadata"]["name"], ranks)


def claim_templates(owner: Owner, spec: Spec, accelerators: Mapping[str, Accelerator]) -> list[Object]:
    """What the pools' ranks claim, a template for each pool; none unless devices are claimed."""
    if spec.transfer.rdma.mode != "DRA":
        return []
    return [rdma.claim_template(owner, pool, spec.transfer.rdma, accelerators[pool.name]) for pool in spec.pools]


def allowed_weights(spec: Spec, images: Images) -> Weights:
    """What the model needs of a worker's pod; a node's own folder only where templates may have one, too."""
    cache = spec.model.cache
    if cache is not None and cache.host_path and "HostPath" not in images.template_allow:
        raise TemplateRefusedError(
            "spec.model.cache.hostPath needs HostPath, which this cluster's operator does not allow"
        )
    return weights_of(spec.model)


def revision_of(owner: Owner, spec: Spec, images: Images) -> str:
    """What two workers must agree on before one computes for the other: same revision, same KV cache."""
    model, engine = spec.model, spec.engine
    agreed: list[object] = [model.source, model.revision, model.served_name, model.dtype, model.max_context]
    agreed += [engine.name, engine.image or images.worker, list(engine.args), spec.transfer.backend]
    # Of mode Auto there are workers of both modes for a while, and vLLM and SGLang start colocated without a connector.
    if spec.written.mode == "Auto" and spec.mode == "Colocated" and engine.name != "tandem":
        agreed.append(spec.mode)
    if engine.name == "tandem" and not owner.former_key:  # workers of different keys refuse each other
        agreed.append(owner.key_secret)
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
        replicas=0 if spec.written.suspend else spec.router.replicas,
        selector=router_selector(owner.name),
        pod_labels=router_labels(owner.name),
        service_account=owner.child(ROUTER),
        image=images.router,
        args=router_args(owner, spec),
        resource=owner.name,
        keys_secret=spec.router.api_keys_secret_ref.name if spec.router.api_keys_secret_ref else "",
        tls_secret=spec.router.tls.secret_name if spec.router.tls else "",
    )
    return queued(
        overlaid(deployment, spec.router.template, defaults=router_defaults(owner.name), allowed=images.template_allow)
    )


def access(owner: Owner) -> list[Object]:
    """Service accounts, the router's right to see pods, and who may reach workers, which have no token and no right."""
    router = owner.child(ROUTER)
    workers = worker_selector(owner.name)
    return [
        render("networkpolicy", metadata=owner.metadata(WORKERS, WORKER), selector=workers, http=HTTP_PORT),
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


def budgets(owner: Owner, spec: Spec, roles: Mapping[str, int] | None = None) -> list[Object]:
    """Disruption budgets: a node's drain takes one router, and one worker of a role, at a time.

    By role and not by pool, since what a flipped worker does is missed where it does it; a pod may have one budget
    alone. `roles`: workers that the target wants; by default what the pools begin with. A number, since a share would
    be counted over whole Deployments.
    """
    counts = home_roles(spec) if roles is None else roles
    asked = spec.rebalance.roles
    minima = {"prefill": asked.min_prefill, "decode": asked.min_decode}
    workers = [
        render(
            "budget",
            metadata=owner.metadata(f"role-{role}", WORKER),
            selector=worker_selector(owner.name) | {LABEL_ROLE: role},
            bound={"minAvailable": undisturbed(count, minima.get(role, 1))},
        )
        for role, count in counts.items()
    ]
    router = render(
        "budget",
        metadata=owner.metadata(ROUTER, ROUTER),
        selector=router_selector(owner.name),
        bound={"maxUnavailable": 1},
    )
    return [*workers, router]


def undisturbed(count: int, minimum: int) -> int:
    """Workers of a role that a drain leaves: all but one, and never fewer than a minimum that somebody asked for.

    A minimum of one is everybody's, and does not count: the node of a role's only worker has to be renewed as well.
    """
    return max(count - 1, min(count, minimum) if minimum > 1 else 0)


def home_roles(spec: Spec) -> dict[str, int]:
    """Workers by role as the pools begin."""
    found: dict[str, int] = {}
    for pool in spec.pools:
        found[pool.role.lower()] = found.get(pool.role.lower(), 0) + pool.replicas.start
    return found


def transfer_key(owner: Owner, key: str) -> Object:
    """The Secret with the workers' shared key, 64 hex characters; made once, never applied, never read."""
    return render("secret", metadata=owner.metadata(KEY, WORKER) | {"name": owner.key_secret}, key=key)


def pools_of(
    owner: Owner, spec: Spec, accelerators: Mapping[str, Accelerator], images: Images, replicas: Mapping[str, int]
) -> list[Object]:
    """All pools' Deployments, with these replicas."""
    most = steps(spec.rollout.max_unavailable, {pool.name: (pool.role, replicas[pool.name]) for pool in spec.pools})
    return [
        pool_deployment(owner, spec, pool, accelerators[pool.name], images=images, replicas=count, step=most[pool.name])
        for pool in spec.pools
        for count in (replicas[pool.name],)
    ]


def stamped(manifest: Object) -> Object:
    """The manifest with its digest in an annotation: so what was taken out of it shows on the live object."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations", {}) | {APPLIED: digest_of(manifest)[:32]}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
