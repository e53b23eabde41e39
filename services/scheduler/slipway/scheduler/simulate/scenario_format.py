"""The format of a scenario file, field by field, as strict structs. Knows nothing of planning.

docs/scenarios.md describes the format.

Constraints of a role on nodes and other pods have the shapes of Kubernetes, and are checked strictly. Owns the errors
about affinities, spread constraints and selectors, each with the path of the field. The planner implements their
meaning.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from slipway.model.resources import GPU, QuantityValue, parse_quantity, scale_of
from slipway.model.times import parse_duration, parse_time
from slipway.model.windows import LEAD_S

Key = Annotated[str, Meta(min_length=1, max_length=253)]
Weight = Annotated[int, Meta(ge=1, le=100)]
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every shape."""


class RequirementShape(_Shape, frozen=True, kw_only=True):
    key: Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []


class SelectorShape(_Shape, frozen=True, kw_only=True):
    match_labels: dict[str, str] = {}
    match_expressions: list[RequirementShape] = []


class NodeRequirementShape(_Shape, frozen=True, kw_only=True):
    key: Key
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[str] = []


class NodeTermShape(_Shape, frozen=True, kw_only=True):
    match_expressions: list[NodeRequirementShape] = []
    match_fields: list[NodeRequirementShape] = []


class PreferredNodeShape(_Shape, frozen=True, kw_only=True):
    weight: Weight
    preference: NodeTermShape


class NodeSelectorShape(_Shape, frozen=True, kw_only=True):
    node_selector_terms: Annotated[list[NodeTermShape], Meta(min_length=1)]


class NodeAffinityShape(_Shape, frozen=True, kw_only=True):
    required: NodeSelectorShape | None = msgspec.field(default=None, name=_REQUIRED)
    preferred: list[PreferredNodeShape] = msgspec.field(default_factory=list[PreferredNodeShape], name=_PREFERRED)


class PodTermShape(_Shape, frozen=True, kw_only=True):
    topology_key: Key
    label_selector: SelectorShape | None = None
    namespaces: list[str] = []
    namespace_selector: SelectorShape | None = None
    match_label_keys: list[Key] = []
    mismatch_label_keys: list[Key] = []


class PreferredPodShape(_Shape, frozen=True, kw_only=True):
    weight: Weight
    pod_affinity_term: PodTermShape


class PodAffinityShape(_Shape, frozen=True, kw_only=True):
    required: list[PodTermShape] = msgspec.field(default_factory=list[PodTermShape], name=_REQUIRED)
    preferred: list[PreferredPodShape] = msgspec.field(default_factory=list[PreferredPodShape], name=_PREFERRED)


class AffinityShape(_Shape, frozen=True, kw_only=True):
    node_affinity: NodeAffinityShape | None = None
    pod_affinity: PodAffinityShape | None = None
    pod_anti_affinity: PodAffinityShape | None = None


class SpreadPart(_Shape, frozen=True, kw_only=True, omit_defaults=True):
    """One of a role's `topologySpreadConstraints`."""

    topology_key: Key
    max_skew: Annotated[int, Meta(ge=1, le=1_000_000)]
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "DoNotSchedule"
    label_selector: SelectorShape | None = None
    min_domains: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    node_affinity_policy: Literal["Honor", "Ignore"] | None = None
    node_taints_policy: Literal["Honor", "Ignore"] | None = None
    match_label_keys: list[Key] = []

    def as_kubernetes(self) -> dict[str, Any]:
        """Return the constraint in the form of Kubernetes."""
        return msgspec.to_builtins(self)


class VolumeAffinityShape(_Shape, frozen=True, kw_only=True):
    required: NodeSelectorShape | None = None


class VolumePart(_Shape, frozen=True, kw_only=True):
    """A volume claim.

    `zones` are the values of node labels from which its volume can be reached; `node_affinity` is that of its
    PersistentVolume.
    """

    name: Key
    zones: dict[str, str | list[str]] = {}
    node_affinity: VolumeAffinityShape | None = None

    def reached_from(self) -> dict[str, tuple[str, ...]]:
        """Return `zones` as {label: values}; a text is one value."""
        return {
            key: (values,) if isinstance(values, str) else tuple(sorted(values)) for key, values in self.zones.items()
        }

    def terms(self) -> tuple[dict[str, Any], ...]:
        """Return the nodeSelectorTerms of its volume."""
        required = self.node_affinity.required if self.node_affinity is not None else None
        return tuple(msgspec.to_builtins(term) for term in required.node_selector_terms) if required is not None else ()


