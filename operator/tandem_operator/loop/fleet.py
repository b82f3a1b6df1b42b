"""The fleet observer: asks Prometheus once an interval for all resources, and keeps a bounded history of each."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Protocol

from tandem_operator.edges.errors import PrometheusError
from tandem_operator.edges.windows import bandwidth_of, metrics_verdict, model_of, window_of
from tandem_operator.plan.facts import Answer, ModelShape, Slo, Verdict, Window
from tandem_operator.plan.judge import is_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tandem_operator.edges.prometheus import Facts, Reading
    from tandem_operator.loop.refs import Ref

log = logging.getLogger(__name__)

HISTORY = 40  # windows kept of each resource at least; more where its scale-down window needs them
SPARE = 3  # ... and as many more, so that a late look does not shorten the span
IDLE_INTERVAL_S = 15  # where there is no resource to ask for
NOT_ASKED = Verdict(Answer.UNKNOWN, "NoSamples", "Prometheus was not asked yet")
NEVER = datetime.min.replace(tzinfo=UTC)
FIRST_LOOKS = 5  # at a resource without traffic that are all judged: guards of the first windows end by them
EVERY_LOOK = 8  # ... then this one of so many, and those by which a scale-down is confirmed
EARLY = 0.9  # a look that is due within a tenth of its interval is taken along


class Source(Protocol):
    """Whoever answers for all resources at once."""

    async def ask(self) -> Reading:
        """Facts of all resources, now; raise PrometheusError where there is no usable answer."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the observer must know of a resource."""

    ref: Ref
    slo: Slo
    interval_s: int
    down_window_s: int = 0  # a scale-down is confirmed over this long
    moments: tuple[int, ...] = ()  # after so many seconds without traffic a judgement may be another one, too

    @property
    def windows(self) -> int:
        """How many windows to keep."""
        return max(HISTORY, ceil(self.down_window_s / (EARLY * self.interval_s)) + SPARE)


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of one resource's metrics; `number` counts the looks, so that each is judged once."""

    metrics: Verdict = NOT_ASKED
    history: tuple[Window, ...] = ()
    model: ModelShape | None = None
    loads: Mapping[str, float] = field(default_factory=dict)  # requests running and waiting, by pod
    held: float | None = None  # requests that the routers hold until a worker is there
    backend: str | None = None  # transfer backend that the workers report
    bandwidth: float | None = None  # bytes/s between two workers, as they measure it
    at: datetime | None = None
    number: int = 0
    repeats: int = 0  # looks in a row, up to this one, that said what the one before said


class Fleet:
    """Typed observations by resource."""

    def __init__(self, source: Source, window_s: int) -> None:
        self._source = source
        self._window_s = window_s
        self._looks: dict[Ref, Look] = {}
        self._idle: dict[Ref, tuple[Slo, Facts]] = {}  # what the newest look was made of, where nothing arrives

    def look(self, ref: Ref) -> Look:
        """The newest look at a resource; one that says 'not asked yet' where there is none."""
        return self._looks.get(ref, Look())

    async def observe(self, subjects: Iterable[Subject], now: datetime) -> list[Ref]:
        """Ask once, for every resource that is due; gives those whose look is news."""
        known = list(subjects)
        self._looks = {s.ref: look for s in known if (look := self._looks.get(s.ref)) is not None}
        self._idle = {s.ref: idle for s in known if (idle := self._idle.get(s.ref)) is not None}
        due = [subject for subject in known if self._is_due(subject, now)]
        if not due:
            return []
        try:
            reading = await self._source.ask()
        except PrometheusError as error:
            log.warning("no metrics: %s", error.message)
            for subject in due:
                self._looks[subject.ref] = self._blind(self.look(subject.ref), error, now)
        else:
            for subject in due:
                facts = reading.get((subject.ref.namespace, subject.ref.name))
                self._looks[subject.ref] = self._seen(subject, facts, now)
        return [subject.ref for subject in due if is_news(self._looks[subject.ref], subject)]

    def _is_due(self, subject: Subject, now: datetime) -> bool:
        at = self.look(subject.ref).at
        return at is None or now - at >= timedelta(seconds=EARLY * subject.interval_s)

    def _blind(self, before: Look, error: PrometheusError, now: datetime) -> Look:
        # The history stays: that nobody answers says nothing about the past, and its age shows in its times.
        verdict = Verdict(Answer.NO, f"Prometheus{error.reason}", error.message)
        self._idle.clear()
        return counted(before, replace(before, metrics=verdict, loads={}), now)

    def _seen(self, subject: Subject, facts: Facts | None, now: datetime) -> Look:
        before = self.look(subject.ref)
        if facts is not None and self._idle.get(subject.ref) == (subject.slo, facts):
            return again(before, subject, now)
        self._idle.pop(subject.ref, None)
        verdict = metrics_verdict(facts)
        if facts is None or not facts.number("up"):
            return counted(before, replace(before, metrics=verdict, loads={}), now)
        window = window_of(facts, subject.slo, now, self._window_s)
        if is_idle(window):
            self._idle[subject.ref] = (subject.slo, facts)
        look = Look(
            metrics=verdict,
            history=with_newest(before.history, window, subject),
            model=model_of(facts) or before.model,
            loads=facts.labelled("load"),
            held=facts.number("held"),
            backend=backend_of(facts) or before.backend,
            bandwidth=bandwidth_of(facts) or before.bandwidth,
        )
        return counted(before, look, now)


