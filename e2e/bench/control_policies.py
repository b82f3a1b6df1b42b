"""The contenders of the control bench, the workers that they command, and how one run is played.

Two GPU types: prefill on H100, decode on H200, Llama-3.1-70B in bf16 over four of them. What a worker really costs is
the roofline times a hidden factor; the peers are told it (their profiles are perfect), Tandem finds it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.cli.shapes import find_shape
from tandem_operator.plan.decide import decide
from tandem_operator.plan.facts import Device, Limits, PoolLimits, RebalanceMode, Role
from tandem_operator.plan.policies.aibrix import Aibrix
from tandem_operator.plan.policies.dynamo import Dynamo, throughput_counts
from tandem_operator.plan.policies.dynamo_classic import DynamoClassic
from tandem_operator.plan.policies.heteroscale import HeteroScale
from tandem_operator.plan.policies.hpa import Hpa
from tandem_operator.plan.policies.kthena import Kthena
from tandem_operator.plan.policies.profile import Profile
from tandem_operator.plan.policies.signals import Traffic
from tandem_operator.plan.policies.static import Static
from tandem_operator.plan.policies.wva import Wva
from tandem_operator.plan.roofline import prior_of
from tandem_operator.simulate.observe import meets
from tandem_operator.simulate.oracle import (
    Costs,
    Grid,
    Schedule,
    decode_misses,
    fewest_gpus,
    prefill_misses,
    search,
)
from tandem_operator.simulate.oracle import Role as OracleRole
from tandem_operator.simulate.run import EPOCH, Scenario, Simulation
from tandem_operator.simulate.scenarios import play as arrivals
from tandem_operator.simulate.worker import Truth

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from e2e.bench.control_cases import Case
    from tandem_operator.plan.facts import Decision, Observed
    from tandem_operator.plan.policies.base import Policy
    from tandem_operator.simulate.run import Run

SHAPE = find_shape("llama-3.1-70b")
GPUS = 4  # of one worker
MOST = 12  # workers of a role
INITIAL = 4
MAX_BATCH = 256  # vLLM's default max_num_seqs
SLOWER = {"prefill": 1.4, "decode": 1.25}  # the hidden factors
START_S = 120.0  # from the decision to a ready replica
WARM_S = 300.0  # from the start, not scored: nobody may be judged by a start that it did not choose
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
    """What a worker of the pool really costs: every part of the roofline times the pool's hidden factor."""
    prior, slower = prior_of(pool.device, pool.gpus, SHAPE), SLOWER[pool.name]
    costs = {
        "prompt_token_s": slower * prior.token_s,
        "step_base_s": slower * prior.pass_s,
        "step_slope_s": slower * prior.token_s,
        "prompt_base_s": slower * prior.pass_s,
        "transfer_token_s": prior.transfer_token_s,
        "prompt_pair_s": slower * prior.pair_s,
        "step_context_s": slower * prior.context_token_s,
    }
    known = {f.name for f in fields(Truth)}
    return Truth(**{name: value for name, value in costs.items() if name in known})


def profile_of() -> Profile:
    """The peers' profile, from the truth itself."""
    prefill, decode = (truth_of(pool) for pool in POOLS)
    room = prior_of(POOLS[1].device, GPUS, SHAPE).kv_room_tokens
    return Profile(
        prefill.prompt_base_s,
        prefill.prompt_token_s,
        getattr(prefill, "prompt_pair_s", 0.0),
        decode.step_base_s,
        decode.step_slope_s,
        getattr(decode, "step_context_s", 0.0),
        MAX_BATCH,
        room,
    )


