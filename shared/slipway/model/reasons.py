"""Closed sets of reasons: why something waits, why it stopped, how it ended.

One enum each; the same words are the CR's condition reason, the log key, the metric label and the CLI's text.
"""

from enum import StrEnum


class Result(StrEnum):
    """How an allocation ended."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELED = "Canceled"
    PREEMPTED = "Preempted"
    EVICTED = "Evicted"
    TIMED_OUT = "TimedOut"
    INVALID = "Invalid"


class DependencyEnd(StrEnum):
    """How an allocation has to end for another one that waits for it to start."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"


class Reason(StrEnum):
    """Why a transition happened (`status.reason`, and `reason` of each ring entry)."""

    NONE = ""
    COMPLETED = "Completed"
    KILLED = "Killed"
    DELETED = "Deleted"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    RANK_FAILED = "RankFailed"
    INIT_FAILED = "InitContainerFailed"
    SETUP_FAILED = "SetupFailed"
    IMAGE_PULL = "ImagePullBackOff"
    IMAGE_PULL_THROTTLED = "ImagePullThrottled"
    OUT_OF_MEMORY = "OutOfMemory"
    POD_DELETED = "PodDeleted"
    POD_LOST = "PodLost"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    REJECTED = "KubeletRejected"
    PLACEMENT_REFUSED = "PlacementRefused"
    PREEMPTED = "Preempted"
    USER_STOPPED = "UserStopped"
    IDLE = "IdleTimeout"
    MAX_RUNTIME = "MaxRuntime"
    PENDING_TIMEOUT = "PendingTimeout"
    DEPENDENCY = "DependencyNotMet"
    PREEMPTION_GRACE = "PreemptionGrace"
    BELOW_MINIMUM = "BelowMinimum"
    NODE_DISABLED = "NodeDisabled"
    NODE_RESERVED = "NodeReserved"
    INVALID_SPEC = "InvalidSpec"
    TOO_LARGE = "TooLarge"
    LAUNCH_REFUSED = "LaunchRefused"
    LAUNCH_STUCK = "LaunchStuck"
    UNKNOWN_EXIT = "UnknownExit"


INFRASTRUCTURE = frozenset(
    {
        Reason.POD_DELETED,
        Reason.POD_LOST,
        Reason.NODE_LOST,
        Reason.EVICTED,
        Reason.REJECTED,
        Reason.PLACEMENT_REFUSED,
        Reason.PREEMPTED,
        Reason.BELOW_MINIMUM,
        Reason.NODE_DISABLED,
        Reason.NODE_RESERVED,
        Reason.LAUNCH_STUCK,
        Reason.IMAGE_PULL_THROTTLED,
    }
)
"""Ends that are not the user's fault: they do not count against `maxRestarts`."""


class Gate(StrEnum):
    """What keeps a pending allocation waiting, in the fixed order in which the gates are looked at."""

    INVALID = "Invalid"
    NOT_A_WORKSPACE = "NotAWorkspace"
    POOL_NOT_FOR_WORKSPACE = "PoolNotForWorkspace"
    HELD = "Held"
    WAITING_FOR_DEPENDENCY = "WaitingForDependency"
    BACKOFF = "Backoff"
    UNKNOWN_POOL = "UnknownPool"
    UNKNOWN_QUEUE = "UnknownQueue"
    UNKNOWN_FLAVOR = "UnknownFlavor"
    UNKNOWN_JOB = "UnknownJob"
    NOT_ENOUGH_PODS = "NotEnoughPods"
    LIMIT_RANGE = "OutsideLimitRange"
    WAITING_FOR_VOLUME = "WaitingForVolume"
    EXCEEDS_MAX_QUOTA = "ExceedsMaxQuota"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    JOB_MAX_SLOTS = "JobMaxSlots"
    RESOURCE_QUOTA = "ExceedsResourceQuota"
    WAITING_FOR_EXTENDER = "WaitingForExtender"
    TOPOLOGY_TOO_SMALL = "TopologyTooSmall"
    NO_FIT = "NoFit"
    MAKING_ROOM = "MakingRoom"
    BEHIND_RESERVATION = "BehindReservation"
    BEHIND_QUEUE_HEAD = "BehindQueueHead"
    NOT_YET_CONSIDERED = "NotYetConsidered"


NEVER = "can never start"
"""How the message of a gate begins that also stands for waits, when no wait helps: a condition has no field for it."""


def says_never(message: str) -> bool:
    """Whether the message of a condition says that waiting does not help."""
    return message.startswith(NEVER)


_NO_WAIT_HELPS = frozenset({Gate.INVALID, Gate.NOT_ENOUGH_PODS, Gate.EXCEEDS_MAX_QUOTA})


def is_stalled(gate: str, message: str) -> bool:
    """Whether nothing starts without a change of the allocation, its pool or its quota.

    What waits for an object that is not there (a queue, a pool, a flavor, a job, the label of a workspace) is not
    stalled: who applies several files at once makes them in any order.
    """
    return gate in _NO_WAIT_HELPS or says_never(message)
