"""The load generator against a server in the test: arrivals, what is recorded, what is counted, where it may not go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from e2e.load import LoadPlan, Result, Status, drive, measure, summary
from e2e.load.__main__ import recorder
from e2e.load.addresses import ForbiddenAddressError, checked
from e2e.load.measure import CalibrationError
from e2e.load.plan import arrivals, body, prompt
from e2e.load.words import WORDS

USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 3,
    "total_tokens": 15,
    "tandem": {"kv_bytes": 99, "prefill_worker": "p0", "decode_worker": "d0", "cached_tokens": 4},
}


def plan(url: str = "http://127.0.0.1:1", **changes: object) -> LoadPlan:
    facts = {"rate": 200.0, "seconds": 0.15, "prompt_tokens": 10, "output_tokens": 3, "seed": 5, "drain_s": 5.0}
    return LoadPlan(url, "m", **{**facts, **changes})


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def delta(text: str, **more: object) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text, **more}, "finish_reason": None}], usage=None)


class Server:
    """Answers completions as the test says: a status other than 200, a gate before the first token, another end."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.status = 200
        self.gate = asyncio.Event()
        self.gate.set()
        self.pieces = [delta("", role="assistant"), delta("a"), delta("b"), delta("c"), event(choices=[], usage=USAGE)]
        self.end = b"data: [DONE]\n\n"
        self.open = self.most_open = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._answer(request)
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.status != 200:
            return web.json_response({"error": {"message": "queue full"}}, status=self.status)
        headers = {"x-tandem-worker": "d0", "x-tandem-prefill-worker": "p0", "x-tandem-path": "disaggregated"}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **headers})
        await response.prepare(request)
        await self.gate.wait()
        for piece in self.pieces:
            await response.write(piece)
            await asyncio.sleep(0.001)
        await response.write(self.end)
        return response


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    made = Server()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.serve)
    app.router.add_post("/v1/completions", made.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield made, f"http://127.0.0.1:{runner.addresses[0][1]}"
    made.gate.set()
    await runner.cleanup()


# ---- what is sent, and when


@given(st.floats(0.1, 50), st.floats(0.1, 60), st.integers())
def test_arrivals_are_seeded_and_bounded(rate, seconds, seed):
    times = arrivals(plan(rate=rate, seconds=seconds, seed=seed))
    assert times == arrivals(plan(rate=rate, seconds=seconds, seed=seed)) == sorted(times)
    assert all(0 < t < seconds for t in times)


def test_arrivals_have_the_rate():
    times = arrivals(plan(rate=50.0, seconds=100.0))
    assert 50 * 100 * 0.9 < len(times) < 50 * 100 * 1.1
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert sum(g > 1 / 50 for g in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.05)  # exponential, not even


def test_prompts():
    assert len(prompt(300, "1/0").split()) == 300
    assert prompt(300, "1/0") == prompt(300, "1/0") != prompt(300, "1/1")
    assert len(WORDS) == len(set(WORDS)) > 300


@pytest.mark.parametrize(("unique", "different"), [(True, 2), (False, 1)])
def test_bodies(unique, different):
    bodies = [body(plan(unique_prompts=unique), number) for number in (0, 1)]
    assert len({json.dumps(b) for b in bodies}) == different
    assert bodies[0]["max_tokens"] == 3
    assert bodies[0]["ignore_eos"] is bodies[0]["stream"] is True
    assert "prompt" in body(plan(chat=False), 0)


@pytest.mark.parametrize(
    "changes",
    [{"rate": 0}, {"seconds": -1}, {"seconds": 1e9}, {"rate": 1e4, "seconds": 60}, {"output_tokens": 0}],
    ids=["no rate", "negative time", "endless", "too many", "no output"],
)
def test_a_load_without_bound_is_refused(changes):
    with pytest.raises(ValueError, match="must be above 0 and at most"):
        plan(**changes)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1:8000/", True),
        ("http://localhost:8000", True),
        ("http://10.244.3.4:8000", True),
        ("http://10.96.0.9:8000", True),
        ("http://[::1]:8000", True),
        ("http://10.0.0.1:8000", False),
        ("http://example.com", False),
        ("http://8.8.8.8", False),
        ("https://127.0.0.1", False),
        ("127.0.0.1:8000", False),
    ],
)
def test_where_load_may_go(url, allowed):
    if allowed:
        assert checked(url) == url.rstrip("/")
    else:
        with pytest.raises(ForbiddenAddressError):
            checked(url)


