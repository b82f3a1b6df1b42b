"""From the resource's spec to the bounds of a decision."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tandem_operator.api.catalogue import CATALOGUE, GIB, find
from tandem_operator.api.engines import ENGINES
from tandem_operator.plan.engine_args import chunk_of
from tandem_operator.plan.facts import Device, Limits, Objective, PoolLimits, RebalanceMode, Role, Slo, Steadiness
from tandem_operator.plan.performance.parallel import Parallelism

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tandem_operator.api import spec_pool as api
    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.spec import Spec
    from tandem_operator.api.spec_pool import Hardware, Pool
    from tandem_operator.api.spec_rebalance import Behavior


def limits_of(spec: Spec, catalogue: Mapping[str, Accelerator] = CATALOGUE) -> Limits:
    """Everything of the spec that bounds a decision.

    Raises UnknownAcceleratorError or UnknownDTypeError where a pool's hardware has no figures.
    """
    rebalance = spec.rebalance
    return Limits(
        slo=Slo(spec.slo.ttft_milliseconds, spec.slo.tpot_milliseconds, spec.slo.percentile),
        mode=RebalanceMode(rebalance.mode),
        pools=tuple(pool_limits(pool, spec.model.dtype, catalogue) for pool in spec.pools),
        min_prefill=rebalance.roles.min_prefill,
        min_decode=rebalance.roles.min_decode,
        budget_gpus=rebalance.budget.gpus,
        budget_per_device=dict(rebalance.budget.per_accelerator),
        role_flips=spec.flips_roles,
        interval_s=rebalance.interval_seconds,
        steadiness=steadiness_of(rebalance.behavior),
        max_batch=max_batch_of(spec.engine.args, spec.engine.name),
        objective=Objective(rebalance.objective),
        chunk_tokens=chunk_of(spec.engine.name, spec.engine.args),
        suspended=spec.suspend,
        asleep=spec.asleep,
    )


def max_batch_of(args: Sequence[str], engine: str = "tandem") -> int:
    """The batch that the engine's arguments allow (`--max-batch 16` or `--max-batch=16`, the last one counts)."""
    ability = ENGINES[engine]
    words = [word for arg in args for word in arg.split("=", 1)]
    values = [value for option, value in pairwise(words) if option == ability.batch_option and value.isascii()]
    return int(values[-1]) if values and values[-1].isdigit() and int(values[-1]) > 0 else ability.batch


def pool_limits(pool: Pool, dtype: str, catalogue: Mapping[str, Accelerator]) -> PoolLimits:
    """One pool's bounds and the data sheet of its accelerator."""
    return PoolLimits(
        name=pool.name,
        role=Role(pool.role.lower()),
        device=device_of(pool.hardware, dtype, catalogue),
        gpus=pool.parallelism.gpus,
        minimum=pool.replicas.min,
        maximum=pool.replicas.max,
        initial=pool.replicas.start,
        spread=spread_of(pool.parallelism),
    )


def spread_of(parallelism: api.Parallelism) -> Parallelism | None:
    """How a worker's ranks are spread; None where they only share each layer."""
    p = parallelism
    return Parallelism(p.tensor, p.pipeline, p.data, expert=p.expert) if p.gpus * p.expert > p.tensor else None


def device_of(hardware: Hardware, dtype: str, catalogue: Mapping[str, Accelerator]) -> Device:
    """The accelerator's figures: the spec's own first, the catalogue's for what it leaves out."""
    own = (
        scaled(hardware.teraflops, 1e12),
        scaled(hardware.memory_gibibytes, GIB),
        scaled(hardware.memory_gigabytes_per_second, 1e9),
        scaled(hardware.link_gigabytes_per_second, 1e9),
        scaled(hardware.price_millidollars_per_hour, 1e-3),
    )
    # A price may stay unknown (0 then), the physics may not.
    flops, memory, bandwidth, link, price = own
    if flops is not None and memory is not None and bandwidth is not None and link is not None:
        device = Device(hardware.accelerator, flops, memory, bandwidth, link, price or 0.0)
        return with_rest(device, hardware, catalogue)
    entry = find(hardware.accelerator, catalogue)
    device = Device(
        entry.name,
        entry.peak(dtype) if flops is None else flops,
        entry.memory_bytes if memory is None else memory,
        entry.bandwidth if bandwidth is None else bandwidth,
        entry.link if link is None else link,
        entry.price_per_hour if price is None else price,
    )
    return with_rest(device, hardware, catalogue)


def with_rest(device: Device, hardware: Hardware, catalogue: Mapping[str, Accelerator]) -> Device:
    """The device with its power, its links to others of its server, and its generation, as far as they are known."""
    entry = catalogue.get(hardware.accelerator)
    own = scaled(hardware.scale_up_gigabytes_per_second, 1e9)
    if entry is None:
        return replace(device, watts=hardware.watts or 0.0, scale_up=own or 0.0)
    return replace(
        device,
        watts=hardware.watts or entry.watts,
        scale_up=own or entry.scale_up,
        domain=0 if entry.domain < 2 and (own or entry.scale_up) else entry.domain,  # who gives a link's speed has one
        generation=entry.generation,
    )


def scaled(value: int | None, unit: float) -> float | None:
    """A figure of the spec in base units; None where it is left out."""
    return None if value is None else value * unit


def steadiness_of(behavior: Behavior) -> Steadiness:
    """Windows and steps, autoscaling/v2 spelling reduced to what the planner needs."""
    default = Steadiness()
    return Steadiness(
        up_window_s=behavior.scale_up.window_s(default.up_window_s),
        down_window_s=behavior.scale_down.window_s(default.down_window_s),
        up_pods=behavior.scale_up.pods(default.up_pods),
        down_pods=behavior.scale_down.pods(default.down_pods),
    )
