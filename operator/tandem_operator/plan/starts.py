"""How long a new replica takes until it serves: as seen, else by the size of its model.

A guess stands in where no worker that runs tells a start: all of them began anew since, or are not ready yet. Without
one, a pool whose workers had all been restarted once was scaled after the fact for as long as they lived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tandem_operator.plan.facts import ModelShape, Observed

# A network file system or a hub, through one 10 Gb/s card; a node's own disk is a few times faster. Better too slow:
# ordered too early, a replica costs some minutes; ordered too late, the targets are missed for as long.
LOAD_BYTES_PER_S: Final = 1e9
BEGIN_S: Final = 60.0  # a node that has the image: the process, its graphs and probes


def expected_start_s(seen: Observed) -> float | None:
    """Seconds from a new replica's creation until it serves; None: neither a start nor the model is known."""
    if seen.start_s is not None:
        return seen.start_s
    return None if seen.model is None else guessed_start_s(seen.model)


def guessed_start_s(model: ModelShape) -> float:
    """By the weights' bytes; ranks that load a share each share the same card."""
    return BEGIN_S + model.parameters * model.element_bytes / LOAD_BYTES_PER_S
