"""The claim of an Idempotency-Key: the one name that the key was launched with, as a ConfigMap of the workspace.

Owns how a claim is written and read, and for how long one stands that nothing came of. Pure. A key without a name needs
none: it stands for a name of its own, and of that name the API server lets one create win. A key that comes with a name
of its client's has only this. The api writes it before it creates the allocation, the watcher clears it away.

Invariants: the name of the claim follows from the key, so that of two requests one writes it; who writes it anew does
so under the version that was read; it is cleared away only when it has long been idle and its allocation is gone.
"""

from slipway.crd.meta import API_GROUP, LABEL_LAUNCH_KEY, ObjectMeta, RawObject
from slipway.crd.v1alpha1 import Wire
from slipway.kube.resources import CONFIG_MAPS, Resource
from slipway.model.times import format_time, parse_time

ANNOTATION_CLAIMED = f"{API_GROUP}/claimed-at"
"""when the claim was last written"""
NAME_KEY = "name"
STANDS_S = 300.0
"""Longer than a create can still be under way when nobody waits for it any more."""
KEPT_S = 3600.0
"""Much longer than that: what is cleared away is nobody's at that moment."""


class ClaimMap(Wire, kw_only=True, frozen=True):
    """The ConfigMap of a claim."""

    metadata: ObjectMeta
    data: dict[str, str] = {}

    @property
    def launched(self) -> str:
        """The name that the key is for; empty when somebody wrote something else there."""
        return self.data.get(NAME_KEY, "")

    @property
    def key(self) -> str:
        """What the key stands for, as the label of its allocation has it."""
        return self.metadata.labels.get(LABEL_LAUNCH_KEY, "")

    @property
    def claimed_at(self) -> float:
        """When it was last written (epoch seconds), as far as it says."""
        times = [self.metadata.creation_timestamp, self.metadata.annotations.get(ANNOTATION_CLAIMED)]
        return max((_time(text) for text in times if text), default=0.0)


CLAIM_MAPS: Resource[ClaimMap] = Resource(
    group="", version="v1", plural=CONFIG_MAPS.plural, kind=CONFIG_MAPS.kind, namespaced=True, struct=ClaimMap
)


def claim_name(key: str) -> str:
    """The name of the claim; `key` is the name that the key stands for."""
    return f"slipway-key-{key}"


def claim_manifest(key: str, workspace: str, launched: str, now: float) -> RawObject:
    """A new claim of `key` for an allocation named `launched`."""
    return {
        "metadata": {
            "name": claim_name(key),
            "namespace": workspace,
            "labels": {LABEL_LAUNCH_KEY: key},
            **_claimed(now),
        },
        "data": {NAME_KEY: launched},
    }


def claimed_again(claim: ClaimMap, launched: str, now: float) -> RawObject:
    """The merge patch by which a claim that nothing stands behind any more is for `launched`."""
    return {
        "metadata": {"resourceVersion": claim.metadata.resource_version, **_claimed(now)},
        "data": {NAME_KEY: launched},
    }


def _claimed(now: float) -> RawObject:
    return {"annotations": {ANNOTATION_CLAIMED: format_time(now)}}


def _time(text: str) -> float:
    try:
        return parse_time(text)
    except ValueError:
        return 0.0
