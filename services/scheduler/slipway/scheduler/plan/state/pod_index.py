"""The pods on each node, counted by labels, for topology spreading and inter-pod affinity.

Owns the counts per class of pods, and the log of their changes. Pods that are alike are counted as one class. A
question ("how many pods like these are on each node?") is a tally: it is counted once and then updated from the log.
While there are no questions, a change costs one entry of a list. Invariant: a tally equals a new count. A copy shares
its data with the original until one of the two changes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Flag, auto

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, PodFact, RoleFact
from slipway.model.ids import allocation_id, labels_of_rank
from slipway.scheduler.plan.state.affinity_terms import NO_WISHES, AffinityTerms, Namespaces, Term, affinity_terms_of
from slipway.scheduler.plan.state.nodes import Ints

_BESIDE = frozenset({"podAffinity", "podAntiAffinity"})


class TermKind(Flag):
    """The ways in which pods use a term."""

    APART = auto()
    NEAR = auto()
    LIKED = auto()


class PodClass(msgspec.Struct, frozen=True, kw_only=True):
    """A class of pods that affinity and spreading cannot tell apart."""

    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """sorted"""
    uid: str = ""
    """uid of the pods' allocation; "" for pods that are not ours"""
    allocation: str = ""
    """the AllocationID of the pods' allocation"""
    role: str = ""
    terms: AffinityTerms = NO_WISHES
    is_leaving: bool = False

    def all_labels(self) -> dict[str, str]:
        """Return the labels, with those that every rank of ours gets, except its number and attempt."""
        labels = dict(self.labels)
        if self.uid:
            labels |= labels_of_rank(self.uid, self.allocation, self.role)
        return labels


def sorted_labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return labels in the form that PodClass stores."""
    return tuple(sorted(labels.items()))


NO_CLASS = PodClass()


def pod_class_of_role(role: RoleFact, owner: AllocationFact | None = None) -> PodClass:
    """Return the class of the pods of `role` of `owner`, before they exist."""
    return PodClass(
        namespace=role.namespace,
        labels=sorted_labels(role.labels) if role.labels else (),
        uid=owner.uid if owner else "",
        allocation=allocation_id(owner.name, owner.uid) if owner else "",
        role=role.name,
        terms=affinity_terms_of(role.affinity, role.namespace, role.labels) if role.affinity else NO_WISHES,
    )


def pod_class_of_pod(pod: PodFact) -> PodClass:
    """Return the class of an existing pod."""
    return PodClass(
        namespace=pod.namespace,
        labels=sorted_labels(pod.labels) if pod.labels else (),
        uid=pod.allocation_uid,
        allocation=pod.name.rsplit("-", 2)[0] if pod.allocation_uid else "",
        role=pod.role,
        terms=affinity_terms_of(pod.affinity, pod.namespace, pod.labels) if pod.affinity else NO_WISHES,
        is_leaving=pod.leaving,
    )


def is_watching(roles: Iterable[RoleFact]) -> bool:
    """Whether a role has a spread constraint or an inter-pod affinity term."""
    return any(role.spread or (role.affinity and not _BESIDE.isdisjoint(role.affinity)) for role in roles)


Weigh = Callable[[PodClass, Mapping[str, str]], int]
"""Returns how much one pod of a class adds to a tally, given all its labels."""
Standing = dict[tuple[PodClass, int], int]
"""{(class, node): pods}"""


class _Tally:
    """The counts of one question per node, up to entry `at` of the log."""

    def __init__(self, weigh: Weigh, nodes: int, at: int) -> None:
        self.weigh = weigh
        self.counts: Ints = np.zeros(nodes, dtype=np.int64)
        self.at = at
        self.weights: dict[PodClass, int] = {}


class PodIndex:
    """The pods on `nodes` nodes, by class."""

    def __init__(self, nodes: int) -> None:
        self.namespaces: Namespaces = {}
        self.is_watched = True
        """whether any question is possible; otherwise pod changes are not recorded"""
        self.spreads_all = False
        """whether ranks with labels get default spread constraints"""
        self._nodes = nodes
        self._base: Standing = {}
        self._is_shared = False
        self._log: list[tuple[PodClass, tuple[int, ...], int]] = []
        self._tallies: dict[Hashable, _Tally] = {}
        self.terms: dict[Term, TermKind] = {}
        """every term of each pod that was ever here, once; between two copies it only grows"""

    def copy(self) -> "PodIndex":
        """Return an independent copy with an empty log."""
        self._fold()
        other = PodIndex(self._nodes)
        other.namespaces, other.is_watched, other.spreads_all = self.namespaces, self.is_watched, self.spreads_all
        other._base, other.terms = self._base, dict(self.terms)
        self._is_shared = other._is_shared = True
        return other

    def move(self, who: PodClass, nodes: tuple[int, ...], times: int) -> None:
        """Add `times` pods of class `who` to each of `nodes`; negative removes them."""
        self._log.append((who, nodes, times))
        if who.terms:
            self._register(who.terms)

    def tally(self, key: Hashable, weigh: Weigh) -> Ints:
        """Return per node the sum of what its pods weigh; `key` identifies `weigh`. Callers must not change it."""
        found = self._tallies.get(key)
        if found is None:
            found = self._tallies[key] = _Tally(weigh, self._nodes, 0)
            for (pod_class, node), count in self._base.items():
                weight = self._weight(found, pod_class)
                if weight:
                    found.counts[node] += weight * count
        while found.at < len(self._log):
            who, nodes, times = self._log[found.at]
            found.at += 1
            weight = self._weight(found, who)
            if weight:
                for node in nodes:
                    found.counts[node] += weight * times
        return found.counts

    def _register(self, affinity_terms: AffinityTerms) -> None:
        for kind, terms in (
            (TermKind.APART, affinity_terms.apart),
            (TermKind.NEAR, affinity_terms.near),
            (TermKind.LIKED, affinity_terms.liked),
        ):
            for term in terms:
                self.terms[term] = self.terms.get(term, TermKind(0)) | kind

    def _weight(self, tally: _Tally, pod_class: PodClass) -> int:
        known = tally.weights.get(pod_class)
        if known is None:
            known = tally.weights[pod_class] = tally.weigh(pod_class, pod_class.all_labels())
        return known

    def _fold(self) -> None:
        """Add the log to the base counts; tallies are counted again at the next question."""
        if not self._log:
            return
        if self._is_shared:
            self._base, self._is_shared = dict(self._base), False
        base, is_wishing = self._base, False
        for pod_class, nodes, times in self._log:
            for node in nodes:
                place = (pod_class, node)
                count = base.get(place, 0) + times
                if count:
                    base[place] = count
                else:
                    base.pop(place, None)
                    is_wishing |= bool(pod_class.terms)
        if is_wishing:
            self.terms = {}
            for pod_class, _ in base:
                if pod_class.terms:
                    self._register(pod_class.terms)
        self._log.clear()
        self._tallies.clear()
