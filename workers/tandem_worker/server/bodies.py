"""What clients may send. Unknown fields are tolerated; what is understood but not carried out is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from tandem_worker.server.errors import ApiError, bad_request, unsupported

STOPS_AT_MOST: Final = 16
TOP_LOGPROBS_AT_MOST: Final = 20
COMPLETION_TOKENS: Final = 16  # OpenAI's default for /v1/completions; chat fills the rest of the context

Stop = Annotated[str, Field(min_length=1, max_length=256)]


class StreamOptions(BaseModel):
    """`stream_options`."""

    include_usage: bool | None = False


class ResponseFormat(BaseModel):
    """`response_format`: text alone is carried out."""

    type: str = "text"


class Common(BaseModel):
    """Fields of both endpoints. Ranges are OpenAI's."""

    model_config = ConfigDict(extra="ignore")

    model: Annotated[str, Field(max_length=512)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: StrictInt | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=STOPS_AT_MOST)] | None = None
    stop_token_ids: Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(max_length=64)] | None = None
    ignore_eos: bool | None = False
    # Understood, and refused where they would change anything:
    n: int | None = 1
    best_of: int | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    repetition_penalty: float | None = 1.0
    logit_bias: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Does the stream end with a usage chunk?"""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self) -> None:
        """Raises ApiError for what this server does not do."""
        for param, changes, what in self.refusals():
            if changes:
                raise unsupported(param, what)

    def refusals(self) -> list[tuple[str, bool, str]]:
        """(field, would it change anything, what it is)."""
        return [
            ("n", self.n not in {None, 1}, "more than one choice"),
            ("best_of", self.best_of not in {None, 1}, "best_of"),
            ("presence_penalty", bool(self.presence_penalty), "a presence penalty"),
            ("frequency_penalty", bool(self.frequency_penalty), "a frequency penalty"),
            ("repetition_penalty", self.repetition_penalty not in {None, 1.0}, "a repetition penalty"),
            ("logit_bias", bool(self.logit_bias), "logit_bias"),
            ("response_format", self.response_format is not None and self.response_format.type != "text",
             "a response format other than text"),
            ("tools", bool(self.tools), "tool calling"),
            ("functions", bool(self.functions), "function calling"),
            ("top_k", self.top_k not in {None, 0, -1}, "top_k"),
            ("min_p", bool(self.min_p), "min_p"),
            ("min_tokens", bool(self.min_tokens), "min_tokens"),
        ]  # fmt: skip


class TextPart(BaseModel):
    """A part of a message's content."""

    type: str
    text: Annotated[str, Field(max_length=4 * 1024 * 1024)] = ""


class ChatMessage(BaseModel):
    """One message; content is text, or parts that are text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None

    def plain(self) -> dict[str, str]:
        """Role and text, as chat templates want them. Raises ApiError for images and sounds."""
        role = "system" if self.role == "developer" else self.role
        if self.content is None or isinstance(self.content, str):
            return {"role": role, "content": self.content or ""}
        if strange := [part.type for part in self.content if part.type != "text"]:
            raise unsupported("messages", f"message content of type {strange[0][:40]!r}")
        return {"role": role, "content": "".join(part.text for part in self.content)}


class ChatBody(Common):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: StrictInt | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=TOP_LOGPROBS_AT_MOST)] | None = None

    @property
    def wanted_tokens(self) -> int | None:
        """None: as many as the context holds. Raises ApiError."""
        asked = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return check_max_tokens(asked, "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens")

    @property
    def logprob_count(self) -> int | None:
        """How many alternatives a token is shown with; None: no logprobs at all. Raises ApiError."""
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs to be true", "top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(Common):
    """POST /v1/completions. `prompt`: a text or token ids; one prompt a request."""

    prompt: str | list[StrictInt] | list[str] | list[list[StrictInt]]
    logprobs: Annotated[StrictInt, Field(ge=0, le=TOP_LOGPROBS_AT_MOST)] | None = None
    echo: bool | None = False
    suffix: str | None = None

    def refusals(self) -> list[tuple[str, bool, str]]:
        """See Common."""
        return [
            *super().refusals(),
            ("echo", bool(self.echo), "echo"),
            ("suffix", bool(self.suffix), "a suffix"),
            ("prompt", self._several(), "more than one prompt a request"),
        ]

    @property
    def the_prompt(self) -> str | list[int]:
        """The only prompt. Raises ApiError where there is none."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if not prompt:
            raise bad_request("prompt is empty", "prompt")
        return prompt  # type: ignore[no-any-return]

    @property
    def wanted_tokens(self) -> int | None:
        """OpenAI's default is 16. Raises ApiError."""
        return check_max_tokens(COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens, "max_tokens")

    @property
    def logprob_count(self) -> int | None:
        """See ChatBody."""
        return self.logprobs

    def _several(self) -> bool:
        return isinstance(self.prompt, list) and len(self.prompt) > 1 and not isinstance(self.prompt[0], int)


B = TypeVar("B", bound=Common)


def check_max_tokens(asked: int | None, param: str) -> int | None:
    """Raises ApiError for zero and less."""
    if asked is not None and asked < 1:
        raise bad_request(f"{param} must be at least 1, not {asked}", param)
    return asked


def parse_body(kind: type[B], raw: bytes) -> B:
    """Bytes → a checked body. Raises ApiError naming the first field that is wrong."""
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        raise explain(error) from error
    body.check()
    return body


def explain(error: ValidationError) -> ApiError:
    """The first problem in one sentence."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return bad_request(f"the body is no valid JSON: {first['msg']}")
    where = ".".join(str(part) for part in first["loc"])
    return bad_request(f"{where}: {first['msg']}", where.split(".")[0] or None)
