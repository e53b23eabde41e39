"""The names of faults: the kind, the point where it strikes, and the call that it strikes.

Owns the spelling of a point. Pure.
"""

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """The kinds of faults. The answers of servers are in `fault_answers.py`, faults of a watch in `fault_watch.py`."""

    # a process
    CRASH = "crash"
    CRASH_STALE = "crash-stale"
    """The process restarts with an API replica that lags: its first LIST of each kind is old, its watches catch up
    later."""
    NAP = "pause-1s"
    PAUSE = "pause-12s"
    """Longer than a leader trusts its last renewal, shorter than its lease."""
    FREEZE = "freeze"
    """Longer than any lease: another process leads by then."""
    LONG_PAUSE = "pause-2m"
    COMA = "pause-10m"
    HOLD = "hold"
    """Until a `thaw` strikes at a boundary of another process, or for a limited time."""
    THAW = "thaw"
    OUTAGE = "outage"
    """Cut off from the API server for a while."""
    # its clocks
    CLOCK_AHEAD = "clock-ahead"
    CLOCK_BEHIND = "clock-behind"
    CLOCK_FAST = "clock-fast"
    CLOCK_SLOW = "clock-slow"
    # Redis
    FLUSH = "flush"
    EVICT = "evict"
    UNGROUP = "ungroup"
    FAILOVER = "failover"
    AWAY = "redis-away"
    LOADING = "redis-loading"
    READONLY = "redis-readonly"
    OOM = "redis-oom"
    TRIM = "trim"
    # answers
    CONFLICT = "conflict"
    TOUCHED = "touched"
    """Another writer changes the object first, so that a fenced call is really refused."""
    EXISTS = "exists"
    THROTTLED = "throttled"
    SERVER_ERROR = "server-error"
    UNAVAILABLE = "unavailable"
    GATEWAY = "gateway-timeout"
    RESET = "reset"
    RESET_APPLIED = "reset-applied"
    SERVER_TIMEOUT = "server-timeout"
    TIMEOUT = "timeout"
    TIMEOUT_APPLIED = "timeout-applied"
    TIMEOUT_LATE = "timeout-late"
    """No answer in time; the server does the call later."""
    SLOW = "slow"
    DENIED = "denied"
    UNAUTHORIZED = "unauthorized"
    QUOTA = "quota"
    EXPIRED = "expired"
    # a watch, or the feed
    STALL = "stall"
    STALL_CUT = "stall-cut"
    STALL_EXPIRED = "stall-expired"
    SILENT = "silent"
    CLOSE = "close"
    DUPLICATE = "duplicate"
    LAG = "lag"
    COALESCE = "coalesce"
    LOSE = "lose"


PAUSES_S = {Kind.NAP: 1.0, Kind.PAUSE: 12.0, Kind.FREEZE: 30.0, Kind.LONG_PAUSE: 120.0, Kind.COMA: 600.0}
APPLIED = frozenset({Kind.RESET_APPLIED, Kind.SERVER_TIMEOUT, Kind.TIMEOUT_APPLIED})
"""The effect happens, and the answer is lost."""


class Fault(msgspec.Struct, frozen=True):
    """One fault; written `crash@watcher:17:after`."""

    kind: Kind
    role: str
    number: int
    moment: str = "before"

    def __str__(self) -> str:
        return f"{self.kind.value}@{self.role}:{self.number}:{self.moment}"

    @staticmethod
    def parse(text: str) -> "Fault":
        """Raises ValueError for anything else than `[kind@]role:number:moment`."""
        kind, _, point = text.rpartition("@")
        role, number, moment = point.rsplit(":", 2)
        if moment not in ("before", "after"):
            raise ValueError(f"{text!r}: the moment is before or after")
        return Fault(Kind(kind or "crash"), role, int(number), moment)


class Effect(msgspec.Struct, kw_only=True):
    """One call that may change the world, as a server's own audit log would record it; or a read, or a watch event.

    `role` is the sequence in which the call is numbered: the process's role for effects, `<role>.reads` for reads,
    `<role>.<what>` for the deliveries of a watch or the feed.
    """

    role: str
    process: str
    number: int
    verb: str
    target: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    at: float = 0.0
    is_recurring: bool = False
    has_before: bool = True
    is_kube: bool = True
    outcome: str = ""
    """`ok`, the error's class, or empty when it was never answered."""

    @property
    def label(self) -> str:
        """The call in readable form."""
        return f"{self.role}:{self.number} {self.verb} {self.target} {self.name}".rstrip()
