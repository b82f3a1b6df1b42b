"""The router's metrics: the only source of SLO figures, since only the client's side sees what the client sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from tandem_router.bunches import Bunches
from tandem_router.engines.base import Usage
from tandem_router.slo import Met, Targets
from tandem_router.worker import Role

# vLLM's buckets, so that dashboards fit; around the target finer, so that a quantile near it is worth something.
TTFT_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)
TPOT_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
OF_TARGET = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)


def buckets(standard: Iterable[float], target_s: float) -> tuple[float, ...]:
    """Bucket bounds in seconds, ascending: the standard ones and multiples of the target, itself among them."""
    return tuple(sorted({round(bound, 9) for bound in (*standard, *(target_s * part for part in OF_TARGET))}))


class Metrics:
    """All series of one router process."""

    def __init__(self, targets: Targets, oldest_waiting_s: Callable[[], float] = lambda: 0.0) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # their values are process starts, not measurements
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        name = "tandem_router"
        self.ttft = Histogram(
            f"{name}_time_to_first_token_seconds",
            "From receipt of a streaming request to its first content sent.",
            buckets=buckets(TTFT_S, targets.ttft_s),
            registry=self.registry,
        )
        self.tpot = Histogram(
            f"{name}_time_per_output_token_seconds",
            "Mean time per output token after the first, per streaming request.",
            buckets=buckets(TPOT_S, targets.tpot_s),
            registry=self.registry,
        )
        self._requests = self._counter(
            "requests", "Requests that ended, by status (499: client left, 502: broke later).", "code", "path"
        )
        self._slo = self._counter("slo_requests", "Requests by the targets that they met.", "met")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._cached_tokens = self._counter("cached_tokens", "Prompt tokens that the decode worker had in its cache.")
        self._prompts = self._counter("prompts", "Finished requests whose prompt tokens are known.")
        self._prompt_squares = self._counter("prompt_tokens_squared", "Sum of the squares of their prompt tokens.")
        self._output_tokens = self._counter("output_tokens", "Output tokens of finished requests.")
        self._arrivals = self._counter("arrivals", "Requests that arrived, those that still wait too.")
        self._bunches = Bunches(targets.ttft_s)
        self._arrival_squares = self._counter("arrivals_squared", "Sum of the squares of the arrivals in each bin.")
        bin_s = Gauge(f"{name}_arrival_bin_seconds", "Length of such a bin.", registry=self.registry)
        bin_s.set(self._bunches.bin_s)
        self.retries = self._counter("retries", "Tries with another pair of workers.")
        self.inflight = Gauge(f"{name}_inflight", "Requests being served now.", registry=self.registry)
        self.held = Gauge(f"{name}_held_requests", "Requests that wait for a first worker.", registry=self.registry)
        self._workers = Gauge(f"{name}_workers", "Workers that take new requests.", ["role"], registry=self.registry)
        oldest = Gauge(
            f"{name}_oldest_waiting_seconds",
            "How long the oldest streaming request without a first token has waited.",
            registry=self.registry,
        )
        oldest.set_function(oldest_waiting_s)
        for met in Met:
            self._slo.labels(met.value)
        self.workers(dict.fromkeys(Role, 0))

    def arrived(self, now: float) -> None:
        """A request came, at this second of a clock that never goes back."""
        self._arrivals.inc()
        self._arrival_squares.inc(self._bunches.arrive(now))

    def ended(self, code: int, path: str) -> None:
        """A request is over; `path` as its worker named it, "none" when no worker answered."""
        self._requests.labels(str(code), path or "none").inc()

    def judged(self, met: Met) -> None:
        """A request's verdict."""
        self._slo.labels(met.value).inc()

    def used(self, usage: Usage) -> None:
        """A finished request's tokens."""
        self._prompts.inc()
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._cached_tokens.inc(usage.cached_tokens)
        self._prompt_squares.inc(usage.prompt_tokens**2)
        self._output_tokens.inc(usage.output_tokens)

    def workers(self, serving: dict[Role, int]) -> None:
        """How many workers of each role take new requests."""
        for role, count in serving.items():
            self._workers.labels(role.value).set(count)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"tandem_router_{name}", words, labels, registry=self.registry)
