"""For any history of an allocation the rules allow each legal write and refuse each forbidden one."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slipway.crd.rules import violations
from tests.support.allocations import Json, a_spec, a_status, a_stored, changed

ORDER = ["Pending", "Assigned", "Pulling", "Starting", "Running", "Terminating", "Terminated"]
counts = st.integers(min_value=1, max_value=4)


def passes(now: Json, before: Json) -> bool:
    return not violations("Allocation", now, before)


@st.composite
def lives(draw: st.DrawFn) -> list[Json]:
    """The stored versions of one allocation, write by write, as legal writers make them."""
    ranks = draw(counts)
    stored = a_stored(spec=a_spec(ranks=[{"name": "worker", "count": ranks}]))
    versions, epoch, seq = [stored], draw(st.integers(0, 3)), 1
    attempts = draw(st.integers(1, 3))

    def write(**changes: Any) -> None:
        nonlocal seq
        seq += 1
        status = {**versions[-1]["status"], "seq": seq, **changes}
        kept = {key: value for key, value in status.items() if value is not None}
        versions.append({**versions[-1], "status": kept})

    for attempt in range(1, attempts + 1):
        epoch += draw(st.integers(0, 2))
        write(phase="Assigned", admission={"decisionId": f"d{attempt}", "epoch": epoch, "attempt": attempt})
        write(release={"attempt": attempt, "podUIDs": [f"u{attempt}-{rank}" for rank in range(ranks)]})
        alive: list[Json] = [{"podUID": f"u{attempt}-{rank}", "phase": "Running"} for rank in range(ranks)]
        write(phase="Running", ranks=alive)
        if draw(st.booleans()):
            versions.append(changed(versions[-1], "spec/priority", draw(st.integers(0, 1000))))
        if draw(st.booleans()):
            signals = {"attempt": attempt, "preempt": {"n": draw(st.integers(0, 2)), "attempt": attempt}}
            versions.append(changed(versions[-1], "spec/signals", signals))
        ended = list(alive)
        for rank in draw(st.permutations(range(ranks))):
            ended = [*ended]
            ended[rank] = {**ended[rank], "phase": "Failed", "exitCode": draw(st.integers(0, 255))}
            write(ranks=ended)
        if attempt < attempts:
            write(phase="Pending", attempt=attempt + 1, release=None, ranks=None)
    write(phase="Terminated", result="Failed")
    write(conditions=[{"type": "Complete", "status": "True"}])
    return versions


@given(lives())
def test_a_legal_life_passes_write_by_write(versions: list[Json]) -> None:
    """Every write is allowed from the create to the last condition, over attempts."""
    assert not violations("Allocation", versions[0], None)
    for before, now in pairwise(versions):
        assert not violations("Allocation", now, before)


@given(lives(), st.data())
def test_writing_the_same_again_passes(versions: list[Json], data: st.DataObject) -> None:
    """Every rule is reflexive: a repeated write is not refused."""
    version = data.draw(st.sampled_from(versions))
    assert passes(version, version)


@given(lives(), st.data())
def test_no_write_goes_back_in_time(versions: list[Json], data: st.DataObject) -> None:
    """A stale status written over a later one is refused, whatever both contain."""
    later = data.draw(st.integers(1, len(versions) - 1))
    stale = versions[data.draw(st.integers(0, later - 1))]["status"]
    if stale["seq"] < versions[later]["status"]["seq"]:
        assert not passes({**versions[later], "status": stale}, versions[later])


@given(lives(), st.sampled_from(ORDER[:-1]), st.integers(0, 5))
def test_a_terminated_allocation_never_changes(versions: list[Json], phase: str, more: int) -> None:
    """No phase, attempt or result follows Terminated, whatever the seq."""
    end = versions[-1]
    status = end["status"]
    steps: list[Json] = [
        {"phase": phase},
        {"attempt": status["attempt"] + 1},
        {"result": "Succeeded"},
        {"phase": phase, "attempt": status["attempt"] + 1, "ranks": []},
    ]
    for forbidden in steps:
        now = {**end, "status": {**status, "seq": status["seq"] + more, **forbidden}}
        assert not passes(now, end)


@given(lives(), st.data())
def test_an_exit_is_written_once(versions: list[Json], data: st.DataObject) -> None:
    """An exit is neither changed, dropped nor given to another pod, at any rank of any gang."""
    ended = [version for version in versions if any("exitCode" in rank for rank in version["status"].get("ranks", []))]
    before = data.draw(st.sampled_from(ended))
    ranks: list[Json] = before["status"]["ranks"]
    index = data.draw(st.sampled_from([index for index, rank in enumerate(ranks) if "exitCode" in rank]))
    rank = ranks[index]
    for other in (
        {**rank, "exitCode": rank["exitCode"] + 1},
        {key: value for key, value in rank.items() if key != "exitCode"},
        {**rank, "podUID": "another"},
    ):
        now = changed(before, "status/ranks", [*ranks[:index], other, *ranks[index + 1 :]])
        assert not passes(now, before)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3), st.integers(1, 3))
def test_counters_order_writes(seq: int, next_seq: int, attempt: int, next_attempt: int) -> None:
    """A write is allowed exactly when neither seq nor attempt falls."""
    before = a_stored(status=a_status(seq=seq, attempt=attempt))
    now = a_stored(status=a_status(seq=next_seq, attempt=next_attempt))
    assert passes(now, before) is (next_seq >= seq and next_attempt >= attempt)


@given(st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_no_release_is_committed_after_a_cancel(was: bool, stopped: bool, had: bool, has: bool) -> None:
    """With desired Stopped in the write, the release does not change."""
    release = {"attempt": 1, "podUIDs": ["u"]}
    before = a_stored(
        spec=a_spec(desired="Stopped" if was else "Running"), status=a_status(**({"release": release} if had else {}))
    )
    now = a_stored(
        spec=a_spec(desired="Stopped" if stopped else "Running"),
        status=a_status(**({"release": release} if has else {})),
    )
    is_legal = (stopped or not was) and (has or not had) and not (stopped and has and not had)
    assert passes(now, before) is is_legal
