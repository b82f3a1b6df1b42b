"""The prior: what a worker should cost, from its data sheet and the model's shape; calibration corrects it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

from tandem_operator.api.catalogue import CATALOGUE, Accelerator
from tandem_operator.plan.performance import kv
from tandem_operator.plan.performance.collectives import link_efficiency
from tandem_operator.plan.performance.config import ModelConfig
from tandem_operator.plan.performance.costs import costs_of
from tandem_operator.plan.performance.deployment import Deployment, room_tokens
from tandem_operator.plan.performance.engine import ENGINES
from tandem_operator.plan.performance.parallel import Parallelism
from tandem_operator.plan.performance.precision import Precision
from tandem_operator.plan.performance.weights import attention_parameters
from tandem_operator.plan.sparse import Sparse, sparse_of

if TYPE_CHECKING:
    from tandem_operator.plan.facts import Device, ModelShape

# Tokens whose KV travels in one message: a chunk of a prompt.
MESSAGE_TOKENS: Final = 256
# Accelerators that a fast link joins, where the catalogue does not know the device: those of the usual server.
OWN_SERVER: Final = 8
# Stored bytes of an element -> a format with as many.
_STORED: Final = {1: "float8_e4m3", 2: "bfloat16", 4: "float32"}

Costing = TypeVar("Costing", "Prior", Sparse)
# A cost's three parts, in seconds by the data sheet; calibration finds a factor for each.
Parts = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Prior:
    """One worker's costs by the data sheet. Seconds, bytes and tokens; `pass_s` is paid once a forward pass."""

    pass_s: float  # floor + reading all weights
    token_s: float  # compute of one token's linear layers
    pair_s: float  # attention compute of one (query, key) pair
    context_token_s: float  # reading one context token's KV in a decode step
    transfer_token_s: float  # moving one token's KV over the link
    kv_room_tokens: float  # tokens of KV that fit beside the weights; 0: the model does not fit
    sparse: Sparse | None = None  # what a pass touches only in part; None: a plain dense decoder

    def prefill_parts(self, prompt_tokens: float) -> Parts:
        """Seconds of one prompt's prefill: weights read once, linear layers, attention.

        (2·P·n + 2·L·d·n²) / (peak·MFU), the usual FLOP count with causal attention (half of 4·L·d·n²), and one pass
        over the weights, which dominates short prompts.
        """
        dense = self.pass_s, self.token_s * prompt_tokens, self.pair_s * prompt_tokens**2
        return dense if self.sparse is None else both(dense, self.sparse.prompt(prompt_tokens))

    def step_parts(self, batch: float, context_tokens: float) -> Parts:
        """Seconds of one decode step: weights read once, linear layers of the batch, reading the batch's KV.

        floor + W/(BW·MBU) + B·2·P/(peak·MFU) + B·ctx·kv/(BW·MBU): memory and compute are added, not overlapped;
        the sum is at most twice the maximum, and calibration takes the rest.
        """
        if self.sparse is None:
            return self.pass_s, batch * self.token_s, batch * context_tokens * self.context_token_s
        seen = self.sparse.seen(context_tokens)
        dense = self.pass_s, batch * self.token_s, batch * seen * self.context_token_s
        return both(dense, self.sparse.step(batch, context_tokens))


def both(dense: Parts, sparse: Parts) -> Parts:
    """Part by part: reading weights, linear layers, attention."""
    return dense[0] + sparse[0], dense[1] + sparse[1], dense[2] + sparse[2]


def slowed(prior: Prior, factor: float) -> Prior:
    """The same worker if everything took `factor` times as long; its memory stays."""
    return weighed([(factor, prior)])


def weighed(priors: Sequence[tuple[float, Prior]]) -> Prior:
    """The weighed sum of all times; what is no time (room, windows, experts) is the first one's."""
    sparse = [(weight, prior.sparse) for weight, prior in priors if prior.sparse]
    return replace(_times(priors), sparse=_times(sparse) if sparse else None)


