"""The API server's edge against a real HTTP server on loopback: requests as they go out, errors as they come."""

from __future__ import annotations

import http.server
import json
import threading
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes.aio import client as kubernetes

from tandem_operator.edges.errors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from tandem_operator.edges.kube import HEADS, PAGE, Kube, error_of, strip_none

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a", "namespace": "ns"},
    "spec": {"x": None, "y": 1},
}
POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"}}


@pytest.fixture
def server():
    """Records requests and answers each with the next of `answers`, then with {}."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            parts = urlsplit(self.path)
            query = {k: v[0] for k, v in parse_qs(parts.query).items()}
            self.server.tokens.add(self.headers.get("Authorization"))
            self.server.accepted.append(self.headers.get("Accept"))
            self.server.speaks.wait(5)
            self.server.seen.append((self.command, parts.path, query, body, self.headers.get("Content-Type")))
            status, content = self.server.answers.pop(0) if self.server.answers else (200, {})
            raw = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 http.server's names

        def log_message(self, *args):
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.seen, found.answers, found.tokens, found.accepted = [], [], set(), []
    found.speaks = threading.Event()
    found.speaks.set()
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
async def kube(server):
    configuration = kubernetes.Configuration(host=f"http://127.0.0.1:{server.server_port}")
    configuration.api_key["BearerToken"] = "Bearer t"
    async with kubernetes.ApiClient(configuration) as client:
        yield Kube(client, timeout_s=5)


@pytest.mark.parametrize(
    ("uid", "force", "in_body"),
    [
        pytest.param(None, "false", None, id="none known: nothing is forced"),
        pytest.param("u1", "true", "u1", id="known: uid goes along"),
    ],
)
async def test_apply(server, kube, uid, force, in_body):
    await kube.apply(SERVICE, uid=uid)
    verb, path, query, body, content = server.seen[0]
    assert (verb, path) == ("PATCH", "/api/v1/namespaces/ns/services/a")
    assert query == {"fieldManager": "tandem-operator", "force": force}
    assert body["metadata"].get("uid") == in_body
    assert body["spec"] == {"y": 1}, "None is not sent"
    assert content == "application/apply-patch+yaml"


async def test_a_label_is_patched_on_exactly_the_pod_that_was_seen(server, kube):
    await kube.patch_pod(POD, labels={"tandem.dev/role": "decode"})
    verb, path, _, body, content = server.seen[0]
    assert (verb, path, content) == ("PATCH", "/api/v1/namespaces/ns/pods/p", "application/merge-patch+json")
    assert body == {"metadata": {"uid": "u", "resourceVersion": "7", "labels": {"tandem.dev/role": "decode"}}}


async def test_status_has_its_own_manager(server, kube):
    await kube.write_status(
        {"metadata": {"name": "chat", "namespace": "ns", "uid": "u"}}, {"ratio": "1:2", "observed": None}
    )
    _, path, query, body, _ = server.seen[0]
    assert path == "/apis/tandem.dev/v1alpha1/namespaces/ns/disaggregatedinferences/chat/status"
    assert query["fieldManager"] == "tandem-operator-status"
    assert body["metadata"]["uid"] == "u"
    assert body["status"] == {"ratio": "1:2"}


async def test_delete_means_this_object(server, kube):
    await kube.delete(POD)
    assert server.seen[0][3] == {"preconditions": {"uid": "u"}, "propagationPolicy": "Background"}
    server.answers = [(404, {"reason": "NotFound", "message": "gone"})]
    await kube.delete(POD)


async def test_who_may_not_write_sends_nothing_and_reads_on(server, kube):
    fenced = Kube(kube._client, may_write=lambda: False)
    await fenced.get("Service", "ns", "a")
    for write in (
        fenced.apply(SERVICE, uid=None),
        fenced.create(SERVICE),
        fenced.replace(SERVICE),
        fenced.delete(POD),
        fenced.patch_pod(POD, labels={}),
        fenced.write_status(POD, {}),
    ):
        with pytest.raises(ApiError, match="not sent"):
            await write
    assert [seen[0] for seen in server.seen] == ["GET"]


async def test_lists_come_in_pages(server, kube):
    server.answers = [
        (200, {"metadata": {"continue": "next", "resourceVersion": "9"}, "items": [{"n": 1}]}),
        (200, {"metadata": {"resourceVersion": "9"}, "items": [{"n": 2}]}),
    ]
    assert [page async for page in kube.pages("Pod", None, "a=b")] == [([{"n": 1}], 9), ([{"n": 2}], 9)]
    assert [s[1] for s in server.seen] == ["/api/v1/pods"] * 2
    assert server.seen[1][2] == {"limit": str(PAGE), "labelSelector": "a=b", "continue": "next"}


async def test_a_list_may_be_of_metadata_alone(server, kube):
    server.answers = [(200, {"metadata": {"resourceVersion": "9"}, "items": []})] * 2
    for heads in (True, False):
        assert [page async for page in kube.pages("Pod", None, heads=heads)] == [([], 9)]
    assert server.accepted == [HEADS, "application/json"]


async def test_requests_have_the_token(server, kube):
    await kube.get("Pod", "ns", "p")
    assert server.tokens == {"Bearer t"}


async def test_a_silent_server_is_waited_for_until_the_deadline(server, kube):
    server.speaks.clear()
    silent = Kube(kube._client, timeout_s=0.05)
    try:
        with pytest.raises(ApiError) as raised:
            await silent.get("Pod", "ns", "p")
    finally:
        server.speaks.set()
    assert raised.value.reason == "Timeout"


async def test_nobody_listens(server, kube):
    server.shutdown()
    server.server_close()
    with pytest.raises(ApiError) as raised:
        await kube.get("Pod", "ns", "p")
    assert raised.value.reason == "Unreachable"


@pytest.mark.parametrize(
    ("status", "body", "kind", "reason"),
    [
        pytest.param(404, '{"reason":"NotFound","message":"m"}', NotFoundError, "NotFound", id="gone"),
        pytest.param(409, '{"reason":"AlreadyExists","message":"m"}', AlreadyExistsError, "AlreadyExists", id="exists"),
        pytest.param(409, '{"reason":"Conflict","message":"m"}', ConflictError, "Conflict", id="conflict"),
        pytest.param(422, '{"reason":"Invalid","message":"m"}', ApiError, "Invalid", id="invalid"),
        pytest.param(
            500,
            '{"message":"failed to create typed patch object (a/b): .x: field not declared in schema"}',
            ApiError,
            "Invalid",
            id="no such field",
        ),
        pytest.param(502, "<html>", ApiError, "Http502", id="a page"),
        pytest.param(500, "[1]", ApiError, "Http500", id="a list"),
    ],
)
def test_refusals_are_typed(status, body, kind, reason):
    found = error_of(status, body, "GET /x")
    assert type(found) is kind
    assert found.reason == reason
    assert "GET /x" in found.message


def test_strip_none():
    assert strip_none({"a": None, "b": [{"c": None, "d": 0}, None], "e": ""}) == {"b": [{"d": 0}], "e": ""}
