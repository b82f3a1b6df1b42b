"""What moving bytes between GPUs and workers costs: all-reduce, all-to-all, and a transfer over a link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.plan.performance.efficiency import Efficiency

# A link reaches half of its best rate at this message size: what is in flight during one round trip of RDMA set-up and
# completion (n-half of the latency-bandwidth model: Hockney, Parallel Computing 20 (1994), section 2).
HALF_BYTES: Final = 1e6
# Best share of a NIC's line rate for large messages (NVIDIA perftest figures are 0.95; a real pool reaches less).
LINK_SHARE: Final = 0.9
SCALE_UP_SHARE: Final = 0.8  # of NVLink's rate in one direction (nccl-tests bus bandwidth on HGX H100: 360 of 450 GB/s)


def link_efficiency(message_bytes: float) -> float:
    """The share of its line rate that a link reaches with messages of this size: best · n / (n + n½).

    Hockney's model, T = latency + n/rate, written as an efficiency; 1 MB reaches half of the best.
    """
    return LINK_SHARE * message_bytes / (message_bytes + HALF_BYTES)


def transfer_s(total_bytes: float, message_bytes: float, link: float) -> float:
    """Seconds that `total_bytes` in messages of `message_bytes` need over a link of `link` bytes/s; 0 for nothing."""
    if total_bytes <= 0:
        return 0.0
    return total_bytes / (link * link_efficiency(min(message_bytes, total_bytes)))


def group_link(device: Accelerator, ranks: int) -> float:
    """Bytes/s in one direction of each GPU inside a group: NVLink within a domain, else the network."""
    return device.scale_up * SCALE_UP_SHARE if ranks <= device.domain and device.scale_up else device.link


def group_latency(device: Accelerator, ranks: int, shares: Efficiency) -> float:
    """Seconds of one small collective in a group of `ranks`."""
    return shares.reduce_s if ranks <= device.domain and device.scale_up else shares.network_reduce_s


def all_reduce_s(tensor_bytes: float, ranks: int, device: Accelerator, shares: Efficiency) -> float:
    """Seconds of an all-reduce: latency + 2·(n-1)/n · bytes / link (Rabenseifner, ICCS 2004, section 2.3)."""
    if ranks <= 1:
        return 0.0
    volume = 2 * (ranks - 1) / ranks * tensor_bytes
    return group_latency(device, ranks, shares) + volume / group_link(device, ranks)


def all_to_all_s(rank_bytes: float, ranks: int, device: Accelerator, shares: Efficiency) -> float:
    """Seconds of an all-to-all in which each rank sends `rank_bytes`: latency + (n-1)/n · bytes / link."""
    if ranks <= 1:
        return 0.0
    return group_latency(device, ranks, shares) + (ranks - 1) / ranks * rank_bytes / group_link(device, ranks)
