"""What the planner may know: facts that were observed, each with 'not known' among its values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tandem_operator.api.engines import ENGINES
from tandem_operator.plan.performance.config import ModelConfig
from tandem_operator.plan.performance.parallel import Parallelism

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class Role(StrEnum):
    """What a worker does now; the value of the label `tandem.dev/role`."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class RebalanceMode(StrEnum):
    """May the planner change the ratio (Auto), only say what it would do (Recommend), or neither (Off)?"""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


class Answer(StrEnum):
    """A condition's three statuses."""

    YES = "True"
    NO = "False"
    UNKNOWN = "Unknown"


class Objective(StrEnum):
    """What a cheaper plan saves."""

    PRICE = "Price"
    POWER = "Power"


MAX_BATCH = ENGINES["tandem"].batch


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judgement: an answer, one CamelCase word for alerts, one sentence with numbers for people."""

    answer: Answer
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator as the data sheet gives it."""

    name: str
    flops: float  # peak dense FLOP/s at the model's dtype
    memory_bytes: float
    bandwidth: float  # bytes/s
    link: float  # bytes/s between a prefill and a decode worker
    price_per_hour: float
    watts: float = 0.0  # 0: not known
    measured_link: float | None = None  # bytes/s between two workers as they measured it; None: by the data sheet
    # Of these three 0 and "" stand for what the built-in catalogue has.
    scale_up: float = 0.0  # bytes/s to the others of its server or rack
    domain: int = 0  # how many share that link
    generation: str = ""  # whose kernels it runs


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's sizes, from the workers' `tandem_model_info`.

    `config`: the published one of a model that these sizes alone do not describe (experts, latent or recurrent
    attention, windows); None for a plain dense decoder.
    """

    parameters: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    element_bytes: int
    config: ModelConfig | None = None


# The sizes that workers report, all whole numbers.
SIZES: Final = tuple(name for name in ModelShape.__slots__ if name != "config")


@dataclass(frozen=True, slots=True)
class Slo:
    """`percentile` per cent of the requests meet both targets."""

    ttft_ms: int
    tpot_ms: int
    percentile: int


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """A pool as the resource allows it; replicas in pods, `gpus` per replica, `spread` over them: None, by tensor."""

    name: str
    role: Role
    device: Device
    gpus: int
    minimum: int
    maximum: int
    initial: int
    up_pods: int | None = None  # what one decision may add or remove now; None: as Steadiness says
    down_pods: int | None = None
    spread: Parallelism | None = None


@dataclass(frozen=True, slots=True)
class Steadiness:
    """How soon and how far; seconds and pods (autoscaling/v2 behaviour, reduced to what a planner needs)."""

    up_window_s: int = 30
    down_window_s: int = 300
    up_pods: int = 4
    down_pods: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything of the spec that bounds a decision."""

    slo: Slo
    mode: RebalanceMode
    pools: tuple[PoolLimits, ...]
    min_prefill: int = 1
    min_decode: int = 1
    budget_gpus: int | None = None  # None: only the pools' maxima bound it
    budget_per_device: Mapping[str, int] = field(default_factory=dict)
    role_flips: bool = False
    interval_s: int = 15
    steadiness: Steadiness = field(default_factory=Steadiness)
    max_batch: int = MAX_BATCH  # requests that one decode worker runs at once (`--max-batch`)
    objective: Objective = Objective.PRICE
    chunk_tokens: int | None = None  # of colocated workers, by the engine's arguments; None: they do not tell
    suspended: bool = False
    asleep: bool = False  # suspended, but for the routers, until a request comes


@dataclass(frozen=True, slots=True)
class RoleUse:
    """What the workers of one role did in a window; rates per second, summed over the role's workers."""

    busy: float | None = None  # busy seconds per second: 1.5 = one and a half workers' time
    tokens_rate: float | None = None  # prefill: tokens computed; decode: tokens emitted
    steps_rate: float | None = None  # decode only: steps
    waiting: float | None = None  # requests queued now, over the role
    waiting_tokens: float | None = None  # prefill only


@dataclass(frozen=True, slots=True)
class Window:
    """One look at Prometheus for one resource: figures over the `seconds` before `at`. None = not known."""

    at: datetime
    seconds: int
    arrival_rate: float | None = None  # requests/s that arrived at the router
    request_rate: float | None = None  # requests/s that finished
    prompt_tokens: float | None = None  # mean
    output_tokens: float | None = None  # mean
    ttft_ms: int | None = None  # at slo.percentile
    tpot_ms: int | None = None
    attainment: float | None = None  # 0..1, both targets
    prefill: RoleUse = field(default_factory=RoleUse)
    decode: RoleUse = field(default_factory=RoleUse)
    prefill_workers: int | None = None  # serving workers of the role at `at`
    decode_workers: int | None = None
    # Squared coefficients of variation: of the gaps between arrivals (or their index of dispersion; None: Poisson is
    # assumed), and of the prompts' lengths.
    arrival_cv2: float | None = None
    prompt_cv2: float | None = None
    cached_share: float | None = None  # of the prompts' tokens, in the decode workers' prefix caches
    # What the workers of single pools did, where more than one pool has a role and the metrics tell them apart.
    prefill_of: Mapping[str, RoleUse] = field(default_factory=dict)
    decode_of: Mapping[str, RoleUse] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker pod as the API server shows it."""

    name: str
    pool: str
    role: Role
    ready: bool
    load: float | None = None  # requests running and waiting; None = not known
    age_s: float = 0.0
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool's Deployment; `desired` is None when there is none yet."""

    name: str
    desired: int | None
    ready: int


@dataclass(frozen=True, slots=True)
class Target:
    """The intent: replicas by pool, and how many of all workers do which role. Written before any child is touched."""

    pools: Mapping[str, int]
    prefill: int
    decode: int


@dataclass(frozen=True, slots=True)
class Change:
    """Workers that a decision added to a pool (or removed: below 0)."""

    at: datetime
    pool: str
    workers: int


@dataclass(frozen=True, slots=True)
class Observed:
    """All that a decision for one resource may depend on, besides `now`."""

    limits: Limits
    pools: tuple[PoolState, ...]
    workers: tuple[WorkerState, ...]
    target: Target | None  # status.decision.target; None: lost or never written
    decided_at: datetime | None  # when the target last changed
    metrics: Verdict  # the fleet observer's MetricsAvailable for this resource
    history: tuple[Window, ...] = ()  # oldest first, the last is the newest; bounded
    model: ModelShape | None = None
    leaving_gpus: int = 0  # of pools of a mode that is no more in effect, until they are gone
    start_s: float | None = None  # seconds from a new replica's creation until it serves; None: never seen


class Action(StrEnum):
    """What a decision does."""

    HOLD = "Hold"
    INITIALIZE = "Initialize"  # first target, from `initial`
    ADOPT = "Adopt"  # status lost: the children's counts become the target
    FLIP = "Flip"
    SCALE = "Scale"
    RECOMMEND = "Recommend"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a plan is expected to give; ms at the SLO's percentile, None = beyond every bound or not known."""

    ttft_ms: int | None
    tpot_ms: int | None
    attainment: float | None  # 0..1


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that was weighed, and why it was not taken ('' for the one that was)."""

    target: Target
    predicted: Prediction
    gpus: int
    rejected: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What the planner wants, in words that the condition, the event, the log and the CLI repeat."""

    action: Action
    reason: str
    message: str
    target: Target
    predicted: Prediction | None = None
    alternatives: tuple[Alternative, ...] = ()
