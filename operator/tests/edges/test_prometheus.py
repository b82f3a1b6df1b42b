"""The client against a real HTTP server on loopback: what it asks, and what it does not put up with."""

from __future__ import annotations

import http.server
import json
import threading
from urllib.parse import parse_qs, urlsplit

import pytest

from tandem_operator.edges import prometheus
from tandem_operator.edges.errors import PrometheusError
from tandem_operator.edges.prometheus import Prometheus, refuse_local_link

VECTOR = {
    "status": "success",
    "data": {
        "resultType": "vector",
        "result": [{"metric": {"namespace": "n", "resource": "r", "fact": "up"}, "value": [1.5, "3"]}],
    },
}


@pytest.fixture
def server():
    """A server that answers with `answer`, a (status, headers, body); `seen` has the paths."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen.append(self.path)
            status, headers, body = self.server.answer
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.seen, found.answer = [], (200, {}, json.dumps(VECTOR).encode())
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def client(server):
    return Prometheus(f"http://127.0.0.1:{server.server_port}/", 60)


async def test_one_query_for_all(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    reading = await client(server).ask()
    assert reading["n", "r"].number("up") == 3
    (path,) = server.seen
    assert urlsplit(path).path == "/api/v1/query"
    assert parse_qs(urlsplit(path).query)["query"][0].count(" or ") > 10


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param((302, {"Location": "http://127.0.0.1:1/"}, b""), "HTTP status 302", id="no redirect is followed"),
        pytest.param((200, {}, b"<html>login</html>"), "something else: JSONDecodeError", id="a page"),
        pytest.param((503, {}, b"login"), "HTTP status 503", id="an error"),
        pytest.param((200, {}, b'{"status":"success"}'), "something else: KeyError", id="no data"),
        pytest.param((200, {}, b"x" * 5000), "over 4000 bytes", id="too large"),
    ],
)
async def test_other_answers_are_typed_errors(server, monkeypatch, answer, words):
    monkeypatch.setattr(prometheus, "MAX_BYTES", 4000)
    server.answer = answer
    with pytest.raises(PrometheusError) as raised:
        await client(server).ask()
    assert raised.value.reason == "Refused"
    assert words in raised.value.message
    assert "login" not in raised.value.message
    assert len(server.seen) == 1, "no retry, no redirect"


async def test_nobody_listens(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(PrometheusError) as raised:
        await client(server).ask()
    assert raised.value.reason == "Unreachable"


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/", "http://[fe80::1]:9090", "file:///etc/passwd", "ftp://127.0.0.1/x", "http://"]
)
def test_addresses_that_are_refused(url):
    with pytest.raises(PrometheusError):
        refuse_local_link(url)
