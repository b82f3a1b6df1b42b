"""What a body asks for, in tokens: prompts, sampling, how many choices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from tandem_worker.engine.events import Origin, origin_of
from tandem_worker.engine.request import EngineError, Sampling
from tandem_worker.server.bodies import ChatBody, CompletionBody
from tandem_worker.server.errors import ApiError, bad_request, no_model, refusal

if TYPE_CHECKING:
    from tandem_worker.engine import Engine, Tokenizer
    from tandem_worker.server.defaults import Defaults
    from tandem_worker.server.service import Service

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
NO_ORIGIN: Final = Origin()
LONG_TEXT: Final = 8192  # characters; longer texts are tokenised beside the event loop, shorter ones sooner in it


@dataclass(frozen=True, slots=True)
class Wanted:
    """`prompts` with `per_prompt` choices each; choice number = prompt's number x per_prompt + which of them."""

    prompts: list[list[int]]
    per_prompt: int
    samplings: list[Sampling]  # by prompt; its first choice's

    @property
    def choices(self) -> int:
        """Choices of the whole answer."""
        return len(self.prompts) * self.per_prompt

    def part(self, number: int) -> tuple[list[int], Sampling]:
        """Prompt and sampling of one choice: a seed's first choice is what it gives alone, the others follow on."""
        prompt, which = divmod(number, self.per_prompt)
        return self.prompts[prompt], reseeded(self.samplings[prompt], which)


def reseeded(sampling: Sampling, which: int) -> Sampling:
    """The sampling of a prompt's choice number `which`."""
    if not which or sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + which) % 2**63)


async def understand(
    service: Service, body: ChatBody | CompletionBody, origin: Origin = NO_ORIGIN, trace: str = ""
) -> Wanted:
    """The body in tokens; `origin`: of its one prompt. Raises ApiError."""
    loaded = service.loaded
    if body.model != service.served_name:
        raise no_model(body.model, service.served_name)
    wanted, logprobs = body.wanted_tokens, body.logprob_count
    grammar = await checked(loaded.engine, body.grammar)
    prompts = await tokenise(loaded.tokenizer, body)
    samplings = []
    for prompt in prompts:
        room = loaded.max_context - len(prompt)
        if room < 1 or (wanted or 1) > room:
            raise too_long(loaded.max_context, len(prompt), wanted)
        samplings.append(make_sampling(body, wanted or room, logprobs, grammar, loaded.defaults))
    samplings = [replace(one, trace=trace) for one in samplings] if trace else samplings
    if len(samplings) == 1:
        samplings = [replace(samplings[0], blocks=origin.blocks, prompt_bytes=origin.size)]
    return Wanted(prompts, body.n or 1, samplings)


def prompt_origin(raw: bytes) -> Origin:
    """The blocks of a body's prompt as its client wrote it: JSON's own bytes, so that no router must tokenise."""
    try:
        fields = _FIELDS.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # pydantic takes more (NaN in unknown fields)
        return Origin()
    content = fields.get("messages", fields.get("prompt"))
    return Origin() if content is None else origin_of(bytes(content), bytes(fields.get("tools", b"")))


async def tokenise(tokenizer: Tokenizer, body: ChatBody | CompletionBody) -> list[list[int]]:
    """The prompts' ids. Raises ApiError."""
    try:
        if isinstance(body, ChatBody):
            messages = [message.plain() for message in body.messages]
            tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
            shown = [] if body.choice_of_tools == "none" else tools
            size = sum(len(message["content"]) for message in messages)
            return [await beside(size, lambda: tokenizer.apply_chat(messages, shown))]
        return [
            one if isinstance(one, list) else await beside(len(one), partial(tokenizer.encode, one))
            for one in body.prompts
        ]
    except EngineError as error:
        raise ApiError(refusal(error)) from error


async def checked(engine: Engine, grammar: str) -> str:
    """The schema, compiled once beside the event loop so that it is at hand afterwards. Raises ApiError."""
    try:
        if grammar:
            await asyncio.to_thread(engine.check_grammar, grammar)
    except EngineError as error:
        raise ApiError(refusal(error)) from error
    return grammar


async def beside(size: int, work: Callable[[], list[int]]) -> list[int]:
    """`work()`, on a thread where `size` characters would hold the event loop up."""
    return await asyncio.to_thread(work) if size > LONG_TEXT else work()


def make_sampling(
    body: ChatBody | CompletionBody, max_tokens: int, logprobs: int | None, grammar: str, defaults: Defaults
) -> Sampling:
    """OpenAI's fields → the engine's; `defaults` for those that are left out. Raises ApiError."""
    return Sampling(
        max_tokens=max_tokens,
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        seed=None if body.seed is None else body.seed % 2**63,
        stop_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        top_logprobs=logprobs or 0,
        top_k=max(defaults.top_k if body.top_k is None else body.top_k, 0),  # -1 and 0 are two ways to say "all"
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=(
            defaults.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty
        ),
        logit_bias=body.biases,
        min_tokens=body.min_tokens or 0,
        grammar=grammar,
        priority=body.priority or 0,
    )


def too_long(context: int, prompt: int, wanted: int | None) -> ApiError:
    """400 in OpenAI's words."""
    asked = f"{prompt} tokens in the prompt" + (f" and {wanted} to generate" if wanted else "")
    return bad_request(f"This model's maximum context length is {context} tokens; the request has {asked}.",
                       "messages", "context_length_exceeded")  # fmt: skip
