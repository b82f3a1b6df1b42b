"""What every engine's file gives: the program that a worker's container runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem_operator.api.engines import ENGINES

if TYPE_CHECKING:
    from tandem_operator.api.spec import Spec

OWN_ADDRESS = "$(POD_IP)"  # filled in by the kubelet


@dataclass(frozen=True, slots=True)
class Program:
    """A worker's command line, its environment beside what every worker has, its second port and its probes."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    kv_port: int
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/health"  # can serve
    alive: str = "/health"


def flags(options: Mapping[str, object]) -> tuple[str, ...]:
    """`--name value` of each option that has a value; True is the bare option, False and None are left out."""
    words: list[str] = []
    for name, value in options.items():
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words += [name, str(value)]
    return tuple(words)


def degree(ranks: int) -> int | None:
    """A degree of parallelism as an option's value; 1 is every engine's default and goes without saying."""
    return ranks if ranks > 1 else None


def batch(spec: Spec) -> dict[str, object]:
    """The engine's option for requests at once, unless spec.engine.args has it."""
    ability = ENGINES[spec.engine.name]
    given = any(arg.split("=", 1)[0] == ability.batch_option for arg in spec.engine.args)
    return {} if given else {ability.batch_option: ability.batch}
