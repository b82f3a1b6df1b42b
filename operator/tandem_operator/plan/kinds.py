"""Kinds of worker that a plan may be made of: so many equal GPUs under tensor parallelism, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem_operator.plan.roofline import Prior, prior_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tandem_operator.plan.facts import Device, ModelShape

DEGREES = (1, 2, 4, 8)  # GPUs of one worker; eight are one server's
MOST_DOUBLINGS = 7  # 128 GPUs for one worker, in the message about a model that fits on fewer nowhere
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

    @property
    def watts(self) -> float:
        """Power of one worker's GPUs by their data sheet; 0: not known."""
        return self.gpus * self.device.watts

    def cost(self, unit: str) -> float:
        """One worker in `USD` an hour, `W` or `GPUs`."""
        return {"USD": self.price_per_hour, "W": self.watts, "GPUs": float(self.gpus)}[unit]


def kinds_of(
    devices: Sequence[Device], model: ModelShape, longest_tokens: float, degrees: Sequence[int] = DEGREES
) -> tuple[Kind, ...]:
    """Every kind of these degrees that holds the weights and the KV of one long request.

    Raises NoFitError with the smallest number of GPUs that would do, where none does.
    """
    every = [k for device in devices for k in of_device(device, model, degrees)]
    fitting = tuple(k for k in every if k.prior.kv_room_tokens >= longest_tokens)
    if not fitting:
        biggest = max(devices, key=lambda d: d.memory_bytes)
        raise NoFitError(no_fit_words(biggest, degrees[-1], model, longest_tokens))
    return fitting


def of_device(device: Device, model: ModelShape, degrees: Iterable[int]) -> list[Kind]:
    """The kinds of one device whose ranks can share the attention heads evenly."""
    return [Kind(device, n, prior_of(device, n, model)) for n in degrees if model.heads % n == 0]


def no_fit_words(device: Device, gpus: int, model: ModelShape, longest_tokens: float) -> str:
    """What does not fit on so many GPUs, and how many would hold it."""
    weights = model.parameters * model.element_bytes / GIGABYTE
    words = (
        f"the model's weights ({weights:,.0f} GB) and the KV of one request of {longest_tokens:,.0f} tokens do not fit "
        f"on {gpus} × {device.name} ({gpus * device.memory_bytes / GIGABYTE:,.0f} GB)"
    )
    more = of_device(device, model, (2**n for n in range(MOST_DOUBLINGS + 1) if 2**n > gpus))
    needed = next((k for k in more if k.prior.kv_room_tokens >= longest_tokens), None)
    if needed is None:
        return f"{words}, nor on {2**MOST_DOUBLINGS}; take a smaller model, a smaller dtype or other GPUs"
    return f"{words}; {needed.name} would hold them, or GPUs with more memory"
