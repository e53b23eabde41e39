"""The engine: a forked run is the run that its replay line gives, equal runs are equal, samples are even, and a process
that dies is reported."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.simulation import fork_server, found
from tests.simulation.fork_server import Branch, fork_server_process, play
from tests.simulation.plan import BRANCH_POINTS, FAMILIES, FOUND, Planned, branches, leaves, resumed, roots, sample
from tests.simulation.run import Outcome, run
from tests.support.faults import Fault, Kind

SCENARIO = "cancel-running"
JOBS = 2
PER_FAMILY = 1


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def alone(check: Callable[[], None]) -> None:
    """Run it in a process without threads: a fork keeps only the forking thread, and all locks that others held."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(check).result()


def test_a_forked_run_is_the_run_that_its_line_replays() -> None:
    """A point of each family has the same effects, the same history of every object and the same violations as a run
    from the start."""
    alone(forked_runs_are_replayed)


def forked_runs_are_replayed() -> None:
    logging.disable(logging.CRITICAL)
    wanted = roots([SCENARIO], 2)
    undisturbed = [Branch(scenario=name, seed=seed, replicas=replicas) for name, seed, replicas in wanted]
    with fork_server_process(traced=True) as forker:
        bases = {(each.scenario, each.seed, each.replicas): each.effects for each in play(undisturbed, JOBS, forker)}
        every = [point for root, effects in bases.items() for point in leaves(root, effects, FAMILIES)]
        planned = [
            point
            for family in FAMILIES
            for point in sample([each for each in every if each.family == family], PER_FAMILY, seed=1)
        ]
        outcomes = list(play(branches(planned, bases), JOBS, forker))
        woken = sample(resumed(each for each in outcomes if each.effects), PER_FAMILY, seed=1)
        outcomes += play(branches(woken, bases), JOBS, forker)
    assert len(outcomes) == len(planned) + len(woken)
    assert {each.family for each in (*planned, *woken)} == set(FAMILIES) - {"base", FOUND}
    for forked in outcomes:
        line = found.parse(forked.replay)
        again = run(line.scenario, line.seed, line.faults, replicas=line.replicas, traced=True)
        if forked.struck < len(forked.faults):
            assert again.struck < len(forked.faults), forked.replay
            continue
        told = (forked.trace, forked.violations, forked.struck, forked.virtual_s)
        assert told == (again.trace, again.violations, again.struck, again.virtual_s), forked.replay


def test_equal_arguments_give_equal_runs() -> None:
    """A find can be replayed."""
    first, second = run("restart", 5, traced=True), run("restart", 5, traced=True)
    assert first.trace == second.trace
    assert [str(effect) for effect in first.effects] == [str(effect) for effect in second.effects]


def test_a_process_that_dies_is_told_of() -> None:
    """The point that the dead process had to play is reported; the other processes continue."""
    alone(one_dies)


def one_dies() -> None:
    def dead(name: str, *_: object, **__: object) -> Outcome:
        if name == "launch-1":
            os._exit(3)
        return Outcome(scenario=name, seed=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "run", dead)
        with fork_server_process() as forker:
            outcomes = list(play([Branch(scenario="launch-1", seed=1), Branch(scenario="stay", seed=1)], 1, forker))
    assert [(each.scenario, bool(each.violations)) for each in outcomes] == [("launch-1", True), ("stay", False)]


def a_plan(**counts: int) -> list[Planned]:
    """That many points of each family; those of `freeze` are the only ones that make others wait long."""
    return [
        Planned(
            family,
            ("launch-1", 1, 1),
            (Fault(Kind.FREEZE if family == "freeze" else Kind.CRASH, "watcher", number),),
        )
        for family, count in counts.items()
        for number in range(1, count + 1)
    ]


def test_a_sample_has_some_of_everything_and_is_seeded() -> None:
    """A sample has some of each family, and more cheap points; equal seeds choose equally."""
    plan = a_plan(error=2000, read=5, freeze=2000)
    chosen = sample(plan, 900, seed=3)
    counts = Counter(each.family for each in chosen)
    assert counts.total() == 900
    assert counts["error"] > counts["freeze"] >= 3
    assert counts["read"] >= 3
    assert chosen == sample(plan, 900, seed=3) != sample(plan, 900, seed=4)


def test_a_sample_has_some_of_each_kind_of_fault() -> None:
    """A sample has some of each kind of fault, however expensive."""
    cheap = a_plan(error=9000)
    dear = [Planned("freeze", ("stay", 1, 2), (Fault(Kind.COMA, "watcher", number),)) for number in range(1, 9)]
    chosen = sample(cheap + dear, 6000, seed=1)
    assert sum(each.faults[0].kind is Kind.COMA for each in chosen) >= 2


def test_branches_hold_every_point_once() -> None:
    """The branches are cut so that all cores have work."""
    plan = a_plan(crash=BRANCH_POINTS * 2 + 1)
    cut = branches(plan, {})
    assert [len(branch.points) for branch in cut] == [BRANCH_POINTS, BRANCH_POINTS, 1]
    assert {point for branch in cut for point in branch.points} == {each.faults for each in plan}


def test_what_fails_is_kept_once(tmp_path: Path) -> None:
    """A failure is stored once, as the line that replays it."""
    path = tmp_path / "found.txt"
    outcome = Outcome(scenario="stay", seed=2, replicas=2, faults=("crash@watcher:3:after", "flush@watcher:5:after"))
    assert (found.keep([outcome.replay, outcome.replay], path), found.keep([outcome.replay], path)) == (1, 0)
    (line,) = found.lines(path)
    again = found.parse(line)
    assert (again.scenario, again.seed, again.replicas) == ("stay", 2, 2)
    assert tuple(map(str, again.faults)) == outcome.faults
