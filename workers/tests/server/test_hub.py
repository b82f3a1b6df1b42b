"""A hub's model: what is downloaded, what is said when it cannot be had, and what a worker does without the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from tandem_worker import hub as hub_of_models
from tandem_worker import hub_download
from tandem_worker.hub import HubError, repository_of
from tandem_worker.settings import SettingsError, parse_settings

COMMIT = "a" * 40
FILES = {
    "config.json": b'{"a": 1}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same again",
    "original/consolidated.00.pth": b"and again",
}


class Hub(BaseHTTPRequestHandler):
    """The few answers of a hub that a download needs."""

    seen: list[tuple[str, str]]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        type(self).seen.append((self.path, self.headers.get("Authorization", "")))
        if "owner/gated" in self.path:
            self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"}, body=body)
        elif self.path.startswith("/api/models/owner/name"):
            listed = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            tree = [{"type": "file", "path": n, "size": len(d), "oid": sha1(d).hexdigest()} for n, d in FILES.items()]
            found = tree if "/tree/" in self.path else {"id": "owner/name", "sha": COMMIT, "siblings": listed}
            self.reply(200, json.dumps(found).encode(), {}, body=body)
        elif (data := FILES.get(self.path.partition(f"/resolve/{COMMIT}/")[2])) is not None:
            self.reply(200, data, {"ETag": f'"{sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT}, body=body)
        else:
            self.reply(404, b"{}", {}, body=body)

    def reply(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quietly."""


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    Hub.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def pull(server: ThreadingHTTPServer | None, folder: Path, source: str, **env: str) -> subprocess.CompletedProcess[str]:
    port = server.server_address[1] if server else 9
    own = {"HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_HOME": str(folder), "HF_HUB_DISABLE_XET": "1"}
    words = [sys.executable, "-m", "tandem_worker.hub", source, "--revision", COMMIT]
    return subprocess.run(
        words, env={**os.environ, **own, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def held(folder: Path) -> set[str]:
    (snapshot,) = folder.glob("hub/models--owner--name/snapshots/*")
    return {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()}


def test_a_pull_leaves_what_is_loaded_and_works_again_without_the_hub(hub, tmp_path):
    done = pull(hub, tmp_path, "hf://owner/name", HF_TOKEN="hf_secret")
    assert done.returncode == 0, done.stderr
    assert held(tmp_path) == {"config.json", "model.safetensors"}
    assert {token for path, token in Hub.seen if "owner/name" in path} == {"Bearer hf_secret"}
    assert "hf_secret" not in done.stderr
    again = pull(None, tmp_path, "hf://owner/name", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr


def test_a_gated_model_is_one_sentence(hub, tmp_path):
    done = pull(hub, tmp_path, "hf://owner/gated")
    line = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, "is gated: accept its terms, and give spec.model.authSecretRef" in line) == (2, True), line


ANSWER = httpx2.Response(404, request=httpx2.Request("GET", "http://hub"))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        pytest.param(RepositoryNotFoundError("no", response=ANSWER), 2, "is not there, or private", id="absent"),
        pytest.param(RevisionNotFoundError("no", response=ANSWER), 2, "no such revision", id="revision"),
        pytest.param(HfHubHTTPError("500", response=ANSWER), 3, "cannot be downloaded", id="the hub is ill"),
        pytest.param(httpx2.ConnectError("refused"), 3, "cannot be downloaded", id="no hub"),
        pytest.param(OSError(28, "No space left on device"), 3, "No space left", id="a full disk"),
    ],
)
def test_what_cannot_be_had_says_whether_to_try_again(monkeypatch, error, code, words):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(hub_download, "snapshot_download", refuse)
    with pytest.raises(HubError, match=words) as caught:
        hub_of_models.fetched("owner/name", COMMIT)
    assert caught.value.exit_code == code
    assert f"hf://owner/name at revision {COMMIT}" in str(caught.value)


def test_without_hub_and_cache_it_says_so(tmp_path):
    done = pull(None, tmp_path, "hf://owner/name", HF_HUB_OFFLINE="1")
    assert done.returncode == 3
    assert "is not in the cache" in done.stderr


@pytest.mark.parametrize(
    ("source", "repository"), [("hf://owner/name-1.5_b", "owner/name-1.5_b"), ("file:///m", None), ("/m", None)]
)
def test_a_source_is_a_repository_or_something_else(source, repository):
    assert repository_of(source) == repository


@pytest.mark.parametrize("source", ["hf://name", "hf://a/b/c", "hf://../b", "hf://a/b?x", "hf:///b"])
def test_a_source_that_is_spelled_wrongly_is_refused(source):
    with pytest.raises(HubError, match="owner/name"):
        repository_of(source)
    with pytest.raises(SettingsError, match="--model hf://"):
        parse_settings(["--model", source], {"TANDEM_TRANSFER_KEY": "ab" * 32})


def test_a_worker_of_a_hubs_model_is_named_after_it():
    settings = parse_settings(["--model", "hf://owner/name", "--revision", COMMIT], {"TANDEM_TRANSFER_KEY": "ab" * 32})
    assert (settings.hub, settings.served_name, settings.revision) == ("owner/name", "name", COMMIT)
