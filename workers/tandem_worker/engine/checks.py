"""What a request must be before anything is done for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tandem_worker.engine.request import InvalidRequestError, PromptTooLongError, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_TOP_LOGPROBS = 20
MAX_STOP_IDS = 64
MAX_LOGIT_BIAS = 300  # OpenAI's bound

# (field, is it fine, what it must be)
CHECKS: tuple[tuple[str, Callable[[Sampling], bool], str], ...] = (
    ("max_tokens", lambda one: one.max_tokens >= 1, "at least 1"),
    ("temperature", lambda one: math.isfinite(one.temperature) and one.temperature >= 0, "0 or more"),
    ("top_p", lambda one: 0 < one.top_p <= 1, "above 0 and at most 1"),
    ("top_k", lambda one: 0 <= one.top_k < 2**31, "0 (all tokens) or more"),
    ("min_p", lambda one: 0 <= one.min_p <= 1, "0 to 1"),
    ("presence_penalty", lambda one: -2 <= one.presence_penalty <= 2, "-2 to 2"),
    ("frequency_penalty", lambda one: -2 <= one.frequency_penalty <= 2, "-2 to 2"),
    ("repetition_penalty", lambda one: 0.01 <= one.repetition_penalty <= 100, "0.01 to 100"),
    ("min_tokens", lambda one: 0 <= one.min_tokens <= one.max_tokens, "0 to max_tokens"),
    ("min_tokens", lambda one: not (one.grammar and one.min_tokens), "0 with a schema, which says where the end is"),
    ("top_logprobs", lambda one: 0 <= one.top_logprobs <= MAX_TOP_LOGPROBS, f"0 to {MAX_TOP_LOGPROBS}"),
)


def check_request(key: str, prompt: Sequence[int], sampling: Sampling, vocab: int, max_context: int) -> None:
    """Raises InvalidRequestError, PromptTooLongError."""
    check_sampling(sampling)
    check_ids(sampling, vocab)
    if not prompt:
        raise InvalidRequestError(f"{key!r} has an empty prompt; send at least one token")
    if len(prompt) + 1 > max_context:
        raise PromptTooLongError(
            f"the prompt has {len(prompt)} tokens; with one output token at most {max_context} fit"
        )
    if not (min(prompt) >= 0 and max(prompt) < vocab):
        raise InvalidRequestError(f"{key!r} has token ids outside 0 to {vocab - 1}")


def check_sampling(sampling: Sampling) -> None:
    """Raises InvalidRequestError that names the value and its range."""
    for field, is_fine, range_ in CHECKS:
        if not is_fine(sampling):
            raise InvalidRequestError(f"{field} is {getattr(sampling, field)}; it must be {range_}")
    if len(sampling.stop_ids) > MAX_STOP_IDS:
        raise InvalidRequestError(f"{len(sampling.stop_ids)} stop ids were given; at most {MAX_STOP_IDS} are served")
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(f"logit_bias names {len(sampling.logit_bias)} tokens; at most {MAX_LOGIT_BIAS}")
    if not all(-100 <= value <= 100 for _, value in sampling.logit_bias):
        raise InvalidRequestError("logit_bias has a value that is not -100 to 100")


def check_ids(sampling: Sampling, vocab: int) -> None:
    """Raises InvalidRequestError for ids that are none of this model's."""
    for field, ids in (("logit_bias", [at for at, _ in sampling.logit_bias]), ("stop ids", sampling.stop_ids)):
        if strange := [at for at in ids if not 0 <= at < vocab]:
            raise InvalidRequestError(f"{field} name the token {strange[0]}; ids are 0 to {vocab - 1}")
