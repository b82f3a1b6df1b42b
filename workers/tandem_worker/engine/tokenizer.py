"""Text to token ids and back: a `tokenizers` model from `tokenizer.json` or from a GGUF's own vocabulary."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from tandem_worker.engine.config import as_ids
from tandem_worker.engine.gguf_file import open_gguf
from tandem_worker.engine.loader_gguf import eos_ids as gguf_eos_ids
from tandem_worker.engine.loader_safetensors import read_json
from tandem_worker.engine.request import InvalidRequestError, ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_TEMPLATE_CHARS = 1 << 20
MAX_HELD_TOKENS = 16  # a character has at most 4 bytes; more unfinished tokens are no text
BROKEN = "\N{REPLACEMENT CHARACTER}"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # a byte as SentencePiece's fallback writes it
CONTROL, USER_DEFINED = 3, 4  # token types of GGUF that stand for themselves in a text
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")  # the same, but a digit stands alone


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: a visible letter for each byte; those that are none get the letters from 256 on, in order."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


BYTE_OF = _byte_letters()


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template and the two texts that templates use by name."""

    template: jinja2.Template
    bos: str
    eos: str


class DecodeStream:
    """Token ids in, text out, never a part of a character: what is not complete yet is held back."""

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._ids: list[int] = []
        self._read = 0  # of `_ids`: those whose text was returned already
        self._sent = ""  # that text

    def push(self, token_id: int) -> str:
        """The text that this token completes; often all of it, at times none."""
        self._ids.append(token_id)
        text = self._decode()
        if text.endswith(BROKEN) and len(self._ids) - self._read < MAX_HELD_TOKENS:
            return ""
        fresh = text[len(self._sent) :]
        # Keep what was read just now: decoders look to the left (a leading space is dropped at a text's start). All of
        # it, not the last token: that may be a part of a character, which alone reads otherwise.
        self._ids = self._ids[self._read :]
        self._read, self._sent = len(self._ids), self._decode()
        return fresh

    def flush(self) -> str:
        """What is held back; unfinished bytes become U+FFFD."""
        fresh = self._decode()[len(self._sent) :]
        self._ids, self._read, self._sent = [], 0, ""
        return fresh

    def _decode(self) -> str:
        text: str = self._fast.decode(self._ids, skip_special_tokens=True)
        return text


class Tokenizer:
    """A model's tokenizer and chat template."""

    def __init__(
        self, fast: FastTokenizer, eos_ids: tuple[int, ...], bos_id: int | None, chat: ChatTemplate | None
    ) -> None:
        """`bos_id`: put before every text that `encode` is given; None: nothing is."""
        self._fast = fast
        self._bos = [] if bos_id is None else [bos_id]
        self._chat = chat
        self.eos_ids = eos_ids

    def check_fits(self, vocab: int, where: str) -> None:
        """Raises ModelLoadError where it gives ids that a model of `vocab` tokens does not have."""
        highest = max(self._fast.get_vocab(with_added_tokens=True).values(), default=-1)
        if not 0 <= highest < vocab:
            raise ModelLoadError(
                f"the tokenizer of {where} has {highest + 1} tokens, the model {vocab}: they do not belong together; "
                f"fetch both from one place"
            )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a plain text, with the model's BOS where it has one; special tokens in the text are recognised."""
        return (self._bos if special else []) + self._ids(text)

    def to_json(self) -> str:
        """The text of its `tokenizer.json`."""
        text: str = self._fast.to_str()
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special ones included."""
        text: str = self._fast.decode(list(ids), skip_special_tokens=False)
        return text

    def decode_stream(self) -> DecodeStream:
        """A fresh stream for one response."""
        return DecodeStream(self._fast)

    def token_text(self, token_id: int) -> str:
        """One token's own text, special ones included; for logprobs."""
        return self.decode([token_id])

    def token_bytes(self, token_id: int) -> bytes:
        """One token's own bytes, a part of a character too."""
        text = self.token_text(token_id)
        if BROKEN not in text:
            return text.encode()
        piece: str = self._fast.id_to_token(token_id) or ""
        if (byte := BYTE_PIECE.fullmatch(piece)) is not None:
            return bytes([int(byte[1], 16)])
        return bytes(BYTE_OF[letter] for letter in piece) if set(piece) <= BYTE_OF.keys() else text.encode()

    def apply_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *, open_end: bool = True
    ) -> list[int]:
        """Ids of a conversation; `open_end`: ready for the assistant's turn. Raises InvalidRequestError.

        `tools`: as in OpenAI's bodies; what becomes of them is the template's affair.
        """
        if self._chat is None:
            raise InvalidRequestError("this model has no chat template; use the completions API")
        try:
            text = self._chat.template.render(
                messages=messages,
                tools=list(tools) or None,
                add_generation_prompt=open_end,
                bos_token=self._chat.bos,
                eos_token=self._chat.eos,
            )
            return self._ids(text)
        except jinja2.TemplateError as error:
            raise InvalidRequestError(f"the chat template refuses these messages: {error}"[:500]) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(f"the chat template cannot use these messages: {error}"[:500]) from error

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return ids


