"""`make bench-published`: published results reproduced. Exit code 1 if one misses its tolerance."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from e2e.bench import answers
from e2e.bench.check import Check, near, show
from e2e.bench.table import save
from tandem_operator.simulate.published import conductor, distserve, fleets, ours, prefixes
from tandem_operator.simulate.published.costs import Measured, Table, measured, of_table, read_table
from tandem_operator.simulate.published.inputs import (
    Arrivals,
    Prompt,
    cut,
    poisson,
    read_azure,
    read_mooncake,
    replay,
)
from tandem_operator.simulate.published.slowdown import PERCENTILES, percentiles, seconds, slowdown
from tandem_operator.simulate.published.splitwise import BLOOM, LLAMA, Fleet, Shape, colocated, simulate, split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SECONDS: Final = 120.0  # of a sweep's arrivals
SEARCH_SECONDS: Final = 60.0  # of each step of a search
RATES: Final = range(10, 401, 5)


@dataclass(frozen=True)
class Data:
    """The public files, read once."""

    folder: Path
    every_rule: bool = False  # of ours, one by one

    @cached_property
    def table(self) -> Table:
        """Splitwise's measurements."""
        return read_table(self.folder / "splitwise_perf_model.csv")

    @cached_property
    def azure(self) -> dict[str, Arrivals]:
        """Azure's traces by name."""
        return {name: read_azure(self.folder / f"AzureLLMInferenceTrace_{name}.csv") for name in ("conv", "code")}

    def mooncake(self, name: str) -> list[Prompt]:
        """One of Mooncake's traces."""
        return read_mooncake(self.folder / f"mooncake_{name}_trace.jsonl")

    def machine(self, shape: Shape, hardware: str = fleets.H100) -> Measured:
        """A machine by Splitwise's rules."""
        return measured(of_table(self.table, shape.name, hardware))

    def both(self, shape: Shape, count: int, prompts: int, decodes: int) -> tuple[Fleet, Fleet]:
        """H100 machines: colocated ones, and split ones."""
        machine = self.machine(shape)
        return colocated(machine, count), split(machine, prompts, machine, decodes)


def splitwise_rows(data: Data) -> Iterator[Check]:
    """splitwise-sim's own answers on the replayed traces and on Poisson arrivals."""
    conv, code = data.azure["conv"], data.azure["code"]
    s1, s2 = data.both(BLOOM, 40, 25, 15)
    s5 = data.both(LLAMA, 40, 35, 5)
    s6 = data.both(LLAMA, 3, 2, 1)
    for name, fleet, shape, arrivals, answer in (
        ("S1 BLOOM conv 70/s, 40", s1, BLOOM, poisson(conv, 70, SECONDS), answers.S1),
        ("S2 BLOOM conv 70/s, 25P+15D", s2, BLOOM, poisson(conv, 70, SECONDS), answers.S2),
        ("S3 Llama conv 130/s, 40", s5[0], LLAMA, poisson(conv, 130, SECONDS), answers.S3),
        ("S5 Llama code 70/s, 40", s5[0], LLAMA, poisson(code, 70, SECONDS), answers.S5_COLOCATED),
        ("S5 Llama code 70/s, 35P+5D", s5[1], LLAMA, poisson(code, 70, SECONDS), answers.S5_SPLIT),
        ("S6 Llama conv replay, 3", s6[0], LLAMA, replay(conv), answers.S6_COLOCATED),
        ("S6 Llama conv replay, 2P+1D", s6[1], LLAMA, replay(conv), answers.S6_SPLIT),
    ):
        got = seconds(simulate(fleet, shape, arrivals))
        yield from _triple(f"{name}: TTFT", [1000 * s for s in got.ttft], "ms", answer.ttft_ms, len(arrivals))
        yield from _triple(f"{name}: TBT", [1000 * s for s in got.tbt], "ms", answer.tbt_ms, len(arrivals))
        yield from _triple(f"{name}: E2E", got.e2e, "s", answer.e2e_s, len(arrivals))


def _triple(
    name: str,
    got: Sequence[float],
    unit: str,
    expected: answers.Triple,
    n: int,
    shares: Sequence[float] = answers.PERCENTILE_SHARES,
) -> Iterator[Check]:
    for percentile, value, answer, share in zip(PERCENTILES, got, expected, shares, strict=True):
        yield near(f"{name} p{percentile}", value, unit, answer, share, n)


def idle_rows(data: Data) -> Iterator[Check]:
    """One request on an idle machine takes what the table says (Splitwise, section V-B: its performance model)."""
    for shape in (BLOOM, LLAMA):
        for hardware in (fleets.A100, fleets.H100):
            machine = data.machine(shape, hardware)
            worst = max(abs(_alone_s(machine, shape, int(x)) / y - 1) for x, y in _points(machine, shape))
            yield Check(f"idle {hardware}, {shape.name}: TTFT off the table by", 100 * worst, "%", 0.0, 0.1)


