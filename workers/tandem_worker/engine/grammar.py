"""Output that a JSON schema holds to: which tokens may come next. The work is llguidance's, which is optional."""

from __future__ import annotations

import threading
from collections import OrderedDict
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch

from tandem_worker.engine.request import EngineError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from tandem_worker.engine.request import Sampling

LIBRARY: Final = "llguidance"
MAX_BYTES: Final = 32 * 1024  # of a schema: it travels in one header to the prefill worker
CACHED: Final = 64
# A quarter and a fifth of the library's own bounds: the whole batch waits for a mask (3 ms of fuel, says its page).
STEP_FUEL: Final = 50_000
LEXER_STATES: Final = 50_000
NO_GRAMMARS: Final = "this engine serves no guided output; leave response_format and tool_choice out"
# Bounded, unlike JSON's: a model that loops over blanks would never come to its end.
BLANKS: Final = r"[ \n]{0,16}"


class GrammarError(EngineError):
    """The output has left its grammar, or the grammar has become too complex; the text says which."""


class Grammar:
    """One output's place in its grammar."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self._matcher = matcher
        self._vocab = vocab

    def allowed(self) -> Tensor:
        """Tokens that may come next, [vocab] bool; only the end tokens once the output is complete."""
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits = (packed.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
        found = torch.zeros(self._vocab, dtype=torch.bool)
        flat = bits.view(-1)[: self._vocab].bool()
        found[: len(flat)] = flat
        return found

    def accept(self, token_id: int) -> None:
        """The next token is this one. Raises GrammarError."""
        if not self._matcher.consume_token(token_id) or self._matcher.is_error():
            raise GrammarError(f"the output cannot go on in its schema: {first_line(self._matcher.get_error())}")


class Grammars:
    """Compiles schemas for one model's tokenizer, and keeps the last ones. Thread-safe."""

    def __init__(self, tokenizer_json: Callable[[], str], vocab: int, eos_ids: tuple[int, ...]) -> None:
        """`tokenizer_json`: the text of a `tokenizer.json`, asked for once, at the first use."""
        self._tokenizer_json = tokenizer_json
        self._vocab = vocab
        self._eos_ids = eos_ids
        self._lock = threading.Lock()  # of `_compiled`
        self._loading = threading.Lock()
        self._tokenizer: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def warm(self) -> None:
        """Make now what the first request would wait for; nothing where the library is not installed."""
        if self._eos_ids and find_spec(LIBRARY) is not None:
            self._load()

    def check(self, schema: str) -> None:
        """Compile it (some milliseconds, bounded by the library's limits). Raises InvalidRequestError."""
        self._prototype(schema)

    def start(self, schema: str) -> Grammar:
        """A fresh output of this schema. Raises InvalidRequestError."""
        return Grammar(self._prototype(schema).deep_copy(), self._vocab)

    def _prototype(self, schema: str) -> Any:
        if len(schema.encode()) > MAX_BYTES:
            raise InvalidRequestError(f"the schema has more than {MAX_BYTES} bytes; simplify it")
        if not self._eos_ids:
            raise InvalidRequestError("this model names no end token, which guided output needs")
        with self._lock:
            if schema in self._compiled:
                self._compiled.move_to_end(schema)
                return self._compiled[schema]
        found = self._compile(schema)  # not under the lock: who has its schema already must not wait for another's
        with self._lock:
            self._compiled[schema] = found
            if len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        return found

    def _compile(self, schema: str) -> Any:
        tokenizer = self._load()
        library = import_module(LIBRARY)
        try:
            grammar = library.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": BLANKS})
        except ValueError as error:
            raise InvalidRequestError(f"the schema is no JSON: {error}"[:400]) from error
        limits = library.LLParserLimits(step_lexer_fuel=STEP_FUEL, max_lexer_states=LEXER_STATES, verbose_errors=False)
        matcher = library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidRequestError(f"the schema cannot be served: {first_line(matcher.get_error())}")
        probe = matcher.deep_copy()
        probe.compute_bitmask()
        if probe.is_stopped():  # it refers to itself alone, for one
            raise InvalidRequestError("the schema cannot be served: no output can begin with it")
        return matcher

    def _load(self) -> Any:
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._make_tokenizer()
            return self._tokenizer

    def _make_tokenizer(self) -> Any:
        if find_spec(LIBRARY) is None:
            raise InvalidRequestError(
                f"guided output (response_format, tools) needs the library {LIBRARY}, which this worker lacks; "
                f"install it, or leave these fields out"
            )
        library = import_module(LIBRARY)
        return library.LLTokenizer(self._tokenizer_json(), n_vocab=self._vocab, eos_token=list(self._eos_ids))


def first_line(text: str) -> str:
    """What the library says first; the rest is its inner state."""
    return text.partition("\n")[0][:300]


def start_grammar(grammars: Grammars | None, sampling: Sampling, first: int | None = None) -> Grammar | None:
    """The grammar of an output, None where it has none; `first`: the token that the output has already.

    Raises InvalidRequestError, and GrammarError where `first` is not of it.
    """
    if not sampling.grammar:
        return None
    if grammars is None:
        raise InvalidRequestError(NO_GRAMMARS)
    grammar = grammars.start(sampling.grammar)
    if first is not None:
        grammar.accept(first)
    return grammar
