"""The small parts: bodies, streams, verdicts, buckets, deadlines, flags, kubeconfig."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tandem_router.access import AccessError, find_access, from_kubeconfig
from tandem_router.asked import read_asked
from tandem_router.deadline import Deadline
from tandem_router.engines.base import BrokenStreamError, Usage
from tandem_router.engines.tandem import LONGEST_EVENT, TandemEngine
from tandem_router.errors import RefusedError
from tandem_router.ledger import Journey, verdict
from tandem_router.main import settings_of
from tandem_router.metrics import TPOT_S, TTFT_S, buckets
from tandem_router.slo import Met, Targets, judge, judge_whole, tpot
from workers.tests.router.standins import DONE, TOKENS, USAGE_CHUNK, chunk

TARGETS = Targets(ttft_s=0.5, tpot_s=0.04)


@pytest.mark.parametrize(
    ("sent", "got", "wants"),
    [
        pytest.param('{"a": 1.0,  "b":[1, 2]}', '{"a": 1.0,  "b":[1, 2]}', False, id="not streamed: untouched"),
        pytest.param(
            '{"stream":true,"x": 1e3}',
            '{"stream":true,"x":1e3,"stream_options":{"include_usage":true}}',
            False,
            id="usage is asked for",
        ),
        pytest.param(
            '{"stream":true,"stream_options":{"include_usage":false,"k":[1]}}',
            '{"stream":true,"stream_options":{"include_usage":true,"k":[1]}}',
            False,
            id="other options stay",
        ),
        pytest.param(
            '{"stream": true, "stream_options": {"include_usage": true}}',
            '{"stream": true, "stream_options": {"include_usage": true}}',
            True,
            id="the client asked itself: untouched",
        ),
        pytest.param(
            '{"stream":null,"kv_transfer_params":{"remote_host":"evil"}}',
            '{"stream":null}',
            False,
            id="internal field goes",
        ),
        pytest.param('{"kv\\u005ftransfer_params":1,"n":1}', '{"n":1}', False, id="internal field, escaped"),
    ],
)
def test_bodies(sent, got, wants):
    asked = read_asked(sent.encode())
    assert (asked.body.decode(), asked.wants_usage) == (got, wants)


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        pytest.param(b"", "not JSON", None, id="empty"),
        pytest.param(b"{", "not JSON", None, id="cut off"),
        pytest.param(b"[1]", "must be a JSON object", None, id="a list"),
        pytest.param(b'{"a":NaN}', "not JSON", None, id="NaN"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested", None, id="deep"),
        pytest.param(b'{"stream":"yes"}', "true or false", "stream", id="stream is text"),
        pytest.param(b'{"stream":true,"stream_options":[]}', "an object", "stream_options", id="options are a list"),
        pytest.param(
            b'{"stream":true,"stream_options":{"include_usage":1}}',
            "true or false",
            "stream_options.include_usage",
            id="include_usage is a number",
        ),
    ],
)
def test_bodies_that_are_refused(body, words, param):
    with pytest.raises(RefusedError, match=words) as caught:
        read_asked(body)
    assert (caught.value.status, caught.value.param) == (400, param)


WHOLE = b"".join((*TOKENS, USAGE_CHUNK, DONE))


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12), st.booleans())
def test_a_stream_survives_any_cut(cuts, keep):
    """However TCP cuts it: the same bytes but for the usage chunk, and only whole events."""
    stream = TandemEngine().stream(keep_usage=keep)
    edges = [0, *sorted(cuts), len(WHOLE)]
    out = [stream.feed(WHOLE[a:b]) for a, b in itertools.pairwise(edges) if b > a]
    assert b"".join(out) == (WHOLE if keep else b"".join((*TOKENS, DONE)))
    assert all(piece.endswith(b"\n\n") for piece in out if piece)
    assert (stream.usage, stream.ended, stream.failed) == (Usage(7, 3), True, False)


@pytest.mark.parametrize(
    ("piece", "fresh"),
    [
        (chunk("a"), True),
        (chunk("a") + USAGE_CHUNK + DONE, True),
        (USAGE_CHUNK, False),
        (DONE, False),
        (b": ping\n\n", False),
    ],
    ids=["token", "token, usage and end in one", "usage", "end", "comment"],
)
def test_only_tokens_are_fresh(piece, fresh):
    stream = TandemEngine().stream(keep_usage=True)
    assert stream.feed(piece) == piece
    assert stream.fresh is fresh


def test_usage_beside_the_last_token_stays():
    both = chunk("end", usage={"prompt_tokens": 1, "completion_tokens": 2})
    stream = TandemEngine().stream(keep_usage=False)
    assert stream.feed(both) == both
    assert stream.usage == Usage(1, 2)


def test_an_event_without_end_is_refused():
    stream = TandemEngine().stream(keep_usage=False)
    with pytest.raises(BrokenStreamError):
        stream.feed(b"x" * (LONGEST_EVENT + 1))


@pytest.mark.parametrize(
    ("ttft", "pace", "expected"),
    [
        pytest.param(0.5, 0.04, Met.BOTH, id="both, just so"),
        pytest.param(0.51, 0.04, Met.TPOT, id="late first token"),
        pytest.param(0.1, 0.05, Met.TTFT, id="slow"),
        pytest.param(0.6, 0.05, Met.NONE, id="neither"),
        pytest.param(0.1, None, Met.BOTH, id="one token"),
        pytest.param(0.6, None, Met.TPOT, id="one token, late"),
    ],
)
def test_judge(ttft, pace, expected):
    assert judge(ttft, pace, TARGETS) is expected


@pytest.mark.parametrize(
    ("journey", "now", "expected"),
    [
        pytest.param(Journey(0, True, 200, "", 0.2, 0.4, Usage(9, 11)), 1, Met.BOTH, id="stream in time"),
        pytest.param(Journey(0, True, 200, "", 0.2, 1.2, Usage(9, 11)), 2, Met.TTFT, id="stream too slow"),
        pytest.param(Journey(0, True, 200, "", 0.2, 1.2, None), 2, None, id="no usage: the pace is not known"),
        pytest.param(Journey(0, True, 502, "", 0.2, 0.3, None), 1, Met.NONE, id="broke off"),
        pytest.param(Journey(0, True, 503), 1, Met.NONE, id="no worker"),
        pytest.param(Journey(0, True, 429), 1, Met.NONE, id="turned away"),
        pytest.param(Journey(0, True, 499), 1, Met.NONE, id="left before the first token"),
        pytest.param(Journey(0, True, 499, "", 0.2, 0.3), 1, None, id="left later"),
        pytest.param(Journey(0, True, 400), 1, None, id="the client's own mistake"),
        pytest.param(Journey(0, False, 200, "", None, 0, Usage(9, 11)), 0.9, Met.BOTH, id="whole answer in time"),
        pytest.param(Journey(0, False, 200, "", None, 0, Usage(9, 11)), 0.91, Met.NONE, id="whole answer too late"),
    ],
)
def test_verdicts(journey, now, expected):
    assert verdict(journey, now, TARGETS) is expected


def test_tpot():
    assert tpot(1.0, 2.0, 11) == pytest.approx(0.1)
    assert tpot(1.0, 1.0, 1) is None
    assert judge_whole(0.5, 0, TARGETS) is Met.BOTH


@given(st.integers(1, 60_000), st.sampled_from([TTFT_S, TPOT_S]))
def test_buckets_include_the_target(target_ms, standard):
    bounds = buckets(standard, target_ms / 1000)
    assert round(target_ms / 1000, 9) in bounds
    assert list(bounds) == sorted(set(bounds))
    assert set(standard) <= set(bounds)


async def test_deadline_fires_and_moves():
    with Deadline() as deadline:
        for _ in range(3):  # many short waits under one timer
            assert await deadline.of(5, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(TimeoutError):
            await deadline.of(0.01, asyncio.sleep(60))
        assert await deadline.of(5, asyncio.sleep(0.02, "again")) == "again"


async def test_deadline_lets_a_cancellation_through():
    began = asyncio.Event()

    async def work() -> None:
        with Deadline() as deadline:
            began.set()
            await deadline.of(60, asyncio.sleep(60))

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


FLAGS = ["--namespace", "ns", "--resource", "chat", "--host", "127.0.0.1", "--ttft-ms", "500", "--tpot-ms", "40"]


def test_flags():
    settings = settings_of([*FLAGS, "--first-byte-timeout", "7"], {})
    assert settings.targets == TARGETS
    assert settings.patience.first_byte == 7
    assert (settings.port, settings.selection.path) == (8000, "/api/v1/namespaces/ns/pods")
    pod = {"POD_NAMESPACE": "ns", "TANDEM_RESOURCE": "chat", "POD_IP": "127.0.0.1"}
    assert settings_of(FLAGS[6:], pod).selection == settings.selection


@pytest.mark.parametrize(
    "flags", [FLAGS[:4], [*FLAGS[:-1], "0"], [*FLAGS, "--ttft-ms", "-3"]], ids=["missing", "zero", "negative"]
)
def test_wrong_flags_end_the_process(flags):
    with pytest.raises(SystemExit) as ended:
        settings_of(flags, {})
    assert ended.value.code == 2


def kubeconfig(tmp_path, server="http://127.0.0.1:1/", **user):
    path = tmp_path / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def test_kubeconfig(tmp_path):
    (tmp_path / "t").write_text("from-file\n")
    assert from_kubeconfig(kubeconfig(tmp_path, token="abc")).headers() == {"Authorization": "Bearer abc"}
    access = find_access({"KUBECONFIG": str(kubeconfig(tmp_path, tokenFile="t"))})
    assert (access.url, access.headers()) == ("http://127.0.0.1:1", {"Authorization": "Bearer from-file"})


def test_a_renewed_token_is_read_again(tmp_path):
    (tmp_path / "t").write_text("old")
    access = from_kubeconfig(kubeconfig(tmp_path, tokenFile="t"))
    (tmp_path / "t").write_text("new")
    assert access.headers()["Authorization"] == "Bearer new"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        pytest.param({}, "neither KUBECONFIG nor KUBERNETES_SERVICE_HOST", id="nothing"),
        pytest.param({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "neither", id="no service account"),
        pytest.param({"KUBECONFIG": "/does/not/exist"}, "FileNotFoundError", id="no file"),
    ],
)
def test_no_way_to_the_api_server(environment, words, tmp_path):
    with pytest.raises(AccessError, match=words):
        find_access(environment, account=tmp_path)


def test_exec_users_are_refused_by_name(tmp_path):
    with pytest.raises(AccessError, match="exec"):
        from_kubeconfig(kubeconfig(tmp_path, exec={"command": "helper"}))


def test_json_of_a_refusal_is_openais():
    from tandem_router.errors import error_body

    body = json.loads(error_body(RefusedError(503, "no", "no_worker")))
    assert body == {"error": {"message": "no", "type": "server_error", "param": None, "code": "no_worker"}}
