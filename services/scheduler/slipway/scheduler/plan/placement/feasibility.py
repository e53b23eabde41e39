"""Feasibility rows: the feasibility and the score of all nodes for one rank request.

A row is computed once per tick and request, and later only for the nodes that were touched since. If ranks of the row's
own request touched a node, the new value comes from a ladder. The ladder contains the totals of all nodes at 1, 2, ...
more ranks; each rung is computed when first needed. A row with a score of domains has no ladder, and is computed whole
after each change. Invariant: after `refresh`, `total[i]` equals the value of a new row, INFEASIBLE where a filter
refuses node i.

Coupled ranks, whose nodes depend on the pods beside them, are placed one by one, with new totals after each. A request
is coupled when it has a spread constraint or affinity terms, or an existing or placed pod has terms that match it. All
other requests are filled in one pass (`fill.py`) and cost nothing here. Invariant: after filling, the usage is as
before.

The counts behind an explanation say which nodes refuse a rank, and why. Every node is counted once, at its first
failing filter. The counts are for the first rank that found no place, with the gang's other ranks on the nodes that
they would get.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec
import numpy as np

from slipway.scheduler.plan.placement.filters import COUPLED, DYNAMIC, STATIC, NodeRefusal
from slipway.scheduler.plan.placement.filters.inter_pod_affinity import matches_request, starts_series
from slipway.scheduler.plan.placement.scores import SCORES, Normalise, Score, normalised, normalised_alike
from slipway.scheduler.plan.placement.scores.base import Extra
from slipway.scheduler.plan.state.nodes import EVERY, At, Bools, Ints, NodeTable
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

DOMAINS_MAX = 64
"""The number of domains that are tried for a series that must stay together, the roomiest first."""


class CoupledRow(Protocol):
    """The part of a feasibility row that filling uses."""

    request: RankRequest
    usage: NodeUsage
    total: Ints

    def refresh(self) -> None: ...

    def room(self, most: int) -> Ints: ...


def is_coupled(request: RankRequest, usage: NodeUsage) -> bool:
    """Whether the pods beside a rank of the request matter to it."""
    pod_index = usage.pod_index
    if not pod_index.is_watched:
        return False
    if request.spread or request.pod_class.terms or (pod_index.spreads_all and request.role.labels):
        return True
    return any(matches_request(term, request, usage) for term in pod_index.terms)


def needs_others(row: CoupledRow) -> bool:
    """Whether the role requires other pods than its own beside it, so that those must be placed first."""
    near = row.request.pod_class.terms.near
    return bool(near) and not all(matches_request(term, row.request, row.usage) for term in near)


def without_its_like(request: RankRequest, usage: NodeUsage, room: Ints) -> Ints:
    """Return `room` per node, at most one rank per domain when the request excludes its own ranks from its domain."""
    for term in request.pod_class.terms.apart:
        if matches_request(term, request, usage):
            codes = usage.table.label(term.key).codes
            # The first node with room represents each domain. Nodes without the label are in no domain, so they stay as
            # is.
            usable = np.flatnonzero((room > 0) & (codes >= 0))
            _, first = np.unique(codes[usable], return_index=True)
            kept = np.where(codes < 0, room, 0)
            kept[usable[first]] = 1
            room = kept
    return room


def fill_in_turn(row: CoupledRow, want: int, allowed: Bools | None) -> list[int]:
    """Return the nodes for up to `want` ranks, in the order of placing.

    The first rank of a series that must stay together confines the others to its domain. If they do not all fit there,
    other domains are tried.
    """
    is_series = want > 1 and starts_series(row.request, row.usage)
    best = _in_turn(row, want, allowed)
    if len(best) == want or not is_series:
        return best
    column = row.usage.table.label(row.request.pod_class.terms.near[0].key)
    room = row.room(want) if allowed is None else np.where(allowed, row.room(want), 0)
    inside = column.codes >= 0
    by_domain = np.bincount(column.codes[inside], room[inside], len(column.values)).astype(np.int64)
    for domain in np.argsort(-by_domain, kind="stable")[:DOMAINS_MAX].tolist():
        if int(by_domain[domain]) <= len(best):
            break
        within = column.codes == domain
        found = _in_turn(row, want, within if allowed is None else within & allowed)
        if len(found) > len(best):
            best = found
        if len(best) == want:
            break
    return best


def _in_turn(row: CoupledRow, want: int, allowed: Bools | None) -> list[int]:
    placed: list[int] = []
    for _ in range(want):
        row.refresh()
        total = row.total if allowed is None else np.where(allowed, row.total, -1)
        if row.usage.sample is not None and total.size:
            total = row.usage.sample.of(total)
        node = int(total.argmax()) if total.size else 0
        if not total.size or total[node] < 0:
            break
        placed.append(node)
        row.usage.take(row.request, [node])
    if placed:
        row.usage.take(row.request, placed, -1)
    return placed


INFEASIBLE = -1
RUNGS_MAX = 128
RECALLED_MAX = 64
"""Up to this number of touched nodes are computed one by one; for more, all touched nodes are computed at once."""
SPARSE = 8
"""A row is sparse when at most one node in this number passes the static filters."""
_OFF_LADDER = -1
_ROOM_MAX = 1 << 30


class FeasibilityRow:
    """The row of one request: feasibility and score of every node of a what-if usage."""

    def __init__(
        self, request: RankRequest, usage: NodeUsage, weights: dict[str, int], scores: Mapping[str, Score] = SCORES
    ) -> None:
        self.request = request
        self.usage = usage
        every = [(scores[name], weight) for name, weight in sorted(weights.items())]
        self._beside = tuple((score, weight) for score, weight in every if score.whole is not None)
        """scores that read the pods beside a node"""
        self._moving = tuple(
            (score, weight)
            for score, weight in every
            if not (score.is_static or score.is_of_domains or score.whole is not None)
        )
        self._is_of_amounts = not request.host_ports and all(score.is_of_amounts for score, _ in self._moving)
        """whether the dynamic part of a node's total follows from the node's amounts alone"""
        is_by_device = usage.devices_for(request) is not None or any(score.is_by_device for score, _ in self._moving)
        self._still = tuple((score, weight) for score, weight in every if score.is_static or score.is_of_domains)
        """scores that are computed for all nodes at once: each rank that is taken may change those of domains"""
        self._is_of_domains = request.topology is not None and any(score.is_of_domains for score, _ in self._still)
        self._has_ladder = self._is_of_amounts and not is_by_device and not self._is_of_domains
        """whether a ladder is used: computing a whole rung costs little more than computing one node"""
        self.passed: Bools = _passed(request, usage)
        if request.extender_results is not None:
            self.passed &= request.extender_results.allowed
        """nodes that pass the static filters and the extenders"""
        few = np.flatnonzero(self.passed)
        self._few: Ints | None = few if few.size * SPARSE <= len(usage.table) else None
        """the nodes that pass, for a sparse row, which computes only these; None for other rows"""
        self._raw: list[tuple[Score, int, Ints]] = []
        """the scores of `_still` that differ between the computed nodes"""
        self._constant = 0
        """the weighted sum of the scores of `_still` that do not differ"""
        self._is_shifting = False
        """whether the fixed part of the totals depends on which nodes are feasible"""
        self._read_static()
        self._height: Ints = np.zeros(0 if self._few is not None else len(usage.table), dtype=np.int64)
        """per node, the row's own ranks since the ladder began; a sparse row has no ladder"""
        self._terms = -1
        """number of pods' terms that were known when `is_coupled` was computed"""
        self.is_coupled = False
        """whether placing a rank changes the value or the feasibility of other nodes"""
        self._find_coupling()
        self.fits: Bools = np.zeros(len(usage.table), dtype=np.bool_)
        self._fixed: Ints = np.zeros(0, dtype=np.int64)
        """the fixed part of each node's total; never written to"""
        self.total: Ints = np.full(len(usage.table), INFEASIBLE, dtype=np.int64)
        self._cursor = len(usage.touched)
        self._rungs: list[Ints] = []
        self._by_state: dict[int, int] = {}
        """{state of a node: the dynamic part of its total, or INFEASIBLE}"""
        self._own_fits: Bools = np.zeros(0, dtype=np.bool_)
        self._own_worth: Ints = np.zeros(0, dtype=np.int64)
        """while coupled: each node's feasibility and dynamic value, without neighbours and the fixed part"""
        if self.is_coupled:
            self._update_coupled(EVERY)
        else:
            self._update(EVERY)

    def refresh(self) -> None:
        """Compute again the nodes that were touched since the last refresh."""
        touched = self.usage.touched
        if self._cursor == len(touched):
            return
        if self._is_of_domains:
            self._cursor = len(touched)
            self._read_again()
            return
        nodes = sorted(set(touched[self._cursor :]))
        self._cursor = len(touched)
        was_coupled = self.is_coupled
        if self._terms != len(self.usage.pod_index.terms):
            self._find_coupling()
        if not self.is_coupled and not was_coupled:
            # What is used on a node that the static filters refuse has no effect on an uncoupled row.
            nodes = [node for node in nodes if self.passed[node]]
            if not nodes:
                return
        fresh = np.array(nodes, dtype=np.int64)
        if self._height.size:
            self._height[fresh] = _OFF_LADDER
        if self.is_coupled:
            self._update_coupled(fresh if was_coupled else EVERY)
        elif len(nodes) > RECALLED_MAX or not self._update_from_cache(nodes):
            self._update(fresh if fresh.size * 4 < self.total.size else EVERY)

    def note_taken(self, nodes: list[int]) -> None:
        """Update the row after the caller took one rank of this request on each of `nodes`, right after a refresh."""
        if self.is_coupled or self._terms != len(self.usage.pod_index.terms):
            return
        if not self._has_ladder or self._is_shifting or self._few is not None:
            return
        if self._cursor + len(nodes) != len(self.usage.touched):
            return  # other nodes were touched too; the next refresh computes them
        self._cursor = len(self.usage.touched)
        for node in nodes:
            height = int(self._height[node])
            if height == _OFF_LADDER or height >= RUNGS_MAX:
                self._height[node] = _OFF_LADDER
            else:
                self._height[node] = height + 1
        for node in sorted(set(nodes)):
            height = int(self._height[node])
            if height == _OFF_LADDER:
                if not self._update_from_cache([node]):
                    self._update(np.array([node], dtype=np.int64))
            else:
                self.total[node] = value = self._totals_at_level(height)[node]
                self.fits[node] = value != INFEASIBLE

    def levels(self, at: Ints, extra: int) -> Ints:
        """Return the totals of nodes `at` after `extra` more ranks of this request; feasibility is not checked."""
        return self._fixed[at] + self._dynamic(at, extra)

    def peek(self, node: int, extra: int) -> int:
        """Return the total of one node after `extra` more ranks of this request; INFEASIBLE when it has no room."""
        if self._has_ladder and self._few is None and not self._is_shifting:
            height = int(self._height[node])
            if height != _OFF_LADDER and height + extra <= RUNGS_MAX:
                return int(self._totals_at_level(height + extra)[node])
        at = np.array([node], dtype=np.int64)
        if int(self.usage.room(self.request, at, extra + 1)[0]) <= extra:
            return INFEASIBLE
        return int(self.levels(at, extra)[0])

    def room(self, most: int, within: Bools | None = None) -> Ints:
        """Return how many more ranks fit each node, at most `most`; 0 where it is infeasible or not `within`."""
        self.refresh()
        counts = self.usage.room(self.request, EVERY, most)
        counts[~self.fits] = 0
        if within is not None:
            counts[~within] = 0
        return without_its_like(self.request, self.usage, counts) if self.is_coupled else counts

    def scores_by_node(self, nodes: list[int] | None = None) -> dict[str, dict[str, int]]:
        """Return {node: {plugin: value 0..100 before its weight}} of the feasible nodes, or of `nodes`, for display."""
        self.refresh()
        parts: dict[str, Ints] = {
            score.name: score.score(self.request, self.usage, EVERY, 0) for score, _ in self._moving
        }
        for score, _ in self._still:
            raw = score.score(self.request, self.usage, EVERY, 0)
            parts[score.name] = normalised(raw, self.fits, score.normalise)
        parts |= dict(self.request.extender_results.scores) if self.request.extender_results is not None else {}
        for score, _ in self._beside:
            parts[score.name] = self._of_neighbours(score)
        columns = sorted(parts.items())
        return {
            self.usage.table.names[node]: {name: int(values[node]) for name, values in columns}
            for node in (np.flatnonzero(self.fits).tolist() if nodes is None else nodes)
        }

    def _read_again(self) -> None:
        """Compute the whole row, because the nodes of a domain change together."""
        if self._terms != len(self.usage.pod_index.terms):
            self._find_coupling()
        self._read_static()
        if self.is_coupled:
            self._update_coupled(EVERY)
        else:
            self._update(EVERY)

    def _find_coupling(self) -> None:
        """Determine whether pods near a node change its value for this request."""
        self._terms = len(self.usage.pod_index.terms)
        self.is_coupled = is_coupled(self.request, self.usage)
        if self.is_coupled and self._few is not None:
            self._few = None
            self._read_static()
            self._height = np.full(len(self.usage.table), _OFF_LADDER, dtype=np.int64)

    def _of_neighbours(self, score: Score) -> Ints:
        if score.whole is None or not self.is_coupled:
            return np.zeros(len(self.fits), dtype=np.int64)
        return score.whole(self.request, self.usage, self.fits)

    def _read_static(self) -> None:
        self._raw, self._constant = [], 0
        at = EVERY if self._few is None else self._few
        for score, weight in self._still:
            raw = score.score(self.request, self.usage, at, 0)
            if raw.size > 1 and (raw != raw[0]).any():
                self._raw.append((score, weight, self._spread(raw)))
            elif raw.size:
                self._constant += weight * normalised_alike(int(raw[0]), score.normalise)
        self._is_shifting = any(score.normalise is not Normalise.NONE for score, _, _ in self._raw)

    def _spread(self, raw: Ints) -> Ints:
        """Return values of the computed nodes as a column over all nodes."""
        if self._few is None:
            return raw
        whole = np.zeros(len(self.usage.table), dtype=np.int64)
        whole[self._few] = raw
        return whole

    def _totals_at_level(self, height: int) -> Ints:
        """Return the totals of all nodes after `height` of the row's own ranks since the ladder began."""
        while len(self._rungs) < height:
            self._rungs.append(self._compute_level(len(self._rungs) + 1))
        return self._rungs[height - 1]

    def _compute_level(self, height: int) -> Ints:
        """Compute one rung. The usage includes the ranks taken so far, so each node needs only the remaining ones."""
        held = np.maximum(self._height, 0)
        extra = height - held
        fits = self.passed & (self.usage.room(self.request, EVERY, _ROOM_MAX) + held > height)
        return np.where(fits, self._fixed + self._dynamic(EVERY, extra), INFEASIBLE)

    def _update_from_cache(self, nodes: list[int]) -> bool:
        """Update a few nodes with the known values of nodes in the same state.

        Return False, without any change, when the values of such nodes cannot be reused.
        """
        usage = self.usage
        if not self._is_of_amounts:
            return False
        states = usage.states_of(nodes)
        known = self._by_state
        unknown = {state: node for state, node in zip(states, nodes, strict=True) if state not in known}
        if unknown:
            at = np.array(list(unknown.values()), dtype=np.int64)
            worth = np.where(usage.fits(self.request, at), self._dynamic(at, 0), INFEASIBLE)
            known.update(zip(unknown, worth.tolist(), strict=True))
        worths = [known[state] if self.passed[node] else INFEASIBLE for state, node in zip(states, nodes, strict=True)]
        if self._is_shifting and any(
            (worth != INFEASIBLE) != self.fits[node] for worth, node in zip(worths, nodes, strict=True)
        ):
            return False
        for node, worth in zip(nodes, worths, strict=True):
            self.fits[node] = worth != INFEASIBLE
            self.total[node] = INFEASIBLE if worth == INFEASIBLE else self._fixed[node] + worth
        return True

    def _update(self, at: At) -> None:
        if isinstance(at, slice) and self._few is not None:
            self._fixed = self._normalised()
            at = self._few
        fits = self.passed[at] & self.usage.fits(self.request, at)  # replaces the dynamic filters of an uncoupled row
        is_shifted = isinstance(at, slice) or (self._is_shifting and bool((self.fits[at] != fits).any()))
        self.fits[at] = fits
        if is_shifted:
            self._fixed = self._normalised()
            at = EVERY
            fits = self.fits
        self.total[at] = np.where(fits, self._fixed[at] + self._dynamic(at, 0), INFEASIBLE)

    def _update_coupled(self, at: At) -> None:
        """Compute the effect of neighbours again for every node, and the rest only for nodes `at`."""
        if not self._own_fits.size:
            self._own_fits, self._own_worth = np.zeros_like(self.fits), np.zeros_like(self.total)
        self._own_fits[at] = self.passed[at] & self.usage.fits(self.request, at)
        self._own_worth[at] = self._dynamic(at, 0)
        fits = self._own_fits.copy()
        for entry in COUPLED:
            for _, refused in entry.refuse(self.request, self.usage, EVERY):
                fits &= ~refused
        self.fits[:] = fits
        self._fixed = self._normalised()
        self.total[:] = np.where(fits, self._fixed + self._own_worth, INFEASIBLE)

    def _dynamic(self, at: At, extra: Extra) -> Ints:
        result = np.zeros(self.fits[at].shape, dtype=np.int64)
        for score, weight in self._moving:
            result += weight * score.score(self.request, self.usage, at, extra)
        return result

    def _normalised(self) -> Ints:
        if not self._raw and not self.is_coupled and self.request.extender_results is None:
            return np.broadcast_to(np.int64(self._constant), self.fits.shape)
        result = np.full(len(self.fits), self._constant, dtype=np.int64)
        for score, weight, raw in self._raw:
            result += weight * normalised(raw, self.fits, score.normalise)
        if self.is_coupled:
            for score, weight in self._beside:
                result += weight * self._of_neighbours(score)
        if self.request.extender_results is not None:
            result += self.request.extender_results.bonus
        return result


