"""The operator's pages, over HTTP."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tandem_operator.loop.cache import Cache
from tandem_operator.loop.metrics import Metrics
from tandem_operator.loop.queue import Queue
from tandem_operator.loop.refs import Ref
from tandem_operator.loop.targets import target_of
from tandem_operator.loop.web import application
from tandem_operator.plan.facts import Target

SCRAPED = {"prometheus.io/scrape": "true", "prometheus.io/port": "8000", "prometheus.io/path": "/metrics"}
LABELS = {"tandem.dev/resource": "chat", "tandem.dev/pool": "prefill", "tandem.dev/role": "decode"}


def pod(annotations=SCRAPED, phase="Running", address="10.0.0.1"):
    metadata = {"name": "p", "namespace": "ns", "resourceVersion": "1", "labels": LABELS, "annotations": annotations}
    return {"metadata": metadata, "status": {"phase": phase, "podIP": address}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(pod(), "10.0.0.1:8000", id="running"),
        pytest.param(pod(annotations=None), None, id="not asked for"),
        pytest.param(pod(phase="Pending"), None, id="not running"),
        pytest.param(pod(address=None), None, id="no address yet"),
    ],
)
def test_target_of(found, expected):
    target = target_of(found)
    assert (target["targets"][0] if target else None) == expected


async def test_the_pages():
    queue, metrics, cache = Queue(), Metrics(), Cache()
    cache.put("Pod", pod())
    metrics.show_target(Ref("ns", "chat"), Target({}, 1, 2))
    async with TestClient(TestServer(application(queue, metrics, cache))) as client:
        assert [(await client.get(page)).status for page in ("/healthz", "/readyz", "/targets")] == [200, 503, 503]
        cache.synced = True
        assert [(await client.get(page)).status for page in ("/healthz", "/readyz")] == [200, 200]
        text = await (await client.get("/metrics")).text()
        assert 'tandem_ratio_target{namespace="ns",resource="chat",role="decode"} 2.0' in text
        (target,) = await (await client.get("/targets")).json()
        wanted = {"namespace": "ns", "resource": "chat", "pool": "prefill", "role": "decode", "pod": "p"}
        assert wanted.items() <= target["labels"].items()
        queue._running[Ref("ns", "chat")] = -1e6
        assert (await client.get("/healthz")).status == 503
