"""`tandem-worker`: one process that prefills and decodes; its role is a label. docs/reference/borders.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.api.constants import HTTP_PORT, KV_PORT
from tandem_operator.templates.engines.base import OWN_ADDRESS, Program, degree, flags

if TYPE_CHECKING:
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Pool


def program(spec: Spec, pool: Pool, source: str, threads: int) -> Program:
    """A Tandem worker; `threads` 0: torch's own default."""
    model = spec.model
    options: dict[str, object] = {
        "--model": source,
        "--revision": model.revision,
        "--served-name": model.served_name,
        "--dtype": model.dtype,
        "--max-context": model.max_context,
        "--host": OWN_ADDRESS,
        "--port": HTTP_PORT,
        "--kv-port": KV_PORT,
        "--transfer-backend": spec.transfer.backend,
        "--tensor-parallel": degree(pool.parallelism.tensor),
        "--threads": threads or None,
    }
    return Program(
        command=("tandem-worker",),
        args=(*flags(options), *spec.engine.args),
        kv_port=KV_PORT,
        ready="/ready",
    )
