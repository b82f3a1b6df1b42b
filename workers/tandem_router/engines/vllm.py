"""vLLM with the NIXL connector: prefill first, then decode with where the prefill's pages lie.

The prefill worker computes the prompt and one token that nobody sees; its answer's `kv_transfer_params` say where its
pages are held, on a lease that the decode worker renews. They go to the decode worker as they came, and it reads the
pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tandem_router.engines.base import BadAnswerError, DecodeOnly, Errand, Order
from tandem_router.engines.openai import FIELDS, OpenAIEngine, prompts_of, several_answers
from tandem_router.placement import Pair

PARAMS = "kv_transfer_params"
HOLD_PAGES = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# One token is all that a prefill is for; these would ask for more, or for another form of answer.
NOT_FOR_PREFILL = ("stream_options", "min_tokens", "min_completion_tokens")
LONGEST_PARAMS = 8 * 1024 * 1024


class _Prefilled(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


_PREFILLED = msgspec.json.Decoder(_Prefilled)


class VllmEngine(OpenAIEngine):
    """The protocol of `vllm serve`. A decode worker (kv_both) can do the whole job."""

    def errand(self, pair: Pair, body: bytes) -> Errand:
        """Two steps; the pages of several answers or prompts could be read only once, so those stay with one worker."""
        fields = FIELDS.decode(body)
        if pair.prefill is None or several_answers(fields) or prompts_of(fields) is not None:
            return DecodeOnly(body)
        return VllmErrand(fields, prefill_body_of(fields))


@dataclass(frozen=True, slots=True)
class VllmErrand:
    """See `Errand`."""

    fields: dict[str, msgspec.Raw]
    prefill_body: bytes
    order: Order = Order.BEFORE

    def decode_body(self, prefilled: bytes) -> bytes:
        """The client's request with the prefill's parameters; a prompt below one page has none and is computed anew."""
        try:
            params = bytes(_PREFILLED.decode(prefilled).kv_transfer_params)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadAnswerError(f"the prefill's answer is no JSON object: {error}") from error
        if len(params) > LONGEST_PARAMS or (params != b"null" and not params.startswith(b"{")):
            raise BadAnswerError(f"the prefill's {PARAMS} are no object of at most {LONGEST_PARAMS} bytes")
        more = {} if params == b"null" else {PARAMS: msgspec.Raw(params)}
        return msgspec.json.encode(self.fields | more)


def prefill_body_of(fields: dict[str, msgspec.Raw]) -> bytes:
    """The client's request for one token, whole, with the demand to hold the pages."""
    sent: dict[str, object] = {name: value for name, value in fields.items() if name not in NOT_FOR_PREFILL}
    sent |= {"stream": False, "max_tokens": 1, PARAMS: HOLD_PAGES}
    if "max_completion_tokens" in fields:
        sent["max_completion_tokens"] = 1
    return msgspec.json.encode(sent)
