"""Checks of logs: each line that a rank printed is stored once, in its place, or counted in a marked hole.

I27. This module owns the numbering of lines in test workloads. A workload that is to be judged begins each line with
`line <number>`. A line that is rewritten with carriage returns (a progress bar) begins each of its states with `state
<number>`. Pure.

The promise depends on the history of the store. A log that the store has lost is read again from its beginning as long
as its pod exists. So a container that ended after the loss is judged to its end. For a container that ended before,
only the stored lines are judged.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from slipway.ops.audit.evidence import AuditEvidence, InvariantViolation
from slipway.ops.audit.records import SETTLE_S, LineRange, PrintedOutput, StoredLog
from slipway.streams.keys import LOGS
from slipway.streams.logpacks import LogLine

_NUMBERED = re.compile(r"(line|state) (\d+)(?= |$)")
_STATE = "state"


def folded(lines: Iterable[LogLine], known: Sequence[LineRange] = ()) -> list[LineRange]:
    """Return the lines of one log, in reading order, as passages without gap marks. `known` are the earlier
    passages.
    """
    found = list(known)
    for line in lines:
        if line.missing:
            continue
        match = _NUMBERED.match(line.text)
        printed = int(match[2]) if match is not None else 0
        is_state = match is not None and match[1] == _STATE
        last = found[-1] if found else None
        if last is not None and _goes_on(last, line.number, printed, is_state=is_state):
            found[-1] = msgspec.structs.replace(last, count=last.count + 1)
        else:
            found.append(LineRange(number=line.number, printed=printed, is_state=is_state))
    return found


def lines_come_once(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I27: the stored lines of a log have rising numbers, and its position is that of its last line."""
    for log in evidence.logs or ():
        may_begin_again, last = _may_begin_again(evidence, log), 0
        for passage in log.passages:
            if passage.number <= last and not may_begin_again:
                yield _broken(log, f"line {passage.number} is stored after line {last}")
            last = passage.last_number
        if log.is_ended and log.passages and last != log.end and not may_begin_again:
            yield _broken(log, f"the last stored line is {last}, but the log is marked as ended with line {log.end}")


