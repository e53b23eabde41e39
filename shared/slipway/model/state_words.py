"""The state words that people see: the same on the command line, in responses of the api and on pages.

Owns the words, their meanings and their tones. The word of an allocation is its phase, or a more exact word: the result
after its end, `Held`, `Waiting` or `Ready`. The words of ranks and jobs follow from phases. Pure.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from slipway.model.lifecycle import Phase, RankState
from slipway.model.reasons import Result

HELD, WAITING, READY = "Held", "Waiting", "Ready"


class Tone(StrEnum):
    """The kind of news that a word is; pages choose its colour by it."""

    WAITS = "waits"
    STARTS = "starts"
    RUNS = "runs"
    ENDS = "ends"
    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


class StateWord(msgspec.Struct, frozen=True):
    """One word of the table."""

    word: str
    tone: Tone
    meaning: str


STATE_WORDS: tuple[StateWord, ...] = (
    StateWord(HELD, Tone.WAITS, "It does not start before it is resumed."),
    StateWord(Phase.PENDING, Tone.WAITS, "It waits to be placed."),
    StateWord(Phase.ASSIGNED, Tone.STARTS, "It has its nodes; its pods are being created."),
    StateWord(Phase.PULLING, Tone.STARTS, "Its nodes are pulling the image."),
    StateWord(Phase.STARTING, Tone.STARTS, "Its containers are starting."),
    StateWord(Phase.RUNNING, Tone.RUNS, "All its ranks run."),
    StateWord(READY, Tone.RUNS, "It runs, and its service answers."),
    StateWord(WAITING, Tone.RUNS, "It runs, and has nothing to show yet."),
    StateWord(Phase.TERMINATING, Tone.ENDS, "It is being ended."),
    StateWord(Phase.TERMINATED, Tone.NEUTRAL, "It has ended."),
    StateWord(Result.SUCCEEDED, Tone.GOOD, "All its ranks ended with exit code 0."),
    StateWord(Result.FAILED, Tone.BAD, "A rank failed."),
    StateWord(Result.CANCELED, Tone.NEUTRAL, "A user ended it."),
    StateWord(Result.PREEMPTED, Tone.NEUTRAL, "It was preempted for other work."),
    StateWord(Result.EVICTED, Tone.BAD, "The cluster ended its pods."),
    StateWord(Result.TIMED_OUT, Tone.BAD, "It reached a time limit."),
    StateWord(Result.INVALID, Tone.BAD, "Its spec cannot be run."),
)


RANK_STATE_WORDS: tuple[StateWord, ...] = (
    StateWord(RankState.PENDING, Tone.WAITS, "It waits to be placed."),
    StateWord(RankState.BOUND, Tone.STARTS, "Its pod is bound to a node; its containers do not run yet."),
    StateWord(RankState.RUNNING, Tone.RUNS, "Its containers run."),
    StateWord(RankState.RELEASING, Tone.ENDS, "Its pod is being ended."),
    StateWord(RankState.SUCCEEDED, Tone.GOOD, "It ended with exit code 0."),
    StateWord(RankState.FAILED, Tone.BAD, "It failed."),
    StateWord(RankState.UNKNOWN, Tone.BAD, "Its node does not report its state."),
)


class JobState(StrEnum):
    """The state of a job: the most advanced one of the states that follow from its members' phases."""

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
"""The state of a job that follows from the phase of one member."""


def _phases_of(state: JobState) -> str:
    return " or ".join(phase for phase, made in JOB_STATE_OF.items() if made is state)


JOB_STATE_WORDS: tuple[StateWord, ...] = (
    StateWord(JobState.IDLE, Tone.NEUTRAL, "All its workloads have ended."),
    StateWord(JobState.QUEUED, Tone.WAITS, f"All its workloads that have not ended are {_phases_of(JobState.QUEUED)}."),
    StateWord(
        JobState.SCHEDULED,
        Tone.STARTS,
        f"One of its workloads is {_phases_of(JobState.SCHEDULED)}; none is in a later phase.",
    ),
    StateWord(JobState.RUNNING, Tone.RUNS, f"One of its workloads is {_phases_of(JobState.RUNNING)}."),
)


def word_for(phase: str, result: str | None, *, hold: bool, ready: bool, waiting: bool) -> str:
    """Return the word for an allocation."""
    if phase == Phase.TERMINATED:
        return result or phase
    if phase == Phase.PENDING and hold:
        return HELD
    if phase == Phase.RUNNING and waiting:
        return WAITING
    if phase == Phase.RUNNING and ready:
        return READY
    return phase