def _points(machine: Measured, shape: Shape) -> Iterator[tuple[float, float]]:
    return ((x, y) for x, y in zip(machine.prompt.x, machine.prompt.y, strict=True) if x + 2 < shape.room)


def _alone_s(machine: Measured, shape: Shape, prompt: int) -> float:
    one = Arrivals(np.array([0.0]), np.array([prompt]), np.array([2]))
    return float(simulate(colocated(machine, 1), shape, one).ttft[0])


def knee_rows(data: Data) -> Iterator[Check]:
    """BLOOM, conversation: where colocated machines leave the SLO (1.5 at p90) and split ones do not notice."""
    idle = data.machine(BLOOM, fleets.A100)
    for rate, expected in answers.KNEE.items():
        arrivals = poisson(data.azure["conv"], rate, SECONDS)
        for name, fleet, answer in zip(("40", "25P+15D"), data.both(BLOOM, 40, 25, 15), expected, strict=True):
            got = slowdown(simulate(fleet, BLOOM, arrivals), idle).tbt[1]
            yield near(f"knee at {rate}/s, {name}: TBT slowdown p90", got, "×", answer, 0.02, len(arrivals))


def distserve_rows(data: Data) -> Iterator[Check]:
    """Answers of DistServe's simulator for OPT-13B on one GPU a role (OSDI'24, section 4.1: its simulator)."""
    arrivals = cut(data.azure["conv"], 1500, 500, slower=4)
    runs = {
        "1P+1D": distserve.disaggregated(distserve.DISTSERVE_OPT_13B, arrivals),
        "vLLM": distserve.colocated(distserve.VLLM_OPT_13B, arrivals),
    }
    for name, (ttft, tpot) in answers.DISTSERVE.items():
        got = runs[name]
        yield from _triple(f"DistServe {name}: TTFT", percentiles(got.ttft), "ms", ttft, len(arrivals), (0.03,) * 3)
        yield from _triple(f"DistServe {name}: TPOT", percentiles(got.tpot), "ms", tpot, len(arrivals), (0.03,) * 3)


def fleet_rows(data: Data) -> Iterator[Check]:
    """Splitwise's headline (abstract; section VI, equal power): split A100 machines by their rules and by ours."""
    a100, h100, split_a100 = fleets.CODE[:3]
    price, power = split_a100.price / h100.price, split_a100.power / h100.power
    yield near("price of Splitwise-AA over Baseline-H100", price, "×", answers.PRICE_OVER_H100, 0.02)
    yield near("power of Splitwise-AA over Baseline-H100", power, "×", 1.0, 0.02)
    yield near("price of Splitwise-AA over Baseline-A100", split_a100.price / a100.price, "×", 1.0, 0.0)
    found = {
        (trace, shape.name): list(_gains(data, trace, shape)) for trace in fleets.DESIGNS for shape in (BLOOM, LLAMA)
    }
    for (trace, model), gains in found.items():
        for gain in gains:
            for base, rate in (("A100", gain.a100), ("H100", gain.h100)):
                name = f"{model} {trace}, {gain.rules}: {gain.split} {gain.rate}/s over {base} {rate}/s"
                yield Check(name, gain.over(rate), "×")
    theirs = [gains[0] for gains in found.values()]
    best = {base: max(g.over(getattr(g, base)) or 0 for g in theirs) for base in ("h100", "a100")}
    yield near("Splitwise-AA over Baseline-H100, at best", best["h100"], "×", answers.OVER_H100, 0.2)
    yield near("Splitwise-AA over Baseline-A100, at best", best["a100"], "×", answers.OVER_A100, 0.2)


@dataclass(frozen=True, slots=True)
class Gain:
    """Highest rates (requests/s) within the SLO: split A100 machines, and colocated ones of both kinds."""

    rules: str
    split: str
    rate: int | None
    a100: int | None
    h100: int | None

    def over(self, base: int | None) -> float | None:
        """The split machines' rate over another."""
        return self.rate / base if self.rate and base else None


def _gains(data: Data, trace: str, shape: Shape) -> Iterator[Gain]:
    azure = data.azure[trace]
    theirs, *steps, ours_on_table, ours_alone = ours.changes(data.table, shape)
    rates: list[int | None] = [None, None, None]
    for rules in (theirs, *(steps if data.every_rule else ()), ours_on_table, ours_alone):
        rates = [
            fleets.highest_rate(rules, design, azure, RATES, SEARCH_SECONDS, rate)
            for design, rate in zip(fleets.DESIGNS[trace][:3], rates, strict=True)
        ]
        a100, h100, split_a100 = rates
        design = fleets.DESIGNS[trace][2]
        yield Gain(rules.name, design.counts, split_a100, a100, h100)
        if rules in (ours_on_table, ours_alone):
            best, rate = fleets.best_split(rules, design, azure, RATES, SEARCH_SECONDS, split_a100)
            if best != design:
                yield Gain(rules.name, best.counts, rate, a100, h100)


