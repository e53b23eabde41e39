"""The one word for where something stands, as people see it: the same on the command line, in answers and on pages.

Owns the words, what each means, and what kind of news it is. The word of an allocation is its phase, or what says more:
the result of what has ended, `Held`, `Waiting`, `Ready`. Those of a rank and of a job follow from phases. Pure.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from slipway.model.lifecycle import Phase, RankState
from slipway.model.reasons import Result

HELD, WAITING, READY = "Held", "Waiting", "Ready"


class Tone(StrEnum):
    """What kind of news a word is; pages colour by it."""

    WAITS = "waits"
    STARTS = "starts"
    RUNS = "runs"
    ENDS = "ends"
    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


class Standing(msgspec.Struct, frozen=True):
    """One word of the table."""

    word: str
    tone: Tone
    meaning: str


STANDINGS: tuple[Standing, ...] = (
    Standing(HELD, Tone.WAITS, "It does not start before it is resumed."),
    Standing(Phase.PENDING, Tone.WAITS, "It waits for a place."),
    Standing(Phase.ASSIGNED, Tone.STARTS, "It has its nodes; its pods are being created."),
    Standing(Phase.PULLING, Tone.STARTS, "Its nodes are pulling the image."),
    Standing(Phase.STARTING, Tone.STARTS, "Its containers are starting."),
    Standing(Phase.RUNNING, Tone.RUNS, "All its ranks run."),
    Standing(READY, Tone.RUNS, "It runs, and its service answers."),
    Standing(WAITING, Tone.RUNS, "It runs, and has nothing to show yet."),
    Standing(Phase.TERMINATING, Tone.ENDS, "It is being ended."),
    Standing(Phase.TERMINATED, Tone.NEUTRAL, "It has ended."),
    Standing(Result.SUCCEEDED, Tone.GOOD, "All its ranks ended with exit code 0."),
    Standing(Result.FAILED, Tone.BAD, "A rank failed."),
    Standing(Result.CANCELED, Tone.NEUTRAL, "A user ended it."),
    Standing(Result.PREEMPTED, Tone.NEUTRAL, "It made room for others."),
    Standing(Result.EVICTED, Tone.BAD, "The cluster ended its pods."),
    Standing(Result.TIMED_OUT, Tone.BAD, "It reached a limit of its time."),
    Standing(Result.INVALID, Tone.BAD, "Its spec cannot be run."),
)


RANK_STANDINGS: tuple[Standing, ...] = (
    Standing(RankState.PENDING, Tone.WAITS, "It waits for a place."),
    Standing(RankState.BOUND, Tone.STARTS, "It has its node; its containers do not run yet."),
    Standing(RankState.RUNNING, Tone.RUNS, "Its containers run."),
    Standing(RankState.RELEASING, Tone.ENDS, "Its pod is being ended."),
    Standing(RankState.SUCCEEDED, Tone.GOOD, "It ended with exit code 0."),
    Standing(RankState.FAILED, Tone.BAD, "It failed."),
    Standing(RankState.UNKNOWN, Tone.BAD, "Its node does not say how it is."),
)


class JobState(StrEnum):
    """Where a job stands; the last of those that its members make."""

    IDLE = "Idle"
    QUEUED = "Queued"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"


JOB_STATE_OF: Mapping[Phase, JobState] = {
    Phase.PENDING: JobState.QUEUED,
    Phase.ASSIGNED: JobState.SCHEDULED,
    Phase.PULLING: JobState.SCHEDULED,
    Phase.STARTING: JobState.SCHEDULED,
    Phase.RUNNING: JobState.RUNNING,
    Phase.TERMINATING: JobState.RUNNING,
    Phase.TERMINATED: JobState.IDLE,
}
"""What a member in a phase makes of its job."""


def _phases_of(state: JobState) -> str:
    return " or ".join(phase for phase, made in JOB_STATE_OF.items() if made is state)


JOB_STANDINGS: tuple[Standing, ...] = (
    Standing(JobState.IDLE, Tone.NEUTRAL, "No workload of it is left that has not ended."),
    Standing(JobState.QUEUED, Tone.WAITS, f"All of it that has not ended is {_phases_of(JobState.QUEUED)}."),
    Standing(
        JobState.SCHEDULED, Tone.STARTS, f"A workload of it is {_phases_of(JobState.SCHEDULED)}; none is further yet."
    ),
    Standing(JobState.RUNNING, Tone.RUNS, f"A workload of it is {_phases_of(JobState.RUNNING)}."),
)


def word_for(phase: str, result: str | None, *, hold: bool, ready: bool, waiting: bool) -> str:
    """The word for an allocation."""
    if phase == Phase.TERMINATED:
        return result or phase
    if phase == Phase.PENDING and hold:
        return HELD
    if phase == Phase.RUNNING and waiting:
        return WAITING
    if phase == Phase.RUNNING and ready:
        return READY
    return phase
