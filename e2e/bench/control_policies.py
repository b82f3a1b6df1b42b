"""The contenders of the control bench, the workers that they command, and how one run is played.

Two GPU types: prefill on H100, decode on H200, Llama-3.1-70B in bf16 over four of them. What a worker really costs is
the roofline times a hidden factor; the peers are told it (their profiles are perfect), Tandem finds it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import floor, isnan
from typing import TYPE_CHECKING

from e2e.bench.control_cases import WARM_S, Case
from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Device, Limits, PoolLimits, RebalanceMode, Role
from tandem_operator.plan.policies.aibrix import Aibrix
from tandem_operator.plan.policies.dynamo import Dynamo, throughput_counts
from tandem_operator.plan.policies.dynamo_classic import DynamoClassic
from tandem_operator.plan.policies.heteroscale import HeteroScale
from tandem_operator.plan.policies.hpa import Hpa
from tandem_operator.plan.policies.kthena import Kthena
from tandem_operator.plan.policies.mooncake import EarlyRejection
from tandem_operator.plan.policies.profile import Profile
from tandem_operator.plan.policies.signals import Traffic
from tandem_operator.plan.policies.static import Static
from tandem_operator.plan.policies.wva import Wva
from tandem_operator.plan.shapes import find_shape
from tandem_operator.simulate.oracle import (
    Costs,
    Grid,
    Schedule,
    by_count,
    decode_misses,
    fewest_gpus,
    prefill_misses,
    search,
)
from tandem_operator.simulate.oracle import Role as OracleRole
from tandem_operator.simulate.router import LeastBacklog, Rejecting
from tandem_operator.simulate.run import EPOCH, Scenario, Simulation
from tandem_operator.simulate.scenarios import play as arrivals
from tandem_operator.simulate.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.plan.policies.base import Policy
    from tandem_operator.simulate.cluster import Cluster
    from tandem_operator.simulate.router import Router
    from tandem_operator.simulate.run import Run

SHAPE = find_shape("llama-3.1-70b")
GPUS = 4  # of one worker
MOST = 12  # workers of a role
INITIAL = 4
MAX_BATCH = 256  # vLLM's default max_num_seqs
SLOWER = {"prefill": 1.4, "decode": 1.25}  # the hidden factors
# The true workers: shares of peak FLOP/s, bandwidth, link and memory, and seconds of one pass's launches.
MFU, MBU, LINK_SHARE, MEMORY_SHARE, PASS_S = 0.5, 0.8, 0.6, 0.9, 0.002
START_S = 120.0  # from the decision to a ready replica
DRAIN_S = 120.0  # played beyond the last arrival
# One headroom for every policy that takes a target: the share of a worker's capacity that it should be at.
TARGET_SHARE = 0.7
RATIO = 1 / 3, 3.0  # kthena's bounds of prefill to decode
GOAL = 0.99  # the oracle's attainment


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, and whether the engine lets it flip roles (the peers cannot use that)."""

    policy: Policy
    flips: bool = False
    router: Router | None = None  # None: the trace's


def device(name: str) -> Device:
    """A catalogue entry at bf16."""
    entry = CATALOGUE[name]
    peak = entry.peak("bfloat16")
    return Device(name, peak, entry.memory_bytes, entry.bandwidth, entry.link, entry.price_per_hour)


POOLS = (
    PoolLimits("prefill", Role.PREFILL, device("h100-sxm"), GPUS, 1, MOST, INITIAL),
    PoolLimits("decode", Role.DECODE, device("h200-sxm"), GPUS, 1, MOST, INITIAL),
)


def limits_of(case: Case, flips: bool) -> Limits:
    """The same bounds for everyone."""
    return Limits(case.slo, RebalanceMode.AUTO, POOLS, role_flips=flips, max_batch=MAX_BATCH)


def truth_of(pool: PoolLimits) -> Truth:
    """What a worker of the pool really costs: a plain roofline of its own, times the pool's hidden factor.

    It shares no code with plan.roofline, so that the planner's prior has more to find out than a factor.
    """
    slower, device, weights = SLOWER[pool.name], pool.device, SHAPE.parameters * SHAPE.element_bytes
    flops, bandwidth = device.flops * pool.gpus * MFU, device.bandwidth * pool.gpus * MBU
    kv = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim * SHAPE.element_bytes
    token_s, pass_s = 2 * SHAPE.parameters / flops, PASS_S + weights / bandwidth
    return Truth(
        prompt_token_s=slower * token_s,
        step_base_s=slower * pass_s,
        step_slope_s=slower * token_s,
        prompt_base_s=slower * pass_s,
        transfer_token_s=kv / (device.link * pool.gpus * LINK_SHARE),
        prompt_pair_s=slower * 2 * SHAPE.layers * SHAPE.heads * SHAPE.head_dim / flops,
        step_context_s=slower * kv / bandwidth,
        kv_tokens=floor((device.memory_bytes * pool.gpus * MEMORY_SHARE - weights) / kv),
    )


