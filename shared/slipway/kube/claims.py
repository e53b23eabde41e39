"""The claim of an Idempotency-Key: a ConfigMap of the workspace with the allocation name that was launched with the
key.

Owns how a claim is written and read, and how long an unused one is valid. Pure. A launch with a key and without a name
needs no claim: its name is derived from the key, and the API server accepts only one create of that name. A launch with
a key and a name of its own has only the claim against duplicates. The api writes the claim before it creates the
allocation; the watcher deletes old claims.

Invariants: the name of the claim is derived from the key, so that only one of two requests can create it. A rewrite is
fenced by the version that was read. The watcher deletes a claim only when it was not written for a long time and its
allocation does not exist.
"""

from slipway.crd.meta import API_GROUP, LABEL_LAUNCH_KEY, ObjectMeta, RawObject
from slipway.crd.v1alpha1 import Wire
from slipway.kube.resources import CONFIG_MAPS, Resource
from slipway.model.times import format_time, parse_time

ANNOTATION_CLAIMED = f"{API_GROUP}/claimed-at"
"""Annotation with the time at which the claim was last written."""
NAME_KEY = "name"
STANDS_S = 300.0
"""Seconds for which an unused claim is valid: longer than an abandoned create can still be in progress."""
KEPT_S = 3600.0
"""Seconds before the watcher deletes an unused claim: much longer, so that no request still uses it."""


class ClaimMap(Wire, kw_only=True, frozen=True):
    """The ConfigMap of a claim."""

    metadata: ObjectMeta
    data: dict[str, str] = {}

    @property
    def launched(self) -> str:
        """The allocation name for which the key was used; empty when the ConfigMap has no such entry."""
        return self.data.get(NAME_KEY, "")

    @property
    def key(self) -> str:
        """The name derived from the key, as in the label of its allocation."""
        return self.metadata.labels.get(LABEL_LAUNCH_KEY, "")

    @property
    def claimed_at(self) -> float:
        """The last known time at which it was written, in epoch seconds."""
        times = [self.metadata.creation_timestamp, self.metadata.annotations.get(ANNOTATION_CLAIMED)]
        return max((_time(text) for text in times if text), default=0.0)


CLAIM_MAPS: Resource[ClaimMap] = Resource(
    group="", version="v1", plural=CONFIG_MAPS.plural, kind=CONFIG_MAPS.kind, namespaced=True, struct=ClaimMap
)


def claim_name(key: str) -> str:
    """Return the name of the claim; `key` is the name derived from the Idempotency-Key."""
    return f"slipway-key-{key}"


def claim_manifest(key: str, workspace: str, launched: str, now: float) -> RawObject:
    """Return a new claim of `key` for an allocation named `launched`."""
    return {
        "metadata": {
            "name": claim_name(key),
            "namespace": workspace,
            "labels": {LABEL_LAUNCH_KEY: key},
            **_claimed(now),
        },
        "data": {NAME_KEY: launched},
    }


def reclaim_patch(claim: ClaimMap, launched: str, now: float) -> RawObject:
    """Return the merge patch that changes a claim without an allocation to the name `launched`."""
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