def again(before: Look, subject: Subject, now: datetime) -> Look:
    """A look that finds the very figures of the one before: only the time is another."""
    history = with_newest(before.history, replace(before.history[-1], at=now), subject)
    return replace(before, history=history, at=now, number=before.number + 1, repeats=before.repeats + 1)


def with_newest(history: tuple[Window, ...], window: Window, subject: Subject) -> tuple[Window, ...]:
    """The history, as long as it may be."""
    return (*history[-subject.windows + 1 :], window)


def counted(before: Look, look: Look, now: datetime) -> Look:
    """The look with its time and number, and how often the same was seen before it."""
    repeats = before.repeats + 1 if before.number and said(before) == said(look) else 0
    return replace(look, at=now, number=before.number + 1, repeats=repeats)


def said(look: Look) -> tuple[object, ...]:
    """What a look says, without when."""
    newest = replace(look.history[-1], at=NEVER) if look.history else None
    return look.metrics, newest, look.model, look.loads, look.held, look.backend


def is_news(look: Look, subject: Subject) -> bool:
    """Can a judgement of this look differ from the last one's? Not where every window that is kept says the same.

    Without traffic it can only where time itself decides, so most of those looks are not judged.
    """
    if not look.history or not is_idle(look.history[-1]) or look.repeats <= FIRST_LOOKS:
        return look.repeats < (subject.windows if look.history else 1)
    return look.repeats < subject.windows and (look.repeats % EVERY_LOOK == 0 or is_confirming(look, subject))


def is_confirming(look: Look, subject: Subject) -> bool:
    """Has the same been seen for just as long as something must be confirmed (plan.slack, plan.sleep), more or less?

    The first window that says it reaches back further than its own time.
    """
    first = look.history[-min(look.repeats + 1, len(look.history))]
    lasted = (look.history[-1].at - first.at).total_seconds()
    spans = (lasted, lasted + first.seconds)
    moments = (subject.down_window_s, *subject.moments)
    return any(abs(span - moment) <= 2 * subject.interval_s for span in spans for moment in moments)


def backend_of(facts: Facts) -> str | None:
    """The transfer backend of the workers; the slowest kind counts where they differ: TCP must not hide behind RDMA.

    So do pages that were copied in the window since too many were lent: they went over TCP.
    """
    backends = sorted(name for name, value in facts.labelled("backend").items() if value and name)
    return "tcp" if "tcp" in backends or facts.number("copied") else next(iter(backends), None)


async def watch_fleet(fleet: Fleet, subjects: Callable[[], list[Subject]], mark: Callable[[Ref], None]) -> None:
    """Observe for ever, at the shortest interval that any resource asks for; each resource is judged at its own."""
    while True:
        known = subjects()
        for ref in await fleet.observe(known, datetime.now(UTC)):
            mark(ref)
        interval = min((subject.interval_s for subject in known), default=IDLE_INTERVAL_S)
        # Jitter, so that several operators do not ask one Prometheus in step.
        await asyncio.sleep(interval * random.uniform(0.97, 1.03))  # noqa: S311 no secret
