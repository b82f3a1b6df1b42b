"""POST /tokenize and /detokenize, in vLLM's form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from tandem_worker.engine.request import EngineError
from tandem_worker.server.asked import beside
from tandem_worker.server.base import Body, Text
from tandem_worker.server.bodies import TokenIds
from tandem_worker.server.errors import ApiError, bad_request, no_model, refusal
from tandem_worker.server.messages import ChatMessage

if TYPE_CHECKING:
    from tandem_worker.server.service import Service


class TokenizeBody(Body):
    """A text, or a conversation."""

    model: Annotated[str, Field(max_length=512)] | None = None
    prompt: Text | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)] | None = None
    add_special_tokens: bool | None = True
    add_generation_prompt: bool | None = True
    return_token_strs: bool | None = False

    def check(self) -> None:
        """Raises ApiError unless it is exactly one of the two."""
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("give either prompt or messages", "prompt")


class DetokenizeBody(Body):
    """Token ids."""

    model: Annotated[str, Field(max_length=512)] | None = None
    tokens: TokenIds


async def tokenize(service: Service, body: TokenizeBody) -> dict[str, Any]:
    """The ids of a text, as a completion would see them. Raises ApiError."""
    _check_model(service, body.model)
    tokenizer = service.loaded.tokenizer
    try:
        if body.messages is not None:
            messages = [message.plain() for message in body.messages]
            open_end = body.add_generation_prompt is not False
            size = sum(len(one["content"]) for one in messages)
            ids = await beside(size, lambda: tokenizer.apply_chat(messages, open_end=open_end))
        else:
            text, special = body.prompt or "", body.add_special_tokens is not False
            ids = await beside(len(text), lambda: tokenizer.encode(text, special=special))
    except EngineError as error:
        raise ApiError(refusal(error)) from error
    strings = [tokenizer.token_text(one) for one in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": service.loaded.max_context, "tokens": ids, "token_strs": strings}


async def detokenize(service: Service, body: DetokenizeBody) -> dict[str, str]:
    """The text of ids, special tokens included. Raises ApiError."""
    _check_model(service, body.model)
    vocab = service.loaded.engine.info.vocab
    if strange := next((one for one in body.tokens if not 0 <= one < vocab), None):
        raise bad_request(f"tokens holds {strange}; ids are 0 to {vocab - 1}", "tokens")
    return {"prompt": service.loaded.tokenizer.decode(body.tokens)}


def _check_model(service: Service, asked: str | None) -> None:
    if asked is not None and asked != service.served_name:
        raise no_model(asked, service.served_name)
