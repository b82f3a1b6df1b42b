"""SGLang: both workers get the same request at once, and meet in a room of the prefill worker's bootstrap server.

The room is a fresh random number for each try, so a late message of an earlier try finds nobody. The prefill worker's
answer is read and dropped; it counts only where it is an error.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import msgspec

from tandem_router.engines.base import DecodeOnly, Errand, Order
from tandem_router.engines.openai import FIELDS, OpenAIEngine, prompts_of, several_answers
from tandem_router.errors import RefusedError
from tandem_router.placement import Pair

ROOM_BITS = 63  # rooms are signed 64-bit numbers there
MAX_PROMPTS = 1024


class SglangEngine(OpenAIEngine):
    """The protocol of `sglang.launch_server`; its decode workers never prefill."""

    works_alone = False

    def errand(self, pair: Pair, body: bytes) -> Errand:
        """One body for both. Raises RefusedError (400) for several answers to one prompt: they would share a room."""
        if pair.prefill is None:
            return DecodeOnly(body)
        fields = FIELDS.decode(body)
        if several_answers(fields):
            raise RefusedError(400, "n above 1 is not served by separate prefill and decode workers.", "invalid_value")
        return SglangErrand(msgspec.json.encode({**fields, **meeting(pair.prefill.kv_address, prompts_of(fields))}))


@dataclass(frozen=True, slots=True)
class SglangErrand:
    """See `Errand`."""

    prefill_body: bytes
    order: Order = Order.BESIDE

    def decode_body(self, prefilled: bytes) -> bytes:  # noqa: ARG002 the answer comes later
        """The same body."""
        return self.prefill_body


def meeting(bootstrap: str, prompts: int | None) -> dict[str, object]:
    """Where the two meet (`ip:port` of the prefill worker's bootstrap server): a room for each prompt."""
    host, _, port = bootstrap.rpartition(":")
    if prompts is None:
        return {"bootstrap_host": host, "bootstrap_port": int(port), "bootstrap_room": secrets.randbits(ROOM_BITS)}
    if prompts > MAX_PROMPTS:
        raise RefusedError(400, f"A request may hold {MAX_PROMPTS} prompts at most.", "invalid_value", param="prompt")
    return {
        "bootstrap_host": [host] * prompts,
        "bootstrap_port": [int(port)] * prompts,
        "bootstrap_room": [secrets.randbits(ROOM_BITS) for _ in range(prompts)],
    }
