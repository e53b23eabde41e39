"""What to do with an object that has the name of one of ours.

Owns the judgement on AlreadyExists. Pure: the object and what we would have created go in, a verdict comes out.

Invariants: what belongs to somebody else is never touched; what is on its way out is waited for, never reused; our own
object of another content (made by another version of this service) is replaced, which is safe only because it is not
in a release: nothing runs from it.
"""

from enum import StrEnum

from slipway.crd.meta import ANNOTATION_SPEC_HASH, LABEL_ALLOCATION_UID, ObjectMeta


class AdoptVerdict(StrEnum):
    """What an existing object is to us."""

    ADOPT = "adopt"
    WAIT = "wait"
    REPLACE = "replace"
    FOREIGN = "foreign"


def is_ours(found: ObjectMeta, uid: str) -> bool:
    """Whether the object is owned by the allocation with that uid, and says so in its label too."""
    owned = any(owner.uid == uid for owner in found.owner_references)
    return owned and found.labels.get(LABEL_ALLOCATION_UID) == uid


def judge(found: ObjectMeta, *, uid: str, spec_hash: str) -> AdoptVerdict:
    """The verdict on `found` for the allocation with `uid`, where an object of `spec_hash` is wanted."""
    if found.deletion_timestamp is not None:
        # Also a foreign one: the name is about to be free.
        return AdoptVerdict.WAIT
    if not is_ours(found, uid):
        return AdoptVerdict.FOREIGN
    if found.annotations.get(ANNOTATION_SPEC_HASH) != spec_hash:
        return AdoptVerdict.REPLACE
    return AdoptVerdict.ADOPT
