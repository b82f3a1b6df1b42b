"""What clients may send. Unknown fields are tolerated; what is understood but not carried out is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, StrictInt, ValidationError

from tandem_worker.server.base import PROMPT_AT_MOST, Body, Text, Word
from tandem_worker.server.errors import ApiError, bad_request, unsupported
from tandem_worker.server.guided import (
    TOOLS_AT_MOST,
    ResponseFormat,
    Schema,
    Tool,
    ToolChoice,
    format_schema,
    schema_text,
    tool_schema,
)
from tandem_worker.server.messages import ChatMessage

STOPS_AT_MOST: Final = 16
CHOICES_AT_MOST: Final = 128  # OpenAI's bound of n; here of prompts times n
TOP_LOGPROBS_AT_MOST: Final = 20
BIASES_AT_MOST: Final = 300
COMPLETION_TOKENS: Final = 16  # OpenAI's default for /v1/completions; chat fills the rest of the context

Stop = Annotated[str, Field(min_length=1, max_length=256)]
TokenIds = Annotated[list[StrictInt], Field(fail_fast=True, max_length=PROMPT_AT_MOST)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = False


class Common(Body):
    """Fields of both endpoints. Ranges are OpenAI's, and vLLM's for what OpenAI does not have."""

    model: Annotated[str, Field(max_length=512)]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: StrictInt | None = None
    min_tokens: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = None
    n: Annotated[StrictInt, Field(ge=1, le=CHOICES_AT_MOST)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: Annotated[dict[Word, Annotated[float, Field(ge=-100, le=100)]],
                          Field(max_length=BIASES_AT_MOST)] | None = None  # fmt: skip
    seed: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=STOPS_AT_MOST)] | None = None
    stop_token_ids: Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(max_length=64)] | None = None
    ignore_eos: bool | None = False
    response_format: ResponseFormat | None = None
    priority: Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)] | None = None
    # Understood, and refused where they would change anything:
    best_of: int | None = None
    functions: Annotated[list[Any], Field(max_length=128)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` with its keys as the token ids that they are. Raises ApiError."""
        found = self.logit_bias or {}
        if strange := [key for key in found if not (key.isascii() and key.isdigit() and len(key) < 10)]:
            raise bad_request(f"logit_bias has the key {strange[0]!r}; its keys are token ids", "logit_bias")
        return tuple((int(key), value) for key, value in found.items())

    @property
    def grammar(self) -> str:
        """The schema that the output must follow, as text; "": it is free. Raises ApiError."""
        wanted = self._schema()
        return "" if wanted is None else schema_text(wanted, "response_format")

    def _schema(self) -> Schema | None:
        return format_schema(self.response_format)

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
            ("best_of", self.best_of not in {None, self.n or 1}, "best_of other than n"),
            ("functions", bool(self.functions), "function calling"),
        ]  # fmt: skip


class ChatBody(Common):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: StrictInt | None = None
    tools: Annotated[list[Tool], Field(max_length=TOOLS_AT_MOST)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    logprobs: bool | None = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=TOP_LOGPROBS_AT_MOST)] | None = None

    @property
    def choice_of_tools(self) -> ToolChoice:
        """What is said, or OpenAI's default: auto with tools, none without. Raises ApiError."""
        if not self.tools:
            if self.tool_choice not in (None, "none", "auto"):
                raise bad_request("tool_choice needs tools", "tool_choice")
            return "none"
        return self.tool_choice or "auto"

    def _schema(self) -> Schema | None:
        by_format = format_schema(self.response_format)
        by_tools = tool_schema(self.tools or [], self.choice_of_tools, parallel=self.parallel_tool_calls is not False)
        if by_format is not None and by_tools is not None:
            raise bad_request("response_format and a required tool cannot both say what the output is", "tool_choice")
        return by_format if by_tools is None else by_tools

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
    """POST /v1/completions. `prompt`: a text or token ids, or a list of one of these."""

    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(fail_fast=True)]
        | Annotated[list[TokenIds], Field(fail_fast=True)]
    )
    logprobs: Annotated[StrictInt, Field(ge=0, le=TOP_LOGPROBS_AT_MOST)] | None = None
    echo: bool | None = False
    suffix: Text | None = None

    def refusals(self) -> list[tuple[str, bool, str]]:
        """See Common."""
        return [*super().refusals(), ("echo", bool(self.echo), "echo"), ("suffix", bool(self.suffix), "a suffix")]

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt. Raises ApiError where one is empty, or where there are too many."""
        found: Any = self.prompt
        several = isinstance(found, list) and bool(found) and not isinstance(found[0], int)
        prompts: list[str | list[int]] = found if several else [found]
        if not all(prompts):
            raise bad_request("prompt is empty", "prompt")
        if len(prompts) * (self.n or 1) > CHOICES_AT_MOST:
            raise bad_request(f"{len(prompts)} prompts with n={self.n or 1} are more than {CHOICES_AT_MOST} choices; "
                              f"send fewer at once", "prompt")  # fmt: skip
        return prompts

    @property
    def wanted_tokens(self) -> int | None:
        """OpenAI's default is 16. Raises ApiError."""
        return check_max_tokens(COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens, "max_tokens")

    @property
    def logprob_count(self) -> int | None:
        """See ChatBody."""
        return self.logprobs


B = TypeVar("B", bound=Body)


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
    where = ".".join(str(part) for part in first["loc"])[:200]
    return bad_request(f"{where}: {first['msg']}", where.split(".")[0] or None)
