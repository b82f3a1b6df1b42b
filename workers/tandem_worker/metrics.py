"""The worker's figures for Prometheus: vLLM's names, meanings and buckets where it has them, our prefix."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tandem_worker.transfer.base import Meter

if TYPE_CHECKING:
    from tandem_worker.engine import EngineStats, ModelInfo
    from tandem_worker.transfer.table import Refusals

# vLLM's lists (vllm/v1/metrics/loggers.py), so that one dashboard reads both. Seconds.
TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
GAP_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
LATENCY_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
TRANSFER_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHARE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

COUNTERS: Final = {
    "prefix_queries": ("tandem_prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_hits": ("tandem_prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "prefill_tokens": ("tandem_prefill_tokens", "Prompt tokens computed."),
    "prefill_busy_s": ("tandem_prefill_busy_seconds", "Seconds spent computing prompts."),
    "decode_steps": ("tandem_decode_steps", "Decode steps."),
    "decode_busy_s": ("tandem_decode_busy_seconds", "Seconds spent in decode steps."),
    "decode_tokens": ("tandem_decode_tokens", "Tokens decoded: the batch size summed over the steps."),
    "kv_events": ("tandem_kv_events", "Changes of the prefix cache that were told to whoever follows them."),
    "guesses": ("tandem_spec_decode_num_draft_tokens", "Tokens that were guessed ahead."),
    "guesses_kept": ("tandem_spec_decode_num_accepted_tokens", "Guessed tokens that were the model's own."),
    "preemptions": ("tandem_num_preemptions", "Requests that gave their pages back and were computed again."),
}
GAUGES: Final = {
    "running": ("tandem_num_requests_running", "Requests that are computed."),
    "waiting": ("tandem_num_requests_waiting", "Requests that wait."),
    "prefill_waiting_tokens": ("tandem_prefill_waiting_tokens", "Prompt tokens that wait to be computed."),
    "kv_usage": ("tandem_kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1; cached pages are free."),
    "quarantined_pages": ("tandem_kv_quarantined_pages", "Pages kept from everybody until their writer has stopped."),
}


class EngineCollector(Collector):
    """Reads the engine's own counters when scraped: nothing is counted twice."""

    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask the engine."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One look at the engine."""
        stats = self._stats()
        for field, (name, text) in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=float(getattr(stats, field)))
        for field, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=float(getattr(stats, field)))


class TicketCollector(Collector):
    """Open and quarantined tickets, counted when scraped."""

    def __init__(self, count: Callable[[], tuple[int, int]]) -> None:
        self._count = count

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not count."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One look at the tickets."""
        gauge = GaugeMetricFamily("tandem_transfer_tickets", "Tickets that hold pages.", labels=["state"])
        for state, value in zip(("open", "quarantined"), self._count(), strict=True):
            gauge.add_metric([state], float(value))
        yield gauge


class RefusalCollector(Collector):
    """Events that a side of the transfer refused, counted by the side itself."""

    def __init__(self, sides: Mapping[str, Refusals]) -> None:
        self._sides = sides

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not count."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One look at both sides."""
        text = "Events that the transfer's table lacks in their state; late words are usual."
        refused = CounterMetricFamily("tandem_transfer_refused", text, labels=["side", "state", "event"])
        for side, refusals in self._sides.items():
            for (state, event), count in refusals.counts.items():
                refused.add_metric([side, state, event], float(count))
        yield refused


