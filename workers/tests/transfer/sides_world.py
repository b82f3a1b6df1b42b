"""The decode worker's pages, the prefill worker's engine, a network worse than TCP: what the sides' machines drive."""

# ruff: noqa: A002 (a request's or token's id is called id, as in the engine)

from dataclasses import dataclass, field
from types import SimpleNamespace

from tandem_worker.engine import Reservation, Sampling, Shortage
from tandem_worker.transfer.wire import Chunk

PAGE_TOKENS = 2
ALL_PAGES = 12
SAMPLING = Sampling(max_tokens=5)


def had_of(prompt):
    """Pages of a prompt that are here already and need not travel: none of some, all but the last at most."""
    return min(prompt[0] % 3, -(-len(prompt) // PAGE_TOKENS) - 1)


@dataclass
class Pages:
    """The decode worker's engine, as far as pages go: who owns each, and what was written where."""

    owner: dict[int, str] = field(default_factory=dict)
    reserved: dict[str, list[int]] = field(default_factory=dict)
    quarantined: dict[str, list[int]] = field(default_factory=dict)
    decoding: dict[str, list[int]] = field(default_factory=dict)
    written: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    prompts: dict[str, bytes] = field(default_factory=dict)

    def match(self, prompt):
        return 0

    def reserve(self, id, prompt, sampling):
        assert id not in self.reserved
        need = -(-len(prompt) // PAGE_TOKENS)
        free = [page for page in range(ALL_PAGES) if page not in self.owner]
        if need > len(free):
            return Shortage(need, len(free))
        self.reserved[id] = free[:need]
        self.prompts[id] = bytes(prompt)
        for page in free[:need]:
            self.owner[page] = id
            self.written.pop(page, None)
        have = had_of(prompt)
        for position, page in enumerate(free[:have]):
            self.written[page] = (bytes(prompt), position)
        return Reservation(id, have, need)

    def open_pages(self, id, first_page, count):
        # The real engine refuses this with ReservationError; the ticket must not even try.
        assert id in self.reserved, "a write was tried after the ticket's end"
        assert first_page >= had_of(self.prompts[id]), "a page that was here already was written"
        return id, [(page, first_page + n) for n, page in enumerate(self.reserved[id][first_page : first_page + count])]

    def fill(self, id, places, content):
        """The bytes come to where they were told to go, whatever has happened to the ticket since."""
        assert content == self.prompts[id], "another prompt's pages were written"
        for page, position in places:
            assert self.owner.get(page) == id, "a page that is somebody else's, or nobody's, was written"
            assert id not in self.decoding, "a page was written after its commit"
            self.written[page] = (content, position)

    def pages_written(self, id, first_page, count):
        assert id in self.reserved

    def commit(self, id, first, on_token):
        pages = self.reserved.pop(id)
        for position, page in enumerate(pages):
            assert self.written[page] == (self.prompts[id], position), "a page was committed that never came"
        self.decoding[id] = pages

    def _free(self, pages, id):
        for page in pages:
            assert self.owner.pop(page) == id

    def release(self, id):
        self._free(self.reserved.pop(id, []), id)

    def quarantine(self, id):
        self.quarantined[id] = self.reserved.pop(id)
        return len(self.quarantined[id])

    def unquarantine(self, id):
        self._free(self.quarantined.pop(id), id)

    def cancel(self, id):
        assert id not in self.reserved, "a ticket's pages are not the engine's to cancel"
        self._free(self.decoding.pop(id, []), id)


class Computer:
    """The prefill worker's engine: what was submitted, admitted and is to be computed."""

    def __init__(self):
        self.sinks = {}
        self.admitted = {}
        self.steps = 0

    def stats(self):
        return SimpleNamespace(prefill_tokens=self.steps, decode_tokens=0)

    def submit_prefill(self, id, prompt, sampling, have_pages, sink, shares):
        self.sinks[id] = (sink, list(prompt))

    def admit_prefill(self, id, first_page):
        assert id in self.sinks
        self.admitted[id] = first_page

    def defer_prefill(self, id, *, deferred):
        pass

    def cancel(self, id):
        self.sinks.pop(id, None)
        self.admitted.pop(id, None)


class Wire:
    """One end of a connection: what it sent and the other end has not read."""

    shares = 1
    bandwidth = None

    def __init__(self, fence, has_key=False):
        self.fence = fence
        self.has_key = has_key
        self.alive = True
        self.out = []
        self.backlog = 0
        self.doomed = False
        self.finished = []  # transfers whose last word was given to this end

    def send(self, message, body=b""):
        self.out.append((None, message, bytes(body)))

    def push(self, generation, message, body=b""):
        self.out.append((generation, message, bytes(body)))

    def finish(self, generation, message):
        self.push(generation, message)
        self.finished.append(generation)

    def drop(self, generation):
        self.out = [item for item in self.out if item[0] != generation]
        self.finished = [one for one in self.finished if one != generation]

    def sent(self):
        """Transfers of which nothing is under way any more."""
        under_way = {item[0] for item in self.out}
        over = [generation for generation in self.finished if generation not in under_way]
        self.finished = [generation for generation in self.finished if generation in under_way]
        return over

    def abort(self, reason):
        self.doomed = True  # the end is heard later, as asyncio does

    def revoke(self):
        return self.has_key


@dataclass
class Tagged:
    """A page on loan: the prompt that it belongs to."""

    content: bytes
    count: int = 1

    def end(self):
        pass


class Copy:
    """A backend that moves a tag in place of pages: the prompt that they belong to."""

    page_bytes = 1

    def push(self, channel, generation, first_page, pages):
        count, content = pages.count, pages.content
        channel.push(generation, Chunk(generation=generation, first_page=first_page, pages=count), content)
        return len(content)


class Ear:
    """Tokens after an end, or two ends, would be a client's confusion."""

    def __init__(self):
        self.tokens, self.failures = 0, 0

    def on_granted(self, first_page):
        pass

    def on_pages(self, byte_count):
        pass

    def on_token(self, token):
        assert not self.failures
        self.tokens += 1

    def on_failed(self, failure):
        self.failures += 1
        assert self.failures == 1
