"""Mixtures of experts, latent attention and windows in the planner: the performance model's passes, added up."""

from dataclasses import replace

import pytest

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.plan.facts import Device, ModelShape
from tandem_operator.plan.performance.costs import costs_of
from tandem_operator.plan.performance.deployment import Deployment
from tandem_operator.plan.performance.engine import ENGINES
from tandem_operator.plan.performance.parallel import Parallelism
from tandem_operator.plan.performance.passes import Batch, pass_time
from tandem_operator.plan.record import plain, typed
from tandem_operator.plan.roofline import config_of, hardware_of, precision_of, prior_of, slowed
from tandem_operator.plan.shapes import find_shape

SPARSE = ("mixtral-8x7b", "deepseek-r1", "gpt-oss-120b", "qwen3-235b-a22b", "qwen3-next-80b-a3b", "glm-5")
DENSE = ("llama-3.1-70b", "qwen3-32b")
GPUS = 8


def device(name="h200-sxm", dtype="float8_e4m3"):
    found = CATALOGUE[name]
    return Device(
        name, found.flops[dtype], found.memory_bytes, found.bandwidth, found.link, found.price_per_hour, found.watts
    )


def passes(name, batch):
    shape = find_shape(name, "float8_e4m3")
    where = Deployment(config_of(shape), hardware_of(device(), shape), precision_of(shape), Parallelism(tensor=GPUS))
    return pass_time(costs_of(where), batch).total + ENGINES["tandem"].step_s


@pytest.mark.parametrize("name", [*SPARSE, *DENSE])
@pytest.mark.parametrize(("batch", "context"), [(1, 500), (8, 4000), (64, 4000), (256, 16_000)])
def test_a_step_is_the_passes_with_its_parts_added(name, batch, context):
    ours = sum(prior_of(device(), GPUS, find_shape(name, "float8_e4m3")).step_parts(batch, context))
    theirs = passes(name, Batch(decoding=batch, context=context))
    assert theirs * 0.99 <= ours <= 2 * theirs  # a sum is at most twice the larger part


@pytest.mark.parametrize("name", [*SPARSE, *DENSE])
@pytest.mark.parametrize("tokens", [64, 1000, 8000])
def test_a_prompt_is_the_passes_with_its_parts_added(name, tokens):
    ours = sum(prior_of(device(), GPUS, find_shape(name, "float8_e4m3")).prefill_parts(tokens))
    theirs = passes(name, Batch(prompt_tokens=tokens, pairs=tokens**2 / 2, finished_prompts=1))
    assert theirs * 0.99 <= ours <= 2 * theirs


@pytest.mark.parametrize("name", SPARSE[:4])
def test_a_larger_batch_reads_more_experts_but_never_all_of_them_twice(name):
    prior = prior_of(device(), GPUS, find_shape(name, "float8_e4m3"))
    reading = [prior.step_parts(batch, 0)[0] for batch in (1, 2, 8, 64, 512, 4096)]
    assert reading == sorted(reading)
    assert reading[0] < reading[2]
    assert reading[-1] <= prior.pass_s + prior.sparse.total * prior.sparse.expert_read_s


@pytest.mark.parametrize("name", [*SPARSE, *DENSE])
def test_a_worker_of_half_the_speed_takes_twice_as_long_in_every_part(name):
    prior = prior_of(device(), GPUS, find_shape(name, "float8_e4m3"))
    slow = slowed(prior, 2.0)
    for fast_parts, slow_parts in (
        (prior.prefill_parts(3000), slow.prefill_parts(3000)),
        (prior.step_parts(32, 2000), slow.step_parts(32, 2000)),
    ):
        assert slow_parts == pytest.approx([2 * part for part in fast_parts])
    assert slow.kv_room_tokens == prior.kv_room_tokens


def test_a_dense_shape_carries_no_config_and_a_sparse_one_survives_the_record():
    assert all(find_shape(name).config is None for name in DENSE)
    for name in SPARSE:
        shape = find_shape(name)
        assert shape.config is not None
        assert typed(plain(shape), ModelShape, "model") == shape
        assert replace(shape, config=None) != shape