class Metrics(Meter):
    """All series of one worker, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.ttft = self._histogram(
            "tandem_time_to_first_token_seconds", "From arrival here to the first token.", TTFT_BUCKETS
        )
        self.tpot = self._histogram(
            "tandem_request_time_per_output_token_seconds",
            "Mean time per output token after the first, per request.",
            GAP_BUCKETS,
        )
        self.gap = self._histogram("tandem_inter_token_latency_seconds", "From one token to the next.", GAP_BUCKETS)
        self.e2e = self._histogram(
            "tandem_e2e_request_latency_seconds", "From arrival here to the last token.", LATENCY_BUCKETS
        )
        self.queue = self._histogram(
            "tandem_request_queue_time_seconds",
            "Prefill worker: from a prompt's arrival to the head of the queue.",
            LATENCY_BUCKETS,
        )
        self.prefill = self._histogram(
            "tandem_request_prefill_time_seconds",
            "Prefill worker: from the ticket to the first token.",
            LATENCY_BUCKETS,
        )
        self.transfer = self._histogram(
            "tandem_kv_transfer_seconds",
            "From the first token to the commit: what of the transfer the computing did not hide.",
            TRANSFER_BUCKETS,
        )
        self.transfer_share = self._histogram(
            "tandem_kv_transfer_ttft_share",
            "That time over the one from the request to its first token: 0.01 is one percent of the TTFT.",
            SHARE_BUCKETS,
        )
        moved = Counter(
            "tandem_kv_transfer_bytes", "KV bytes moved between workers.", ["direction"], registry=self.registry
        )
        self._sent = moved.labels("sent")
        self._received = moved.labels("received")
        self._backend = Gauge(
            "tandem_transfer_backend_info",
            "1 for each transfer backend in use, 0 where its last connection has ended.",
            ["backend"],
            registry=self.registry,
        )
        self._links: Counts[str] = Counts()
        self._copied = Counter(
            "tandem_kv_transfer_copied_bytes",
            "Prefill worker: KV bytes that went over TCP beside a backend that reads in place, too many being lent.",
            registry=self.registry,
        )
        self._saved = Counter(
            "tandem_kv_transfer_saved_bytes",
            "KV bytes that did not travel: the decode worker had them in its prefix cache.",
            registry=self.registry,
        )
        self._expected = Counter(
            "tandem_kv_transfer_expected_bytes",
            "Prefill worker: KV bytes that the shapes of granted tickets say will travel.",
            registry=self.registry,
        )
        self._expected_s = Counter(
            "tandem_kv_transfer_expected_seconds",
            "Prefill worker: those bytes over the link's bandwidth, where that was known when the ticket came.",
            registry=self.registry,
        )
        self._busy_s = Counter(
            "tandem_kv_transfer_busy_seconds",
            "Prefill worker: seconds in which KV bytes were under way, summed over decode workers.",
            registry=self.registry,
        )
        self._bandwidth: Gauge | None = None  # there is none before it is measured
        self._cut_off = Counter(
            "tandem_transfer_cut_off",
            "Writers whose connection was closed for good: they did not say that they had stopped.",
            registry=self.registry,
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def describe_worker(
        self,
        info: ModelInfo,
        stats: Callable[[], EngineStats],
        tickets: Callable[[], tuple[int, int]],
        refusals: Mapping[str, Refusals],
    ) -> None:
        """Once the model is loaded: its sizes and the live figures."""
        names = ("parameters", "layers", "hidden_size", "heads", "kv_heads", "head_dim", "vocab", "element_bytes")
        sizes = Gauge("tandem_model_info", "The model's sizes, as labels.", names, registry=self.registry)
        sizes.labels(*(str(getattr(info, name)) for name in names)).set(1)
        self.registry.register(EngineCollector(stats))
        self.registry.register(TicketCollector(tickets))
        self.registry.register(RefusalCollector(refusals))

    def loaded(self, seconds: float) -> None:
        """The worker is ready."""
        text = "From the process' start to readiness: the model fetched, where it is a hub's, and loaded."
        Gauge("tandem_model_load_seconds", text, registry=self.registry).set(seconds)

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)

    def sent(self, byte_count: int) -> None:
        """See Meter."""
        self._sent.inc(byte_count)

    def received(self, byte_count: int) -> None:
        """See Meter."""
        self._received.inc(byte_count)

    def queued(self, seconds: float) -> None:
        """See Meter."""
        self.queue.observe(seconds)

    def prefilled(self, seconds: float) -> None:
        """See Meter."""
        self.prefill.observe(seconds)

    def transferred(self, seconds: float, ttft_s: float) -> None:
        """See Meter."""
        self.transfer.observe(seconds)
        if ttft_s > 0:
            self.transfer_share.observe(seconds / ttft_s)

    def copied(self, byte_count: int) -> None:
        """See Meter."""
        self._copied.inc(byte_count)

    def saved(self, byte_count: int) -> None:
        """See Meter."""
        self._saved.inc(byte_count)

    def bandwidth(self, bytes_per_second: float) -> None:
        """See Meter."""
        if self._bandwidth is None:
            self._bandwidth = Gauge(
                "tandem_transfer_bandwidth_bytes_per_second",
                "Prefill worker: bytes taken by a decode worker over the time that any were; at first a probe's.",
                registry=self.registry,
            )
        self._bandwidth.set(bytes_per_second)

    def expected(self, byte_count: int, bytes_per_second: float | None) -> None:
        """See Meter."""
        self._expected.inc(byte_count)
        if bytes_per_second:
            self._expected_s.inc(byte_count / bytes_per_second)

    def busy(self, seconds: float) -> None:
        """See Meter."""
        self._busy_s.inc(seconds)

    def linked(self, backend: str, change: int) -> None:
        """See Meter."""
        self._links[backend] += change
        self._backend.labels(backend).set(float(self._links[backend] > 0))

    def cut_off(self) -> None:
        """See Meter."""
        self._cut_off.inc()
