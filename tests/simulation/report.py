"""The results of a sweep so far, and the table at its end.

Owns counting and the words. Progress goes to stderr and is 80 columns wide at most.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable

from tests.simulation.plan import BASE, FAMILIES, Planned, Root
from tests.simulation.run import Outcome
from tests.support.faults import Fault

SHOWN_MAX = 40
SAID_MAX = 4
TERMINAL_S, PIPE_S = 1.0, 30.0
"""Seconds between progress lines, on a terminal and on a pipe."""
COLUMNS = 3

_Key = tuple[Root, frozenset[str]]


class Report:
    """Counts outcomes. A point whose faults were not all reached is counted apart."""

    def __init__(self) -> None:
        self.points = Counter[str]()
        self.missed = Counter[str]()
        self.violations = Counter[str]()
        self.by_group = Counter[str]()
        self.wrong_groups = Counter[str]()
        self.failed: list[str] = []
        """Replay lines of the failed points."""
        self.unreached: list[str] = []
        self._families: dict[_Key, str] = {}
        self._awaited: dict[_Key, str] = {}
        """{point: its replay line}"""
        self._total = 0
        self._begun = self._told_at = time.perf_counter()

    @property
    def total(self) -> int:
        """The points that were played, including undisturbed runs."""
        return sum(self.points.values())

    def expect(self, planned: Iterable[Planned]) -> None:
        """Expect the outcomes of these points."""
        for each in planned:
            key = (each.root, frozenset(map(str, each.faults)))
            self._families[key] = each.family
            self._await(key, each.root, each.faults)

    def expect_bases(self, roots: Iterable[Root]) -> None:
        """Expect the outcomes of these undisturbed runs."""
        for root in roots:
            self._await((root, frozenset()), root, ())

    @property
    def lost(self) -> list[str]:
        """Replay lines of expected points without an outcome."""
        return list(self._awaited.values())

    def take(self, outcome: Outcome) -> str:
        """Count one outcome, and return its family."""
        key = ((outcome.scenario, outcome.seed, outcome.replicas), frozenset(outcome.faults))
        family = self._families.get(key, BASE)
        self._awaited.pop(key, None)
        if outcome.struck < len(outcome.faults) and not outcome.violations:
            self.missed[family] += 1
        else:
            self.points[family] += 1
            self.by_group[_group(outcome.scenario)] += 1
        if outcome.violations:
            self._fail(family, outcome)
        self._tell()
        return family

    def show(self) -> None:
        """Print the closing table."""
        took_s = time.perf_counter() - self._begun
        self._tell(is_over=True)
        _say(f"{'family':10} {'points':>8} {'violations':>11} {'not reached':>12}")
        for family in FAMILIES:
            if self.points[family] or self.missed[family]:
                _say(f"{family:10} {self.points[family]:8,} {self.violations[family]:11,} {self.missed[family]:12,}")
        _say("")
        groups = sorted(self.by_group)
        rows = -(-len(groups) // COLUMNS)
        for row in range(rows):
            _say("  ".join(self._cell(group) for group in groups[row::rows]).rstrip())
        _say("")
        if self.unreached:
            _say(f"without points, because they fail undisturbed: {', '.join(sorted(set(self.unreached)))}")
        if self.lost:
            _say(f"points that were lost: {len(self.lost):,}, the first of them {self.lost[0]}")
        _say(
            f"make sim: {self.total:,} points in {took_s:.0f} s, {self.total / took_s:.1f} points/s,"
            f" {len(self.failed)} with violations"
        )

    def _await(self, key: _Key, root: Root, faults: Iterable[Fault]) -> None:
        if key not in self._awaited:
            name, seed, replicas = root
            of = Outcome(scenario=name, seed=seed, replicas=replicas, faults=tuple(map(str, faults)))
            self._awaited[key] = of.replay
            self._total += 1

    def _cell(self, group: str) -> str:
        wrong = f" ({self.wrong_groups[group]} wrong)" if self.wrong_groups[group] else ""
        return f"{group:14} {self.by_group[group]:6,}{wrong:3}"

    def _fail(self, family: str, outcome: Outcome) -> None:
        self.violations[family] += 1
        self.wrong_groups[_group(outcome.scenario)] += 1
        self.failed.append(outcome.replay)
        if not outcome.faults:
            self.unreached.append(outcome.scenario)
        if len(self.failed) <= SHOWN_MAX:
            _say(f"python -m tests.simulation {outcome.replay}")
            for violation in outcome.violations[:SAID_MAX]:
                _say(f"    {violation}")

    def _tell(self, *, is_over: bool = False) -> None:
        now, is_terminal = time.perf_counter(), sys.stderr.isatty()
        if not is_over and now - self._told_at < (TERMINAL_S if is_terminal else PIPE_S):
            return
        self._told_at = now
        done = self.total + sum(self.missed.values())
        rate = done / max(0.001, now - self._begun)
        line = f"{done:,} of {self._total:,} points, {rate:.0f}/s, {len(self.failed)} with violations"
        end = "\n" if is_over or not is_terminal else ""
        sys.stderr.write((f"\r{line:78}" if is_terminal else line) + end)
        sys.stderr.flush()


def _group(scenario: str) -> str:
    return scenario.partition("-")[0]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
