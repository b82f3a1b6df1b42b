"""Mode Auto in passes: the safe mode first, a change that loses no worker before others serve, and a way back."""

from __future__ import annotations

import contextlib
import copy

import pytest

from tandem_operator.loop import modes
from tandem_operator.loop.reconcile import reconcile
from tandem_operator.loop.resync import fill_cache
from tandem_operator.plan.facts import Answer, Target, Verdict
from tandem_operator.plan.modes import ModeChoice
from tandem_operator.plan.sizing import Mode

from .conftest import KIND, REF, CrashedError
from .test_passes import condition, converge, status

WORDS = "Disaggregated at up to 2.00 requests/s: the split is cheaper"
SPLIT = Target({"prefill": 2, "decode": 3}, 2, 3)


def pools(api):
    """Replicas by pool."""
    found = {d["metadata"]["labels"].get("tandem.dev/pool"): d["spec"]["replicas"] for d in api.of("Deployment")}
    return {name: count for name, count in found.items() if name}


def with_auto(spec):
    spec["mode"] = "Auto"
    spec["pools"].append({**copy.deepcopy(spec["pools"][0]), "name": "both", "role": "Both"})


@pytest.fixture
def advise(monkeypatch):
    """What the advisor answers from now on; None: as the real one, which knows no figures here."""
    said = {"choice": None}
    real = modes.choose_mode

    def answer(case, now):
        choice = said["choice"]
        if choice is None or case.leaving:
            return real(case, now)
        return ModeChoice(choice.mode, choice.verdict, None if case.mode is choice.mode else choice.target)

    monkeypatch.setattr(modes, "choose_mode", answer)

    def change(mode, target):
        said["choice"] = ModeChoice(mode, Verdict(Answer.YES, "Advised", WORDS), target)

    return change


async def passes(api, world):
    world.asked[REF] = -1  # as after a new look
    await fill_cache(world)
    await converge(api, world)


async def test_it_begins_colocated_and_says_why(api, start, edit):
    edit(with_auto)
    await passes(api, await start())
    assert pools(api) == {"both": 1}
    assert status(api)["mode"] == {"effective": "Colocated", "changes": []}
    found = condition(api, "ModeChosen")
    assert (found["status"], found["reason"]) == ("Unknown", "Unobserved")
    assert condition(api, "Ready")["reason"] == "Serving"
    before = len(api.writes)
    await reconcile(await start(), REF)
    assert api.writes[before:] == [], "an idle pass writes nothing"


async def test_auto_by_an_edit_keeps_what_runs(api, start, edit):
    """Also where the status is lost on the way: the pools that run tell the mode. No pod is renewed for it."""
    world = await start()
    await converge(api, world)
    before = {p["metadata"]["uid"] for p in api.of("Pod")}
    edit(with_auto)
    del api.find(KIND, "chat")["status"]
    await passes(api, await start())
    assert set(pools(api)) == {"prefill", "decode"}
    assert status(api)["mode"]["effective"] == "Disaggregated"
    assert {p["metadata"]["uid"] for p in api.of("Pod")} == before


async def test_a_change_brings_the_new_pools_before_the_old_one_goes(api, start, edit, advise):
    edit(with_auto)
    world = await start()
    await passes(api, world)
    advise(Mode.DISAGGREGATED, SPLIT)
    world.asked[REF] = -1
    for _ in range(4):  # nothing becomes ready meanwhile
        await fill_cache(world)
        await reconcile(world, REF)
        api.settle(ready=False)
    assert pools(api) == {"both": 1, "prefill": 2, "decode": 3}
    assert condition(api, "Ready")["reason"] == "Serving", "the old pool serves on"
    await passes(api, world)
    assert pools(api) == {"prefill": 2, "decode": 3}
    assert status(api)["mode"]["effective"] == "Disaggregated"
    assert len(status(api)["mode"]["changes"]) == 1
    decision = status(api)["decision"]
    events = [e for e in api.of("Event") if e["reason"] == "Scale" or WORDS in str(e)]
    assert events, "the same words in the event"
    assert condition(api, "ModeChosen")["message"] == WORDS
    assert decision["target"]["pools"] == {"prefill": 2, "decode": 3}


@pytest.mark.parametrize("writes", range(14))
async def test_a_crash_after_any_write_of_a_change_converges(api, start, edit, advise, writes):
    edit(with_auto)
    world = await start()
    await passes(api, world)
    advise(Mode.DISAGGREGATED, SPLIT)
    world.asked[REF] = -1
    api.crash_after = writes
    with contextlib.suppress(CrashedError):
        await passes(api, world)
    api.crash_after = None
    await passes(api, await start())
    assert pools(api) == {"prefill": 2, "decode": 3}
    assert len(status(api)["mode"]["changes"]) == 1, "a change is counted once"


async def test_back_to_a_written_mode(api, start, edit, advise):
    """`mode: Colocated` in Git after Auto: the status forgets the mode, and no condition speaks of it."""
    edit(with_auto)
    world = await start()
    await passes(api, world)
    edit(lambda spec: spec.update(mode="Colocated", pools=[p for p in spec["pools"] if p["role"] == "Both"]))
    await passes(api, world)
    assert "mode" not in status(api)
    assert condition(api, "ModeChosen") is None
    assert pools(api) == {"both": 1}
