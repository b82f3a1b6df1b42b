from dataclasses import replace

import pytest

from tandem_operator.api import spec_pool as api
from tandem_operator.api.catalogue import CATALOGUE, UnknownAcceleratorError
from tandem_operator.api.v1alpha1 import read
from tandem_operator.plan.facts import Objective, RebalanceMode, Role, Steadiness
from tandem_operator.plan.limits import device_of, limits_of, max_batch_of, spread_of
from tandem_operator.plan.performance.parallel import Parallelism
from tandem_operator.plan.roofline import prior_of
from tests.plan.examples import LLAMA_70B


def spec(accelerator="h100-sxm", **rebalance):
    hardware = accelerator if isinstance(accelerator, dict) else {"accelerator": accelerator}
    return read(
        {
            "metadata": {"name": "chat", "namespace": "serving"},
            "spec": {
                "model": {"source": "file:///models/m", "servedName": "m"},
                "engine": {"name": "vllm", "image": "vllm:1"},
                "transfer": {"backend": "nixl"},
                "pools": [
                    {"name": "p", "role": "Prefill", "hardware": hardware, "replicas": {"min": 1, "max": 4}},
                    {
                        "name": "d",
                        "role": "Decode",
                        "hardware": hardware,
                        "parallelism": {"tensor": 2},
                        "replicas": {"min": 1, "max": 4, "initial": 3},
                    },
                ],
                "slo": {"ttftMilliseconds": 500, "tpotMilliseconds": 40},
                "rebalance": rebalance,
            },
        }
    ).spec


def test_limits_carry_the_spec():
    limits = limits_of(
        spec(
            mode="Recommend",
            intervalSeconds=5,
            roleFlips=True,
            budget={"gpus": 9, "perAccelerator": {"h100-sxm": 8}},
            objective="Power",
            behavior={"scaleDown": {"stabilizationWindowSeconds": 60}},
        )
    )
    assert limits.mode is RebalanceMode.RECOMMEND
    assert [(p.name, p.role, p.gpus, p.minimum, p.maximum, p.initial) for p in limits.pools] == [
        ("p", Role.PREFILL, 1, 1, 4, 1),
        ("d", Role.DECODE, 2, 1, 4, 3),
    ]
    assert (limits.budget_gpus, limits.budget_per_device, limits.interval_s) == (9, {"h100-sxm": 8}, 5)
    assert limits.steadiness == Steadiness(down_window_s=60)
    assert (limits.slo.percentile, limits.objective) == (95, Objective.POWER)
    assert limits.max_batch == 256


def test_own_figures_need_no_catalogue_entry():
    own = {
        "accelerator": "mine",
        "teraflops": 100,
        "memoryGibibytes": 32,
        "memoryGigabytesPerSecond": 900,
        "linkGigabytesPerSecond": 10,
    }
    device = limits_of(spec(own)).pools[0].device
    assert (device.flops, device.memory_bytes, device.bandwidth, device.link) == (1e14, 32 * 2**30, 9e11, 1e10)


@pytest.mark.parametrize(
    ("hardware", "watts", "scale_up"),
    [
        pytest.param("h100-sxm", 700, 450e9, id="the catalogue's"),
        pytest.param({"accelerator": "h100-sxm", "watts": 600, "scaleUpGigabytesPerSecond": 300}, 600, 3e11, id="own"),
    ],
)
def test_power_and_the_link_within_a_server(hardware, watts, scale_up):
    device = limits_of(spec(hardware)).pools[0].device
    assert (device.watts, device.scale_up) == (watts, scale_up)


def test_a_slower_link_within_a_server_makes_ranks_dearer():
    slow, fast = (
        prior_of(
            limits_of(spec({"accelerator": "h100-sxm", "scaleUpGigabytesPerSecond": g})).pools[0].device, 4, LLAMA_70B
        )
        for g in (30, 450)
    )
    assert slow.token_s > fast.token_s


def test_an_unknown_accelerator_is_refused_by_name():
    with pytest.raises(UnknownAcceleratorError, match="h900"):
        limits_of(spec("h900"))


@pytest.mark.parametrize(
    ("args", "batch"),
    [
        ([], 64),
        (["--max-batch", "16"], 16),
        (["--max-batch=16"], 16),
        (["--chunk-tokens=128", "--max-batch=16", "--max-batch", "8"], 8),
        (["--max-batch"], 64),
        (["--max-batch=many"], 64),  # the worker refuses it, and its pod says so
    ],
)
def test_the_batch_is_what_the_engine_was_told(args, batch):
    assert max_batch_of(args) == batch


def test_every_engine_spells_its_batch():
    assert max_batch_of(["--max-num-seqs=32"], "vllm") == max_batch_of(["--max-running-requests", "32"], "sglang") == 32


def test_a_clusters_own_catalogue_reaches_the_prior():
    """Where more accelerators share the fast link, and whose kernels they run, is not the built-in entry's alone."""
    entry = CATALOGUE["h100-sxm"]
    found = {}
    for name, changed in {
        "as built in": entry,
        "four share a link": replace(entry, domain=4),
        "older kernels": replace(entry, generation="ampere"),
    }.items():
        device = limits_of(spec("h100-sxm"), {"h100-sxm": changed}).pools[0].device
        found[name] = prior_of(device, 8, LLAMA_70B)
    assert found["four share a link"].token_s > found["as built in"].token_s
    unsaid = replace(entry, name="mine", domain=1)
    assert device_of(api.Hardware(accelerator="mine"), "bfloat16", {"mine": unsaid}).domain == 0, (
        "a link's speed is said"
    )
    assert found["older kernels"] != found["as built in"]


@pytest.mark.parametrize(
    ("degrees", "spread"),
    [
        pytest.param({"tensor": 4}, None, id="by tensor alone"),
        pytest.param({"tensor": 4, "pipeline": 2}, Parallelism(4, pipeline=2), id="stages"),
        pytest.param({"tensor": 4, "data": 2, "expert": 8}, Parallelism(4, data=2, expert=8), id="experts over all"),
        pytest.param({"tensor": 4, "expert": 4}, Parallelism(4, expert=4), id="experts over tensor ranks"),
    ],
)
def test_how_a_worker_is_spread_reaches_the_planner(degrees, spread):
    found = spread_of(api.Parallelism.model_validate(degrees))
    assert found == spread
    assert found is None or found.gpus == api.Parallelism.model_validate(degrees).gpus