def _passed(request: RankRequest, usage: NodeUsage) -> Bools:
    passed = np.ones(len(usage.table), dtype=np.bool_)
    for entry in STATIC:
        for _, refused in entry.refuse(request, usage, EVERY):
            passed &= ~refused
    return passed


def admitting(request: RankRequest, table: NodeTable, usage: NodeUsage | None = None) -> Bools:
    """Return the nodes that pass the lasting static filters of `request`, whatever is used on them.

    These filters do not check whether a node is ready or cordoned. The locations of volumes are known only from
    `usage`.
    """
    usage = usage or NodeUsage(table)
    passed = np.ones(len(table), dtype=np.bool_)
    for entry in STATIC:
        for _, refused in entry.refuse(request, usage, EVERY) if not entry.is_passing else ():
            passed &= ~refused
    return passed


def empty_room(request: RankRequest, table: NodeTable, most: int) -> Ints:
    """Return how many ranks each node would have room for if it were empty, ready and schedulable."""
    usage = NodeUsage(table)
    return without_its_like(request, usage, np.where(admitting(request, table), usage.room(request, EVERY, most), 0))


class NodeVerdict(msgspec.Struct, frozen=True):
    """The number of nodes per refusal in `refused`, in filter order; `fitting` nodes pass every filter."""

    nodes: int
    fitting: int
    refused: tuple[tuple[NodeRefusal, int], ...]

    def reasons(self) -> dict[str, int]:
        """Return {reason: nodes}, ordered by reason."""
        sums: dict[str, int] = {}
        for refusal, count in self.refused:
            sums[refusal.reason] = sums.get(refusal.reason, 0) + count
        return dict(sorted(sums.items()))

    def phrases(self) -> str:
        """Return text such as `3 lack 2 nvidia.com/gpu free, 1 is cordoned`, the most frequent first."""
        ordered = sorted(self.refused, key=lambda part: (-part[1], part[0].reason, part[0].one))
        return ", ".join(refusal.phrase(count) for refusal, count in ordered)


def diagnose(request: RankRequest, usage: NodeUsage) -> NodeVerdict:
    """Return the verdict on one more rank of `request`."""
    left = np.ones(len(usage.table), dtype=np.bool_)
    refused: list[tuple[NodeRefusal, int]] = []
    for entry in (*STATIC, *DYNAMIC):
        for refusal, mask in entry.refuse(request, usage, EVERY):
            count = int(np.count_nonzero(left & mask))
            if count:
                refused.append((refusal, count))
                left &= ~mask
    return NodeVerdict(len(usage.table), int(np.count_nonzero(left)), tuple(refused))