# ---- what is recorded


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
async def test_each_request_is_recorded(server, tmp_path, chat):
    made, url = server
    if not chat:
        made.pieces = [event(choices=[{"text": t}]) for t in "abc"] + [event(choices=[], usage=USAGE)]
    with recorder(tmp_path / "out.jsonl") as on_result:
        results = await drive(plan(url, chat=chat), on_result)
    assert len(results) == len(made.bodies) == len(arrivals(plan())) > 10
    for seen in results:
        assert (seen.status, seen.code, seen.output_tokens, seen.prompt_tokens) == (Status.OK, 200, 3, 12), seen
        assert (seen.worker, seen.prefill_worker, seen.path) == ("d0", "p0", "disaggregated")
        assert (seen.kv_bytes, seen.cached_tokens) == (99, 4)
        assert seen.intended_s <= seen.sent_s < seen.first_s < seen.last_s
        assert seen.ttft_s == seen.first_s - seen.intended_s
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(line["number"] for line in lines) == list(range(len(results)))
    assert {line["status"] for line in lines} == {"ok"}
    assert all(line["ttft_s"] > 0 and line["tpot_s"] > 0 and line["intended_s"] >= 0 for line in lines)


async def test_open_loop_does_not_wait_for_answers(server):
    made, url = server
    made.gate.clear()
    driving = asyncio.create_task(drive(plan(url)))
    async with asyncio.timeout(10):
        while made.open < len(arrivals(plan())):  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)
    made.gate.set()
    assert {r.status for r in await driving} == {Status.OK}


@pytest.mark.parametrize("drain_s", [0.05, pytest.param(-10.0, id="over before the last one begins")])
async def test_what_is_open_at_the_end_is_unfinished(server, drain_s):
    made, url = server
    made.gate.clear()
    ended = []
    results = await drive(plan(url, drain_s=drain_s), ended.append)
    assert {r.status for r in results} == {Status.UNFINISHED}
    assert len(ended) == len(results)
    assert summary(results, 90, 500, 40).attainment == 0
    async with asyncio.timeout(5):
        while made.open:  # noqa: ASYNC110 - their connections were closed: the server sees it soon
            await asyncio.sleep(0.005)


async def test_stop_ends_it_early(server):
    _made, url = server
    stop = asyncio.Event()
    async with asyncio.timeout(10):
        results = await drive(plan(url, seconds=100.0), lambda _r: stop.set(), stop)
    assert 1 <= len(results) < 100


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        pytest.param({"status": 429}, 429, "queue full", id="turned away"),
        pytest.param({"end": b""}, 200, "without", id="no end"),
        pytest.param({"pieces": [delta("a"), b'event: error\ndata: {"error":{}}\n\n']}, 200, "error", id="error event"),
    ],
)
async def test_failures_say_why(server, change, code, words):
    made, url = server
    for name, value in change.items():
        setattr(made, name, value)
    results = await drive(plan(url))
    assert {(r.status, r.code) for r in results} == {(Status.FAILED, code)}
    assert all(words in r.error for r in results)
    assert summary(results, 90, 500, 40).ttft_ms == math.inf


async def test_nobody_there():
    results = await drive(plan("http://127.0.0.1:9"))
    assert {(r.status, r.code) for r in results} == {(Status.FAILED, 0)}


async def test_one_request_out_of_time(server):
    made, url = server
    made.gate.clear()
    results = await drive(plan(url, request_timeout_s=0.03))
    assert {r.error for r in results} == {"not finished within 0.03 s"}


