"""A decode worker's half of one transfer: the ticket, who waits for it, and what is on its way into its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tandem_worker.engine.request import Sampling, Token
    from tandem_worker.transfer.base import Channel
    from tandem_worker.transfer.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request ended without its end. `code`: queue_full, too_long, timeout, closed, error."""

    reason: str
    code: str = "error"
    retry_after_s: int = 1  # with queue_full


class Listener(Protocol):
    """Who waits for a request's tokens; called on the event loop."""

    def on_granted(self, first_page: int) -> None:
        """Pages are promised; those before `first_page` were here already."""

    def on_pages(self, byte_count: int) -> None:
        """Pages arrived."""

    def on_token(self, token: Token) -> None:
        """The next token; the last one carries `finish`."""

    def on_failed(self, failure: Failure) -> None:
        """No token follows."""


@dataclass(slots=True)
class Pull:
    """One request whose prefill runs elsewhere."""

    ticket: Ticket
    channel: Channel
    prompt: Sequence[int]
    sampling: Sampling
    listener: Listener | None  # None: nobody listens any more
    asked_at: float
    first: Token | None = None
    first_at: float = 0.0
    landing: int = 0  # frames that have a place and are not there
