"""A deployment's unit costs: what one token, one pair, one expert and one pass cost, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tandem_operator.plan.performance import kv, weights
from tandem_operator.plan.performance.collectives import all_reduce_s, all_to_all_s
from tandem_operator.plan.performance.precision import BYTES, rate_of

if TYPE_CHECKING:
    from tandem_operator.plan.performance.config import ModelConfig
    from tandem_operator.plan.performance.deployment import Deployment

# Kernels of one layer in a decode step, counted by what they do: norm, QKV, rotary and cache write, attention and its
# reduction, output; norm, gate-up, activation, down; router, permute, two grouped products (activation inside),
# combine; MLA adds low-rank projections, their norms and two absorbed products.
GQA_KERNELS: Final = 6
LATENT_KERNELS: Final = 11
RECURRENT_KERNELS: Final = 9
DENSE_KERNELS: Final = 4
EXPERT_KERNELS: Final = 5
EXPANDING_KERNELS: Final = 10
CHUNKING_KERNELS: Final = 12
# Block-scaled products of mixture-of-experts checkpoints quantise their input by a kernel of its own; per-tensor scales
# of dense checkpoints are applied inside the norm and the activation.
QUANTISED: Final = ("float8_e4m3", "float4_e2m1")
ACTIVATION_BYTES: Final = 2.0  # bf16 between layers
# Times that a layer's hidden state is read or written besides the products' own reads: residual, norm, projections.
# A mixture of experts also permutes each token to its experts and back.
HIDDEN_MOVES: Final = 10
EXPERT_MOVES: Final = 7


@dataclass(frozen=True, slots=True)
class Roof:
    """Matrix products on one GPU: seconds a token computes, and seconds to read the weights once."""

    token_s: float
    read_s: float

    def seconds(self, tokens: float) -> float:
        """The slower of the two (the roofline: Williams et al., CACM 52(4), 2009); nothing for no tokens."""
        return max(self.token_s * tokens, self.read_s) if tokens > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ExpertCosts:
    """Routed experts over all layers, on one GPU. `token_s`: a token's share; `read_s`: one distinct expert."""

    total: int
    chosen: int
    ranks: int
    token_s: float
    read_s: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds on one GPU, over all layers."""

    linear: Roof
    head: Roof
    experts: ExpertCosts | None
    pair_s: float  # attention of one (query, key) pair
    window_pair_s: float
    context_s: float  # one context token's KV in layers that read all of it
    window_s: float  # the same in layers with a window
    window: int
    attended: int
    state_s: float  # one request's recurrent state, read and written
    activation_s: float  # moving one token's hidden state between kernels
    message_s: float  # communication of one token
    latency_s: float  # communication of a pass, however small
    prompt_kernels: int  # of one pass with prompts
    floor_s: float  # kernels of a pass, however small
    data: int


def costs_of(where: Deployment) -> Costs:
    """All unit costs of a deployment."""
    model, split = where.model, where.parallel
    bandwidth = where.device.bandwidth * where.shares.kv_mbu
    share = kv.rank_share(model, split.tensor) * kv.layer_bytes(model, where.precision.kv)
    full = model.attention_layers - model.window_layers
    pair = pair_flops(model) / split.tensor / (where.device.flops["bfloat16"] * where.shares.attention_mfu)
    return Costs(
        linear_roof(where),
        head_roof(where),
        expert_costs(where),
        full * pair,
        model.window_layers * pair,
        full * share / bandwidth,
        model.window_layers * share / bandwidth,
        model.window,
        model.attended,
        2 * kv.state_bytes(model) / split.tensor / bandwidth,
        activation_bytes(where) / bandwidth,
        communication_s(where, 1.0) - communication_s(where, 0.0),
        communication_s(where, 0.0),
        prompt_kernels(where),
        kernels(where) * where.shares.kernel_s,
        split.data,
    )


def roof(where: Deployment, parameters: float, stored: str) -> Roof:
    """Of `parameters` weights on one GPU: 2·P / (peak·MFU) a token, bytes / (bandwidth·MBU) a pass."""
    rate = rate_of(stored, where.device.flops)
    peak = where.device.flops[rate] * where.shares.compute(rate)
    reading = where.device.bandwidth * where.shares.reading(stored)
    return Roof(2 * parameters / peak, parameters * BYTES[stored] / reading)


def linear_roof(where: Deployment) -> Roof:
    """Projections of attention, dense and shared MLPs, and routers."""
    parts = weights.mixer_parameters(where.model) + weights.dense_parameters(where.model)
    return roof(where, parts / where.parallel.tensor, where.precision.linear)


def head_roof(where: Deployment) -> Roof:
    """The output projection on the vocabulary, in bf16."""
    return roof(where, weights.head_parameters(where.model) / where.parallel.tensor, "bfloat16")


def expert_costs(where: Deployment) -> ExpertCosts | None:
    """Routed experts: a token computes `chosen` of them; reading is by distinct expert, spread over the ranks.

    Products as narrow as an expert's slice fill a GPU badly: a share w/(w + half) of the MFU, like a link's.
    """
    experts, split = where.model.experts, where.parallel
    if experts is None:
        return None
    each = weights.expert_parameters(where.model, experts) / split.experts_split
    width = experts.width / split.experts_split
    share = width / (width + where.shares.half_width)
    one = roof(where, each, where.precision.experts)
    layers = where.model.expert_layers
    return ExpertCosts(
        experts.total,
        experts.chosen,
        split.expert,
        layers * one.token_s * experts.chosen / split.expert / share,
        layers * one.read_s / split.expert / where.shares.expert_mbu,
    )


def pair_flops(model: ModelConfig) -> float:
    """FLOPs of one (query, key) pair in one layer: 4·d a head (FlashAttention-2, arXiv 2307.08691, section 4.1).

    MLA in its prefill form works on (nope + rope) wide keys and on values: 2·(nope + rope + value) a head.
    """
    if model.latent:
        return 2 * model.heads * (model.latent.nope_dim + model.latent.rope_dim + model.latent.value_dim)
    return 4 * model.heads * model.head_dim


def communication_s(where: Deployment, tokens: float) -> float:
    """All-reduces after attention and MLP; with attention data parallelism the experts' dispatch and combine instead.

    Megatron-LM (arXiv 1909.08053, section 3): two all-reduces of n·h a layer. DeepSeek-V3 (arXiv 2412.19437,
    section 3.4): dispatch in FP8 and combine in bf16, once for each of a token's experts.
    """
    model, split = where.model, where.parallel
    one = all_reduce_s(tokens * model.hidden * ACTIVATION_BYTES, split.tensor, where.device, where.shares)
    if split.data == 1 or model.experts is None:
        return 2 * model.layers * one
    sent = tokens / split.tensor * model.hidden * min(model.experts.chosen, split.ranks)
    dispatch = all_to_all_s(sent, split.ranks, where.device, where.shares)
    combine = all_to_all_s(sent * ACTIVATION_BYTES, split.ranks, where.device, where.shares)
    return (model.layers + model.dense_layers) * one + model.expert_layers * (dispatch + combine)


def activation_bytes(where: Deployment) -> float:
    """Hidden states that one token moves between kernels on one GPU: tensor parallelism does not divide them."""
    model, split = where.model, where.parallel
    moves = float(model.layers * HIDDEN_MOVES)
    if model.experts:
        moves += model.expert_layers * EXPERT_MOVES * model.experts.chosen / split.expert * split.data
    return moves * model.hidden * ACTIVATION_BYTES


def kernels(where: Deployment) -> int:
    """Kernels of one pass over all layers."""
    model = where.model
    recurrent = model.recurrent.layers if model.recurrent else 0
    mixer = LATENT_KERNELS if model.latent else GQA_KERNELS
    shared = bool(model.experts and model.experts.shared_width)
    mlp = model.dense_layers * DENSE_KERNELS + model.expert_layers * (EXPERT_KERNELS + shared * DENSE_KERNELS)
    return model.attention_layers * mixer + recurrent * RECURRENT_KERNELS + mlp + quantising_kernels(where)


def prompt_kernels(where: Deployment) -> int:
    """Kernels of one pass with prompts: MLA expands its latent, and a delta-net works chunk by chunk."""
    latent = where.model.attention_layers * EXPANDING_KERNELS if where.model.latent else 0
    recurrent = where.model.recurrent.layers * CHUNKING_KERNELS if where.model.recurrent else 0
    return kernels(where) + latent + recurrent


def quantising_kernels(where: Deployment) -> int:
    """One for each block-scaled product: two of attention and two of an MLP a layer."""
    model = where.model
    if model.experts is None:
        return 0
    linear = 2 * model.layers * (where.precision.linear in QUANTISED)
    return linear + 2 * model.expert_layers * (where.precision.experts in QUANTISED)
