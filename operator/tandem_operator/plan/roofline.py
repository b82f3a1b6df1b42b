"""The prior: what a worker should cost, from its data sheet and the model's shape; calibration corrects it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem_operator.plan.facts import Device, ModelShape

# Shares of the data sheet's peak that engines reach (reference figures: MFU 0.45-0.6, MBU about 0.8).
PREFILL_MFU = 0.5
DECODE_MBU = 0.8
# Large transfers reach about 60 % of a link's line rate at 0.8 GB; small ones less.
LINK_SHARE = 0.6
# Kernel launches, scheduling and sampling of one forward pass.
PASS_FLOOR_S = 0.002
# What weights and KV cache may use of a device's memory; the rest is activations and fragmentation.
MEMORY_SHARE = 0.9


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

    def prefill_parts(self, prompt_tokens: float) -> Parts:
        """Seconds of one prompt's prefill: weights read once, linear layers, attention.

        (2·P·n + 2·L·d·n²) / (peak·MFU), the usual FLOP count with causal attention (half of 4·L·d·n²), and one pass
        over the weights, which dominates short prompts.
        """
        return self.pass_s, self.token_s * prompt_tokens, self.pair_s * prompt_tokens**2

    def step_parts(self, batch: float, context_tokens: float) -> Parts:
        """Seconds of one decode step: weights read once, linear layers of the batch, reading the batch's KV.

        floor + W/(BW·MBU) + B·2·P/(peak·MFU) + B·ctx·kv/(BW·MBU): memory and compute are added, not overlapped;
        the sum is at most twice the maximum, and calibration takes the rest.
        """
        return self.pass_s, batch * self.token_s, batch * context_tokens * self.context_token_s


def kv_bytes_per_token(model: ModelShape) -> int:
    """KV cache of one token, in bytes, over all layers and ranks.

    2 (K and V) x layers x KV heads x head_dim x element size (vLLM, SOSP'23, section 3, with KV heads for
    GQA). Llama-3.1-70B, bf16: 327,680 B.
    """
    return 2 * model.layers * model.kv_heads * model.head_dim * model.element_bytes


def prior_of(device: Device, gpus: int, model: ModelShape) -> Prior:
    """The roofline of one worker that spans `gpus` devices (tensor parallel: FLOP/s, bytes/s and memory add up)."""
    flops = device.flops * gpus * PREFILL_MFU
    bandwidth = device.bandwidth * gpus * DECODE_MBU
    weights = model.parameters * model.element_bytes
    kv = kv_bytes_per_token(model)
    return Prior(
        pass_s=PASS_FLOOR_S + weights / bandwidth,
        token_s=2 * model.parameters / flops,
        pair_s=2 * model.layers * model.heads * model.head_dim / flops,
        context_token_s=kv / bandwidth,
        transfer_token_s=kv / (device.link * gpus * LINK_SHARE),
        kv_room_tokens=max(0.0, (device.memory_bytes * gpus * MEMORY_SHARE - weights) / kv),
    )
