"""The engine's sampling and the wire's are one: every field travels, and the largest fit a header."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from tandem_worker.engine import Sampling
from tandem_worker.engine.checks import MAX_LOGIT_BIAS, MAX_STOP_IDS
from tandem_worker.engine.events import HASH_BYTES, MAX_BLOCKS
from tandem_worker.engine.grammar import MAX_BYTES
from tandem_worker.transfer.prefill_side import from_sampling, to_sampling
from tandem_worker.transfer.wire import MAX_HEADER, Prefill, SamplingFields, decode, encode

floats = st.floats(-100, 100)
samplings = st.builds(
    Sampling, max_tokens=st.integers(1, 2**31 - 1), temperature=st.floats(0, 100), top_p=st.floats(0.01, 1),
    seed=st.none() | st.integers(0, 2**63 - 1), stop_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
    ignore_eos=st.booleans(), top_logprobs=st.integers(0, 20), top_k=st.integers(0, 2**31 - 1), min_p=st.floats(0, 1),
    presence_penalty=floats, frequency_penalty=floats, repetition_penalty=floats,
    logit_bias=st.lists(st.tuples(st.integers(0, 2**31 - 1), floats), max_size=4).map(tuple),
    min_tokens=st.integers(0, 2**31 - 1), grammar=st.text(max_size=50), priority=st.integers(-(2**31), 2**31 - 1),
    blocks=st.binary(max_size=64), prompt_bytes=st.integers(0, 2**31 - 1),
    trace=st.text(max_size=64),
)  # fmt: skip


def test_no_field_stays_behind():
    assert {one.name for one in fields(Sampling)} == set(SamplingFields.__struct_fields__)


@given(samplings)
def test_what_arrives_is_what_was_sent(sampling):
    message = Prefill(request="r", sampling=from_sampling(sampling), have_pages=0)
    assert to_sampling(decode(encode(message)).sampling) == sampling


def test_the_largest_fits_a_header():
    largest = Sampling(
        max_tokens=2**31 - 1, stop_ids=(2**31 - 1,) * MAX_STOP_IDS, logit_bias=((2**31 - 1, -99.9),) * MAX_LOGIT_BIAS,
        grammar="x" * MAX_BYTES, blocks=b"x" * MAX_BLOCKS * HASH_BYTES, prompt_bytes=2**31 - 1, trace="0" * 55,
    )  # fmt: skip
    assert len(encode(Prefill(request="r" * 200, sampling=from_sampling(largest), have_pages=0))) < MAX_HEADER
