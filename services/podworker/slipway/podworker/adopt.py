"""Decides what to do with an existing object that has the name of one that we want to create.

Owns the verdict after AlreadyExists. Pure: a function of the found object and the one that we would have created.

Invariants: an object of another owner is never changed; an object that is being deleted is waited for, never reused;
our own object of another content (another version of this service created it) is replaced. That is safe only because it
is not in a release, so nothing uses it.
"""

from enum import StrEnum

from slipway.crd.meta import ANNOTATION_SPEC_HASH, LABEL_ALLOCATION_UID, ObjectMeta


class AdoptVerdict(StrEnum):
    """What the pod worker does with an existing object."""

    ADOPT = "adopt"
    WAIT = "wait"
    REPLACE = "replace"
    FOREIGN = "foreign"


def is_ours(found: ObjectMeta, uid: str) -> bool:
    """Whether the allocation with that uid owns the object, and the object's label has that uid too."""
    owned = any(owner.uid == uid for owner in found.owner_references)
    return owned and found.labels.get(LABEL_ALLOCATION_UID) == uid


def judge(found: ObjectMeta, *, uid: str, spec_hash: str) -> AdoptVerdict:
    """Return the verdict on `found` for the allocation with `uid`, which needs an object of `spec_hash`."""
    if found.deletion_timestamp is not None:
        # This also applies to an object of another owner: the name will be free soon.
        return AdoptVerdict.WAIT
    if not is_ours(found, uid):
        return AdoptVerdict.FOREIGN
    if found.annotations.get(ANNOTATION_SPEC_HASH) != spec_hash:
        return AdoptVerdict.REPLACE
    return AdoptVerdict.ADOPT
