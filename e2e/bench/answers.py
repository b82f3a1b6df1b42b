"""What other simulators and papers answer: the expected figures of `make bench-published`, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Triple = tuple[float, float, float]  # p50, p90, p99


@dataclass(frozen=True, slots=True)
class Answer:
    """splitwise-sim's percentiles of one run. Milliseconds, E2E in seconds."""

    ttft_ms: Triple
    tbt_ms: Triple
    e2e_s: Triple


# splitwise-sim 8f99e7d run on the same inputs (trace, model, machines): its own output, to the digits printed here.
S1: Final = Answer((164, 412, 686), (46.1, 53.8, 65.2), (6.28, 20.50, 28.72))
S2: Final = Answer((132, 387, 659), (35.4, 35.7, 36.5), (4.77, 15.23, 21.73))
S3: Final = Answer((103, 235, 408), (41.5, 47.3, 56.3), (5.47, 18.18, 25.33))
S5_COLOCATED: Final = Answer((130, 501, 773), (31.4, 52.3, 103), (0.700, 2.46, 10.8))
S5_SPLIT: Final = Answer((102, 481, 748), (31.5, 34.9, 41.5), (0.616, 1.97, 8.47))
S6_COLOCATED: Final = Answer((99, 247, 434), (35.7, 44.4, 57.8), (5.03, 15.8, 22.7))
S6_SPLIT: Final = Answer((80, 321, 492), (31.0, 31.6, 37.4), (4.15, 13.3, 18.9))
PERCENTILE_SHARES: Final = (0.02, 0.02, 0.05)
# TBT slowdown at p90 by rate, BLOOM conversation: 40 colocated machines, 25 + 15 split ones (the same simulator).
KNEE: Final = {70: (1.09, 0.74), 90: (1.24, 0.74), 110: (1.42, 0.74)}
# simdistserve 82831f1 on the conversation trace cut to 1500/500 tokens, arrivals 4 times slower, OPT-13B; milliseconds.
DISTSERVE: Final = {"1P+1D": ((136, 192, 371), (29.8, 34.9, 40.2)), "vLLM": ((204, 331, 568), (48.4, 64.5, 82.5))}
# Splitwise (ISCA'24), abstract: "up to" these; at the same power, the first for 20 % less money.
OVER_H100, PRICE_OVER_H100, OVER_A100 = 1.4, 0.8, 2.35


@dataclass(frozen=True, slots=True)
class Reuse:
    """Mooncake's figures for one trace."""

    unbounded: float  # share of blocks, counted on the published file
    of_maximum: float  # with the DRAM of one node (FAST'25, figure 9, counted on the published file)
    global_over_local: float  # hit rate (figure 10)
    prefill_time: float  # global over local (figure 10)
    saved: tuple[float, float]  # KV traffic that 4 full and 16 unbounded decode workers save (counted)


MOONCAKE: Final = {
    "conversation": Reuse(0.3664, 0.37, 2.22, 0.76, (0.24, 0.37)),
    "synthetic": Reuse(0.6396, 0.48, 2.36, 0.52, (0.47, 0.65)),
}
BREAK_EVEN: Final = {"8×A800": (312e12, 5.9), "8×H800": (989e12, 18.6)}  # FLOP/s of a device, GB/s (equation 2)
