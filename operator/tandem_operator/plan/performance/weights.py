"""Weights: how many there are by part, and how many bytes a pass must read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tandem_operator.plan.performance.config import Experts, Latent, ModelConfig, Recurrent


class Routed(Protocol):
    """Whatever knows how many experts there are and how many a token takes."""

    @property
    def total(self) -> int:
        """Routed experts of a layer."""

    @property
    def chosen(self) -> int:
        """Experts that one token takes."""


def attention_parameters(model: ModelConfig) -> int:
    """Of one layer with a KV cache: query, key, value and output projections (GQA: arXiv 2305.13245, section 2).

    h·a·d + 2·h·kv·d + a·d·h; an output gate doubles the queries. Llama-3.1-70B: 150,994,944.
    """
    if model.latent:
        return latent_parameters(model, model.latent)
    queries = model.heads * model.head_dim
    return model.hidden * (queries * (2 + model.gated) + 2 * model.kv_heads * model.head_dim)


def latent_parameters(model: ModelConfig, latent: Latent) -> int:
    """Of one MLA layer: down and up projections of queries and of keys and values (arXiv 2405.04434, section 2.1)."""
    per_head = latent.nope_dim + latent.rope_dim
    queries = (
        latent.query_rank * (model.hidden + model.heads * per_head)
        if latent.query_rank
        else model.hidden * model.heads * per_head
    )
    keys = model.hidden * (latent.kv_rank + latent.rope_dim)
    up = latent.kv_rank * model.heads * (latent.nope_dim + latent.value_dim)
    return queries + keys + up + model.heads * latent.value_dim * model.hidden


def recurrent_parameters(model: ModelConfig, recurrent: Recurrent) -> int:
    """Of one gated delta-net layer: query, key, value, gate and output projections (arXiv 2412.06464, section 3)."""
    values = recurrent.value_heads * recurrent.value_dim
    return model.hidden * (2 * recurrent.key_heads * recurrent.key_dim + 3 * values + 2 * recurrent.value_heads)


def mixer_parameters(model: ModelConfig) -> int:
    """Attention and delta-net projections of all layers."""
    total = model.attention_layers * attention_parameters(model)
    if model.recurrent:
        total += model.recurrent.layers * recurrent_parameters(model, model.recurrent)
    return total


def expert_parameters(model: ModelConfig, experts: Experts) -> int:
    """Of one routed expert: gate, up and down projections (SwiGLU, arXiv 2002.05202)."""
    return 3 * model.hidden * experts.width


def dense_parameters(model: ModelConfig) -> int:
    """Dense and shared MLPs and routers of all layers."""
    total = model.dense_layers * 3 * model.hidden * model.dense_width
    if model.experts:
        per_layer = 3 * model.hidden * model.experts.shared_width + model.hidden * model.experts.total
        total += model.expert_layers * per_layer
    return total


def routed_parameters(model: ModelConfig) -> int:
    """All routed experts of all layers."""
    if model.experts is None:
        return 0
    return model.expert_layers * model.experts.total * expert_parameters(model, model.experts)


def head_parameters(model: ModelConfig) -> int:
    """The output projection on the vocabulary."""
    return model.vocab * model.hidden


def total_parameters(model: ModelConfig) -> int:
    """Everything, embeddings included; norms and biases (about 0.01 %) are left out."""
    embeddings = head_parameters(model) * (1 if model.tied else 2)
    return mixer_parameters(model) + dense_parameters(model) + routed_parameters(model) + embeddings


def active_parameters(model: ModelConfig) -> int:
    """What one token's pass multiplies with, output projection included."""
    routed = 0
    if model.experts:
        routed = routed_parameters(model) * model.experts.chosen // model.experts.total
    return mixer_parameters(model) + dense_parameters(model) + routed + head_parameters(model)


def experts_touched(experts: Routed, tokens: float) -> float:
    """Distinct experts that a batch of tokens reads in one layer, by uniform routing: E·(1 - (1 - k/E)^n).

    Each expert is left out by one token with probability 1 - k/E (balls in bins). 8 of 256, 32 tokens: 163.3.
    """
    return float(experts.total * (1 - (1 - experts.chosen / experts.total) ** tokens))
