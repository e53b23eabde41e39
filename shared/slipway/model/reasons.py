"""Closed sets of reasons: why an allocation waits, why it stopped, how it ended.

Each set is one enum. Its words are used as condition reasons, log keys, metric labels and texts of the CLI.
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
    """How an allocation must end before another allocation that depends on it may start."""

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
"""Ends that are not the user's fault: they are not included in `maxRestarts`."""


class Gate(StrEnum):
    """Why a pending allocation waits, in the fixed order in which the scheduler checks the gates."""

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
"""Start of a gate's message when waiting never helps. Such a gate can also mean a normal wait, and a condition has no
field that distinguishes the two."""


def waiting_never_helps(message: str) -> bool:
    """Whether the message of a condition states that waiting never helps."""
    return message.startswith(NEVER)


_NO_WAIT_HELPS = frozenset({Gate.INVALID, Gate.NOT_ENOUGH_PODS, Gate.EXCEEDS_MAX_QUOTA})


def is_stalled(gate: str, message: str) -> bool:
    """Whether the allocation cannot start unless it, its pool or its quota is changed.

    An allocation that waits for a missing object (a queue, a pool, a flavor, a job, the label of a workspace) is not
    stalled. The object may follow soon: a user who applies several files at once creates the objects in any order.
    """
    return gate in _NO_WAIT_HELPS or waiting_never_helps(message)