def contenders(case: Case) -> Mapping[str, Contender]:
    """Every policy. Targets follow from profile, SLO and the service's mean lengths, as its load test gives them."""
    profile = profile_of()
    context = case.mean_prompt + case.mean_output / 2
    batch = max(profile.batch_within(case.slo.tpot_ms / 1000, context), 1)
    running = TARGET_SHARE * batch
    metrics = Hpa(TARGET_SHARE, running)
    peers: dict[str, Policy] = {
        "static 2:6": Static(2, 6),
        "static 4:4": Static(4, 4),
        "static 6:2": Static(6, 2),
        "static 8:8": Static(8, 8),
        "hpa": metrics,
        "kthena": Kthena(metrics, *RATIO),
        "aibrix": Aibrix(TARGET_SHARE, running),
        "heteroscale": heteroscale(case, profile, batch / profile.step_s(batch, context)),
        "dynamo classic": DynamoClassic(profile),
        "dynamo": Dynamo(profile),
        "wva": Wva(profile.kv_room_tokens),
    }
    return {**{name: Contender(policy) for name, policy in peers.items()}, "tandem": Contender(decide, flips=True)}


def heteroscale(case: Case, profile: Profile, token_rate: float) -> HeteroScale:
    """Its target and ratio, as the service's stress test would give them; counts so large that nothing is rounded."""
    load = Traffic(1000.0, case.mean_prompt, case.mean_output, 1.0)
    prefill, decode = throughput_counts(profile, load, case.slo)
    return HeteroScale(TARGET_SHARE * token_rate, prefill / decode)


@dataclass(slots=True)
class Played:
    """A run, and the GPU seconds of its scored part."""

    run: Run
    gpu_seconds: float


@dataclass(slots=True)
class Metered:
    """A policy whose GPU seconds are counted from the end of the warm-up on, starting replicas included."""

    policy: Policy
    gpu_seconds: float = 0.0
    gpus: Mapping[str, int] = field(default_factory=lambda: {p.name: p.gpus for p in POOLS})

    def __call__(self, seen: Observed, now: datetime) -> Decision:
        """Count, then ask."""
        if (now - EPOCH).total_seconds() > WARM_S:
            used = sum(self.gpus[w.pool] for w in seen.workers if not w.deleting)
            self.gpu_seconds += used * seen.limits.interval_s
        return self.policy(seen, now)


def play(case: Case, contender: Contender) -> Played:
    """One run, from the same start."""
    metered = Metered(contender.policy)
    scenario = Scenario(
        limits=limits_of(case, contender.flips),
        model=SHAPE,
        truth={pool.name: truth_of(pool) for pool in POOLS},
        start_delay_s=START_S,
    )
    run = Simulation(scenario, arrivals(case.trace), policy=metered).play(case.seconds + DRAIN_S)
    return Played(run, metered.gpu_seconds)


def oracle(case: Case) -> Played:
    """The best schedule's run."""
    runs: dict[Schedule, Played] = {}

    def simulate(schedule: Schedule) -> tuple[float, float]:
        runs[schedule] = played = play(case, Contender(schedule.policy(EPOCH)))
        return attainment(case, played.run), played.gpu_seconds

    return runs[search(lambda strictness: schedule_for(case, strictness), simulate, GOAL).schedule]


def attainment(case: Case, run: Run) -> float:
    """Share of the scored arrivals that met both targets; one that never finished did not."""
    met = sum(meets(r, case.slo) for r in run.requests if r.arrived >= WARM_S)
    return met / max(sum(a.at >= WARM_S for a in case.trace), 1)


def schedule_for(case: Case, strictness: float) -> Schedule:
    """The cheapest schedule by the quick model, its targets at this share of the real ones."""
    profile = profile_of()
    grid = Grid(case.seconds + DRAIN_S, limits_of(case, flips=False).interval_s * 2.0, tuple(range(1, MOST + 1)))
    costs = Costs(GPUS * grid.step_s, GPUS * START_S)
    targets = case.slo.ttft_ms / 1000 * strictness, case.slo.tpot_ms / 1000 * strictness
    roles = [
        OracleRole(tuple(misses(case.trace, profile, n, target, grid) for n in grid.counts), grid.counts, costs)
        for misses, target in zip((prefill_misses, decode_misses), targets, strict=True)
    ]
    prefill, decode = fewest_gpus(roles, (1 - GOAL) / 2 * len(case.trace))
    return Schedule(prefill, decode, grid.step_s, START_S)


__all__ = ["Contender", "contenders", "oracle", "play"]