def load_tokenizer(path: Path) -> Tokenizer:
    """From `tokenizer.json` where there is one, else from `model.gguf`. Raises ModelLoadError."""
    if (path / "tokenizer.json").is_file():
        return _from_json(path)
    if (path / "model.gguf").is_file():
        return _from_gguf(path / "model.gguf")
    raise ModelLoadError(f"{path} holds neither tokenizer.json nor model.gguf; put one there")


def chat_template(source: str, bos: str, eos: str, where: str) -> ChatTemplate:
    """A template in the sandbox: it comes with the model and is not trusted. Raises ModelLoadError for bad syntax."""
    if len(source) > MAX_TEMPLATE_CHARS:
        raise ModelLoadError(f"the chat template of {where} has {len(source)} characters; at most {MAX_TEMPLATE_CHARS}")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_template_error
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    environment.filters["tojson"] = _to_json
    try:
        return ChatTemplate(environment.from_string(source), bos, eos)
    except jinja2.TemplateError as error:
        raise ModelLoadError(f"the chat template of {where} is no valid Jinja ({error}); correct it there") from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As templates of the hub expect it: plain JSON, not escaped for HTML as Jinja's own is."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)


def _from_json(path: Path) -> Tokenizer:
    where = path / "tokenizer.json"
    try:
        fast = FastTokenizer.from_file(str(where))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{where} is no tokenizer ({error}); fetch it again") from error
    config = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").is_file() else {}
    bos, eos = (_token_text(config.get(f"{which}_token")) for which in ("bos", "eos"))
    eos_id = fast.token_to_id(eos) if eos else None
    ends = _eos_of_configs(path) or ((eos_id,) if eos_id is not None else ())
    # A tokenizer.json says by its post-processor whether a BOS is put before a text.
    adds_bos = bool(bos) and fast.encode("", add_special_tokens=True).ids[:1] == [fast.token_to_id(bos)]
    source = _template_source(path, config)
    chat = chat_template(source, bos, eos, str(path)) if source else None
    return Tokenizer(fast, ends, fast.token_to_id(bos) if adds_bos else None, chat)


def _token_text(found: str | dict[str, Any] | None) -> str:
    """A special token is a text, or an object with its `content`."""
    return str(found.get("content", "")) if isinstance(found, dict) else found or ""


def _eos_of_configs(path: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        if (path / name).is_file() and (ids := as_ids(read_json(path / name).get("eos_token_id"))):
            return ids
    return ()


def _template_source(path: Path, config: dict[str, Any]) -> str:
    if (file := path / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template") or ""
    if isinstance(found, list):  # several named templates
        found = next((one["template"] for one in found if one.get("name") == "default"), "")
    return str(found)


def _from_gguf(path: Path) -> Tokenizer:
    found = open_gguf(path).metadata
    if (kind := found.get("tokenizer.ggml.model")) != "gpt2":
        raise ModelLoadError(f"{path} has a {kind!r} tokenizer; this engine builds gpt2's only: add a tokenizer.json")
    tokens, merges = found.get("tokenizer.ggml.tokens"), found.get("tokenizer.ggml.merges")
    if not tokens or not merges:
        raise ModelLoadError(f"{path} lacks its vocabulary or merges; add a tokenizer.json beside it")
    fast = _byte_level_bpe(tokens, merges, str(found.get("tokenizer.ggml.pre", "default")), str(path))
    kinds = found.get("tokenizer.ggml.token_type", [])
    fast.add_special_tokens([_whole(tokens[at]) for at, one in enumerate(kinds) if one == CONTROL])
    fast.add_tokens([_whole(tokens[at]) for at, one in enumerate(kinds) if one == USER_DEFINED])
    bos_id, eos_id = (found.get(f"tokenizer.ggml.{which}_token_id") for which in ("bos", "eos"))
    bos, eos = (tokens[at] if at is not None and at < len(tokens) else "" for at in (bos_id, eos_id))
    source = str(found.get("tokenizer.chat_template", ""))
    chat = chat_template(source, bos, eos, str(path)) if source else None
    return Tokenizer(fast, gguf_eos_ids(found), bos_id if found.get("tokenizer.ggml.add_bos_token") else None, chat)


def _whole(text: str) -> AddedToken:
    return AddedToken(text, normalized=False)


def _byte_level_bpe(tokens: list[str], merges: list[str], pre: str, where: str) -> FastTokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    # Llama 3's vocabulary holds whole words that no merge reaches.
    model = models.BPE({token: at for at, token in enumerate(tokens)}, pairs, ignore_merges=pre == "llama-bpe")
    fast = FastTokenizer(model)
    fast.pre_tokenizer = _pre_tokenizer(pre, where)
    if pre == "qwen2":
        fast.normalizer = normalizers.NFC()
    fast.decoder = decoders.ByteLevel()
    return fast


def _pre_tokenizer(pre: str, where: str) -> pre_tokenizers.PreTokenizer:
    """How words are cut before merging; llama.cpp's names for it."""
    bytes_of_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    known: dict[str, list[Any]] = {
        "gpt-2": [bytes_of_gpt2],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), bytes_of_gpt2],
        "llama-bpe": [pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"), bytes_of_words],
        "qwen2": [pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"), bytes_of_words],
    }
    if pre not in known:
        raise ModelLoadError(f"{where} cuts words as {pre!r}; known: {', '.join(known)}; add a tokenizer.json")
    return pre_tokenizers.Sequence(known[pre])
