"""Readers of traces: each form's requests, and for bad input one sentence with file, row and field."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem_operator.simulate.traces import read
from tandem_operator.simulate.workload import WorkloadError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
MOONCAKE = '{"timestamp": 1000, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]}\n'


def load(tmp_path, text, name="trace", **how):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [(r.arrived, r.prompt, r.output, r.hashes) for r in read(path, **how)]


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        pytest.param(
            AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.9799600,3180,8\n",
            [(0.0, 4808, 10, ()), (2.0, 3180, 8, ())],
            id="Azure, seven digits",
        ),
        pytest.param(
            AZURE + "2024-05-10 00:00:00+00:00,5,1\n2024-05-10 00:00:00.5+00:00,0,0\n",
            [(0.0, 5, 1, ()), (0.5, 1, 1, ())],
            id="Azure with offsets; no tokens count as one",
        ),
        pytest.param(
            MOONCAKE + MOONCAKE.replace("1000", "4000"),
            [(0.0, 1030, 5, (0, 1, 2)), (3.0, 1030, 5, (0, 1, 2))],
            id="Mooncake",
        ),
        pytest.param(PLAIN + "10,7,3\n10.5,8,4\n", [(0.0, 7, 3, ()), (0.5, 8, 4, ())], id="plain CSV"),
        pytest.param(
            "\ufeffoutput_tokens, prefix_hashes, arrival_s, prompt_tokens\n3,1 2,0,600\n",
            [(0.0, 600, 3, (1, 2))],
            id="plain CSV, other order, hashes, BOM",
        ),
        pytest.param(
            '\n{"arrival_s": 0.25, "prompt_tokens": 7, "output_tokens": 3, "prefix_hashes": [9], "user": "x"}\n',
            [(0.0, 7, 3, (9,))],
            id="plain JSON lines, more fields, empty line",
        ),
    ],
)
def test_every_form_is_read(tmp_path, text, requests):
    assert load(tmp_path, text) == requests


def test_a_trace_plays_faster_and_ends_where_asked(tmp_path):
    text = PLAIN + "0,1,1\n10,1,1\n30,1,1\n"
    assert [r[0] for r in load(tmp_path, text, rate=2)] == [0.0, 5.0, 15.0]
    assert len(load(tmp_path, text, limit_s=10)) == 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("", "trace: has no request", id="empty"),
        pytest.param(AZURE, "trace: has no request", id="header alone"),
        pytest.param("a,b\n1,2\n", "row 1: has none of the fields", id="other columns"),
        pytest.param("TIMESTAMP,ContextTokens\n", "row 1, field GeneratedTokens: is missing", id="a column short"),
        pytest.param(
            '{"arrival_s": 1, "prompt_tokens": 2}\n', "row 1, field output_tokens: is missing", id="a key short"
        ),
        pytest.param(PLAIN + "0,1\n", "row 2, field output_tokens: is missing", id="short row"),
        pytest.param(PLAIN + "0,,1\n", "row 2, field prompt_tokens: is missing", id="empty cell"),
        pytest.param(
            MOONCAKE + '{"timestamp": 2000}\n', "row 2, field input_length: is missing", id="second object short"
        ),
        pytest.param(PLAIN + "-1,1,1\n", "row 2, field arrival_s: '-1' is a negative time", id="negative time"),
        pytest.param(PLAIN + "1,1,1\n0.5,1,1\n", "row 3, field arrival_s: is 0.500 s before", id="unsorted"),
        pytest.param(AZURE + "yesterday,1,1\n", "row 2, field TIMESTAMP: 'yesterday' is no time", id="no date"),
        pytest.param(PLAIN + "nan,1,1\n", "row 2, field arrival_s: 'nan' is no time", id="not a number"),
        pytest.param(PLAIN + "0,many,1\n", "row 2, field prompt_tokens: 'many' is no whole number", id="words"),
        pytest.param(PLAIN + "0,1.5,1\n", "row 2, field prompt_tokens: '1.5' is no whole number", id="a fraction"),
        pytest.param(PLAIN + "0,1,-2\n", "row 2, field output_tokens: -2 tokens are fewer than none", id="negative"),
        pytest.param(PLAIN + "0,9999999999,2\n", "row 2, field prompt_tokens: 9999999999 tokens are too", id="absurd"),
        pytest.param(MOONCAKE.replace("5", "true"), "field output_length: True is no whole number", id="a boolean"),
        pytest.param(MOONCAKE.replace("[0, 1, 2]", '"x"'), "field hash_ids: 'x' is no whole number", id="hash words"),
        pytest.param(MOONCAKE.replace("[0, 1, 2]", "7"), "field hash_ids: 7 is no list", id="hashes no list"),
        pytest.param(MOONCAKE + "{]\n", "row 2: is no JSON object", id="broken JSON"),
        pytest.param(MOONCAKE + "[1]\n", "row 2: is no JSON object", id="a list"),
        pytest.param(b"\xff\xfe\x00", "is no UTF-8 text", id="bytes"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path, text, sentence):
    with pytest.raises(WorkloadError) as caught:
        load(tmp_path, text)
    assert sentence in str(caught.value)
    assert str(tmp_path / "trace") in str(caught.value)
    assert "\n" not in str(caught.value)


HEADS = st.sampled_from(["", AZURE, PLAIN, MOONCAKE, "{", '{"arrival_s": ', PLAIN + '"', MOONCAKE + "{}\n"])
CELL = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)


def only_workload_errors(path):
    try:
        found = list(read(path))
    except WorkloadError as error:
        words = str(error)
        found = []
    else:
        words = str(path)
    assert str(path) in words
    assert all(r.arrived >= 0 and r.prompt >= 1 and r.output >= 1 for r in found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(head=HEADS, body=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path, head, body):
    path = tmp_path / "any"
    path.write_bytes(head.encode() + body)
    only_workload_errors(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(rows=st.lists(st.tuples(CELL, CELL, CELL, CELL), max_size=4))
def test_any_values_are_read_or_refused(tmp_path, rows):
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = tmp_path / "any"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    only_workload_errors(path)
