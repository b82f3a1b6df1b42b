"""What to send and when: pure, and the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from e2e.load.words import WORDS

MAX_REQUESTS = 20_000
MAX_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Poisson arrivals of one shape: `rate` requests/s for `seconds`, then `drain_s` for those still open.

    `prompt_tokens` is met about (a word is a token; a chat template adds a few); `output_tokens` exactly, with
    `ignore_eos`. Prompts differ from their first word on, so that no prefix cache helps, unless `unique_prompts`
    is off; `salt` makes another run's prompts differ too, at the same times.
    """

    url: str
    model: str
    rate: float
    seconds: float
    prompt_tokens: int
    output_tokens: int
    seed: int = 1
    unique_prompts: bool = True
    chat: bool = True
    request_timeout_s: float = 300.0
    drain_s: float = 30.0
    salt: str = ""

    def __post_init__(self) -> None:
        """Refuse what is without bound. Raises ValueError."""
        for name, value, most in (
            ("rate", self.rate, 10_000.0),
            ("seconds", self.seconds, MAX_SECONDS),
            ("prompt_tokens", self.prompt_tokens, 1_000_000),
            ("output_tokens", self.output_tokens, 1_000_000),
            ("rate times seconds", self.rate * self.seconds, MAX_REQUESTS),
        ):
            if not 0 < value <= most:
                raise ValueError(f"{name} is {value:g}: it must be above 0 and at most {most:g}")


def arrivals(plan: LoadPlan) -> list[float]:
    """Intended send times in seconds from the start, ascending; all below `plan.seconds`."""
    random = Random(plan.seed)
    times: list[float] = []
    at = random.expovariate(plan.rate)
    while at < plan.seconds and len(times) < 2 * MAX_REQUESTS:
        times.append(at)
        at += random.expovariate(plan.rate)
    return times


def prompt(tokens: int, key: str) -> str:
    """Random words, as many as tokens are asked for; the same for the same key."""
    return " ".join(Random(key).choices(WORDS, k=tokens))


def body(plan: LoadPlan, number: int) -> dict[str, Any]:
    """The `number`-th request's JSON."""
    text = prompt(plan.prompt_tokens, f"{plan.salt}{plan.seed}/{number if plan.unique_prompts else 0}")
    asked = {"messages": [{"role": "user", "content": text}]} if plan.chat else {"prompt": text}
    return {
        "model": plan.model,
        **asked,
        "max_tokens": plan.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
