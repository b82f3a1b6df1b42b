"""The Splitwise paper's clusters of equal power and cost, and how much load each carries within its SLO."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tandem_operator.simulate.published.inputs import poisson
from tandem_operator.simulate.published.slowdown import Summary, slowdown
from tandem_operator.simulate.published.splitwise import Fleet, Link, Shape, colocated, simulate, split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tandem_operator.simulate.published.costs import Costs
    from tandem_operator.simulate.published.inputs import Arrivals

A100: Final = "a100-80gb"
H100: Final = "h100-80gb"
CAPPED: Final = "h100-80gb-pcap"
PRIVATE: Final = Link()


@dataclass(frozen=True, slots=True)
class Machines:
    """One kind in its role. Price and power in splitwise-sim's units (notebooks/utils.py); only ratios matter."""

    hardware: str
    count: int

    @property
    def price(self) -> float:
        """Per hour."""
        return self.count * (2.21 if self.hardware == A100 else 4.76)

    @property
    def power(self) -> float:
        """Provisioned; a capped H100 machine is credited with 70 %."""
        return self.count * {A100: 24.8, H100: 44.0, CAPPED: 44.0 * 0.7}[self.hardware]


@dataclass(frozen=True, slots=True)
class Design:
    """A cluster of the paper. prompt None: colocated."""

    name: str
    prompt: Machines | None
    decode: Machines

    @property
    def price(self) -> float:
        """Of all machines."""
        return self.decode.price + (self.prompt.price if self.prompt else 0)

    @property
    def power(self) -> float:
        """Of all machines."""
        return self.decode.power + (self.prompt.power if self.prompt else 0)

    @property
    def counts(self) -> str:
        """As the paper writes them."""
        return f"{self.prompt.count}P+{self.decode.count}D" if self.prompt else str(self.decode.count)

    def moved(self, count: int) -> Design | None:
        """With so many machines more in the prompt pool; None where the pools differ or one would be empty."""
        if self.prompt is None or self.prompt.hardware != self.decode.hardware:
            return None
        prompts, decodes = self.prompt.count + count, self.decode.count - count
        if min(prompts, decodes) < 1:
            return None
        hardware = self.prompt.hardware
        return replace(self, prompt=Machines(hardware, prompts), decode=Machines(hardware, decodes))

    def fleet(self, costs: Mapping[str, Costs]) -> Fleet:
        """Its machines with these costs by hardware."""
        decode = costs[self.decode.hardware]
        if self.prompt is None:
            return colocated(decode, self.decode.count)
        return split(costs[self.prompt.hardware], self.prompt.count, decode, self.decode.count)


# Equal power, conversation trace (notebooks/plots.ipynb; the paper's figure 16 and table VII).
BASELINE_A100: Final = Design("Baseline-A100", None, Machines(A100, 70))
BASELINE_H100: Final = Design("Baseline-H100", None, Machines(H100, 40))
SPLITWISE_AA: Final = Design("Splitwise-AA", Machines(A100, 45), Machines(A100, 25))
SPLITWISE_HH: Final = Design("Splitwise-HH", Machines(H100, 25), Machines(H100, 15))
SPLITWISE_HA: Final = Design("Splitwise-HA", Machines(H100, 25), Machines(A100, 26))
SPLITWISE_HHCAP: Final = Design("Splitwise-HHcap", Machines(H100, 25), Machines(CAPPED, 21))
CONVERSATION: Final = (BASELINE_A100, BASELINE_H100, SPLITWISE_AA, SPLITWISE_HH, SPLITWISE_HA, SPLITWISE_HHCAP)
# The same for the code trace.
CODE: Final = (
    BASELINE_A100,
    BASELINE_H100,
    Design("Splitwise-AA", Machines(A100, 55), Machines(A100, 15)),
    Design("Splitwise-HH", Machines(H100, 35), Machines(H100, 5)),
    Design("Splitwise-HA", Machines(H100, 35), Machines(A100, 8)),
    Design("Splitwise-HHcap", Machines(H100, 35), Machines(CAPPED, 7)),
)
DESIGNS: Final[Mapping[str, Sequence[Design]]] = {"code": CODE, "conv": CONVERSATION}  # by Azure's trace


@dataclass(frozen=True, slots=True)
class Rules:
    """What a run takes for true."""

    name: str
    shape: Shape
    costs: Mapping[str, Costs]  # by hardware
    link: Link = PRIVATE

    def meets_slo(self, design: Design, arrivals: Arrivals) -> bool:
        """Does the cluster carry this load within the paper's SLO, against an idle A100 machine under these rules?

        A load whose first quarter misses the limits at p50 is refused without playing the rest.
        """
        early = arrivals.first(-(-len(arrivals) // 4))
        return self._judge(design, early).meets(1) and self._judge(design, arrivals).meets_slo

    def _judge(self, design: Design, arrivals: Arrivals) -> Summary:
        answers = simulate(design.fleet(self.costs), self.shape, arrivals, self.link)
        return slowdown(answers, self.costs[A100])


def highest_rate(
    rules: Rules, design: Design, azure: Arrivals, rates: Sequence[int], seconds: float, near: int | None = None
) -> int | None:
    """The highest of these rates (requests/s, rising) within the SLO; None: not even the first.

    A bisection; `near`: a rate that the answer is expected to be close to, which spares most of its runs.
    """

    def carries(index: int) -> bool:
        return rules.meets_slo(design, poisson(azure, rates[index], seconds))

    low, high = -1, len(rates)
    middle, stride = (low + high) // 2, len(rates)
    if near is not None and near in rates:
        middle, stride = rates.index(near), 1
    while high - low > 1:
        if carries(middle):
            low, ahead = middle, middle + stride
        else:
            high, ahead = middle, middle - stride
        # Ever longer strides until the answer lies between two of them; then halves.
        stride *= 2
        middle = ahead if low < ahead < high else (low + high) // 2
    return None if low < 0 else rates[low]


def best_split(
    rules: Rules, design: Design, azure: Arrivals, rates: Sequence[int], seconds: float, near: int | None = None
) -> tuple[Design, int | None]:
    """The same machines split so that they carry the most, and that rate: a seventh of them changes pool at a time.

    The paper chose its splits by its own costs; other costs have other best splits.
    """
    rate = highest_rate(rules, design, azure, rates, seconds, near)
    machines = design.decode.count + (design.prompt.count if design.prompt else 0)
    for step in (-(machines // 7), machines // 7):
        while (moved := design.moved(step)) is not None:
            above = next((r for r in rates if r > (rate or 0)), None)
            if above is None or not rules.meets_slo(moved, poisson(azure, above, seconds)):
                break
            design, rate = moved, highest_rate(rules, moved, azure, rates, seconds, above)
    return design, rate
