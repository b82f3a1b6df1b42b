"""The queues of an engine over a page pool."""

from tandem_worker.engine.events import KvEvents
from tandem_worker.engine.pages import PagePool, page_chain
from tandem_worker.engine.queues import Queues
from tandem_worker.engine.request import Sampling
from tandem_worker.engine.scheduler import Bounds
from tandem_worker.engine.sequence import SequenceState
from workers.tests.prompts import token_ids

PAGE, CHUNK = 4, 32


def waiting(queues: Queues, name: str, tokens: list[int], priority: int = 0) -> SequenceState:
    sequence = SequenceState(
        id=name,
        age=len(queues.prefill),
        tokens=list(tokens),
        prompt_tokens=len(tokens),
        sampling=Sampling(max_tokens=8, priority=priority),
        seed=0,
        chain=page_chain(tokens, PAGE),
    )
    queues.prefill[name] = sequence
    return sequence


def test_what_the_prefix_cache_has_takes_nothing_from_a_steps_budget():
    pool = PagePool(400, PAGE, cache=True)
    queues = Queues(pool, Bounds(CHUNK, max_batch=8), KvEvents(PAGE))
    prompts = {f"p{at}": token_ids(f"cached {at}", 120, 1000) for at in range(6)}
    for name, tokens in prompts.items():
        computed = waiting(queues, name, tokens)
        computed.pages = list(pool.reserve(len(tokens), ()).pages)
        computed.computed = len(tokens)
        queues.remember(computed)
        queues.drop(computed)
    for name, tokens in prompts.items():
        waiting(queues, name, tokens)
    # 116 of 120 tokens of each are cached (the last page is computed for its logits): six fit one chunk of 32 tokens.
    assert queues.next_step().prefill == tuple((name, 4) for name in prompts)


def test_the_urgent_overtake_those_that_wait_and_equals_keep_their_order():
    queues = Queues(PagePool(400, PAGE), Bounds(CHUNK, max_batch=8), KvEvents(PAGE))
    begun = waiting(queues, "begun", token_ids("begun", 40, 1000), priority=9)
    assert queues.next_step().prefill == (("begun", CHUNK),)
    begun.computed = CHUNK
    for name, priority in (("a", 0), ("b", 0), ("late but urgent", -5), ("idle", 7)):
        waiting(queues, name, token_ids(name, 8, 1000), priority)
    assert [name for name, _ in queues.next_step().prefill] == ["begun", "late but urgent", "a", "b"]


def test_seats_go_to_the_urgent_first():
    queues = Queues(PagePool(400, PAGE), Bounds(CHUNK, max_batch=2), KvEvents(PAGE))
    for name, priority in (("a", 1), ("b", 0), ("c", -1)):
        one = waiting(queues, name, token_ids(name, 8, 1000), priority)
        queues.joining[name] = queues.prefill.pop(name)
        one.pages = list(queues._pool.reserve(9).pages)
    assert queues.next_step().decode == ("c", "b")
