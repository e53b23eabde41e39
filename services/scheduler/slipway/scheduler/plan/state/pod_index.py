"""Who stands on which node, by labels: what spreading and inter-pod affinity count.

Owns the counts per kind of pod and their log. Pods are not looked at one by one: those that are alike are one peer, and
a question ("how many pods like these are on each node?") is a tally that is made once and then kept current from the
log. Nobody asks: then a move costs one entry of a list. Invariant: a tally is what counting afresh would give.
A copy shares what it copies until one of the two changes.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Flag, auto

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, PodFact, RoleFact
from slipway.model.ids import allocation_id
from slipway.model.ranklabels import labels_of_rank
from slipway.scheduler.plan.state.affinity_terms import NO_WISHES, Namespaces, Term, Wishes, wishes_of
from slipway.scheduler.plan.state.nodes import Ints

_BESIDE = frozenset({"podAffinity", "podAntiAffinity"})


class TermKind(Flag):
    """How somebody means a term."""

    APART = auto()
    NEAR = auto()
    LIKED = auto()


class PodClass(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that are alike to everybody who looks for neighbours."""

    namespace: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """sorted"""
    uid: str = ""
    """of its allocation; "" for a stranger"""
    allocation: str = ""
    """its AllocationID"""
    role: str = ""
    wishes: Wishes = NO_WISHES
    is_leaving: bool = False

    def all_labels(self) -> dict[str, str]:
        """With those that every rank of ours gets, but for its number and attempt."""
        labels = dict(self.labels)
        if self.uid:
            labels |= labels_of_rank(self.uid, self.allocation, self.role)
        return labels


def sorted_labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """As a peer keeps them."""
    return tuple(sorted(labels.items()))


NOBODY = PodClass()


def peer_of(role: RoleFact, owner: AllocationFact | None = None) -> PodClass:
    """The pods of `role`, of `owner`, before they exist."""
    return PodClass(
        namespace=role.namespace,
        labels=sorted_labels(role.labels) if role.labels else (),
        uid=owner.uid if owner else "",
        allocation=allocation_id(owner.name, owner.uid) if owner else "",
        role=role.name,
        wishes=wishes_of(role.affinity, role.namespace, role.labels) if role.affinity else NO_WISHES,
    )


def peer_of_pod(pod: PodFact) -> PodClass:
    """A pod that stands."""
    return PodClass(
        namespace=pod.namespace,
        labels=sorted_labels(pod.labels) if pod.labels else (),
        uid=pod.allocation_uid,
        allocation=pod.name.rsplit("-", 2)[0] if pod.allocation_uid else "",
        role=pod.role,
        wishes=wishes_of(pod.affinity, pod.namespace, pod.labels) if pod.affinity else NO_WISHES,
        is_leaving=pod.leaving,
    )


def is_watching(roles: Iterable[RoleFact]) -> bool:
    """Whether any of them looks at who stands beside it."""
    return any(role.spread or (role.affinity and not _BESIDE.isdisjoint(role.affinity)) for role in roles)


Weigh = Callable[[PodClass, Mapping[str, str]], int]
"""How much one pod of a peer counts, given all its labels."""
Standing = dict[tuple[PodClass, int], int]
"""{(peer, node): pods}"""


class _Tally:
    """One question: its counts per node, up to `at` in the log."""

    def __init__(self, weigh: Weigh, nodes: int, at: int) -> None:
        self.weigh = weigh
        self.counts: Ints = np.zeros(nodes, dtype=np.int64)
        self.at = at
        self.weights: dict[PodClass, int] = {}


class Peers:
    """The pods on `nodes` nodes, by kind."""

    def __init__(self, nodes: int) -> None:
        self.namespaces: Namespaces = {}
        self.is_watched = True
        """whether anybody may ask: without that nothing is written down"""
        self.spreads_all = False
        """ranks with labels are spread among their like without saying so"""
        self._nodes = nodes
        self._base: Standing = {}
        self._is_shared = False
        self._log: list[tuple[PodClass, tuple[int, ...], int]] = []
        self._tallies: dict[Hashable, _Tally] = {}
        self.terms: dict[Term, TermKind] = {}
        """every term of whoever ever stood here, once; it only grows between two copies"""

    def copy(self) -> "Peers":
        """An independent copy with an empty log."""
        self._fold()
        other = Peers(self._nodes)
        other.namespaces, other.is_watched, other.spreads_all = self.namespaces, self.is_watched, self.spreads_all
        other._base, other.terms = self._base, dict(self.terms)
        self._is_shared = other._is_shared = True
        return other

    def move(self, who: PodClass, nodes: tuple[int, ...], times: int) -> None:
        """`times` more pods of `who` on each of `nodes`; negative takes away."""
        self._log.append((who, nodes, times))
        if who.wishes:
            self._learn(who.wishes)

    def tally(self, key: Hashable, weigh: Weigh) -> Ints:
        """Per node the sum of what its pods weigh; `key` names `weigh`. Not to be written to."""
        found = self._tallies.get(key)
        if found is None:
            found = self._tallies[key] = _Tally(weigh, self._nodes, 0)
            for (peer, node), count in self._base.items():
                weight = self._weight(found, peer)
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

    def _learn(self, wishes: Wishes) -> None:
        for kind, terms in (
            (TermKind.APART, wishes.apart),
            (TermKind.NEAR, wishes.near),
            (TermKind.LIKED, wishes.liked),
        ):
            for term in terms:
                self.terms[term] = self.terms.get(term, TermKind(0)) | kind

    def _weight(self, tally: _Tally, peer: PodClass) -> int:
        known = tally.weights.get(peer)
        if known is None:
            known = tally.weights[peer] = tally.weigh(peer, peer.all_labels())
        return known

    def _fold(self) -> None:
        """Bring the log into the base; tallies start again when somebody asks."""
        if not self._log:
            return
        if self._is_shared:
            self._base, self._is_shared = dict(self._base), False
        base, is_wishing = self._base, False
        for peer, nodes, times in self._log:
            for node in nodes:
                place = (peer, node)
                count = base.get(place, 0) + times
                if count:
                    base[place] = count
                else:
                    base.pop(place, None)
                    is_wishing |= bool(peer.wishes)
        if is_wishing:
            self.terms = {}
            for peer, _ in base:
                if peer.wishes:
                    self._learn(peer.wishes)
        self._log.clear()
        self._tallies.clear()
