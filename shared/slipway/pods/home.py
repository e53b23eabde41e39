"""Home directories that are kept: one volume claim for each user of a workspace.

Owns the name of the claim and what it is when it is made. Pure. Who makes it is the pod worker; where it is mounted is
`identity.py`.

Invariants: the name follows from the user alone, so that a create is idempotent and every launch of the user finds the
same claim; the claim has no owner, so that nothing of Slipway deletes it.
"""

import re

from slipway.crd.hashing import sha256_hex
from slipway.crd.meta import ANNOTATION_USER, LABEL_HOME, LABEL_MANAGED_BY, MANAGED_BY, RawObject
from slipway.crd.v1alpha1 import Allocation
from slipway.crd.workspacepods import HomeTemplate
from slipway.pods.identity import login_of

_READABLE_MAX = 24
_HASH_LENGTH = 10
_OUTSIDE_NAMES = re.compile(r"[^a-z0-9]+")


def claim_name(user: str) -> str:
    """Such as `home-ada-0a1b2c3d4e`: two users never share one, however alike they are called."""
    readable = _OUTSIDE_NAMES.sub("-", login_of(user).lower()).strip("-")[:_READABLE_MAX].rstrip("-")
    return "-".join(part for part in ("home", readable, sha256_hex(user)[:_HASH_LENGTH]) if part)


def user_of(allocation: Allocation) -> str:
    """Whose home it asks for; empty: it was applied without a user."""
    return allocation.metadata.annotations.get(ANNOTATION_USER, "")


def claim_of(allocation: Allocation, template: HomeTemplate) -> RawObject:
    """The claim of the allocation's user, as it is made once."""
    user = user_of(allocation)
    spec: RawObject = {
        "accessModes": [template.access_mode],
        "resources": {"requests": {"storage": template.size}},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(user),
            "namespace": allocation.metadata.namespace,
            "labels": {LABEL_HOME: "true", LABEL_MANAGED_BY: MANAGED_BY},
            "annotations": {ANNOTATION_USER: user},
        },
        "spec": spec | ({"storageClassName": template.storage_class} if template.storage_class else {}),
    }
