"""`sglang.launch_server`: its role is fixed when it starts; prefill workers also serve the bootstrap of transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.api.constants import HTTP_PORT
from tandem_operator.templates.engines.base import OWN_ADDRESS, Program, batch, degree, flags
from tandem_operator.templates.engines.vllm import repository

if TYPE_CHECKING:
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Pool

BOOTSTRAP_PORT = 8998
MODES = {"Prefill": "prefill", "Decode": "decode"}


def program(spec: Spec, pool: Pool, source: str, threads: int) -> Program:  # noqa: ARG001 SGLang has no such option
    """An SGLang server of the pool's role; role Both runs without disaggregation."""
    model, ranks = spec.model, pool.parallelism
    options: dict[str, object] = {
        "--model-path": repository(source),
        "--revision": model.revision,
        "--served-model-name": model.served_name,
        "--dtype": model.dtype,
        "--context-length": model.max_context,
        "--host": OWN_ADDRESS,
        "--port": HTTP_PORT,
        "--enable-metrics": True,
        # SGLang counts all ranks of a stage as tensor ranks, and splits the attention's share off them.
        "--tp-size": degree(ranks.tensor * ranks.data),
        "--pp-size": degree(ranks.pipeline),
        "--dp-size": degree(ranks.data),
        "--enable-dp-attention": ranks.data > 1,
        "--ep-size": degree(ranks.expert),
        **batch(spec),
        **(disaggregation(spec, pool) if pool.role in MODES else {}),
    }
    return Program(
        command=("python3", "-m", "sglang.launch_server"),
        args=(*flags(options), *spec.engine.args),
        kv_port=BOOTSTRAP_PORT,
        env={"USER": "tandem"},
    )


def disaggregation(spec: Spec, pool: Pool) -> dict[str, object]:
    """The role, and how pages travel; SGLang names devices without their port."""
    devices = ",".join(device.split(":")[0] for device in spec.transfer.rdma.devices)
    return {
        "--disaggregation-mode": MODES[pool.role],
        "--disaggregation-transfer-backend": spec.transfer.backend,
        "--disaggregation-bootstrap-port": BOOTSTRAP_PORT,
        "--disaggregation-ib-device": devices or None,
    }
