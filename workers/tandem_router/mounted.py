"""Files that a Secret is mounted as: API keys and a certificate, taken up again when the kubelet brings new ones."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tandem_router.errors import RefusedError, refusal

LOOK_S = 5.0
MAX_KEYS = 1000
LONGEST_KEY = 8192

Fingerprint = tuple[tuple[str, int, int, int], ...]
log = logging.getLogger("tandem_router.mounted")


class MountError(Exception):
    """What is mounted cannot be used; the message says why, and holds nothing of it."""


class Mounted(Protocol):
    """Something that lives in a folder."""

    folder: Path
    seen: Fingerprint  # of what was read last, or tried to

    def load(self) -> None:
        """Read it. Raises MountError, and then what was read before stays in force."""


class Keys:
    """The API keys that clients may use: each file of the folder holds one. They are kept as digests alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: Fingerprint = ()
        self._digests: tuple[bytes, ...] = ()
        self.load()

    def load(self) -> None:
        """See Mounted. No key at all is allowed: nobody may come in then."""
        try:
            self.seen = fingerprint(self.folder)
            found = [path.read_bytes().strip() for path in files(self.folder)]
        except OSError as error:
            raise MountError(f"the API keys in {self.folder} cannot be read: {type(error).__name__}") from error
        if len(found) > MAX_KEYS or any(len(key) > LONGEST_KEY for key in found):
            raise MountError(f"more than {MAX_KEYS} API keys, or one longer than {LONGEST_KEY} bytes")
        self._digests = tuple(digest(key) for key in found if key)
        log.info("%d API keys are in force", len(self._digests))

    def allow(self, authorization: str) -> bool:
        """Is it `Bearer <one of the keys>`? All keys are compared, each in constant time."""
        scheme, _, given = authorization.partition(" ")
        mine = digest(given.strip().encode(errors="surrogateescape"))
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(mine, known)
        return found and scheme.lower() == "bearer"

    def guard(self, paths: Iterable[str]) -> Middleware:
        """A middleware that lets nobody without a key to these paths."""
        guarded = frozenset(paths)

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path in guarded and not self.allow(request.headers.get("Authorization", "")):
                response = refusal(
                    RefusedError(401, "An API key is needed: Authorization: Bearer <key>.", "invalid_api_key")
                )
                response.headers["WWW-Authenticate"] = "Bearer"
                # The body was not read: a connection that goes on would take it for the next request.
                response.force_close()
                return response
            return await handler(request)

        return check


class Certificate:
    """The router's own certificate, as a Secret of type kubernetes.io/tls holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: Fingerprint = ()
        self.context = context()
        self.load()

    def load(self) -> None:
        """See Mounted. New connections get the new certificate, those that are open keep theirs."""
        pair = (self.folder / "tls.crt", self.folder / "tls.key")
        try:
            self.seen = fingerprint(self.folder)
            context().load_cert_chain(*pair)  # half of a pair must not get into the context in use
            self.context.load_cert_chain(*pair)
        except (OSError, ssl.SSLError) as error:
            raise MountError(f"the certificate in {self.folder} cannot be used: {type(error).__name__}") from error
        log.info("the certificate in %s is in force", self.folder)


def context() -> ssl.SSLContext:
    """Python's defaults for a server: TLS 1.2 at least."""
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def digest(key: bytes) -> bytes:
    """Digests have one length, so that comparing them tells nothing of a key's own."""
    return hashlib.sha256(key).digest()


def files(folder: Path) -> list[Path]:
    """The files that are the Secret's values; the kubelet's own bookkeeping begins with two dots."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("..") and path.is_file())


def fingerprint(folder: Path) -> Fingerprint:
    """Changes when a file does."""
    stats = [(path.name, path.stat()) for path in files(folder)]
    return tuple((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


async def follow(mounted: Mounted, every_s: float = LOOK_S) -> None:
    """Load again whenever the folder changed, for ever; what cannot be used is said and leaves what was before."""
    while True:
        await asyncio.sleep(every_s)
        try:
            if fingerprint(mounted.folder) != mounted.seen:
                mounted.load()
        except (MountError, OSError) as error:
            log.warning("%s; what was read before stays in force", error)
