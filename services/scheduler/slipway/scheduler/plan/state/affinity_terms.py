"""Parsed affinity terms and spread constraints: what a pod requires or prefers of the pods beside it. Pure data.

Owns the parsing of `podAffinity`, `podAntiAffinity` and `topologySpreadConstraints`, as kube-scheduler reads them.
`pod_index.py` counts the pods on each node. The filters and scores of the same names apply the terms. Source:
kube-scheduler 1.37 framework/types.go (AffinityTerm), podtopologyspread/common.go.

Label selectors are parsed once and matched often. A value without the shape of a selector matches nothing: the API
server refuses such a pod, so nothing depends on it. Source: apimachinery's labels.Requirement; a null selector matches
nothing, an empty selector matches everything.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

IN, NOT_IN, EXISTS, ABSENT = "In", "NotIn", "Exists", "DoesNotExist"
OPERATORS = (IN, NOT_IN, EXISTS, ABSENT)


class LabelRequirement(msgspec.Struct, frozen=True):
    """One condition on one label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` satisfy the condition; an absent label is in no set."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case _:
                return value is None


class Selector(msgspec.Struct, frozen=True):
    """A selector that matches when all `requirements` do; with `is_nothing` it never matches."""

    requirements: tuple[LabelRequirement, ...] = ()
    is_nothing: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether the selector matches everything."""
        return not self.requirements and not self.is_nothing

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector matches `labels`."""
        return not self.is_nothing and all(item.matches(labels) for item in self.requirements)

    def also(self, more: tuple[LabelRequirement, ...]) -> "Selector":
        """Return the selector with additional requirements; a selector of nothing stays one."""
        return self if self.is_nothing or not more else Selector((*self.requirements, *more))


NOTHING = Selector(is_nothing=True)


def selector_of(data: Any) -> Selector:
    """Parse a metav1.LabelSelector from JSON."""
    if not isinstance(data, Mapping):
        return NOTHING
    requirements: list[LabelRequirement] = []
    for key, value in sorted(mapping_of(cast("Mapping[str, Any]", data).get("matchLabels")).items()):
        requirements.append(LabelRequirement(key, IN, (str(value),)))
    for item in mappings_of(cast("Mapping[str, Any]", data).get("matchExpressions")):
        operator = str(item.get("operator"))
        if operator not in OPERATORS:
            return NOTHING
        requirements.append(LabelRequirement(str(item.get("key")), operator, strings_of(item.get("values"))))
    return Selector(tuple(requirements))


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def mappings_of(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects in the list `value`."""
    if isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            if isinstance(item, Mapping):
                yield cast("Mapping[str, Any]", item)


def strings_of(value: Any) -> tuple[str, ...]:
    """Return the entries of the list `value` as strings, sorted; empty when `value` is no list."""
    return tuple(sorted(str(item) for item in cast("list[Any]", value))) if isinstance(value, list | tuple) else ()


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"
DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"

Namespaces = Mapping[str, Mapping[str, str]]
"""{namespace: its labels}"""


class Term(msgspec.Struct, frozen=True):
    """Pods that `selector` selects in some namespaces, counted per value of node label `key`."""

    key: str
    selector: Selector
    namespaces: tuple[str, ...]
    namespace_selector: Selector
    weight: int = 0
    """the weight of a preference, negative for anti-affinity; 0 for a required term"""

    def matches(self, namespace: str, labels: Mapping[str, str], namespaces: Namespaces) -> bool:
        """Whether the term is about a pod with `labels` in `namespace`."""
        if namespace not in self.namespaces:
            if self.namespace_selector.is_nothing:
                return False
            known = {NAMESPACE_NAME_LABEL: namespace, **namespaces.get(namespace, {})}
            if not self.namespace_selector.matches(known):
                return False
        return self.selector.matches(labels)


class AffinityTerms(msgspec.Struct, frozen=True):
    """The terms of one pod: `near` and `apart` are required; `liked` are preferences with their signed weights."""

    near: tuple[Term, ...] = ()
    apart: tuple[Term, ...] = ()
    liked: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.near or self.apart or self.liked)


NO_WISHES = AffinityTerms()


class Spread(msgspec.Struct, frozen=True):
    """One topologySpreadConstraint."""

    key: str
    selector: Selector
    max_skew: int = 1
    min_domains: int = 1
    is_hard: bool = True
    honours_affinity: bool = True
    """whether nodes that the pod's node affinity refuses are left out of the count"""
    honours_taints: bool = False
    """whether nodes that the pod's tolerations refuse are left out of the count"""


def affinity_terms_of(affinity: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> AffinityTerms:
    """Return the affinity terms of a pod in `namespace` with `labels`."""
    near, apart = mapping_of(affinity.get("podAffinity")), mapping_of(affinity.get("podAntiAffinity"))
    if not near and not apart:
        return NO_WISHES
    return AffinityTerms(
        near=tuple(_term(item, namespace, labels) for item in mappings_of(near.get(REQUIRED))),
        apart=tuple(_term(item, namespace, labels) for item in mappings_of(apart.get(REQUIRED))),
        liked=(*_liked(near, namespace, labels, 1), *_liked(apart, namespace, labels, -1)),
    )


def spreads_of(constraints: Iterable[Mapping[str, Any]], labels: Mapping[str, str]) -> tuple[Spread, ...]:
    """Return the spread constraints of a pod with `labels`."""
    return tuple(_spread(item, labels) for item in constraints)


def default_spreads(labels: Mapping[str, str]) -> tuple[Spread, ...]:
    """Return kube-scheduler's default constraints: soft ones over hosts and zones, among pods with equal labels.

    They apply to a pod without constraints of its own.
    """
    if not labels:
        return ()
    selector = Selector(tuple(LabelRequirement(key, IN, (value,)) for key, value in sorted(labels.items())))
    return (
        Spread(HOSTNAME, selector, max_skew=3, is_hard=False),
        Spread(ZONE, selector, max_skew=5, is_hard=False),
    )


def _liked(kind: Mapping[str, Any], namespace: str, labels: Mapping[str, str], sign: int) -> tuple[Term, ...]:
    terms: list[Term] = []
    for item in mappings_of(kind.get(PREFERRED)):
        term = _term(mapping_of(item.get("podAffinityTerm")), namespace, labels)
        terms.append(msgspec.structs.replace(term, weight=sign * _whole(item.get("weight"), 0)))
    return tuple(terms)


def _term(item: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> Term:
    named = strings_of(item.get("namespaces"))
    chosen = selector_of(item.get("namespaceSelector"))
    own = (namespace,) if not named and item.get("namespaceSelector") is None else named
    same = _requirements(item.get("matchLabelKeys"), labels, IN)
    other = _requirements(item.get("mismatchLabelKeys"), labels, NOT_IN)
    selector = selector_of(item.get("labelSelector")).also((*same, *other))
    return Term(str(item.get("topologyKey") or ""), selector, own, chosen)


def _requirements(keys: Any, labels: Mapping[str, str], operator: str) -> tuple[LabelRequirement, ...]:
    return tuple(LabelRequirement(key, operator, (labels[key],)) for key in strings_of(keys) if key in labels)


def _spread(item: Mapping[str, Any], labels: Mapping[str, str]) -> Spread:
    return Spread(
        key=str(item.get("topologyKey") or ""),
        selector=selector_of(item.get("labelSelector")).also(_requirements(item.get("matchLabelKeys"), labels, IN)),
        max_skew=max(1, _whole(item.get("maxSkew"), 1)),
        min_domains=max(1, _whole(item.get("minDomains"), 1)),
        is_hard=item.get("whenUnsatisfiable") != SCHEDULE_ANYWAY,
        honours_affinity=item.get("nodeAffinityPolicy") != "Ignore",
        honours_taints=item.get("nodeTaintsPolicy") == "Honor",
    )


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default
