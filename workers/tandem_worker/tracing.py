"""OpenTelemetry spans, where OTEL_EXPORTER_OTLP_ENDPOINT is set and the extra `tracing` installed; else nothing.

A trace's context is W3C's `traceparent`, carried by hand: from the router's header into the request's sampling, with it
to the prefill worker. So all three end up in one trace, also where one of them does not trace itself.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tandem_worker.engine.request import Story

LOG = logging.getLogger(__name__)
ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
SDK, EXPORTER = "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"
TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
FLUSH_MS: Final = 2000


class Span:
    """One piece of work; this one is not recorded, and hands its parent on."""

    def __init__(self, parent: str) -> None:
        self.traceparent = parent

    def say(self, name: str, value: str | float) -> None:
        """One more fact about it."""

    def end(self, problem: str = "") -> None:
        """It is over; `problem`: not well."""


class RecordedSpan(Span):
    """One that will be exported."""

    def __init__(self, span: Any) -> None:
        context = span.get_span_context()
        super().__init__(f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}")
        self._span = span

    def say(self, name: str, value: str | float) -> None:
        """See Span."""
        self._span.set_attribute(name, value)

    def end(self, problem: str = "") -> None:
        """See Span."""
        if problem:
            status = import_module("opentelemetry.trace").Status
            self._span.set_status(status(import_module("opentelemetry.trace").StatusCode.ERROR, problem[:300]))
        self._span.end()


class Tracing:
    """Records nothing."""

    is_on = False

    def begin(self, name: str, parent: str) -> Span:  # noqa: ARG002 - nothing has a name here
        """A span that starts now; `parent`: a traceparent, or anything else for none."""
        return Span(checked(parent))

    def tell(self, story: Story) -> None:
        """What the engine did for a request, once it is over."""

    def close(self) -> None:
        """Send what is not sent yet; for two seconds at most."""


class OpenTelemetry(Tracing):
    """Spans in batches to an OTLP endpoint, by a thread of the library's."""

    is_on = True

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        sdk = import_module(SDK)
        attributes = {"service.name": service, "service.instance.id": instance}
        resource = import_module("opentelemetry.sdk.resources").Resource.create(attributes)
        self._provider = sdk.TracerProvider(resource=resource)
        exporter = import_module(EXPORTER).OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        batches = import_module("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter)
        self._provider.add_span_processor(batches)
        self._tracer = self._provider.get_tracer("tandem")
        self._kinds = import_module("opentelemetry.trace").SpanKind
        self._propagator = import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()

    def begin(self, name: str, parent: str) -> Span:
        """See Tracing."""
        return RecordedSpan(self._start(name, parent, self._kinds.SERVER))

    def tell(self, story: Story) -> None:
        """See Tracing. The engine's clock is the wall's here: spans have no other."""
        span = self._start(story.work, story.trace, self._kinds.INTERNAL, story.arrived_ns)
        span.set_attribute("gen_ai.usage.input_tokens", story.prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", story.outputs)
        for name, at in (("started", story.started_ns), ("first token", story.first_ns)):
            if at:
                span.add_event(name, timestamp=at)
        span.end(end_time=story.ended_ns)

    def close(self) -> None:
        """See Tracing."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()

    def _start(self, name: str, parent: str, kind: Any, start_ns: int | None = None) -> Any:
        context = self._propagator.extract({"traceparent": checked(parent)})
        return self._tracer.start_span(name, context=context, kind=kind, start_time=start_ns)


OFF: Final = Tracing()


def checked(traceparent: str) -> str:
    """Itself where it is one, else nothing."""
    return traceparent if TRACEPARENT.fullmatch(traceparent) else ""


def is_installed() -> bool:
    """Are the SDK and the exporter there?"""
    try:
        return all(find_spec(part) is not None for part in (SDK, EXPORTER))
    except ModuleNotFoundError:  # a parent package is missing
        return False


def make_tracing(environment: Mapping[str, str], service: str, instance: str) -> Tracing:
    """By the environment."""
    if not (endpoint := environment.get(ENDPOINT)):
        return OFF
    if not is_installed():
        LOG.warning("%s is set, but the extra `tracing` is not installed: nothing is traced", ENDPOINT)
        return OFF
    return OpenTelemetry(endpoint, service, instance)