def holes_are_counted(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I27: between two stored lines, as many are missing as their numbers show, and none is stored twice."""
    states: dict[tuple[str, int, int], int] = {}
    starts: dict[tuple[str, int, int], int] = {}
    for ran in evidence.printed:
        key = (ran.allocation, ran.attempt, ran.rank)
        states[key], starts[key] = states.get(key, 0) + ran.states, starts.get(key, 0) + 1
    for log in evidence.logs or ():
        numbered = [passage for passage in log.passages if passage.printed]
        more = states.get((log.allocation, log.attempt, log.rank), 0)
        number, printed, was_state = 0, 0, False
        # A rank that was added again or restarted continues its log with a first line. The store may have lost all
        # lines of an earlier pod.
        again = starts.get((log.allocation, log.attempt, log.rank), 1) - 1
        for passage in numbered:
            is_before = passage.printed < printed + (not (passage.is_state or was_state))
            is_far = passage.number - number > passage.printed - printed + more
            if again and passage.number > number and (is_before or is_far):
                again, printed, number = again - 1, 0, passage.number - passage.printed
            if passage.number <= number and _may_begin_again(evidence, log):
                number, printed, was_state = 0, 0, False
            jump, said = passage.printed - printed, passage.number - number
            # A line with several states is stored once for each state, so it has more than one number.
            is_more = passage.is_state or was_state
            if jump < 0 or (jump == 0 and not is_more):
                yield _broken(log, f"line {passage.printed} of the rank is stored again, as number {passage.number}")
            elif not jump <= said <= jump + more:
                where = f"before line {passage.printed} of the rank"
                yield _broken(log, f"{jump - 1} lines are missing {where}, but {said - 1} are counted")
            number, printed, was_state = passage.last_number, passage.last_printed, passage.is_state


def holes_are_marked(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I27: a reader of a log through the api finds a mark with its size in the place of each hole, and no other
    mark.
    """
    for log in evidence.logs or ():
        if log.marks is None:
            continue
        holes = holes_between(log.passages)
        if holes != list(log.marks):
            yield _broken(log, f"it has the holes {holes[:3]}, but readers are shown {list(log.marks)[:3]}")


def holes_of(log: StoredLog) -> int:
    """Return the number of holes in a log."""
    return len(holes_between(log.passages))


def holes_between(passages: Sequence[LineRange]) -> list[tuple[int, int]]:
    """Return (number of the first line, how many) of the missing lines before and between passages."""
    holes: list[tuple[int, int]] = []
    last = 0
    for passage in passages:
        if passage.number > last + 1:
            holes.append((last + 1, passage.number - last - 1))
        last = passage.last_number
    return holes


def logs_are_whole(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I27: at rest, the log of an ended container is stored to its last line, and a log that fits has no omissions."""
    is_troubled = bool(evidence.interruptions or evidence.last_fault_at)
    stored = {(log.allocation, log.attempt, log.rank): log for log in evidence.logs or () if log.marks is None}
    for ran in judged(evidence):
        log = stored.get((ran.allocation, ran.attempt, ran.rank))
        is_excused = is_troubled and not ran.ended_first
        if log is None:
            # The store lost the lines, and the pod was gone before they could be read again. No reader misses them,
            # because the allocation is deleted.
            if not (is_excused and evidence.store_losses and _is_gone(evidence, ran)):
                yield _missing(ran, f"none of its {ran.lines} lines is stored")
            continue
        numbered = [passage for passage in log.passages if passage.printed]
        last = numbered[-1].last_printed if numbered else 0
        if is_excused and (log.is_unread or _is_gone(evidence, ran)):
            continue  # Readers are told that the end could not be read, or the allocation is gone.
        if last != ran.lines:
            yield _missing(ran, f"its log ends with line {last} of {ran.lines}")
        elif not log.is_ended:
            yield _missing(ran, "its log is not marked as complete")
        elif ran.fits and not is_troubled and sum(passage.count for passage in numbered) < ran.lines:
            yield _missing(ran, f"lines are left out of a log that is within the limit: {numbered[:3]}")


def judged(evidence: AuditEvidence) -> Iterator[PrintedOutput]:
    """Yield the containers that ended while the store lost nothing, and recently enough for their logs to be stored."""
    since = evidence.end_at - LOGS.ttl_s + SETTLE_S
    # For a rank that made room and was added again, the last lines are those of the later pod.
    last = {(ran.allocation_uid, ran.attempt, ran.rank): ran for ran in evidence.printed}
    for ran in last.values():
        ended_at = ran.ended_at
        if ran.is_lost or not ran.lines or ended_at is None or ended_at <= since:
            continue
        if not any(begun <= ended_at <= over for begun, over in evidence.store_losses):
            yield ran


def _is_gone(evidence: AuditEvidence, ran: PrintedOutput) -> bool:
    versions = evidence.allocations.get(ran.allocation_uid, ())
    return bool(versions) and versions[-1].version.is_deletion


def _may_begin_again(evidence: AuditEvidence, log: StoredLog) -> bool:
    """Whether the store may have lost the position of a log and kept its lines.

    Then the log is read again from its beginning, under the same numbers. A reader through the api still receives each
    line once.
    """
    return bool(evidence.store_losses) and log.marks is None


def _goes_on(last: LineRange, number: int, printed: int, *, is_state: bool) -> bool:
    if is_state or last.is_state or number != last.last_number + 1:
        return False
    return printed == last.last_printed + 1 if last.printed else not printed


def _broken(log: StoredLog, message: str) -> InvariantViolation:
    where = f"attempt {log.attempt} rank {log.rank}{f' {log.container}' if log.container else ''}"
    return InvariantViolation(invariant="I27", subject=log.allocation, message=f"{where}: {message}")


def _missing(ran: PrintedOutput, message: str) -> InvariantViolation:
    return InvariantViolation(
        invariant="I27", subject=ran.allocation, message=f"attempt {ran.attempt} rank {ran.rank}: {message}"
    )
