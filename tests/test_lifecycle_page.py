"""The page on the life of an allocation matches the code: the test plays its tables, row by row."""

import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from slipway.api.allocations import allocation_routes
from slipway.cli.main import VERBS
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason, Result
from slipway.scheduler.deadlines import REASONS
from slipway.watcher import ends
from slipway.watcher.ends import FinalEnd, LifecyclePolicy, NextAttempt
from tests.support.builders import AllocationStory, PodStory, a_pod
from tests.support.reductions import NOW, a_running, once, settled

PAGE = Path(__file__).parent.parent / "docs" / "lifecycle.md"
WORD = re.compile(r"`([^`]*)`")
POLICY = LifecyclePolicy()


@cache
def rows(section: str) -> list[tuple[str, ...]]:
    """The cells of the table in that section."""
    text = PAGE.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [
        tuple(cell.strip() for cell in line.strip().removesuffix("|").removeprefix("|").split("|"))
        for line in lines[2:]
    ]


def words(cell: str) -> list[str]:
    return WORD.findall(cell)


def test_every_phase_has_its_row() -> None:
    """The page lists every phase, in order."""
    assert [words(row[0]) for row in rows("Phases")] == [[phase.value] for phase in Phase]


def test_every_signal_is_a_verb_and_a_route() -> None:
    """Every signal that the page mentions is a verb and a route."""
    routes = {(row.method, row.path.removeprefix(f"{allocation_routes.ROOT}/")) for row in allocation_routes.ENDPOINTS}
    for _, verb, route, _ in rows("Signals"):
        assert words(verb)[0] in VERBS
        assert tuple(words(route)[0].split()) in routes


def test_every_deadline_has_its_row() -> None:
    """The page lists every deadline with the field that sets it and the end that it leads to; the watcher itself
    sets the one of a blocked start."""
    table = {words(row[0])[0]: row for row in rows("Deadlines")}
    assert words(table.pop("start")[1]) == ["SLIPWAY_IMAGE_PULL_LIMIT_S", "SLIPWAY_STUCK_LIMIT_S"]
    assert table.keys() == REASONS.keys()
    for name, (_, field, _, ending) in table.items():
        assert words(ending) == [ends.result_of(REASONS[name]).value, REASONS[name].value]
        assert words(field)[0] in {each.encode_name for each in msgspec.structs.fields(a_running().it.spec)}


# --- saving the work


def asked(by: str) -> AllocationStory:
    story = a_running(preemptible=True, preemptionGrace="10s").ready()
    match by:
        case "a user":
            return story.asked_to_preempt()
        case "the system":
            return story.stopped("Preempted", requeue=True, by="team/big")
        case _:
            return story.stopped("IdleTimeout")


def ended(by: str, acked: str, how: str) -> Allocation:
    told = AllocationStory(once(asked(by).it, a_pod().running()).allocation)
    if acked == "yes":
        told = told.acknowledged(0)
    if how == "the grace":
        late = once(told.it, a_pod().running(), now=NOW + 10).allocation
        return settled(late, a_pod().exited(137, at_s=31).deleted(at_s=30), now=NOW + 20)
    return settled(told.it, a_pod().exited(0 if how == "0" else 1, at_s=18))


def test_every_course_of_a_preemption_is_as_the_table_says() -> None:
    """Every course of a preemption is in the table: who asked, who acknowledged, and how it ended."""
    table = rows("Saving the work")
    assert len({row[:3] for row in table}) == len(table) == 15
    for by, acked, how, said in table:
        status = ended(by, acked, how).status
        if said == "the next attempt":
            assert (status.phase, status.attempt, status.restarts) == (Phase.PENDING, 2, 0), (by, acked, how)
        else:
            expected = words(said)
            assert [status.result, status.reason][: len(expected)] == expected, (by, acked, how)
            assert status.attempt == 1


# --- ends


def _terminating(reason: Reason, *, restarts: int) -> Allocation:
    """An attempt whose pods have all ended, for `reason` on node n0."""
    stops = {Reason.KILLED: "killed", Reason.DELETED: "deleted"}
    story = a_running(maxRestarts=1).with_status(restarts=restarts)
    if reason in stops:
        story = getattr(story, stops[reason])()
    return story.recorded(Event.TERMINATING, at_s=9, reason=reason.value, data={"node": "n0"}).it


def _outcome(reason: Reason, *, restarts: int = 0) -> FinalEnd | NextAttempt:
    if reason in (Reason.INVALID_SPEC, Reason.TOO_LARGE):
        refused = a_running(maxRestarts=1).condition("Refused", reason.value).it
        return ends.after_end(refused, reason, now=NOW, policy=POLICY)
    is_leaving = reason is Reason.NAMESPACE_TERMINATING
    found = _terminating(reason, restarts=restarts)
    return ends.after_end(found, reason, now=NOW, policy=POLICY, namespace_terminating=is_leaving)


def test_every_reason_has_its_row() -> None:
    """The page lists every reason once."""
    assert sorted(words(row[0])[0] for row in rows("Ends")) == sorted(reason.value for reason in Reason if reason.value)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.value])
def test_every_end_is_as_the_table_says(reason: Reason) -> None:
    """The table shows the result, whether there is a retry, whose fault the end counts as, and which node is
    avoided."""
    (_, result, again, avoids) = next(row for row in rows("Ends") if words(row[0]) == [reason.value])
    if "when the system asked" in again:
        pod: PodStory = a_pod().exited(143)
        assert settled(a_running().stopped("Preempted", requeue=True).it, pod).status.phase is Phase.PENDING
        assert ends.result_of(reason).value in words(result)
        return
    first, last = _outcome(reason), _outcome(reason, restarts=1)
    match again:
        case "never":
            assert isinstance(first, FinalEnd)
            assert words(result) == [first.result.value]
        case "within `maxRestarts`":
            assert isinstance(first, NextAttempt)
            assert isinstance(last, FinalEnd)
            assert (first.counted, words(result), last.result) == (True, [last.result.value], Result.FAILED)
        case _:
            assert again == "always"
            assert isinstance(first, NextAttempt)
            assert isinstance(last, NextAttempt)
            assert (first.counted, words(result)) == (False, [])
    assert (avoids == "yes") == (isinstance(first, NextAttempt) and first.avoid_nodes == ("n0",))
