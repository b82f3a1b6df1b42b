"""Step 6: the ratio moves one way, then the other, and only because the planner may."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from e2e.demo.calibrate import (
    CHAT_OUTPUT,
    CHAT_TOKENS,
    PROMPT_OUTPUT,
    PROMPT_TOKENS,
    Sized,
    size_chats,
    size_prompts,
)
from e2e.demo.judge import Targets
from e2e.demo.measure import measure_chats, measure_prompts, warm_up
from e2e.demo.phases import Load, Outcome, watch
from e2e.demo.screen import note, step, true, with_unit
from e2e.harness.cluster import Cluster
from e2e.harness.kube import RESOURCE, Kube
from e2e.harness.waiting import until
from e2e.harness.world import NAMESPACE, Prometheus, forwarded, resource, roles, wait_ready
from e2e.load import Summary
from tandem_operator.plan.limits import max_batch_of

OFF_SECONDS = 80.0
AUTO_SECONDS = 140.0
WINDOW = 25.0  # seconds of requests behind a verdict
BUDGET = 3


class NotTrueError(AssertionError):
    """A sentence of the story that this run did not bear out."""


@dataclass(frozen=True, slots=True)
class Move:
    """One load's two runs, for the summary at the end."""

    load: Load
    off: Summary
    before: Summary
    after: Summary
    ratios: tuple[str, str]
    moved_at: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the loads run: the resource, and a folder for what the loads write."""

    cluster: Cluster
    name: str
    directory: Path

    @property
    def kube(self) -> Kube:
        """The stage's kubectl."""
        return self.cluster.kube

    def router(self) -> AbstractContextManager[str]:
        """A loopback URL of the router, for one use: a forward ends with the pod that it found."""
        return forwarded(self.cluster, NAMESPACE, f"{self.name}-router", 8000)

    def prometheus(self) -> AbstractContextManager[str]:
        """A loopback URL of Prometheus, for one use."""
        return forwarded(self.cluster, "monitoring", "prometheus", 9090)


def rebalance(stage: Stage) -> list[Move]:
    """Both loads, each first with the planner off and then with it on; raises NotTrueError at the first untruth.

    Arrivals are Poisson; the seeds are of ordinary ones, without a burst of three standard deviations near the end.
    """
    step("what this machine's workers can do (each is one device, held to its CPU share)")
    set_mode(stage, "Off")
    with stage.router() as url:
        warm_up(url, stage.name)
        prompts = size_prompts(measure_prompts(url, stage.name))
    chats = sized_chats(stage)
    targets = Targets(prompts.target_ms, chats.target_ms, percentile=90)
    set_slo(stage, targets)
    load = Load("prompt-heavy load", "prefill", prompts.rate, PROMPT_TOKENS, PROMPT_OUTPUT, seed=4)
    first = move(stage, load, targets)
    # Again, since the machine is shared and minutes have passed; and on the one decode worker that is left.
    step("what its decode worker can do now")
    set_mode(stage, "Off")
    quiet(stage)
    chats = sized_chats(stage)
    targets = Targets(prompts.target_ms, chats.target_ms, percentile=90)
    set_slo(stage, targets)
    load = Load("output-heavy load", "decode", chats.rate, CHAT_TOKENS, CHAT_OUTPUT, seed=9)
    return [first, move(stage, load, targets)]


def sized_chats(stage: Stage) -> Sized:
    """The output-heavy load for the decode workers' present speed."""
    _, decode = roles(stage.kube, stage.name)
    spec = (resource(stage.kube, stage.name) or {})["spec"]
    with stage.router() as url:
        return size_chats(measure_chats(url, stage.name, max_batch_of(spec["engine"]["args"]), decode))


