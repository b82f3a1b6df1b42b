"""Which workers serve a request: the published policies, from what a router knows (never the true costs).

A worker of role Both is offered for both halves; two of them never share a request (that would be a transfer between
two that can each do it all), as in the Tandem router.
"""

from __future__ import annotations

import random
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from tandem_operator.plan.facts import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tandem_operator.simulate.request import Request
    from tandem_operator.simulate.worker import SimWorker

    Pair = tuple[SimWorker, SimWorker]
    Workers = Sequence[SimWorker]

EXPECTED, ASSIGNED = attrgetter("expected"), attrgetter("assigned", "expected")


class Router(Protocol):
    """A policy. Both lists are in the order of birth and not empty; deterministic, given its seed."""

    def choose(self, request: Request, prefills: Workers, decodes: Workers) -> Pair | None:
        """(prefill worker, decode worker); the same worker twice: it does the whole job. None: it is refused."""


class RoundRobin:
    """Each role's workers in turn."""

    def __init__(self) -> None:
        """From the first on."""
        self._turn = -1

    def choose(self, request: Request, prefills: Workers, decodes: Workers) -> Pair:  # noqa: ARG002
        """The next decode worker, and the next of those that may prefill for it."""
        self._turn += 1
        decode = decodes[self._turn % len(decodes)]
        able = partners(decode, prefills)
        return able[self._turn % len(able)], decode


class Random:
    """Any, with equal chances, by a seed."""

    def __init__(self, seed: int) -> None:
        """The same seed, the same choices."""
        self._random = random.Random(seed)

    def choose(self, request: Request, prefills: Workers, decodes: Workers) -> Pair:  # noqa: ARG002
        """One of each."""
        decode = self._random.choice(decodes)
        return self._random.choice(partners(decode, prefills)), decode


class LeastBacklog:
    """Least prompt tokens to compute, least requests to decode: the Tandem router's costs; the oldest wins."""

    def choose(self, request: Request, prefills: Workers, decodes: Workers) -> Pair:  # noqa: ARG002
        """The first of the least."""
        decode = min(decodes, key=ASSIGNED)
        return min(partners(decode, prefills), key=EXPECTED), decode


class PrefixAware:
    """Overlap and load in one currency, tokens (the form of Dynamo's KV router, with weight 1).

    Prefill: tokens to compute, with this request's less those in the worker's prefix cache. Decode: tokens that are
    assigned, and those of this prompt that would have to travel.
    """

    def choose(self, request: Request, prefills: Workers, decodes: Workers) -> Pair:
        """The first of the least."""
        decode = min(decodes, key=lambda w: w.assigned_tokens - w.memory.cached(request))
        return min(partners(decode, prefills), key=lambda w: w.expected - w.memory.cached(request)), decode


class Rejecting:
    """Another router's choice, unless an admission rule expects that the request would miss its targets."""

    def __init__(self, router: Router, rule: Admission) -> None:
        """The rule sees what the chosen pair has to do."""
        self._router, self._rule = router, rule

    def choose(self, request: Request, prefills: Workers, decodes: Workers) -> Pair | None:
        """The pair, or None."""
        pair = self._router.choose(request, prefills, decodes)
        if pair is None:
            return None
        prefill, decode = pair
        mean = (decode.assigned_tokens + request.prompt) / (decode.assigned + 1)
        is_in = self._rule.admits(request.prompt, prefill.expected, decode.assigned, mean)
        return pair if is_in else None


class Admission(Protocol):
    """May a request enter (plan.policies.mooncake.EarlyRejection)?"""

    def admits(self, prompt: int, waiting_tokens: float, running: float, context: float) -> bool:
        """By the prompt tokens before it, and the requests, of this mean context, that its decode worker will run."""


def partners(decode: SimWorker, prefills: Workers) -> Workers:
    """Who may prefill for it: itself if it is Both, and workers that only prefill; for a decode worker also Both."""
    if decode.role is Role.BOTH:
        return [w for w in prefills if w is decode or w.role is Role.PREFILL]
    return prefills


def router_of(name: str, seed: int = 0) -> Router:
    """The policy of that name. Raises ValueError, naming those that there are."""
    makers: dict[str, Callable[[], Router]] = {
        "least-backlog": LeastBacklog,
        "prefix-aware": PrefixAware,
        "random": lambda: Random(seed),
        "round-robin": RoundRobin,
    }
    if name not in makers:
        raise ValueError(f"router {name!r} is not known: write one of {', '.join(makers)}")
    return makers[name]()
