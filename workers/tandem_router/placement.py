"""Which workers serve a request: pure functions over what is known and outstanding.

The cost of a prefill worker is the tokens that it has yet to compute for this router with this request's on top, less
those that its prefix cache holds; the cost of a decode worker is its outstanding requests, where a prompt that it has
whole is worth AFFINITY of them: prefixes alone would send everybody to one worker. `Ask.cached` is from overlap.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tandem_router.worker import Role, Worker

AFFINITY = 2.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as placing sees it: its prompt in tokens, and how many of them each worker (by name) has cached."""

    tokens: int
    cached: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker with this router's outstanding work on it; `shunned`: it refused a connection a moment ago."""

    worker: Worker
    requests: int = 0
    prefill_tokens: int = 0
    shunned: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """What a request tried in vain: pairs by (prefill name or "", decode name), and workers not to meet again."""

    pairs: frozenset[tuple[str, str]] = frozenset()
    workers: frozenset[str] = frozenset()

    def without_pair(self, pair: Pair) -> Tried:
        """Not this pair again; its workers come last."""
        return Tried(self.pairs | {pair.key}, self.workers)

    def without_worker(self, name: str) -> Tried:
        """Not this worker again."""
        return Tried(self.pairs, self.workers | {name})

    def blame(self, name: str) -> int:
        """In how many failed pairs the worker was."""
        return sum(name in pair for pair in self.pairs)


@dataclass(frozen=True, slots=True)
class Pair:
    """A choice; `prefill` None: the decode worker does the whole job. `reason` says why in words."""

    prefill: Worker | None
    decode: Worker
    reason: str

    @property
    def key(self) -> tuple[str, str]:
        """The pair's name in `Tried`."""
        return (self.prefill.name if self.prefill else "", self.decode.name)


@dataclass(frozen=True, slots=True)
class Nowhere:
    """No worker can take the request: the role that is missing, and a sentence."""

    role: Role
    reason: str


def place(
    ask: Ask, candidates: Sequence[Candidate], tried: Tried, turn: int, *, works_alone: bool = True
) -> Pair | Nowhere:
    """The least loaded decode worker, and the prefill worker with the least to compute.

    A decode worker does the whole job when no prefill worker is above suspicion and its engine can (`works_alone`), or
    when its role is `both` and no prefill worker has less to do. Ties go round by `turn`. Never a worker that is not
    ready, is being deleted, or was tried in vain. Only workers of one revision share a request, and while one has both
    roles, one that lacks a role (a rollout has just begun, or is about to end) is left alone.
    """
    able = _of_whole_revisions([c for c in candidates if c.worker.can_serve and c.worker.name not in tried.workers])
    order = _rotation(able, turn)
    decodes = [c for c in able if c.worker.role is not Role.PREFILL]
    for decode in sorted(decodes, key=lambda c: _decode_cost(c, ask, tried, order)):
        partners = [c for c in able if _may_prefill_for(c.worker, decode.worker)]
        partners.sort(key=lambda c: _prefill_cost(c, decode, ask, tried, order))
        trusted = [c for c in partners if not _is_suspect(c, tried)]
        alone = _alone(decode, tried) if works_alone or decode.worker.role is Role.BOTH else None
        choice = _paired(decode, trusted, tried) or alone or _paired(decode, partners, tried)
        if choice is not None:
            return choice
    return _nowhere(candidates, able, tried, lacking=Role.PREFILL if decodes else Role.DECODE)


def _paired(decode: Candidate, partners: Sequence[Candidate], tried: Tried) -> Pair | None:
    """The first untried pair with this decode worker, itself among the partners when it is `both`."""
    for prefill in partners:
        itself = prefill is decode
        pair = Pair(None if itself else prefill.worker, decode.worker, _words(prefill, decode, len(partners)))
        if pair.key not in tried.pairs:
            return pair
    return None


def _is_suspect(prefill: Candidate, tried: Tried) -> bool:
    """It failed a moment ago, or with two decode workers: better no prefill worker than this one."""
    return prefill.shunned or tried.blame(prefill.worker.name) > 1


def _alone(decode: Candidate, tried: Tried) -> Pair | None:
    """The whole job on the decode worker: slower for its neighbours, but served."""
    reason = f"no prefill worker is to be had: {decode.worker.name} does the whole job"
    pair = Pair(None, decode.worker, reason)
    return pair if pair.key not in tried.pairs else None


def _of_whole_revisions(able: list[Candidate]) -> list[Candidate]:
    """Those whose revision can prefill and decode; all, where no revision can."""
    roles: dict[str, set[Role]] = {}
    for seen in able:
        roles.setdefault(seen.worker.revision, set()).add(seen.worker.role)
    if len(roles) < 2:
        return able
    whole = {revision for revision, found in roles.items() if Role.BOTH in found or len(found) > 1}
    return [c for c in able if c.worker.revision in whole] if whole else able


def _may_prefill_for(prefill: Worker, decode: Worker) -> bool:
    # Two `both` workers never share a request: that would be a transfer between two that can each do it all.
    if prefill.revision != decode.revision:
        return False
    if prefill.role is Role.BOTH:
        return prefill.name == decode.name or decode.role is Role.DECODE
    return prefill.role is Role.PREFILL


def _decode_cost(seen: Candidate, ask: Ask, tried: Tried, order: Mapping[str, int]) -> tuple[float, ...]:
    name = seen.worker.name
    share = min(ask.cached.get(name, 0) / max(ask.tokens, 1), 1.0)
    return (seen.shunned, tried.blame(name), seen.requests - AFFINITY * share, seen.prefill_tokens, order[name])


def _prefill_cost(
    seen: Candidate, decode: Candidate, ask: Ask, tried: Tried, order: Mapping[str, int]
) -> tuple[int, ...]:
    name = seen.worker.name
    tokens = seen.prefill_tokens + max(ask.tokens - ask.cached.get(name, 0), 0)
    return (seen.shunned, tried.blame(name), tokens, seen is not decode, seen.requests, order[name])


def _rotation(able: Iterable[Candidate], turn: int) -> dict[str, int]:
    names = sorted(c.worker.name for c in able)
    return {name: (rank - turn) % len(names) for rank, name in enumerate(names)}


def _words(prefill: Candidate, decode: Candidate, options: int) -> str:
    took = f"{decode.worker.name} has {decode.requests} requests outstanding"
    if prefill is decode:
        return f"{took} and does the whole job: no other has less than its {prefill.prefill_tokens} tokens to compute"
    return f"{took}; {prefill.worker.name} has {prefill.prefill_tokens} tokens to compute, the least of {options}"


def culprits(tried: Tried, served: Pair) -> set[str]:
    """Whom a request that was served in the end found guilty: whose partner served without it, and who failed twice."""
    good = set(served.key) - {""}
    alone = {name for pair in tried.pairs if good & set(pair) for name in pair}
    twice = {name for pair in tried.pairs for name in pair if tried.blame(name) > 1}
    return (alone | twice) - good - {""}


def _nowhere(candidates: Sequence[Candidate], able: Sequence[Candidate], tried: Tried, *, lacking: Role) -> Nowhere:
    if tried.pairs or tried.workers:
        return Nowhere(Role.DECODE, "every pair of workers that could serve was tried")
    ready = ", ".join(f"{c.worker.name} ({c.worker.role.value})" for c in able[:8]) or "none"
    return Nowhere(
        lacking,
        f"no ready worker has the role {lacking.value} (or both): {len(candidates)} workers known, ready: {ready}",
    )
