"""Why a launch that has its nodes does not come about: what the pod worker wrote to the object, for people. Pure."""

from slipway.api.schemas import Change
from slipway.crd.meta import Condition, condition_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase

CONDITION = "Stuck"
_HELP: dict[str, tuple[str, str]] = {
    "QuotaExceeded": (
        "quota",
        "have the ResourceQuota that the message names raised, or end other work there; it goes on by itself",
    ),
    "ClaimPending": ("volume", "create the volume claim that the message names, or have it bound"),
    "Denied": ("permission", "have the permission that the message names given to Slipway's account"),
    "BindRefused": ("wait", "wait: it begins again, on other nodes if need be"),
    "PoolChanged": ("wait", "wait: it is placed again, as the pool is now"),
}
_WAIT = ("wait", "wait: it is tried again by itself")
_REPLAY = "; once that is mended, slipway dead replay has it tried at once"


def stuck_of(allocation: Allocation) -> Condition | None:
    """What keeps the launch of this attempt from going on, if anything does."""
    status = allocation.status
    found = condition_of(status.conditions, CONDITION)
    is_current = found is not None and found.observed_generation == status.attempt
    if found is None or not is_current or found.status == "False" or status.phase is not Phase.ASSIGNED:
        return None
    return found


def sentence(stuck: Condition) -> str:
    """The server's own words, and what became of the launch."""
    begun = "the launch is stuck" if stuck.status == "True" else "the launch is tried again and again"
    return f"{begun}: {stuck.message}"


def change(stuck: Condition) -> Change:
    """What a person could do about it."""
    kind, detail = _HELP.get(stuck.reason, _WAIT)
    has_letter = stuck.status == "True" and stuck.reason not in ("BindRefused", "PoolChanged", "Denied")
    return Change(kind=kind, detail=detail + (_REPLAY if has_letter else ""), until="")