# ---- what is counted


def result(
    intended: float, ttft: float | None, tpot: float = 0.01, status: Status = Status.OK, tokens: int = 11
) -> Result:
    first = None if ttft is None else intended + ttft
    last = None if first is None else first + tpot * (tokens - 1)
    return Result(0, intended, intended, first, last, status, 200, tokens)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        pytest.param([result(0, 0.1), result(1, 0.2)], (2, 200, 10, 1.0), id="all well"),
        pytest.param([result(0, 0.1), result(1, 0.6)], (2, 600, 10, 0.5), id="one late"),
        pytest.param([result(0, 0.1), result(1, 0.1, 0.05)], (2, 100, 50, 0.5), id="one slow"),
        pytest.param([result(0, 0.1, tokens=1)], (1, 100, math.nan, 1.0), id="one token has no pace"),
        pytest.param([result(0, None, status=Status.UNFINISHED)], (1, math.inf, math.inf, 0.0), id="never came"),
        pytest.param([result(0, 0.1, status=Status.UNFINISHED)], (1, 100, math.inf, 0.0), id="began, never ended"),
        pytest.param([result(0, 0.1, status=Status.FAILED)], (1, math.inf, math.inf, 0.0), id="broke off"),
        pytest.param([], (0, math.nan, math.nan, None), id="nothing was due"),
    ],
)
def test_summary(results, expected):
    seen = summary(results, 95, 500, 40)
    assert (seen.due, seen.ttft_ms, seen.tpot_ms, seen.attainment) == pytest.approx(expected, nan_ok=True)
    assert str(seen.due) in seen.words()


def test_summary_of_a_window():
    results = [result(at, 0.1 * at) for at in range(1, 11)]
    seen = summary(results, 50, 500, 40, start_s=3, end_s=7)
    assert (seen.due, seen.attainment) == (4, 0.75)
    assert seen.ttft_ms == pytest.approx(400)


# ---- calibration, and the command


async def test_measure_keeps_its_concurrency(server):
    made, url = server
    seen = await measure(url, "m", prompt_tokens=10, output_tokens=3, concurrency=4, n=13)
    assert (seen.n, seen.prompt_tokens, made.most_open) == (13, 12, 4)
    assert seen.ttft_s > 0
    assert seen.tpot_s > 0
    assert seen.per_second > 0
    assert len({json.dumps(b["messages"]) for b in made.bodies}) == 13


async def test_measure_does_not_measure_failures(server):
    made, url = server
    made.status = 503
    with pytest.raises(CalibrationError, match="queue full"):
        await measure(url, "m", prompt_tokens=10, output_tokens=3, concurrency=2, n=4)


@contextlib.asynccontextmanager
async def command(url: str, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    words = ("--url", url, "--model", "m", "--rate", "100", "--prompt-words", "5", "--output-tokens", "3", *more)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "e2e.load", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()


async def test_the_command(server, tmp_path):
    made, url = server
    out = tmp_path / "out.jsonl"
    async with command(url, "--seconds", "0.3", "--jsonl", str(out), "--no-unique-prompts") as process:
        said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, said
    assert b"0 failed, 0 unfinished" in said
    assert len(out.read_text().splitlines()) == len(made.bodies) > 5
    assert len({json.dumps(b) for b in made.bodies}) == 1


async def test_the_command_refuses_in_a_line():
    async with command("http://8.8.8.8", "--seconds", "1") as process:
        said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert b"load goes only to" in said
    assert b"Traceback" not in said


async def test_sigterm_ends_the_command_in_order(server, tmp_path):
    made, url = server
    made.gate.clear()
    out = tmp_path / "out.jsonl"
    async with command(url, "--seconds", "60", "--jsonl", str(out)) as process:
        async with asyncio.timeout(30):
            while not made.open:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0, said
    ends = Counter(json.loads(line)["status"] for line in out.read_text().splitlines())
    assert set(ends) == {"unfinished"}
