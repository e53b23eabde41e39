"""Feasibility rows: for one ask, which nodes do and how good each is, over all nodes at once.

A row is computed once per tick and shape, and then only for the nodes that were touched since. Invariant: after
`refresh`, `total[i]` is what a fresh row would hold, INFEASIBLE where a filter refuses node i.
"""

import numpy as np

from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.filters import DYNAMIC, STATIC, Refusal
from slipway.scheduler.plan.nodes import EVERY, At, Bools, Ints, NodeTable
from slipway.scheduler.plan.scores import SCORES, Normalise, normalised
from slipway.scheduler.plan.usage import Usage

INFEASIBLE = -1


class Row:
    """One ask against all nodes of a what-if usage."""

    def __init__(self, ask: Ask, usage: Usage, weights: dict[str, int]) -> None:
        self.ask = ask
        self.usage = usage
        chosen = [(SCORES[name], weight) for name, weight in sorted(weights.items())]
        self._moving = tuple((score, weight) for score, weight in chosen if not score.is_static)
        self._raw = tuple(
            (score, weight, score.score(ask, usage, EVERY, 0)) for score, weight in chosen if score.is_static
        )
        self.passed: Bools = _passed(ask, usage)
        """nodes that pass the static filters"""
        self._shifting = any(
            score.normalise is not Normalise.NONE and raw.size > 0 and int(raw.min()) != int(raw.max())
            for score, _, raw in self._raw
        )
        self.fits: Bools = np.zeros(len(usage.table), dtype=np.bool_)
        self._moved: Ints = np.zeros(len(usage.table), dtype=np.int64)
        self._fixed: Ints = np.zeros(len(usage.table), dtype=np.int64)
        self.total: Ints = np.full(len(usage.table), INFEASIBLE, dtype=np.int64)
        self._cursor = len(usage.touched)
        self._update(EVERY)

    def refresh(self) -> None:
        """Catch up with what was touched since the last look."""
        touched = self.usage.touched
        if self._cursor == len(touched):
            return
        fresh = touched[self._cursor :]
        self._cursor = len(touched)
        if len(fresh) * 4 > len(self.fits):
            self._update(EVERY)
        else:
            self._update(np.array(sorted(set(fresh)), dtype=np.int64))

    def best(self) -> int | None:
        """The best feasible node, the first by name among equals."""
        if self.total.size == 0:
            return None
        node = int(self.total.argmax())
        return node if self.total[node] >= 0 else None

    def levels(self, at: Ints, extra: int) -> Ints:
        """Totals of nodes `at` once `extra` more ranks of this ask are there (feasibility is the caller's)."""
        return self._fixed[at] + self._dynamic(at, extra)

    def room(self, most: int) -> Ints:
        """How many more ranks each node holds, at most `most`; 0 where it is infeasible."""
        self.refresh()
        counts = self.usage.room(self.ask, EVERY, most)
        counts[~self.fits] = 0
        return counts

    def table_of_scores(self) -> dict[str, Ints]:
        """{plugin: normalised value per node}, for showing."""
        parts: dict[str, Ints] = {score.name: score.score(self.ask, self.usage, EVERY, 0) for score, _ in self._moving}
        parts.update({score.name: normalised(raw, self.fits, score.normalise) for score, _, raw in self._raw})
        return dict(sorted(parts.items()))

    def _update(self, at: At) -> None:
        fits = self.passed[at].copy()
        for entry in DYNAMIC:
            for _, refused in entry.refuse(self.ask, self.usage, at):
                fits &= ~refused
        changed = self._shifting and bool((self.fits[at] != fits).any())
        self.fits[at] = fits
        self._moved[at] = self._dynamic(at, 0)
        if changed or isinstance(at, slice):
            self._fixed = self._normalised()
            at = EVERY
        self.total[at] = np.where(self.fits[at], self._fixed[at] + self._moved[at], INFEASIBLE)

    def _dynamic(self, at: At, extra: int) -> Ints:
        result = np.zeros(self.fits[at].shape, dtype=np.int64)
        for score, weight in self._moving:
            result += weight * score.score(self.ask, self.usage, at, extra)
        return result

    def _normalised(self) -> Ints:
        result = np.zeros(len(self.fits), dtype=np.int64)
        for score, weight, raw in self._raw:
            result += weight * normalised(raw, self.fits, score.normalise)
        return result


def _passed(ask: Ask, usage: Usage) -> Bools:
    passed = np.ones(len(usage.table), dtype=np.bool_)
    for entry in STATIC:
        for _, refused in entry.refuse(ask, usage, EVERY):
            passed &= ~refused
    return passed


def empty_room(ask: Ask, table: NodeTable, most: int) -> Ints:
    """How many ranks each node would hold if it were empty, ready and not cordoned."""
    usage = Usage(table)
    passed = np.ones(len(table), dtype=np.bool_)
    for entry in STATIC:
        for _, refused in entry.refuse(ask, usage, EVERY) if not entry.is_passing else ():
            passed &= ~refused
    return np.where(passed, usage.room(ask, EVERY, most), 0)


def refusals(ask: Ask, usage: Usage) -> list[tuple[Refusal, Ints]]:
    """Every refusal with the nodes it counts for: each node once, at its first failing filter, in filter order."""
    open_nodes = np.ones(len(usage.table), dtype=np.bool_)
    found: list[tuple[Refusal, Ints]] = []
    for entry in (*STATIC, *DYNAMIC):
        for refusal, refused in entry.refuse(ask, usage, EVERY):
            first = open_nodes & refused
            if first.any():
                found.append((refusal, np.flatnonzero(first)))
                open_nodes &= ~refused
    return found
