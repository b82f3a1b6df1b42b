"""One trace across router, decode worker and prefill worker, at a loopback OTLP receiver; none where nobody asks."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tandem_router import tracing as of_router
from tandem_router.main import start
from tandem_router.worker import Role, Worker
from tandem_worker import tracing as of_worker
from workers.tests.router.standins import World
from workers.tests.transfer.kit import running, write_model

CLIENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 60}], "max_tokens": 3, "ignore_eos": True}


class Receiver:
    """An OTLP endpoint: (service, span) of all that came."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, object]] = []

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self.runner = await start(app, "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*self.runner.addresses[0][:2])

    async def _take(self, request: web.Request) -> web.Response:
        export = ExportTraceServiceRequest.FromString(await request.read())
        for resource in export.resource_spans:
            names = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.spans += [(names["service.instance.id"], span) for one in resource.scope_spans for span in one.spans]
        return web.Response()

    def find(self, instance: str, name: str):
        return next(span for at, span in self.spans if (at, span.name) == (instance, name))


@pytest.mark.parametrize("body", [BODY, {**BODY, "stream": True}], ids=["whole", "stream"])
async def test_one_trace_from_the_client_to_the_prefill_worker(tmp_path, body):
    receiver = Receiver()
    await receiver.start()
    traced = {
        name: of_worker.make_tracing({of_worker.ENDPOINT: receiver.url}, "tandem-worker", name) for name in ("p0", "d0")
    }
    router = of_router.make_tracing({of_router.ENDPOINT: receiver.url}, "tandem-router", "r0")
    model, world = write_model(tmp_path / "tiny"), World()
    async with running(model, "p0", traced["p0"]) as prefill, running(model, "d0", traced["d0"]) as decode:
        await world.start(tracing=router)
        for worker, role in ((prefill, Role.PREFILL), (decode, Role.DECODE)):
            address = worker.url.removeprefix("http://")
            world.registry.put(Worker(worker.settings.worker, address, worker.kv_address, role, ready=True))
        response, said = await world.ask(body, traceparent=CLIENT)
        assert response.status == 200, said
        await world.close()
    for one in (router, *traced.values()):
        await asyncio.to_thread(one.close)
    names = [("r0", "POST /v1/chat/completions"), ("d0", "serve"), ("p0", "prefill"), ("d0", "decode")]
    spans = [receiver.find(*name) for name in names]
    assert len(receiver.spans) == len(spans)
    assert {span.trace_id.hex() for span in spans} == {"ab" * 16}
    parents = {span.name: span.parent_span_id.hex() for span in spans}
    request, serve = spans[0].span_id.hex(), spans[1].span_id.hex()
    assert list(parents.values()) == ["cd" * 8, request, serve, serve]
    for span in spans:
        assert spans[0].start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    assert [event.name for event in spans[2].events] == ["started", "first token"]
    await receiver.runner.cleanup()


async def test_who_does_not_trace_hands_the_context_on(world: World):
    worker = await world.worker("d0")
    await world.ask({"model": "m"}, traceparent=CLIENT, tracestate="a=b")
    headers, _ = worker.seen[0]
    assert (headers["traceparent"], headers["tracestate"]) == (CLIENT, "a=b")


@pytest.mark.parametrize("module", [of_router, of_worker])
@pytest.mark.parametrize(
    ("given", "kept"), [(CLIENT, CLIENT), ("", ""), ("00-xyz", ""), (CLIENT + "-more", ""), ("\r\nx: y", "")]
)
def test_only_a_traceparent_is_handed_on(module, given, kept):
    assert module.OFF.begin("anything", given).traceparent == kept


@pytest.mark.parametrize("module", [of_router, of_worker])
def test_tracing_is_off_unless_asked_for_and_says_what_it_lacks(module, monkeypatch, caplog):
    assert not module.make_tracing({}, "tandem", "x").is_on
    monkeypatch.setattr(module, "SDK", "opentelemetry.nowhere")
    assert not module.make_tracing({module.ENDPOINT: "http://127.0.0.1:9"}, "tandem", "x").is_on
    assert "`tracing` is not installed" in caplog.text
