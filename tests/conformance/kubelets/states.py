"""The states of a container and the events about it.

Immutable values, except `SimulatedContainer`, which is a container during its life and changes.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from tests.conformance.kubelets.script import Script

NEVER = float("inf")


class Role(StrEnum):
    """The role of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class IsWaiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class IsRunning(msgspec.Struct, frozen=True):
    started_at: float


class HasEnded(msgspec.Struct, frozen=True):
    code: int
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    finished_at: float | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why the whole pod fails, whatever the exit codes of its containers."""

    reason: str
    message: str
    is_disruption: bool = False


class NoteKind(StrEnum):
    """The kind of a thing that happened."""

    PULLING = "pulling"
    PULLED = "pulled"
    PULL_FAILED = "pull failed"
    PULL_BACKOFF = "pull backoff"
    STARTED = "started"
    KILLING = "killing"
    ENDED = "ended"
    CRASH_BACKOFF = "crash backoff"
    MOUNT_FAILED = "mount failed"
    EVICTED = "evicted"
    REJECTED = "rejected"
    """noted by the part that rejects the pod; the text is `reason: message`"""


class Note(msgspec.Struct, frozen=True):
    """One thing that happened to one container (or to the pod, with no name)."""

    what: NoteKind
    container: str
    at: float
    text: str = ""
    code: int | None = None
    restarts: int = 0


@dataclass(slots=True, kw_only=True)
class SimulatedContainer:
    """One container during its life."""

    name: str
    image: str
    role: Role
    script: Script
    state: IsWaiting | IsRunning | HasEnded = field(default_factory=IsWaiting)
    last: HasEnded | None = None
    restarts: int = 0
    due_at: float = 0.0
    """when it changes by itself: ends if it runs, tries to start if it waits"""
    ready_at: float = NEVER
    is_ready: bool = False
    crashes: int = 0
    pulls: int = 0

    @property
    def is_up(self) -> bool:
        """Whether the container runs."""
        return isinstance(self.state, IsRunning)

    @property
    def end(self) -> HasEnded | None:
        """The end of the container; None before it."""
        return self.state if isinstance(self.state, HasEnded) else None

    @property
    def has_run(self) -> bool:
        """Whether the container was ever started."""
        return not isinstance(self.state, IsWaiting) or self.last is not None
