"""`vllm serve` with the NIXL connector: a decode worker reads a prefill worker's pages, the router says which."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tandem_operator.api.constants import HTTP_PORT
from tandem_operator.templates.engines.base import OWN_ADDRESS, Program, batch, degree, flags
from tandem_operator.templates.engines.versions import FAILURE_POLICY, has

if TYPE_CHECKING:
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Pool

SIDE_CHANNEL_PORT = 5600  # handshake of the connector; rank n of data parallelism listens n ports higher
# kv_both: the connector itself makes no difference between the roles, so a flip restarts nothing. fail: a transfer that
# broke is an error before the first byte, and the router takes another pair, instead of a prefill on a decode worker.
CONNECTOR = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
ON_FAILURE = {"kv_load_failure_policy": "fail"}  # older versions recompute, and refuse the word
# NIXL takes UCX unless told otherwise, which cannot speak EFA (docs of llm-d and of NVIDIA's Dynamo for EFA say this).
BACKENDS = {"EFA": ["LIBFABRIC"]}


def program(spec: Spec, pool: Pool, source: str, threads: int) -> Program:  # noqa: ARG001 vLLM has no such option
    """A vLLM server; without the connector where nothing is transferred."""
    model, ranks = spec.model, pool.parallelism
    pairs = spec.mode != "Colocated"
    options: dict[str, object] = {
        "--revision": model.revision,
        "--served-model-name": model.served_name,
        "--dtype": model.dtype,
        "--max-model-len": model.max_context,
        "--host": OWN_ADDRESS,
        "--port": HTTP_PORT,
        "--tensor-parallel-size": degree(ranks.tensor),
        "--pipeline-parallel-size": degree(ranks.pipeline),
        "--data-parallel-size": degree(ranks.data),
        "--enable-expert-parallel": ranks.expert > 1,
        **batch(spec),
        "--kv-transfer-config": json.dumps(connector(spec), separators=(",", ":")) if pairs else None,
    }
    # USER: torch's compiler cache asks for the user's name, and the pod's user has no entry.
    env = {"USER": "tandem", "VLLM_NO_USAGE_STATS": "1"}
    if pairs:
        env |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": OWN_ADDRESS, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_CHANNEL_PORT)}
    return Program(
        command=("vllm", "serve", repository(source)),
        args=(*flags(options), *spec.engine.args),
        kv_port=SIDE_CHANNEL_PORT,
        env=env,
    )


def connector(spec: Spec) -> dict[str, object]:
    """The connector's configuration for this version, with NIXL's backend where its own choice would not do."""
    backends = BACKENDS.get(spec.transfer.rdma.mode)
    policy = ON_FAILURE if has(spec.engine, FAILURE_POLICY) else {}
    return {**CONNECTOR, **policy, **({"kv_connector_extra_config": {"backends": backends}} if backends else {})}


def repository(source: str) -> str:
    """A model's source as vLLM and SGLang take it: `owner/name` of the hub, or a folder."""
    parts = urlsplit(source)
    return f"{parts.netloc}{parts.path}"
