"""The demand to provide for until a replica that is ordered now would serve: a forecast with its own past error.

What takes minutes must be ordered before it is missed. The forecast is of work (requests/s, prompt tokens/s, decode
tokens/s), each by the method that was least wrong; its margin is what it has underestimated before, so far as that
hurt more requests than the SLO allows to miss. Steady traffic needs none; bursts that nobody can foresee are provided
for once they have been seen, for as long as the history remembers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem_operator.plan.forecast import demand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tandem_operator.plan.facts import Window
    from tandem_operator.plan.predict import Load

LEAST_RATE = 1e-6  # requests/s
LEAST_WINDOWS = 8  # fewer say nothing of how wrong a forecast may be


def outlook(history: Sequence[Window], load: Load, start_s: float, percentile: int) -> Load:
    """The load with the demand to provide for over `start_s`; the load itself while the history is short."""
    if len(history) < LEAST_WINDOWS or load.arrival_rate <= 0:
        return load
    share = load.computed_tokens / load.prompt_tokens if load.prompt_tokens else 1.0
    rates = [w.arrival_rate for w in history]
    prompts = [times(w.arrival_rate, w.prompt_tokens) for w in history]
    outputs = [times(w.arrival_rate, w.output_tokens) for w in history]
    rate, prompt, output = (demand(values, history, start_s, percentile / 100) for values in (rates, prompts, outputs))
    if rate is None or prompt is None or output is None:
        return load
    rate = max(rate, LEAST_RATE)
    return load._replace(
        arrival_rate=rate,
        computed_tokens=prompt * share / rate,
        output_tokens=output / rate,
    )


def times(rate: float | None, tokens: float | None) -> float | None:
    """Tokens/s; no arrivals are no tokens, whatever their length."""
    if rate == 0:
        return 0.0
    return None if rate is None or tokens is None else rate * tokens
