"""Text that streams: never a part of a character, and together what the whole ids say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from tandem_worker.engine.tokenizer import BROKEN, BYTE_OF, Tokenizer

WORDS = ["▁a", "▁the", "b", "é", "日", "▁", "\n"]


def byte_fallback() -> FastTokenizer:
    """As Llama 2's: words, and a token for each byte that no word holds."""
    vocab = {piece: at for at, piece in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{at:02X}>" for at in range(256))])}
    vocab |= {word: len(vocab) + at for at, word in enumerate(WORDS)}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    return fast


def byte_level() -> FastTokenizer:
    """As GPT-2's, without merges: a token a byte."""
    fast = FastTokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(sorted(BYTE_OF))}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    return fast


TOKENIZERS = {"byte fallback": byte_fallback(), "byte level": byte_level()}


def ids_of(kind: str, raw: bytes) -> list[int]:
    fast = TOKENIZERS[kind]
    letters = {byte: letter for letter, byte in BYTE_OF.items()}
    return [fast.token_to_id(f"<0x{one:02X}>" if kind == "byte fallback" else letters[one]) for one in raw]


def streamed(kind: str, ids: list[int]) -> list[str]:
    stream = Tokenizer(TOKENIZERS[kind], (), None, None).decode_stream()
    return [*(stream.push(one) for one in ids), stream.flush()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(deadline=None)
@given(text=st.text(max_size=12))
def test_bytes_become_whole_characters(kind, text):
    pieces = streamed(kind, ids_of(kind, text.encode()))
    assert "".join(pieces) == TOKENIZERS[kind].decode(ids_of(kind, text.encode()))
    assert BROKEN in text or not any(BROKEN in piece for piece in pieces)


@settings(deadline=None)
@given(ids=st.lists(st.integers(3, 258 + len(WORDS)), max_size=40), text=st.text(max_size=6))
def test_after_bytes_that_are_no_text_later_text_is_whole(ids, text):
    tail = [TOKENIZERS["byte fallback"].token_to_id("b"), *ids_of("byte fallback", text.encode())]
    assert "".join(streamed("byte fallback", ids + tail)).endswith("b" + text)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("byte", [0x00, 0x41, 0x80, 0xE2, 0xFF])
def test_a_token_s_bytes_are_its_own(kind, byte):
    (at,) = ids_of(kind, bytes([byte]))
    assert Tokenizer(TOKENIZERS[kind], (), None, None).token_bytes(at) == bytes([byte])
