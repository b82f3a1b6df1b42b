"""The engines, each in its own file: flags, ports, environment and probes of its workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tandem_operator.templates.engines import sglang, tandem, vllm

if TYPE_CHECKING:
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Pool
    from tandem_operator.templates.engines.base import Program

PROGRAMS: Mapping[str, Callable[[Spec, Pool, str, int], Program]] = {
    "tandem": tandem.program,
    "vllm": vllm.program,
    "sglang": sglang.program,
}


def program_of(spec: Spec, pool: Pool, source: str, threads: int) -> Program:
    """What the pool's workers run. `source`: where they find the weights; `threads`: a CPU worker's, 0: its default."""
    return PROGRAMS[spec.engine.name](spec, pool, source, threads)
