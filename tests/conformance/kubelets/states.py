"""The states of a container and of the little stories that are told of it.

Pure values, but for `Box`, which is a container on its way and changes.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from tests.conformance.kubelets.script import Script

NEVER = float("inf")


class Role(StrEnum):
    """What a container is to its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Waiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class Up(msgspec.Struct, frozen=True):
    started_at: float


class Down(msgspec.Struct, frozen=True):
    code: int
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    finished_at: float | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A word on the whole pod that its containers do not give: it fails for this reason."""

    reason: str
    message: str
    is_disruption: bool = False


class What(StrEnum):
    """What happened."""

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
    """said by whoever did it; the text is `reason: message`"""


class Note(msgspec.Struct, frozen=True):
    """One thing that happened to one container (or to the pod, with no name)."""

    what: What
    container: str
    at: float
    text: str = ""
    code: int | None = None
    restarts: int = 0


@dataclass(slots=True, kw_only=True)
class Box:
    """One container on its way."""

    name: str
    image: str
    role: Role
    script: Script
    state: Waiting | Up | Down = field(default_factory=Waiting)
    last: Down | None = None
    restarts: int = 0
    due_at: float = 0.0
    """when it acts by itself: ends if it is up, tries to start if it waits"""
    ready_at: float = NEVER
    is_ready: bool = False
    crashes: int = 0
    pulls: int = 0

    @property
    def is_up(self) -> bool:
        """Whether it runs."""
        return isinstance(self.state, Up)

    @property
    def end(self) -> Down | None:
        """How it ended, once it has."""
        return self.state if isinstance(self.state, Down) else None

    @property
    def has_run(self) -> bool:
        """Whether it was ever started."""
        return not isinstance(self.state, Waiting) or self.last is not None
