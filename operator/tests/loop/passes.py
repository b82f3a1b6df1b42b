"""Passes over the in-memory API server until nothing is left to do."""

from __future__ import annotations

from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.refs import Ref
from tandem_operator.loop.resync import fill_cache

REF = Ref("serving", "chat")


async def converge(api, world):
    """Lists, passes and controllers in turn, until a pass writes nothing; how the last one ended."""
    for _ in range(12):
        await fill_cache(world)
        before = len(api.writes)
        outcome = await reconcile(world, REF)
        quiet = len(api.writes) == before
        api.settle()
        if quiet:
            return outcome
    raise AssertionError(f"still writing: {api.writes[-5:]}")