def mooncake_rows(data: Data) -> Iterator[Check]:
    """Mooncake (FAST'25): reuse (figures 9 and 10), equation 2, and the schedulers (arXiv 2407.00079, figure 8)."""
    for name, (flops, bandwidth) in answers.BREAK_EVEN.items():
        got = prefixes.break_even_bandwidth(prefixes.LLAMA_3_70B, 8 * flops, 8192) / 1e9
        yield Check(f"Mooncake eq. 2, {name}: break-even", got, "GB/s", bandwidth, 0.05)
    for trace, answer in answers.MOONCAKE.items():
        prompts = data.mooncake(trace)
        yield from _reuse_rows(f"Mooncake {trace}", prompts, answer)
        yield from _scheduler_rows(f"Mooncake {trace}", prompts)


def _reuse_rows(name: str, prompts: list[Prompt], answer: answers.Reuse) -> Iterator[Check]:
    everything = prefixes.hit_share(prompts)
    node = prefixes.hit_share(prompts, prefixes.NODE_BLOCKS) / everything
    yield Check(f"{name}: reused blocks, unbounded", 100 * everything, "%", 100 * answer.unbounded, 0.1, len(prompts))
    yield Check(f"{name}: of that with 5,859 blocks", 100 * node, "%", 100 * answer.of_maximum, 1.0, len(prompts))
    local, whole = conductor.one_node(prompts, 1), conductor.one_node(prompts, 10)
    ratio, time = whole.hit_share / local.hit_share, whole.mean_prefill_s / local.mean_prefill_s
    yield near(f"{name}: hits, global over local", ratio, "×", answer.global_over_local, 0.2, len(prompts))
    yield near(f"{name}: prefill time, global over local", time, "×", answer.prefill_time, 0.2, len(prompts))
    few, many = answer.saved
    held = prefixes.saved_share(prompts, 4, prefixes.H100_BLOCKS)
    yield Check(f"{name}: KV not sent, 4 decode workers of 8 H100", 100 * held, "%", 100 * few, 3.0, len(prompts))
    kept = prefixes.saved_share(prompts, 16)
    yield Check(f"{name}: KV not sent, 16 that evict nothing", 100 * kept, "%", 100 * many, 3.0, len(prompts))


def _scheduler_rows(name: str, prompts: list[Prompt]) -> Iterator[Check]:
    schedulers = (conductor.at_random, conductor.load_balancing, conductor.cache_aware, conductor.kvcache_centric)
    outcomes = [conductor.serve(prompts, scheduler, 10) for scheduler in schedulers]
    shared = conductor.serve(prompts, conductor.load_balancing, 10, shared=True)
    for scheduler, outcome in zip(schedulers, outcomes, strict=True):
        yield Check(f"{name}: mean TTFT, {scheduler.__name__}", outcome.mean_ttft_s, "s", n=len(prompts))
    for scheduler, outcome in zip(schedulers[1:3], outcomes[1:3], strict=True):
        ratio = shared.hit_share / outcome.hit_share
        yield Check(f"{name}: hits, global over local by {scheduler.__name__}", ratio, "×", n=len(prompts))
    means = [o.mean_ttft_s for o in outcomes]
    in_order = float(means == sorted(means, reverse=True))
    yield Check(f"{name}: schedulers rank as published", in_order, "", 1.0, 0.0)


SECTIONS: Final[dict[str, Callable[[Data], Iterator[Check]]]] = {
    "splitwise": splitwise_rows,
    "idle": idle_rows,
    "knee": knee_rows,
    "distserve": distserve_rows,
    "mooncake": mooncake_rows,
    "fleets": fleet_rows,
}


def main() -> int:
    """Print every section as it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the public files")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS), help="these sections alone")
    parser.add_argument("--every-rule", action="store_true", help="replace Splitwise's rules one by one (minutes more)")
    options = parser.parse_args()
    data, checks = Data(options.data, options.every_rule), list[Check]()
    for name in options.only:
        found = list(SECTIONS[name](data))
        show(name, found)
        checks += found
    held = [c for c in checks if c.expected is not None]
    missed = [c for c in held if not c.passed]
    print(f"{len(held) - len(missed)} of {len(held)} within tolerance; {save('published', [c.row() for c in checks])}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
