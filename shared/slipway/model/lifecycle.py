"""The lifecycle of an allocation: the one table of phases and transitions, and the service that may write each.

Only this module knows which transition is legal. The diagram in the docs, the CRD's enums and an
exhaustive test are generated from it. Illegal transitions change nothing and raise.

Invariants: within one attempt the phase only moves forward; only `restarted` returns to Pending, and it increases the
attempt; no transition leaves Terminated.
"""

from enum import StrEnum

import msgspec

from slipway.errors import InvariantError


class Phase(StrEnum):
    """The phase of an allocation; the order of definition is the order of progress."""

    PENDING = "Pending"
    ASSIGNED = "Assigned"
    PULLING = "Pulling"
    STARTING = "Starting"
    RUNNING = "Running"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"


class Event(StrEnum):
    """The event of a transition; also the last part of the CloudEvents type of the stream entry."""

    REQUESTED = "requested"
    ASSIGNED = "assigned"
    PULLING = "pulling"
    STARTING = "starting"
    RUNNING = "running"
    READY = "ready"
    PREEMPTING = "preempting"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    RESTARTED = "restarted"
    UPDATED = "updated"


class Writer(StrEnum):
    """The service that may commit a transition."""

    API = "api"
    SCHEDULER = "scheduler"
    WATCHER = "watcher"


class RankState(StrEnum):
    """The observed state of one rank's pod, in the states that gang schedulers distinguish."""

    PENDING = "Pending"
    BOUND = "Bound"
    RUNNING = "Running"
    RELEASING = "Releasing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


RANK_ENDS = frozenset({RankState.SUCCEEDED, RankState.FAILED})
"""The states in which no process of a rank runs any more."""


class RoleProgress(StrEnum):
    """The state that the ranks of a role must reach before another role starts."""

    STARTED = "started"
    READY = "ready"


class Kind(StrEnum):
    """The kinds of workload."""

    NOTEBOOK = "notebook"
    SHELL = "shell"
    COMMAND = "command"
    TENSORBOARD = "tensorboard"
    TRAINING = "training"


class Transition(msgspec.Struct, frozen=True):
    """One row of the table: `event` leads from any of `sources` to `target` (None: the phase stays)."""

    event: Event
    sources: frozenset[Phase]
    target: Phase | None
    writer: Writer


P, E, W = Phase, Event, Writer
_LIVE = frozenset({P.ASSIGNED, P.PULLING, P.STARTING, P.RUNNING})
_OPEN = frozenset(P) - {P.TERMINATED}

TRANSITIONS: tuple[Transition, ...] = (
    Transition(E.ASSIGNED, frozenset({P.PENDING}), P.ASSIGNED, W.SCHEDULER),
    Transition(E.PULLING, frozenset({P.ASSIGNED}), P.PULLING, W.WATCHER),
    Transition(E.STARTING, frozenset({P.ASSIGNED, P.PULLING}), P.STARTING, W.WATCHER),
    Transition(E.RUNNING, frozenset({P.ASSIGNED, P.PULLING, P.STARTING}), P.RUNNING, W.WATCHER),
    Transition(E.READY, frozenset({P.RUNNING}), None, W.WATCHER),
    Transition(E.PREEMPTING, _LIVE, None, W.WATCHER),
    Transition(E.TERMINATING, _LIVE, P.TERMINATING, W.WATCHER),
    Transition(E.TERMINATED, _OPEN, P.TERMINATED, W.WATCHER),
    Transition(E.RESTARTED, _OPEN - {P.PENDING}, P.PENDING, W.WATCHER),
    Transition(E.UPDATED, _OPEN, None, W.WATCHER),
)
"""`requested` is not a row: it is the creation of the object, which the API server writes."""

_BY_EVENT = {row.event: row for row in TRANSITIONS}
_ORDER = {phase: index for index, phase in enumerate(Phase)}
_RANK_ORDER = {
    RankState.UNKNOWN: 0,
    RankState.PENDING: 1,
    RankState.BOUND: 2,
    RankState.RUNNING: 3,
    RankState.RELEASING: 4,
    RankState.SUCCEEDED: 5,
    RankState.FAILED: 5,
}
"""The progress of a pod. A pod never goes back: an observation that seems to go back is an older view of the pod."""


def advance(phase: Phase, event: Event) -> Phase:
    """Return the phase after `event` in `phase`.

    Raises:
        InvariantError: the table has no such transition.
    """
    row = _BY_EVENT.get(event)
    if row is None or phase not in row.sources:
        raise InvariantError(f"{event} is not a legal transition from {phase}")
    return phase if row.target is None else row.target


def is_legal(phase: Phase, event: Event) -> bool:
    """Whether the table has `event` in `phase`."""
    row = _BY_EVENT.get(event)
    return row is not None and phase in row.sources


def writer_of(event: Event) -> Writer:
    """Return the service that may commit `event`."""
    return W.API if event is Event.REQUESTED else _BY_EVENT[event].writer


def has_reached(phase: Phase, milestone: Phase) -> bool:
    """Whether `phase` is at or past `milestone`."""
    return _ORDER[phase] >= _ORDER[milestone]


def is_behind(state: RankState, known: RankState) -> bool:
    """Whether `state` is an older view of a pod that was already seen as `known`. Unknown is older than every state."""
    return _RANK_ORDER[state] < _RANK_ORDER[known]


def is_legal_step(before: Phase, after: Phase, *, same_attempt: bool) -> bool:
    """Whether an observer may see `after` directly follow `before` in the object's history.

    One write may contain several transitions, so any forward move within an attempt is legal. A new attempt starts as
    Pending, and may have moved forward within the same write. No transition leaves Terminated.
    """
    if before is Phase.TERMINATED:
        return same_attempt and after is Phase.TERMINATED
    return _ORDER[after] >= _ORDER[before] if same_attempt else before is not Phase.PENDING


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> Pending: requested (api)"]
    for row in TRANSITIONS:
        for source in sorted(row.sources, key=_ORDER.__getitem__):
            lines.append(f"    {source} --> {row.target or source}: {row.event} ({row.writer})")
    lines.append("    Terminated --> [*]")
    return "\n".join(lines) + "\n"
