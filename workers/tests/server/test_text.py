"""Stop strings across token borders, and nothing lost or doubled."""

# ruff: noqa: A002 (a request's or token's id is called id, as in the engine)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_worker.engine import Token
from tandem_worker.server.text import TextState, held_back


class Letters:
    """A decoder whose token ids are positions in a list of texts; flush gives what push held back."""

    def __init__(self, texts, tail=""):
        self._texts, self._tail = texts, tail

    def push(self, id):
        return self._texts[id]

    def flush(self):
        return self._tail


def run(texts, stops=(), finish="length", tail="", min_tokens=0):
    state = TextState(Letters(texts, tail), stops, min_tokens)
    pieces = []
    for number in range(len(texts)):
        last = number == len(texts) - 1
        pieces.append(state.push(Token(number, 0.0, (), finish if last else None)))
        if pieces[-1].finish:
            break
    return [piece.text for piece in pieces], pieces[-1].finish


@pytest.mark.parametrize(
    ("texts", "stops", "finish", "pieces", "end"),
    [
        pytest.param(["a", "b"], (), "length", ["a", "b"], "length", id="no stops"),
        pytest.param(["a", "EOS"], (), "stop", ["a", ""], "stop", id="the stop token is not text"),
        pytest.param(["a", "xSTOPy", "z"], ("STOP",), "length", ["a", "x"], "stop", id="inside one token"),
        pytest.param(["ab", "cS", "TO", "Pz", "n"], ("STOP",), "length", ["ab", "c", "", ""], "stop", id="over three"),
        pytest.param(["aS", "T", "x"], ("STOP",), "length", ["a", "", "STx"], "length", id="held back, then not"),
        pytest.param(["aST"], ("STOP",), "length", ["aST"], "length", id="an end gives everything"),
        pytest.param(["aST", "e"], ("STOP",), "stop", ["a", "ST"], "stop", id="held text before a stop token"),
        pytest.param(["ab", "ba", "c"], ("bab", "bb"), "length", ["a", ""], "stop", id="the first of two stops"),
        pytest.param(["\n", "\n", "x"], ("\n\n",), "length", ["", ""], "stop", id="newlines"),
    ],
)
def test_pieces(texts, stops, finish, pieces, end):
    assert run(texts, stops, finish) == (pieces, end)


def test_the_decoder_s_rest_comes_with_the_last_token():
    assert run(["a", ""], tail="é") == (["a", "é"], "length")


@given(st.lists(st.text("abc", max_size=3), min_size=1, max_size=12), st.lists(st.text("abc", min_size=1, max_size=3)))
def test_the_text_ends_before_a_stop_string_however_it_is_cut(texts, stops):
    pieces, end = run(texts, stops)
    said, whole = "".join(pieces), "".join(texts)
    assert whole.startswith(said)
    assert not any(stop in said for stop in stops)
    if any(stop in whole for stop in stops):
        assert end == "stop"
        assert any(whole[len(said) :].startswith(stop) for stop in stops)
    else:
        assert (said, end) == (whole, "length")


@pytest.mark.parametrize(
    ("text", "stops", "size"), [("", ("ab",), 0), ("xa", ("ab",), 1), ("xab", ("abc", "b"), 2), ("x", (), 0)]
)
def test_held_back(text, stops, size):
    assert held_back(text, stops) == size


def test_no_stop_string_counts_before_min_tokens():
    assert run(["aS", "b", "S", "c"], ("S",), min_tokens=2) == (["aS", "b", ""], "stop")
