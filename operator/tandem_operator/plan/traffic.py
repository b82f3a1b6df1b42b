"""The load that the advisor sizes for: rates, lengths and prefix reuse, from words or from a trace."""

from __future__ import annotations

from dataclasses import dataclass

from tandem_operator.plan.predict import Load


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a request's prompt or output: mean, percentiles, and the squared coefficient of variation."""

    mean: float
    p50: float
    p90: float
    p99: float
    variation: float | None = None  # not known


def fixed(tokens: float, cv: float | None = None) -> Lengths:
    """Lengths that are known by their mean and coefficient of variation alone; percentiles are the mean then."""
    return Lengths(tokens, tokens, tokens, tokens, None if cv is None else cv**2)


@dataclass(frozen=True, slots=True)
class Reuse:
    """Share of the prompts' tokens whose prefix was seen before, 0..1: with endless memory, and with `cache_tokens`."""

    unbounded: float
    cached: float
    cache_tokens: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was offered. Rates in requests/s; `burstiness` is the squared coefficient of variation of the gaps."""

    mean_rate: float
    sized_rate: float  # what the plan must carry: the mean for words, a busy minute for a trace
    prompt: Lengths
    output: Lengths
    burstiness: float = 1.0  # Poisson
    reuse: Reuse | None = None  # None: not known
    hits: float = 0.0  # share of the prompts' tokens that the plan counts as cached, 0..1
    requests: int | None = None
    seconds: float | None = None

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens that prefill computes; the last token is never cached."""
        return max(self.prompt.mean * (1 - self.hits), 1.0)

    @property
    def context_tokens(self) -> float:
        """Mean tokens of KV that a request holds while it decodes."""
        return self.prompt.mean + self.output.mean / 2

    @property
    def longest_tokens(self) -> float:
        """Tokens of KV that one worker must hold for a single long request."""
        return self.prompt.p99 + self.output.p99

    def load(self) -> Load:
        """The demand that the plan must carry."""
        return Load(
            arrival_rate=self.sized_rate,
            prompt_tokens=self.prompt.mean,
            computed_tokens=self.computed_tokens,
            output_tokens=self.output.mean,
            arrival_cv2=self.burstiness,
            prompt_cv2=self.prompt.variation,
        )
