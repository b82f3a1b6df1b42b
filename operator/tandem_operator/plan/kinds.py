"""Kinds of worker that a plan may be made of: so many equal GPUs under tensor parallelism, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from tandem_operator.plan.roofline import Prior, prior_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tandem_operator.plan.facts import Device, ModelShape

DEGREES = (1, 2, 4, 8)  # GPUs of one worker; eight are one server's
GIGABYTE = 1e9


class NoFitError(ValueError):
    """No GPU that was offered can hold the model; the message names the least that would."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of worker: `gpus` of one device, with the costs that the prior gives it."""

    device: Device
    gpus: int
    prior: Prior

    @property
    def name(self) -> str:
        """`4 × h100-sxm`."""
        return f"{self.gpus} × {self.device.name}" if self.gpus > 1 else self.device.name

    @property
    def price_per_hour(self) -> float:
        """USD an hour of one worker; 0: not known."""
        return self.gpus * self.device.price_per_hour


def slowed(prior: Prior, factor: float) -> Prior:
    """The same worker if everything took `factor` times as long; its memory stays."""
    times = {f.name: factor * getattr(prior, f.name) for f in fields(prior) if f.name.endswith("_s")}
    return replace(prior, **times)


def kinds_of(devices: Sequence[Device], model: ModelShape, longest_tokens: float) -> tuple[Kind, ...]:
    """Every kind that holds the weights and the KV of one long request.

    Raises NoFitError with the smallest number of GPUs that would do, where none does.
    """
    every = [k for device in devices for k in of_device(device, model, DEGREES)]
    fitting = tuple(k for k in every if k.prior.kv_room_tokens >= longest_tokens)
    if not fitting:
        raise NoFitError(no_fit_words(devices, model, longest_tokens))
    return fitting


def of_device(device: Device, model: ModelShape, degrees: Iterable[int]) -> list[Kind]:
    """The kinds of one device whose ranks can share the attention heads evenly."""
    return [Kind(device, n, prior_of(device, n, model)) for n in degrees if model.heads % n == 0]


def no_fit_words(devices: Sequence[Device], model: ModelShape, longest_tokens: float) -> str:
    """What does not fit where, and what would."""
    weights = model.parameters * model.element_bytes / GIGABYTE
    biggest = max(devices, key=lambda d: d.memory_bytes)
    have = biggest.memory_bytes * DEGREES[-1] / GIGABYTE
    words = (
        f"the model's weights ({weights:,.0f} GB) and the KV of one request of {longest_tokens:,.0f} tokens do not fit "
        f"on {DEGREES[-1]} × {biggest.name} ({have:,.0f} GB)"
    )
    more = of_device(biggest, model, (DEGREES[-1] * 2**n for n in range(1, 5)))
    needed = next((k for k in more if k.prior.kv_room_tokens >= longest_tokens), None)
    if needed is None:
        return f"{words}, nor on {DEGREES[-1] * 16} of them; take a smaller model, a smaller dtype or other GPUs"
    return f"{words}; {needed.name} would hold them, or GPUs with more memory"


def smallest_fit(kinds: Iterable[Kind]) -> dict[str, int]:
    """By device: the fewest GPUs that hold the model."""
    found: dict[str, int] = {}
    for kind in kinds:
        found[kind.device.name] = min(kind.gpus, found.get(kind.device.name, kind.gpus))
    return found
