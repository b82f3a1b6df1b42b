"""Those who wait for a request's tokens. One that raises has lost its request, not the engine's thread."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from tandem_worker.engine.request import Token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_worker.engine.sequence import SequenceState

LOG = logging.getLogger(__name__)


class Receivers:
    """Calls them, on the engine's thread."""

    def __init__(self, cancel: Callable[[str], None]) -> None:
        """`cancel`: ends the request with this id."""
        self._cancel = cancel

    def tell(self, one: SequenceState, call: Callable[[], None]) -> None:
        """Any word to one of them."""
        try:
            call()
        except Exception:
            LOG.exception("the receiver of %s failed; the request is cancelled", one.id)
            self._cancel(one.id)

    def emit(self, tokens: Sequence[tuple[SequenceState, Token]]) -> None:
        """Each its token; of a prefill half it is the first one."""
        for one, token in tokens:
            receive = one.on_token if one.sink is None else one.sink.on_first
            if receive is not None:
                self.tell(one, partial(receive, token))

    def failed(self, one: SequenceState, reason: str) -> None:
        """Its request has ended without its end."""
        if one.sink is not None:
            self.tell(one, partial(one.sink.on_failed, reason))
        elif one.on_token is not None:
            self.tell(one, partial(one.on_token, Token(-1, 0.0, (), f"error: {reason}")))
