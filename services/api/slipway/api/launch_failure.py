"""Explains why an admitted allocation does not start. Pure.

The sources are the conditions that the pod worker (Stuck) and the watcher (StartBlocked) write to the object.
"""

from slipway.api.schemas import Change
from slipway.crd.meta import Condition, condition_of
from slipway.crd.transitions import CONDITION_BLOCKED, CONDITION_STUCK
from slipway.crd.v1alpha1 import Allocation
from slipway.model.ids import VALUES_PREFIX
from slipway.model.lifecycle import Phase

_STARTING = (Phase.ASSIGNED, Phase.PULLING, Phase.STARTING)
_IMAGE = (
    "image",
    "correct the image's name, or the pull secret that the registry asks for, and launch again; an image that is "
    "not in the registry yet is pulled as soon as it is",
)
_CONFIG = (
    "create",
    "create the Secret, ConfigMap or key that the message names in the workspace, and it starts automatically; or "
    "correct its name and launch again",
)
_VALUES = (
    "launch",
    "launch again with its secret values: those of this launch are no longer stored, or were never stored",
)
_MOUNT = (
    "volume",
    "create what the message names in the workspace, or have the volume repaired, and it starts automatically; or "
    "correct its name and launch again",
)
_HELP: dict[str, tuple[str, str]] = {
    "QuotaExceeded": (
        "quota",
        (
            "have the ResourceQuota that the message names raised, or end other allocations there; it continues "
            "automatically"
        ),
    ),
    "ClaimPending": ("volume", "create the volume claim that the message names, or have it bound"),
    "Denied": ("permission", "have the permission that the message names given to Slipway's account"),
    "BindRefused": ("wait", "wait: it is started again, on other nodes if necessary"),
    "PoolChanged": ("wait", "wait: it is placed again, in the changed pool"),
    "CreateContainerConfigError": _CONFIG,
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "InvalidImageName": _IMAGE,
    "FailedMount": _MOUNT,
    "FailedAttachVolume": _MOUNT,
}
_WAIT = ("wait", "wait: Slipway tries again automatically")
_REPLAY = "; once the cause is repaired, slipway dead replay starts the retry at once"


def blocking_condition(allocation: Allocation) -> Condition | None:
    """Return the condition that blocks the launch of this attempt; None when there is none."""
    status = allocation.status
    if status.phase not in _STARTING:
        return None
    for type_ in (CONDITION_BLOCKED, CONDITION_STUCK):
        found = condition_of(status.conditions, type_)
        is_current = found is not None and found.observed_generation == status.attempt
        if found is None or not is_current or found.status == "False":
            continue
        if type_ == CONDITION_BLOCKED or status.phase is Phase.ASSIGNED:
            return found
    return None


def sentence(stuck: Condition) -> str:
    """Return a sentence with the state of the launch and the server's own words."""
    if stuck.type == CONDITION_BLOCKED:
        return f"the start is blocked: {stuck.message}"
    begun = "the launch is stuck" if stuck.status == "True" else "the launch fails and is retried"
    return f"{begun}: {stuck.message}"


def change(stuck: Condition) -> Change:
    """Return what a person could do about it."""
    kind, detail = _HELP.get(stuck.reason, _WAIT)
    if VALUES_PREFIX in stuck.message:
        kind, detail = _VALUES
    has_letter = (
        stuck.type == CONDITION_STUCK
        and stuck.status == "True"
        and stuck.reason not in ("BindRefused", "PoolChanged", "Denied")
    )
    return Change(kind=kind, detail=detail + (_REPLAY if has_letter else ""), until="")
