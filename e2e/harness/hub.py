"""A stand-in for a model hub: the files of one folder in a hub's layout, enough of its API for a download.

It runs as a pod: `python -m e2e.harness.hub FOLDER`. One repository, `owner/name`, with one revision, COMMIT.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c" * 40
PORT = 8000


class Hub(BaseHTTPRequestHandler):
    """What huggingface_hub asks for: the revision, its files, and each file's head and body."""

    folder: Path

    def do_HEAD(self) -> None:
        """A file's size and digest."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """The same, with what it is."""
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        files = {path.name: path for path in self.folder.iterdir()}
        if self.path.startswith("/api/models/owner/name"):
            self._reply(json.dumps(self._listed(files)).encode(), {}, body=body)
        elif (path := files.get(self.path.partition(f"/resolve/{COMMIT}/")[2])) is not None:
            data = path.read_bytes()
            about = {"ETag": f'"{sha1(data, usedforsecurity=False).hexdigest()}"', "X-Repo-Commit": COMMIT}
            self._reply(data, about, body=body)
        else:
            self.send_error(404)

    def _listed(self, files: dict[str, Path]) -> object:
        if "/tree/" in self.path:
            return [{"type": "file", "path": n, "size": p.stat().st_size, "oid": "0" * 40} for n, p in files.items()]
        siblings = [{"rfilename": name, "size": path.stat().st_size} for name, path in files.items()]
        return {"id": "owner/name", "sha": COMMIT, "siblings": siblings}

    def _reply(self, data: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


def main() -> None:
    """Serve the folder until the pod ends."""
    Hub.folder = Path(sys.argv[1])
    ThreadingHTTPServer(("", PORT), Hub).serve_forever()


if __name__ == "__main__":
    main()
