"""The constraints of a scenario's role on nodes and other pods, in the shapes of Kubernetes, checked strictly.

Owns the errors about affinities, spread constraints and selectors, each with the path of the field. The planner
implements their meaning.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

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
