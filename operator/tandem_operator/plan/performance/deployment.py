"""A model on GPUs of one kind, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tandem_operator.plan.performance import kv, weights
from tandem_operator.plan.performance.efficiency import Efficiency, efficiency_of
from tandem_operator.plan.performance.precision import BYTES

if TYPE_CHECKING:
    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.plan.performance.config import ModelConfig
    from tandem_operator.plan.performance.parallel import Parallelism
    from tandem_operator.plan.performance.precision import Precision

MEMORY_SHARE: Final = 0.9  # of a GPU's memory for weights and KV (default of vLLM's gpu_memory_utilization)
WORKSPACE_SHARE: Final = 0.05  # of all memory: activations, CUDA graphs and communication buffers


@dataclass(frozen=True, slots=True)
class Deployment:
    """One worker: a model, its number formats, and how it is spread over GPUs."""

    model: ModelConfig
    device: Accelerator
    precision: Precision
    parallel: Parallelism

    @property
    def shares(self) -> Efficiency:
        """Efficiency of the device's generation."""
        return efficiency_of(self.device.generation)


def weight_bytes(where: Deployment) -> float:
    """Weights on one GPU, in bytes; embeddings and output projection stay bf16."""
    model, split = where.model, where.parallel
    linear = (weights.mixer_parameters(model) + weights.dense_parameters(model)) / split.tensor
    head = weights.head_parameters(model) * (1 if model.tied else 2) / split.tensor
    routed = weights.routed_parameters(model) / (split.expert * split.experts_split)
    stored = linear * BYTES[where.precision.linear] + routed * BYTES[where.precision.experts]
    return (stored + head * BYTES["bfloat16"]) / split.pipeline


def room_tokens(where: Deployment, memory_share: float = MEMORY_SHARE, *, of_free: bool = False) -> float:
    """Tokens of KV that fit on one attention rank beside the weights; 0: the model does not fit.

    `memory_share` is of all memory, weights within it, or of what weights leave free.
    """
    each = kv.token_bytes(where.model, where.precision.kv) * kv.rank_share(where.model, where.parallel.tensor)
    total = where.device.memory_bytes
    used = total * WORKSPACE_SHARE + weight_bytes(where)
    free = (total - used) * memory_share if of_free else total * memory_share - used
    return max(0.0, free / (each / where.parallel.pipeline))