def _times(weighted: Sequence[tuple[float, Costing]]) -> Costing:
    names = [f.name for f in fields(weighted[0][1]) if f.name.endswith("_s")]
    return replace(weighted[0][1], **{n: sum(weight * getattr(one, n) for weight, one in weighted) for n in names})


def kv_bytes_per_token(model: ModelShape) -> int:
    """KV cache of one token, in bytes, over all layers and ranks; see performance.kv.token_bytes."""
    return round(kv.token_bytes(config_of(model), stored_as(model)))


@lru_cache(maxsize=1024)
def prior_of(device: Device, gpus: int, model: ModelShape, spread: Parallelism | None = None) -> Prior:
    """The roofline of one worker of `gpus` devices, from the performance model's unit costs; `spread`: None, by tensor.

    A step's parts are added where the performance model takes the slower of computing and reading the weights: the sum
    is at most twice the maximum, and calibration takes the rest.
    Stages that follow each other work on as many micro-batches, and replicas of the attention on as many requests, at
    once: what a token costs is shared among them, and a pass over all weights is not (GPipe, arXiv 1811.06965, without
    its bubbles). So a worker's throughput is right; a lone prompt behind replicas takes longer than is said.
    """
    split = spread or Parallelism(tensor=gpus)
    where = Deployment(config_of(model), hardware_of(device, model), precision_of(model), split)
    costs, lanes = costs_of(where), split.pipeline * split.data
    token_bytes = kv.token_bytes(where.model, where.precision.kv)
    link = device.measured_link or device.link * gpus * link_efficiency(MESSAGE_TOKENS * token_bytes / gpus)
    return Prior(
        pass_s=ENGINES["tandem"].step_s + costs.floor_s + costs.latency_s + costs.linear.read_s + costs.head.read_s,
        token_s=(costs.linear.token_s + costs.activation_s + costs.message_s) / lanes,
        pair_s=costs.pair_s / 2 / lanes,
        context_token_s=costs.context_s / lanes,
        transfer_token_s=token_bytes / link,
        kv_room_tokens=room_tokens(where) * split.data,
        sparse=sparse_of(costs, lanes, split.pipeline),
    )


def stored_as(model: ModelShape) -> str:
    """A format with the element size that the workers report."""
    return _STORED.get(model.element_bytes, "bfloat16")


def precision_of(model: ModelShape) -> Precision:
    """Weights and KV of one format: workers report one element size."""
    stored = stored_as(model)
    return Precision(stored, stored, stored)


def config_of(model: ModelShape) -> ModelConfig:
    """The performance model's config: what attention and vocabulary leave of the parameters is dense MLPs.

    Embeddings count once where two would be more than a quarter of the model: such small models tie them. A shape that
    carries its config is that config.
    """
    if model.config is not None:
        return model.config
    embedding = model.vocab * model.hidden_size
    tied = 2 * embedding > model.parameters / 4
    base = ModelConfig(
        model.layers,
        model.hidden_size,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.vocab,
        dense_layers=model.layers,
        dense_width=0,
        tied=tied,
    )
    rest = model.parameters - embedding * (1 if tied else 2) - model.layers * attention_parameters(base)
    width = max(rest, 0) // (3 * model.hidden_size * model.layers)
    return replace(base, dense_width=width)


def hardware_of(device: Device, model: ModelShape) -> Accelerator:
    """The device as the performance model wants it; what it leaves out is the built-in catalogue's of that name."""
    known = CATALOGUE.get(device.name)
    return Accelerator(
        device.name,
        {"bfloat16": device.flops, stored_as(model): device.flops},
        device.memory_bytes,
        device.bandwidth,
        device.link,
        watts=known.watts if known else 0.0,
        price_per_hour=device.price_per_hour,
        scale_up=device.scale_up or (known.scale_up if known else 0.0),
        domain=device.domain or (known.domain if known else OWN_SERVER if device.scale_up else 1),
        generation=device.generation or (known.generation if known else ""),
    )
