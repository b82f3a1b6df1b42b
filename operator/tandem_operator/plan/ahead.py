"""Replicas ordered before they are missed, and more of them while others still start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Action, Decision, Verdict
from tandem_operator.plan.search import Bar, Region
from tandem_operator.plan.study import CLEARLY, LESS_OVERLOAD, reach, study
from tandem_operator.plan.words import alternatives, move_message

if TYPE_CHECKING:
    from datetime import datetime

    from tandem_operator.plan.desk import Option
    from tandem_operator.plan.facts import Observed
    from tandem_operator.plan.predict import Load
    from tandem_operator.plan.search import Found, Search
    from tandem_operator.plan.study import Study

NEARLY = 0.005  # attainments this close are equal
WAITS = frozenset({"MoveOpen", "Cooldown"})  # holds that growing need not keep to


def scale_ahead(case: Study) -> Decision | None:
    """Minutes: the cheapest growth that carries the demand to provide for, if the present plan would not.

    No pool gives anything away, and no breach is waited for: it would last until the replicas serve. What is merely
    uncertain is no reason to order: attainment counts as predicted, not less its uncertainty.
    """
    view = case.later
    if view is None or view.current.forecast.attainment >= view.wanted:
        return None
    if case.breach is None and not is_more(view.load, case.load):
        return None
    _, high = reach(view.seen.limits, view.search.now)
    grown = Region(view.search.now, high, view.current.gpus)
    best = view.option(view.search.cheapest(grown, Bar(kind=view.wanted)) or nearest(view.search, grown))
    if best is None or best.gpus <= view.current.gpus or not is_worth_it(view.current, best):
        return None
    return Decision(
        Action.SCALE,
        "LoadRising",
        move_message(view, best),
        best.target,
        best.forecast.prediction(),
        alternatives(view, best),
    )


def nearest(search: Search, grown: Region) -> Found | None:
    """The cheapest growth of those that come as close to the SLO as any, as predicted."""
    top = search.closest(grown)
    if top is None:
        return None
    return search.cheapest(grown, Bar(kind=top.rating.kind - NEARLY, overload=max(top.rating.overload, 1.0))) or top


def is_more(later: Load, now: Load) -> bool:
    """Is there more work to come for a role? Of what is the same, what is observed says more than a forecast."""
    rates = (later.arrival_rate, now.arrival_rate)
    prompts, outputs = (
        [rate * getattr(load, name) for rate, load in zip(rates, (later, now), strict=True)]
        for name in ("computed_tokens", "output_tokens")
    )
    return rates[0] > rates[1] or prompts[0] > prompts[1] or outputs[0] > outputs[1]


def is_worth_it(now: Option, option: Option) -> bool:
    """Clearly more attainment, or clearly less overload."""
    lighter = option.forecast.overload <= LESS_OVERLOAD * now.forecast.overload
    return option.forecast.attainment - now.forecast.attainment >= CLEARLY or (now.forecast.overload > 1 and lighter)


def meanwhile(seen: Observed, now: datetime, waiting: Decision) -> Decision:
    """While a move is open or its metrics are young: more replicas if the target falls short, else wait."""
    if waiting.reason not in WAITS:
        return waiting
    case = study(seen, now)
    if isinstance(case, Verdict):
        return waiting
    return scale_ahead(case) or waiting
