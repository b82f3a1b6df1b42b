"""What `tandem simulate` simulates: a resource, or one made of a few numbers, and the truth to be found out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tandem_operator.plan.facts import Device, Limits, PoolLimits, RebalanceMode, Role, Slo
from tandem_operator.plan.kinds import NoFitError, no_fit_words
from tandem_operator.plan.roofline import prior_of, slowed
from tandem_operator.simulate.truth import SparseTruth, Truth

if TYPE_CHECKING:
    from tandem_operator.plan.facts import ModelShape
    from tandem_operator.plan.sparse import Sparse


def small_limits(prefill: int, decode: int, slo: Slo, interval_s: int, device: Device) -> Limits:
    """Workers of one kind, their number pinned, roles free: what flips alone can do."""
    pools = (
        PoolLimits("prefill", Role.PREFILL, device, 1, prefill, prefill, prefill),
        PoolLimits("decode", Role.DECODE, device, 1, decode, decode, decode),
    )
    return Limits(slo, RebalanceMode.AUTO, pools, budget_gpus=prefill + decode, role_flips=True, interval_s=interval_s)


def roofline_truth(pool: PoolLimits, shape: ModelShape, slower: float) -> Truth:
    """A truth of the roofline's form, `slower` times its cost: what calibration has to find out.

    Raises NoFitError where the pool's workers cannot hold the model.
    """
    prior = prior_of(pool.device, pool.gpus, shape, pool.spread)
    if prior.kv_room_tokens < 1:
        raise NoFitError(f"pool {pool.name}: {no_fit_words(pool.device, pool.gpus, shape, 1.0)}")
    moved, slow = prior.transfer_token_s, slowed(prior, slower)
    dense = Truth(
        prompt_token_s=slow.token_s,
        prompt_pair_s=slow.pair_s,
        prompt_base_s=slow.pass_s,
        step_base_s=slow.pass_s,
        step_slope_s=slow.token_s,
        step_context_s=slow.context_token_s,
        transfer_token_s=moved,
        kv_tokens=int(prior.kv_room_tokens),
    )
    return sparse_truth(dense, slow.sparse) if slow.sparse else dense


def sparse_truth(dense: Truth, sparse: Sparse) -> Truth:
    """The truth of a sparse model: a prompt reads all experts once; windows and sparse attention are always full.

    A request that is shorter than its window is so overcounted by what it lacks.
    """
    seen = sparse.attended * dense.step_context_s
    return SparseTruth(
        **asdict(dense)
        | {
            "prompt_base_s": dense.prompt_base_s + sparse.total * sparse.expert_read_s,
            "prompt_token_s": dense.prompt_token_s + sparse.expert_token_s + sparse.window * sparse.window_pair_s,
            "step_slope_s": dense.step_slope_s + sparse.window * sparse.window_token_s + sparse.state_s + seen,
            "step_context_s": 0.0 if sparse.attended else dense.step_context_s,
        },
        sparse=sparse,
    )


def parse_truth(words: str) -> Truth:
    """`prompt=1 step=30 slope=10`: ms per prompt token, per decode step and per request in it.

    Raises ValueError, naming the word that is wrong.
    """
    values: dict[str, float] = {}
    for word in words.split():
        name, _, text = word.partition("=")
        if name not in {"prompt", "step", "slope"}:
            raise ValueError(f"{word!r}: write prompt=, step= and slope= (milliseconds)")
        try:
            values[name] = float(text) / 1000
        except ValueError:
            raise ValueError(f"{word!r}: {text!r} is no number") from None
    if set(values) != {"prompt", "step", "slope"} or min(values.values()) < 0 or values["prompt"] + values["step"] <= 0:
        raise ValueError(f"{words!r}: write prompt=, step= and slope= (milliseconds, at least 0)")
    return Truth(values["prompt"], values["step"], values["slope"])