def check_affinity(affinity: Mapping[str, Any]) -> None:
    """Check an affinity like Kubernetes does.

    Raises: msgspec.ValidationError: a field is wrong; the message has its path below the affinity.
    """
    msgspec.convert(affinity, AffinityShape)


Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(ge=0)]
Span = Seconds | str
"""Seconds, or a duration such as 30m."""
Moment = float | str
"""Seconds of virtual time, or an RFC 3339 time: the clock starts at 1970-01-01T00:00:00Z."""
Place = str | Annotated[float, Meta(ge=0, lt=10**15)]
Quantities = dict[str, QuantityValue]
AMOUNT_MAX = 2**50
"""The most base units of a resource in one node or rank: a PiB of memory, a trillion cores. Their sums stay exact."""
ROOT_NAMES = ("", "root")
FLAVORS_MAX = 16
WINDOWS_MAX = 32
GPUS = "gpus"
"""The short name for whole GPUs in quotas."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every part of the file."""


class TaintPart(_Part, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class TolerationPart(_Part, frozen=True, kw_only=True):
    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    toleration_seconds: int | None = None


class NodePart(_Part, frozen=True, kw_only=True):
    """`count: k` makes name-0 .. name-(k-1); a count of 1 keeps the plain name."""

    name: str
    count: Count = 1
    cpu: QuantityValue = 0
    memory: QuantityValue = 0
    gpus: QuantityValue = 0
    pods: QuantityValue = 110
    resources: Quantities = {}
    labels: dict[str, str] = {}
    images: Quantities = {}
    """{name with its tag: size}"""
    taints: list[TaintPart] = []
    unschedulable: bool = False
    ready: bool = True


class FlavorPart(_Part, frozen=True, kw_only=True):
    """A named kind of nodes: the nodes that have all these labels."""

    name: str
    node_labels: Annotated[dict[str, str], Meta(min_length=1)]


class EvictionLimitPart(_Part, frozen=True, kw_only=True):
    """A bucket of `burst` evictions (`count` when absent) that gets `count` more in each `per`."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    per: Span
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class RepeatPart(_Part, frozen=True, kw_only=True):
    every: Literal["Daily", "Weekly"]
    until: Moment | None = None


class WindowPart(_Part, frozen=True, kw_only=True):
    """A time in which nodes are reserved: for `queues`, or for maintenance."""

    name: str
    start: Moment
    duration: Span
    repeat: RepeatPart | None = None
    time_zone: str = "UTC"
    queues: list[str] = []
    maintenance: bool = False
    node_names: list[str] = []
    node_selector: dict[str, str] = {}
    nodes: Annotated[int, Meta(ge=1)] | None = None
    gpus: Annotated[int, Meta(ge=1)] | None = None
    lead_time: Span = LEAD_S
    on_start: Literal["Wait", "Evict"] = "Wait"


class FairSharePart(_Part, frozen=True, kw_only=True):
    """The weight of past usage halves with each `half_life`;
    with `history_weight` 0 it only orders queues and users."""

    half_life: Span
    history_weight: Annotated[float, Meta(ge=0, le=4)] = 1.0


class PastUsePart(_Part, frozen=True, kw_only=True):
    """GPU time that a user used in a queue before time 0, `ago` before it."""

    queue: str
    user: str = ""
    gpu_hours: Annotated[float, Meta(ge=0, le=1e9)]
    ago: Span = 0.0


class PoolPart(_Part, frozen=True, kw_only=True):
    scores: dict[str, Annotated[int, Meta(ge=0, le=1_000_000)]] = {}
    args: dict[str, dict[str, Any]] = {}
    """{score: its args}"""
    sampling: bool = False
    autoscaling: bool = False
    """an autoscaler adds and removes nodes, so allocations are packed; the nodes of the scenario do not change"""
    backfill: bool = True
    aging: Span = 86_400
    """the wait after which an allocation goes before all others of its queue; 0: never"""
    topology: list[str] = []
    flavors: Annotated[list[FlavorPart], Meta(max_length=FLAVORS_MAX)] = []
    eviction_limit: EvictionLimitPart | None = None
    windows: Annotated[list[WindowPart], Meta(max_length=WINDOWS_MAX)] = []
    fair_share: FairSharePart | None = None
    """absent: past usage is ignored"""


class PreemptionPart(_Part, frozen=True, kw_only=True):
    within_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqual"] = "Never"
    reclaim: Literal["Never", "LowerPriority", "Any"] = "Never"


class BudgetPart(_Part, frozen=True, kw_only=True):
    """GPU-hours in each window; windows follow one another from time 0."""

    gpu_hours: Annotated[float, Meta(gt=0, le=1e9)]
    window: Span


class FlavorLimitsPart(_Part, frozen=True, kw_only=True):
    """The quota of a queue for one flavor; only GPUs are counted by flavor."""

    name: str
    nominal: Quantities | None = None
    borrowing_limit: Quantities | None = None
    lending_limit: Quantities | None = None
    limit: Quantities | None = None


class FungibilityPart(_Part, frozen=True, kw_only=True):
    when_can_borrow: Literal["Borrow", "TryNextFlavor"] = "Borrow"
    when_can_preempt: Literal["Preempt", "TryNextFlavor"] = "TryNextFlavor"


class QueuePart(_Part, frozen=True, kw_only=True):
    name: str
    parent: str = ""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    priority: int = 0
    nominal: Quantities | None = None
    borrowing_limit: Quantities | None = None
    lending_limit: Quantities | None = None
    limit: Quantities | None = None
    flavors: Annotated[list[FlavorLimitsPart], Meta(max_length=FLAVORS_MAX)] = []
    flavor_fungibility: FungibilityPart = FungibilityPart()
    ordering: Literal["StrictFIFO", "BestEffortFIFO", "Backfill"] = "BestEffortFIFO"
    user_order: Literal["Submission", "LeastUsed"] = "Submission"
    preemption: PreemptionPart = PreemptionPart()
    max_runtime: Span | None = None
    min_runtime: Span | None = None
    eviction_limit: EvictionLimitPart | None = None
    budgets: Annotated[list[BudgetPart], Meta(max_length=8)] = []


class JobPart(_Part, frozen=True, kw_only=True):
    name: str
    max_slots: Count | None = None
    priority: int | None = None
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    position: Place = ""


class TopologyPart(_Part, frozen=True, kw_only=True):
    key: str
    mode: Literal["required", "preferred"] = "required"


class RankPart(_Part, frozen=True, kw_only=True):
    """A role: `count` identical ranks."""

    name: str = "worker"
    count: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    min_available: Count | None = None
    cpu: QuantityValue = 0
    memory: QuantityValue = 0
    gpus: QuantityValue = 0
    gpu_milli: Annotated[int, Meta(ge=0, le=1000)] = 0
    resources: Quantities = {}
    node_selector: dict[str, str] = {}
    tolerations: list[TolerationPart] = []
    affinity: dict[str, Any] = {}
    topology: TopologyPart | None = None
    host_ports: list[Annotated[int, Meta(ge=1, le=65535)]] = []
    labels: dict[str, str] = {}
    topology_spread_constraints: list[SpreadPart] = []
    images: list[str] = []
    """one per container"""
    node_name: str = ""
    volumes: list[str] = []
    """the names of volume claims"""


class PlacedPart(_Part, frozen=True, kw_only=True):
    """A rank that runs already at time 0, since `since`."""

    rank: Count
    node: str
    since: float = 0.0
    device: int | list[int] | None = None

    def __post_init__(self) -> None:
        _without_sign(self, "since")


class AllocationPart(_Part, frozen=True, kw_only=True):
    name: str
    queue: str = "default"
    job: str = ""
    user: str = ""
    priority: int = 0
    submit: float = 0.0
    duration: Seconds | None = None
    max_runtime: Seconds | None = None
    checkpoint_every: Annotated[float, Meta(gt=0)] | None = None
    """it saves its work every so many seconds of running, and continues from there after an eviction"""
    preemptible: bool = False
    min_available: Count | None = None
    hold: bool = False
    after: list[str] = []
    """allocations that have to end before it may start"""
    position: Place = ""
    avoid_nodes: list[str] = []
    flavors: Annotated[list[str], Meta(max_length=FLAVORS_MAX)] = []
    """the flavors that it accepts, the best first"""
    gpu_type: str = ""
    """short for `flavors` with one entry"""
    topology: TopologyPart | None = None
    """the topology of all roles together"""
    ranks: Annotated[list[RankPart], Meta(min_length=1)]
    placed: list[PlacedPart] = []

    def __post_init__(self) -> None:
        _without_sign(self, "submit")


class Scenario(_Part, frozen=True, kw_only=True):
    nodes: list[NodePart]
    pool: PoolPart = PoolPart()
    queues: list[QueuePart] = []
    jobs: list[JobPart] = []
    history: list[PastUsePart] = []
    """the usage before time 0"""
    allocations: list[AllocationPart] = []
    volumes: list[VolumePart] = []
    until: float | None = None


def _without_sign(part: _Part, field: str) -> None:
    """Replace a time of minus zero by zero."""
    if getattr(part, field) == 0:
        msgspec.structs.force_setattr(part, field, 0.0)


def node_names(node: NodePart) -> list[str]:
    """Return the names of the nodes of one entry."""
    return [node.name] if node.count == 1 else [f"{node.name}-{index}" for index in range(node.count)]


def amount(name: str, value: QuantityValue) -> tuple[str, int]:
    """Return (resource, base units) of one entry of a quota or resource map."""
    resource = GPU if name == GPUS else name
    return resource, parse_quantity(value, scale=scale_of(resource))


def seconds(span: Span) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: not a duration, or longer than ten years.
    """
    return parse_duration(span) if isinstance(span, str) else float(span)


def moment(value: Moment) -> float:
    """Return a time in seconds of virtual time.

    Raises:
        ValueError: not an RFC 3339 time.
    """
    return parse_time(value) if isinstance(value, str) else float(value)
