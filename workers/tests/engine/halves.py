"""Prefill and decode halves of one request, handed over as the transfer does it; and prompts for the engine's tests."""

import threading

from tandem_worker.engine import Reservation, Sampling, Token
from workers.tests.prompts import parity_prompts
from workers.tests.tiny import CONFIG, DEADLINE_S, Collector

VOCAB = CONFIG["vocab_size"]
PROMPTS = [prompt for prompt in parity_prompts(VOCAB) if len(prompt) <= 200]
GREEDY = Sampling(max_tokens=16, ignore_eos=True)
WARM = Sampling(max_tokens=16, ignore_eos=True, temperature=0.8, top_p=0.9, seed=5)


class Half:
    """A prefill sink that keeps what comes, and admits itself as soon as it is at the head."""

    def __init__(self, engine, name: str, first_page: int = 0, *, admit: bool = True) -> None:
        self.calls: list[str] = []
        self.chunks: list[tuple[int, int, bytes]] = []  # first page, pages, what they held
        self.first: Token | None = None
        self.reason = ""
        self.head = threading.Event()
        self.ended = threading.Event()
        self._admit = (lambda: engine.admit_prefill(name, first_page)) if admit else (lambda: None)

    def on_head(self) -> None:
        self.calls.append("head")
        self.head.set()
        self._admit()

    def on_chunk(self, first_page, pages) -> None:
        self.calls.append("chunk")
        self.chunks.append((first_page, len(pages.pages), b"".join(pages.pieces)))
        pages.end()

    def on_first(self, token) -> None:
        self.calls.append("first")
        self.first = token

    def on_done(self) -> None:
        self.calls.append("done")
        self.ended.set()

    def on_failed(self, reason) -> None:
        self.reason = reason
        self.ended.set()


def fill(engine, name: str, first_page: int, pages: int, raw: bytes) -> None:
    """Bring a prefill half's pages to where a reservation's lie."""
    at = 0
    for piece in engine.open_pages(name, first_page, pages):
        piece[:] = raw[at : at + len(piece)]
        at += len(piece)
    assert at == len(raw)
    engine.pages_written(name, first_page, pages)


def hand_over(prefill, decode, name: str, prompt: list[int], sampling: Sampling) -> list[int]:
    """One request through both halves, as the transfer does it."""
    reservation = decode.reserve(name, prompt, sampling)
    assert isinstance(reservation, Reservation)
    half = Half(prefill, name, reservation.have_pages)
    prefill.submit_prefill(name, prompt, sampling, reservation.have_pages, half)
    assert half.ended.wait(DEADLINE_S), half.calls
    assert not half.reason
    assert half.calls[0] == "head"
    assert half.calls[-1] == "done"
    assert half.calls.index("first") < len(half.calls) - half.calls[::-1].index("chunk") - 1
    for chunk in half.chunks:
        fill(decode, name, *chunk)
    sent = sum(pages for _, pages, _ in half.chunks)
    assert sent == reservation.pages - reservation.have_pages
    collector = Collector()
    decode.commit(name, half.first, collector)
    return [half.first.id] + (collector.ids() if half.first.finish is None else [])