def profile_of() -> Profile:
    """The peers' profile, from the truth itself."""
    prefill, decode = (truth_of(pool) for pool in POOLS)
    return Profile(
        prefill.prompt_base_s,
        prefill.prompt_token_s,
        prefill.prompt_pair_s,
        decode.step_base_s,
        decode.step_slope_s,
        decode.step_context_s,
        MAX_BATCH,
        float(decode.kv_tokens or 0),
    )


def contenders(case: Case) -> Mapping[str, Contender]:
    """Every policy. Targets follow from profile, SLO and the service's mean lengths, as its load test gives them."""
    profile = profile_of()
    context = case.mean_prompt + case.mean_output / 2
    batch = max(profile.batch_within(case.slo.tpot_ms / 1000, context), 1)
    running = TARGET_SHARE * batch
    metrics = Hpa(TARGET_SHARE, running)
    peers: dict[str, Policy] = {
        "static 4:4": Static(4, 4),
        "static 8:4": Static(8, 4),
        "static 8:8": Static(8, 8),
        "hpa": metrics,
        "kthena": Kthena(metrics, *RATIO),
        "aibrix": Aibrix(TARGET_SHARE, running),
        "heteroscale": heteroscale(case, profile, batch / profile.step_s(batch, context)),
        "dynamo classic": DynamoClassic(profile),
        "dynamo": Dynamo(profile),
        "wva": Wva(profile.kv_room_tokens),
    }
    rejecting = Contender(Static(4, 4), router=Rejecting(LeastBacklog(), EarlyRejection(profile, case.slo)))
    return {
        **{name: Contender(policy) for name, policy in peers.items()},
        "4:4, early rejection": rejecting,
        "tandem": Contender(decide, flips=True),
    }


def heteroscale(case: Case, profile: Profile, token_rate: float) -> HeteroScale:
    """Its target and ratio, as the service's stress test would give them; counts so large that nothing is rounded."""
    load = Traffic(1000.0, case.mean_prompt, case.mean_output, 1.0)
    prefill, decode = throughput_counts(profile, load, case.slo)
    return HeteroScale(TARGET_SHARE * token_rate, prefill / decode)


@dataclass(frozen=True, slots=True)
class Played:
    """A run's scored part: what arrived after the warm-up, and the GPU time from there on. Seconds, sorted."""

    run: Run
    attainment: float
    met: int
    gpu_seconds: float
    ttft: list[float]
    tpot: list[float]


def play(case: Case, contender: Contender) -> Played:
    """One run, from the same start."""
    scenario = Scenario(
        limits=limits_of(case, contender.flips),
        model=SHAPE,
        truth={pool.name: truth_of(pool) for pool in POOLS},
        start_delay_s=START_S,
        router=contender.router or case.router,
        records=False,
    )
    simulation = Simulation(scenario, arrivals(case.trace), policy=contender.policy)
    run = simulation.play(case.seconds + DRAIN_S)
    book = run.ledger
    scored = [i for i, at in enumerate(book.arrived) if at >= WARM_S]
    met = sum(book.is_met[i] for i in scored)
    return Played(
        run,
        met / max(case.scored, 1),
        met,
        gpu_seconds(simulation.cluster),
        sorted(s for i in scored if not isnan(s := book.ttft[i])),
        sorted(s for i in scored if not isnan(s := book.tpot[i])),
    )


def gpu_seconds(cluster: Cluster) -> float:
    """GPUs times seconds from the end of the warm-up on, from order to end: starting and draining included."""
    gpus = {pool.name: pool.gpus for pool in POOLS}
    ends = [(w, cluster.now if w.gone_at is None else w.gone_at) for w in (*cluster.gone, *cluster.workers)]
    return sum(gpus[w.pool] * max(end - max(w.born_at, WARM_S), 0.0) for w, end in ends)


def oracle(case: Case) -> Played:
    """The best schedule's run."""
    runs: dict[Schedule, Played] = {}

    def simulate(schedule: Schedule) -> tuple[float, float]:
        runs[schedule] = played = play(case, Contender(schedule.policy(EPOCH)))
        return played.attainment, played.gpu_seconds

    return runs[search(partial(schedule_for, case), simulate, GOAL).schedule]


def schedule_for(case: Case, strictness: float, misses: float) -> Schedule:
    """The cheapest schedule by the quick model: its targets at this share of the real ones, so many misses allowed."""
    profile = profile_of()
    grid = Grid(case.seconds + DRAIN_S, limits_of(case, flips=False).interval_s * 2.0, tuple(range(1, MOST + 1)))
    costs = Costs(GPUS * grid.step_s, GPUS * START_S)
    targets = case.slo.ttft_ms / 1000 * strictness, case.slo.tpot_ms / 1000 * strictness
    roles = [
        OracleRole(by_count(partial(missed, case.trace, profile, target, grid), grid.counts), grid.counts, costs)
        for missed, target in zip((prefill_misses, decode_misses), targets, strict=True)
    ]
    prefill, decode = fewest_gpus(roles, misses * len(case.trace))
    return Schedule(prefill, decode, grid.step_s, START_S)


__all__ = ["Contender", "contenders", "oracle", "play"]