def move(stage: Stage, load: Load, targets: Targets) -> Move:
    """The same load with `rebalance.mode: Off` (it must not recover), then `Auto` (it must)."""
    step(f"{load.title}: {load.rate:.2f} requests/s of {load.prompt_tokens} + {load.output_tokens} tokens")
    off = run(stage, load, targets, "Off", OFF_SECONDS)
    off_end = off.after(targets, WINDOW)
    demand(off.moved_at is None, "with rebalance.mode: Off the ratio stays")
    demand(
        not targets.met_by(off_end, load.starved),
        f"with rebalance.mode: Off it does not recover: {said(off_end, load.starved, targets)}",
    )
    auto = run(stage, load, targets, "Auto", AUTO_SECONDS)
    demand(
        auto.moved_at is not None, f"with rebalance.mode: Auto the ratio moved: {' → '.join(r for _, r in auto.ratios)}"
    )
    before, after = auto.before(targets, WINDOW), auto.after(targets, WINDOW)
    # No demand: a planner that foresees the miss moves before it, and Off has shown what comes without a move.
    note(f"before the move: {said(before, load.starved, targets)}")
    demand(targets.met_by(after, load.starved), f"after the move it meets: {said(after, load.starved, targets)}")
    now = roles(stage.kube, stage.name)
    demand(sum(now) == BUDGET, f"the budget holds: {now[0]} prefill + {now[1]} decode workers")
    return Move(load, off_end, before, after, (auto.ratios[0][1], auto.ratios[-1][1]), auto.moved_at or 0.0)


def run(stage: Stage, load: Load, targets: Targets, mode: str, seconds: float) -> Outcome:
    """One run of a load, from quiet to its end.

    The mode changes once it is quiet: an edit is judged at once, and what the last load missed is no reason to move.
    """
    quiet(stage)
    set_mode(stage, mode)
    title = f"{load.title}, rebalance.mode: {mode}"
    out = stage.directory / f"{load.starved}-{mode.lower()}.jsonl"
    shown = Load(title, load.starved, load.rate, load.prompt_tokens, load.output_tokens, load.seed)
    with stage.router() as url:
        return watch(shown, stage.kube, stage.name, url, targets, seconds, out)


def set_mode(stage: Stage, mode: str) -> None:
    """Edit `rebalance.mode`, as a user would."""
    stage.kube.patch(RESOURCE, stage.name, NAMESPACE, {"spec": {"rebalance": {"mode": mode}}})


def set_slo(stage: Stage, targets: Targets) -> None:
    """Give the resource the targets that suit this machine's speed (an edit, as a user would make it)."""
    slo = {"ttftMilliseconds": targets.ttft_ms, "tpotMilliseconds": targets.tpot_ms, "percentile": targets.percentile}
    stage.kube.patch(RESOURCE, stage.name, NAMESPACE, {"spec": {"slo": slo}})
    note(f"targets for this machine: TTFT {targets.ttft_ms:,} ms, TPOT {targets.tpot_ms:,} ms, p{targets.percentile}")
    wait_ready(stage.kube, stage.name)
    settled(stage)


def settled(stage: Stage) -> None:
    """Wait until the routers of the old targets are gone."""

    def one_router() -> bool:
        pods = stage.kube.items("pods", NAMESPACE, f"tandem.dev/resource={stage.name},tandem.dev/component=router")
        spec = (resource(stage.kube, stage.name) or {"spec": {}})["spec"]
        return len(pods) == int(spec.get("router", {}).get("replicas", 1))

    until("the routers carry the new targets", one_router, 90)


def quiet(stage: Stage) -> None:
    """Wait until no request is open and none came or ended within the windows that the planner reads."""
    only = f'{{resource="{stage.name}"}}'
    query = (
        f"sum(tandem_router_inflight{only}) + sum(rate(tandem_router_arrivals_total{only}[25s]))"
        f" + sum(rate(tandem_router_requests_total{only}[25s]))"
    )
    with stage.prometheus() as url:
        until("the last load has drained", lambda: Prometheus(url).value(query) == 0, 180, every=1)


def said(seen: Summary, role: str, targets: Targets) -> str:
    """The figure that the role answers for, beside its target."""
    name, value, target = (
        ("TTFT", seen.ttft_ms, targets.ttft_ms) if role == "prefill" else ("TPOT", seen.tpot_ms, targets.tpot_ms)
    )
    return f"{name} p{targets.percentile} {with_unit(value)}, target {target:,} ms ({seen.due} requests)"


def demand(holds: bool, sentence: str) -> None:
    """Print the sentence if it is true, end the story if it is not."""
    if not holds:
        raise NotTrueError(f"not true: {sentence}")
    true(sentence)
