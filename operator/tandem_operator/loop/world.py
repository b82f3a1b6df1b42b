"""All that a pass may touch, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tandem_operator.api.catalogue import CATALOGUE
from tandem_operator.loop.neighbours import Neighbours

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tandem_operator.api.catalogue import Accelerator
    from tandem_operator.api.v1alpha1 import DisaggregatedInference
    from tandem_operator.edges.kube import Kube
    from tandem_operator.loop.cache import Cache, Key
    from tandem_operator.loop.fleet import Fleet, Subject
    from tandem_operator.loop.growth import Heard
    from tandem_operator.loop.metrics import Metrics
    from tandem_operator.loop.queue import Queue
    from tandem_operator.loop.record import Recorder
    from tandem_operator.loop.refs import Ref
    from tandem_operator.loop.settings import Settings
    from tandem_operator.plan.claims import Cap


@dataclass(slots=True)
class World:
    """The API server, what the watches showed, Prometheus' figures, and where passes are asked for and written down."""

    settings: Settings
    kube: Kube
    cache: Cache
    fleet: Fleet
    queue: Queue
    recorder: Recorder
    metrics: Metrics
    catalogue: Mapping[str, Accelerator] = field(default_factory=lambda: CATALOGUE)
    caps: dict[Ref, Cap] = field(default_factory=dict)  # by the last sharing of the fleet's budget
    rooms: dict[Ref, tuple[int, Cap]] = field(default_factory=dict)  # what quotas leave, by the number of the look
    absent: set[str] = field(default_factory=set)  # optional kinds that the cluster does not serve
    # Only to save work: a process that forgets them asks once more.
    keys_made: set[tuple[str, str]] = field(default_factory=set)  # uids, and the transfer keys' names that are there
    asked: dict[Ref, int] = field(default_factory=dict)  # number of the look that the planner judged last
    parsed: dict[Ref, tuple[str, DisaggregatedInference]] = field(default_factory=dict)  # by version, as last read
    subjects: dict[Ref, tuple[str, Subject | None]] = field(default_factory=dict)  # by generation, as last read
    stays: dict[Ref, dict[Key, object]] = field(default_factory=dict)  # children that no apply makes quite as wanted
    told: dict[Ref, tuple[object, object]] = field(default_factory=dict)  # a status as applied, and what came of it
    carried: dict[Ref, object] = field(default_factory=dict)  # what all steps were last found done for (carry_out)
    heard: dict[Ref, Heard] = field(default_factory=dict)  # of autoscalers, while pods find no node
    left: set[Ref] = field(default_factory=set)  # resources of which an event said that another operator has them
    neighbours: Neighbours | None = field(init=False)  # of a cluster-wide operator: who works beside it

    def __post_init__(self) -> None:
        """Whoever watches one namespace has its Lease, and needs to look at nobody's."""
        near = bool(self.settings.namespace)
        self.neighbours = None if near else Neighbours(self.kube, self.settings.lease_namespace)
