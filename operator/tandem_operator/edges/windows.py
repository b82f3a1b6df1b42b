"""From Prometheus' numbers about one resource to the planner's facts."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from tandem_operator.edges.quantile import Quantile, quantile
from tandem_operator.plan.facts import SIZES, Answer, ModelShape, Role, RoleUse, Slo, Verdict, Window
from tandem_operator.plan.queueing import dispersion, variation

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.edges.prometheus import Facts

FEWEST_PROMPTS = 20
FEWEST_ARRIVALS = 20
FEWEST_BINS = 6.0


def _seconds(text: str) -> float:
    return inf if text == "+Inf" else float(text)


def quantile_of(facts: Facts, fact: str, percentile: int) -> Quantile | None:
    """A histogram's quantile at the resource's own percentile."""
    buckets = [(_seconds(le), rate) for le, rate in facts.labelled(fact).items() if le]
    return quantile(percentile / 100, buckets)


def _ms(found: Quantile | None) -> int | None:
    if found is None:
        return None
    # Beyond the highest bound the true figure is not known; one more than the bound says 'above it' and stays honest
    # in every comparison with a target, since the targets are themselves bounds.
    return round(found.seconds * 1000) + (1 if found.beyond else 0)


def _mean(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None


def _sum(facts: Facts, fact: str, role: Role, pool: str | None = None) -> float | None:
    def number(of: Role) -> float | None:
        return facts.number(fact, of) if pool is None else facts.pools.get((fact, of, pool))

    numbers = [n for n in (number(role), number(Role.BOTH)) if n is not None]
    return sum(numbers) if numbers else None


def _use(facts: Facts, role: Role, pool: str | None = None) -> RoleUse:
    """What the workers of a role did, all of them or those of one pool."""
    side = role.value
    return RoleUse(
        busy=_sum(facts, f"{side}_busy", role, pool),
        tokens_rate=_sum(facts, f"{side}_tokens", role, pool),
        steps_rate=_sum(facts, "decode_steps", role, pool) if role is Role.DECODE else None,
        waiting=_sum(facts, "waiting", role, pool),
        waiting_tokens=_sum(facts, "waiting_tokens", role, pool) if role is Role.PREFILL else None,
    )


def _uses(facts: Facts, role: Role) -> dict[str, RoleUse]:
    """The same by pool, where workers of more than one pool do the role: else the sum says all."""
    pools = sorted({p for fact, of, p in facts.pools if fact == f"{role.value}_busy" and of in {role, Role.BOTH} and p})
    return {pool: _use(facts, role, pool) for pool in pools} if len(pools) > 1 else {}


def _variation(facts: Facts, seconds: int) -> float | None:
    """The squared coefficient of variation of the prompts' lengths; None with too few prompts to say."""
    count, total, squares = (facts.number(name) for name in ("prompts", "prompt_tokens", "prompt_squares"))
    if count is None or not total or squares is None or count * seconds < FEWEST_PROMPTS:
        return None
    return variation(count, total, squares)


def _dispersion(facts: Facts, seconds: int) -> float | None:
    """The arrivals' index of dispersion: variance over mean of their number in a bin; None with too few to say.

    Each of several routers sees its share of the arrivals, as if drawn by lot: what it sees of the whole's excess over
    Poisson is that share (thinning of a point process; Cox and Isham 1980, section 4.3).
    """
    names = ("arrivals", "arrival_squares", "arrival_bin", "routers")
    rate, squares, bin_s, routers = (facts.number(name) for name in names)
    if not rate or squares is None or not bin_s or not routers:
        return None
    bins, each = seconds / bin_s, rate * bin_s / routers
    if bins < FEWEST_BINS or rate * seconds < FEWEST_ARRIVALS:
        return None
    return max(1.0 + routers * (dispersion(each, squares * bin_s / routers, bins) - 1.0), 0.0)


def _attainment(facts: Facts) -> float | None:
    met = facts.labelled("slo")
    total = sum(met.values())
    return met.get("both", 0.0) / total if total > 0 else None


def _workers(facts: Facts, role: Role) -> int | None:
    if facts.number("up") is None:
        return None
    return round(_sum(facts, "workers", role) or 0)


def window_of(facts: Facts, slo: Slo, at: datetime, seconds: int) -> Window:
    """One look at one resource. Colocated workers (role both) count with both roles: they do both jobs."""
    requests = facts.number("requests")
    return Window(
        at=at,
        seconds=seconds,
        arrival_rate=facts.number("arrivals"),
        request_rate=requests,
        prompt_tokens=_mean(facts.number("prompt_tokens"), requests),
        output_tokens=_mean(facts.number("output_tokens"), requests),
        ttft_ms=_ms(quantile_of(facts, "ttft", slo.percentile)),
        tpot_ms=_ms(quantile_of(facts, "tpot", slo.percentile)),
        attainment=_attainment(facts),
        prefill=_use(facts, Role.PREFILL),
        decode=_use(facts, Role.DECODE),
        arrival_cv2=_dispersion(facts, seconds),
        prompt_cv2=_variation(facts, seconds),
        cached_share=_mean(facts.number("cached_tokens"), facts.number("prompt_tokens")),
        prefill_of=_uses(facts, Role.PREFILL),
        decode_of=_uses(facts, Role.DECODE),
        prefill_workers=_workers(facts, Role.PREFILL),
        decode_workers=_workers(facts, Role.DECODE),
    )


def metrics_verdict(facts: Facts | None) -> Verdict:
    """Are there metrics of this resource? None at all, targets that are down, and no traffic are three things."""
    if facts is None or (up := facts.number("up")) is None:
        return Verdict(Answer.UNKNOWN, "NoSamples", "Prometheus has no target of this resource yet")
    if up <= 0:
        return Verdict(Answer.UNKNOWN, "NoSamples", "Prometheus can scrape no pod of this resource")
    arrivals = facts.number("arrivals")
    if arrivals is None:
        return Verdict(Answer.UNKNOWN, "NoSamples", f"{up:.0f} targets are up, the router has no rates yet")
    if arrivals == 0 and not facts.number("requests"):
        return Verdict(Answer.YES, "NoTraffic", f"{up:.0f} targets are up, no request arrived in the window")
    return Verdict(Answer.YES, "Fresh", f"{up:.0f} targets are up, {arrivals:.2f} requests/s arrive")


def bandwidth_of(facts: Facts) -> float | None:
    """Bytes per second between two workers as they measured it, to two digits: the third is noise."""
    measured = facts.number("bandwidth")
    return float(f"{measured:.1e}") if measured else None


def model_of(facts: Facts | None) -> ModelShape | None:
    """The model's sizes; None where no worker said them, or not as numbers."""
    if facts is None or facts.model is None:
        return None
    try:
        sizes: dict[str, Any] = {name: int(facts.model[name]) for name in SIZES}
    except (KeyError, ValueError):
        return None
    return ModelShape(**sizes)
