"""Invariants of lives, gangs and ledgers: for each the smallest history that breaks it, and one that does not."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from slipway.crd.rules import RULES
from slipway.crd.transitions import event_of, ring_of
from slipway.crd.v1alpha1 import Preempted, Release, Stop
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.times import format_time
from slipway.ops.audit.check import BY_ID, INVARIANTS, EvidenceKind, audit, verdicts
from slipway.ops.audit.evidence import ALLOCATIONS, CONFIG_MAPS, PODS, ClientPromise, ContainerRun, FencedWrite
from tests.support.history import BEGUN, History, exited, running

Story = Callable[[History], None]


def reported(history: History, **known: Any) -> set[str]:
    """The invariants that an audit reports as broken."""
    return {violation.invariant for violation in audit(history.evidence(**known))}


def test_a_correct_history_violates_no_invariant() -> None:
    """A correct history breaks nothing: an allocation that was launched, ran, ended and was deleted; others run, failed
    or wait."""
    history = History()
    history.queue(limit={"cpu": "8"}, nominal={"cpu": "4"}, borrowingLimit={"cpu": "4"})
    history.run("done")
    history.finish("done")
    history.run("broken")
    history.finish("broken", code=3)
    history.run("busy")
    history.launch("waits")
    assert audit(history.evidence()) == []
    assert audit(history.evidence(is_sampled=True, starts_late=True, listed_to=5)) == []


def _starts_twice(history: History) -> None:
    history.run()
    history.pod(0, node="n1", uid="again", **running(history.now))


def _bound_unreleased(history: History) -> None:
    history.launch()
    history.ledger(history.decision())
    history.admit()
    history.pod(0)
    history.pod(0, node="n1")


def _half_a_gang(history: History) -> None:
    history.run()
    history.pod(1, node="n2", **exited(history.now, 1))


def _leaves_its_end(history: History) -> None:
    history.run()
    history.finish()
    history.status(phase=Phase.RUNNING)


def _rewrites_its_result(history: History) -> None:
    history.run()
    history.finish()
    history.status(result="Failed")


def _skips_the_table(history: History) -> None:
    history.launch()
    history.step(Event.ASSIGNED)
    history.status(phase=Phase.PENDING)


def _takes_a_rank_back(history: History) -> None:
    history.run()
    ranks = history.allocation().status.ranks or []
    history.status(ranks=[msgspec.structs.replace(ranks[0], phase=RankState.BOUND), ranks[1]])


def _epoch_falls(history: History) -> None:
    history.ledger(epoch=3)
    history.ledger(epoch=2)


def _undecided(history: History) -> None:
    history.launch()
    history.admit()


def _does_not_wait(history: History) -> None:
    history.launch(after=[{"allocation": "first-5b1c9d3e"}])
    history.ledger(history.decision())
    history.admit()


def _starts_although_it_must_not(history: History) -> None:
    history.launch(after=[{"allocation": "first-5b1c9d3e", "result": "Failed"}])
    history.ledger(history.decision())
    history.admit()


def _drops_a_decision(history: History) -> None:
    history.launch()
    history.ledger(history.decision())
    history.ledger()


def _over_a_node(history: History) -> None:
    for name in ("a", "b", "c"):
        history.launch(name, ranks=[{"name": "worker", "count": 1, "resources": {"cpu": "2"}}])
    history.ledger(*(history.decision(name, id_=name, nodes=(0,)) for name in ("a", "b", "c")))


def _over_a_limit(history: History) -> None:
    history.queue(limit={"cpu": "1"})
    history.now += 60
    history.launch()
    history.ledger(history.decision())


def _over_what_it_may_borrow(history: History) -> None:
    history.queue("above", nominal={"cpu": "1"}, borrowingLimit={"cpu": "0"})
    history.queue("below", parent="above")
    history.now += 60
    history.launch(queue="below")
    history.ledger(history.decision())


def _leaves_a_config_map(history: History) -> None:
    history.run()
    history.config_map("job-1", {}, of="job")
    history.finish()


def _keeps_its_finalizer(history: History) -> None:
    history.launch()
    history.step(Event.TERMINATED, result="Canceled", ended_at=format_time(history.now))


def _releases_after_a_cancel(history: History) -> None:
    history.launch()
    history.ledger(history.decision())
    history.admit()
    history.spec(desired="Stopped")
    history.release()


def _succeeds_although_cancelled(history: History) -> None:
    history.run()
    history.spec(desired="Stopped")
    history.finish()


def _another_exit(history: History) -> None:
    history.run()
    for rank in (0, 1):
        history.pod(rank, node=f"n{rank + 1}", **exited(history.now, 7))
    ranks = [msgspec.structs.replace(rank, exit_code=0) for rank in history.allocation().status.ranks or []]
    history.step(Event.TERMINATED, ranks=ranks, result="Succeeded")


def _let_go_unrecorded(history: History) -> None:
    history.run()
    history.pod(0, node="n1", **exited(history.now, 0))
    history.let_go(0)


def _failed_for_no_exit(history: History) -> None:
    history.run()
    history.step(Event.TERMINATED, reason="RankFailed", result="Failed")


def _evicted_by_nobody(history: History) -> None:
    history.run()
    stop = Stop(reason="Preempted", at=format_time(history.now), by="default/high", attempt=1)
    history.status(writer="scheduler-1", stop=stop)


def _is_deleted_alive(history: History) -> None:
    history.run()
    history.remove(ALLOCATIONS, "job", writer="watcher-1")


def _makes_room_untold(history: History) -> None:
    history.run()
    history.remove(PODS, "job-1-1", writer="podworker-1")


def _evicted_for_nothing(history: History) -> None:
    history.run()
    history.ledger(history.decision(id_="e1", nodes=(), kind="evict", by="default/high"))


def _evicted_too_often(history: History) -> None:
    history.run()
    times = [Preempted(at=format_time(BEGUN + 60 * count), by="default/high") for count in range(4)]
    history.status(preemptions=times)


def _away_from_home(history: History) -> None:
    history.run()
    history.config_map("job-1", {}, of="job", space="elsewhere")


def _half_way(history: History) -> None:
    history.launch()
    history.ledger(history.decision())
    history.admit()


def _does_not_stop(history: History) -> None:
    history.run()
    history.spec(desired="Stopped")


def _grows(history: History) -> None:
    history.run()
    history.status(message="x" * 20_000)


def _writes_too_much(history: History) -> None:
    history.run()
    for count in range(20):
        history.status(message=str(count))


def _counts_twice(history: History) -> None:
    history.run()
    history.finish()
    history.remove(CONFIG_MAPS, "slipway-usage-2023-11-14")


@pytest.mark.parametrize(
    ("story", "invariant"),
    [
        (_is_deleted_alive, "I1"),
        (_starts_twice, "I3"),
        (_starts_twice, "I4"),
        (_bound_unreleased, "I5"),
        (_half_a_gang, "I6"),
        (_leaves_its_end, "I7"),
        (_rewrites_its_result, "I7"),
        (_skips_the_table, "I8"),
        (_takes_a_rank_back, "I8"),
        (_epoch_falls, "I9"),
        (_undecided, "I9"),
        (_drops_a_decision, "I9"),
        (_does_not_wait, "I9"),
        (_starts_although_it_must_not, "I9"),
        (_over_a_node, "I10"),
        (_over_a_limit, "I10"),
        (_over_what_it_may_borrow, "I10"),
        (_leaves_a_config_map, "I11"),
        (_keeps_its_finalizer, "I11"),
        (_releases_after_a_cancel, "I13"),
        (_succeeds_although_cancelled, "I13"),
        (_half_way, "I18"),
        (_does_not_stop, "I18"),
        (_another_exit, "I20"),
        (_let_go_unrecorded, "I20"),
        (_failed_for_no_exit, "I20"),
        (_evicted_by_nobody, "I21"),
        (_makes_room_untold, "I21"),
        (_evicted_for_nothing, "I21"),
        (_evicted_too_often, "I21"),
        (_away_from_home, "I22"),
        (_grows, "I24"),
        (_writes_too_much, "I24"),
        (_counts_twice, "I26"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.strip("_").replace("_", "-"),
)
def test_each_violation_is_reported(story: Story, invariant: str) -> None:
    """One change breaks exactly its invariant."""
    history = History()
    story(history)
    assert invariant in reported(history)


def test_a_start_that_its_node_broke_off_is_no_exit() -> None:
    """I20: a start that its node broke off is no exit, because its code is the runtime's; such a pod may be released
    without a recorded exit, as when its node is lost."""
    history = History()
    history.run()
    ended = exited(history.now, 128)
    ended["containerStatuses"][0]["state"]["terminated"] |= {
        "reason": "StartError",
        "message": "failed to create containerd task: failed to create shim task: context canceled",
    }
    history.pod(0, node="n1", **ended)
    history.let_go(0)
    assert "I20" not in reported(history)


@pytest.mark.parametrize("phase", [RankState.FAILED, RankState.RELEASING])
def test_an_exit_that_is_told_after_the_loss_was_recorded_does_not_change_the_record(phase: RankState) -> None:
    """I20: a node that was given up reports the exit code later; the recorded loss stays. The reverse order breaks the
    invariant.

    The API server deletes a pod that has no grace left with its last finalizer, whatever its node wrote in between.
    """
    for is_recorded_first, found in ((True, set[str]()), (False, {"I20"})):
        history = History()
        history.run()
        if not is_recorded_first:
            history.pod(0, node="n1", **exited(history.now, 137))
        first, second = history.allocation().status.ranks or []
        lost = msgspec.structs.replace(first, phase=phase, reason="NodeLost")
        history.status(ranks=[lost, second])
        if is_recorded_first:
            history.pod(0, node="n1", **exited(history.now, 137))
        history.let_go(0)
        assert reported(history) & {"I20"} == found


def test_a_writer_that_nobody_knows_is_no_second_leader() -> None:
    """I9: an unknown writer is no second leader, because an API server that dies before its answer leaves the writer
    unknown; two known writers are a violation."""
    for second, found in (("", set[str]()), ("scheduler-2", {"I9"})):
        history = History()
        for _ in range(3):
            history.ledger()
        history.versions[-2].writer = second
        assert reported(history) == found


def test_an_acknowledged_launch_that_does_not_exist_is_reported() -> None:
    """I1: a promised launch that never existed, or is gone without a delete, is a violation; a deleted one is not."""
    history = History()
    uid = history.launch().metadata.uid
    promise = ClientPromise(kind="launched", uid=uid, version=3, at=history.now)
    assert reported(history, promises=[promise]) == set()
    lost = msgspec.structs.replace(promise, uid="nobody")
    assert reported(history, promises=[lost]) == {"I1"}
    history.remove(ALLOCATIONS, "job")
    assert reported(history, promises=[promise]) == {"I1"}
    assert reported(history, promises=[promise, msgspec.structs.replace(promise, kind="deleted")]) == set()


def test_a_container_that_runs_after_the_end_is_reported() -> None:
    """I12, I13: a container that outlives its allocation or the cancel by more than its grace is a violation."""
    history = History()
    history.run()
    uid = history.allocation().metadata.uid
    history.spec(desired="Stopped")
    history.finish(result="Canceled", reason="Killed")
    ran = ContainerRun(
        allocation_uid=uid, attempt=1, rank=0, pod_uid="p", started_at=BEGUN, ended_at=history.now + 20, code=0
    )
    other = msgspec.structs.replace(ran, rank=1, pod_uid="q")
    usual = [ran, other]
    assert not reported(history, containers=usual) & {"I12", "I13"}
    late = [msgspec.structs.replace(ran, ended_at=history.now + 200), other]
    assert {"I12", "I13"} <= reported(history, containers=late)


def test_a_stream_is_the_objects_own_history() -> None:
    """I14, I15: an invented entry, a gap, a second payload, and a missing end of a stream are violations."""
    history = History()
    history.run()
    found = history.allocation()
    good = [event_of(found, entry) for entry in ring_of(found)]
    name = str(good[0].allocation_id)

    def broken(*events: object, appended: object = good) -> set[str]:
        return reported(history, has_streams=True, streams={name: list(events)}, appended=appended)

    assert broken(*good) == set()
    assert broken(*good[:-1]) == {"I15"}
    assert broken(good[0], *good[2:]) == {"I14"}
    other = msgspec.structs.replace(good[1], reason="Other")
    assert broken(*good, appended=[*good, other]) == {"I14"}
    spelled = [
        msgspec.structs.replace(each, data={**each.data, "ranks": spelling}) for spelling in (1, 1.0) for each in good
    ]
    assert "I14" in broken(*good, appended=spelled), "1.0 and 1 are two payloads"
    assert "I14" in broken(*good, appended=[msgspec.structs.replace(good[0], data={**good[0].data, "ranks": 1.0})])


@pytest.mark.parametrize(("deleter", "expected"), [("", set[str]()), ("podworker-1", {"I5"})])
def test_a_release_of_a_pod_that_is_gone(deleter: str, expected: set[str]) -> None:
    """I5: the release of a deleted pod is a violation when one of our services deleted it; when another process did,
    the pod worker could not know."""
    history = History()
    history.launch()
    history.ledger(history.decision())
    history.admit()
    uids = [history.pod(rank) for rank in (0, 1)]
    history.remove(PODS, "job-1-1", writer=deleter)
    history.status(writer="podworker-1", release=Release(attempt=1, pod_uids=uids))
    assert reported(history) & {"I5"} == expected


def test_the_rules_have_to_be_installed() -> None:
    """I7: the rules must be installed, because the API server itself enforces the fences."""
    history = History()
    rules = [rule.rule for rule in RULES]
    assert reported(history, crd_rules=rules) == set()
    assert reported(history, crd_rules=rules[:3]) == {"I7"}


def test_writes_without_a_fence_are_reported() -> None:
    """A bind or a delete without a uid, and a replacement without a version, are violations."""
    history = History()
    good = FencedWrite(process="watcher-1", verb="delete", resource="pods", name="p", uid="u", outcome="ok")
    assert reported(history, requests=[good]) == set()
    assert reported(history, requests=[msgspec.structs.replace(good, uid="")]) == {"FENCE"}
    assert reported(history, requests=[msgspec.structs.replace(good, verb="update", uid="")]) == {"FENCE"}


def test_a_polled_history_may_skip_phases() -> None:
    """A sampled history is judged by its visible versions: several attempts may have passed between two samples."""
    history = History()
    history.launch()
    before = len(history.versions)
    history.admit()
    history.step(Event.RESTARTED, reason="NodeLost")
    history.admit(id_="d2")
    del history.versions[before : before + 2]
    assert "I8" not in reported(history, is_sampled=True)
    assert "I8" in reported(history)


def test_checks_without_evidence_are_listed() -> None:
    """An invariant that cannot be judged is reported with the missing evidence; it does not count as satisfied."""
    found = {verdict.invariant.id: verdict for verdict in verdicts(History().evidence())}
    assert list(found) == [invariant.id for invariant in INVARIANTS]
    assert found["I2"].judged == ()
    assert found["I2"].missing == (EvidenceKind.ANSWERS,)
    assert found["I3"].judged == ("one live pod per rank",)


def test_ids_are_stable() -> None:
    """The ids of invariants are stable, I1 to I27 and our own, because gauges are named by them."""
    assert list(BY_ID) == [*(f"I{number}" for number in range(1, 28)), "ACK", "FENCE"]


def test_an_interruption_may_cost_an_attempts_work_again() -> None:
    """I24: an interrupted process may repeat and undo the work of others; that is no storm."""
    history = History()
    _writes_too_much(history)
    assert reported(history) == {"I24"}
    assert reported(history, interruptions=2) == set()


@pytest.mark.parametrize(("apart_s", "broken"), [(1.0, set[str]()), (0.2, {"I24"})], ids=["slow ranks", "a storm"])
def test_news_of_ranks_may_be_written_once_a_second(apart_s: float, broken: set[str]) -> None:
    """I24: ranks that start one by one on slow nodes cause one write each; as many writes within a second are a
    storm."""
    history = History()
    history.run()
    begun = history.now
    for number in range(40):
        history.now = begun + number * apart_s
        ranks = history.allocation().status.ranks or []
        history.status(ranks=[msgspec.structs.replace(ranks[0], reason=str(number)), *ranks[1:]])
    assert reported(history) & {"I24"} == broken


@pytest.mark.parametrize("count", [0, 3], ids=["alone", "beside others"])
def test_a_pod_that_goes_is_one_write(count: int) -> None:
    """I24: the mark and the removal of a pod are one write, whatever other commits are between the two."""

    def life(more: int, *, goes: bool) -> History:
        history = History()
        history.run()
        for number in range(more):
            history.status(message=str(number))
        if goes:
            history.leave(0, beside=count)
        return history

    most = next(more for more in range(40) if reported(life(more + 1, goes=False)) == {"I24"})
    assert "I24" not in reported(life(most - 1, goes=True))
    assert "I24" in reported(life(most, goes=True))
