"""Persistent home directories: one volume claim for each user of a workspace.

Owns the contents of the claim at its creation. Pure. The pod worker creates the claim. `crd/homes.py` has its name,
`identity.py` its mount.

Invariant: the claim has no owner, so that Slipway never deletes it.
"""

from slipway.crd.homes import claim_name
from slipway.crd.meta import ANNOTATION_USER, LABEL_HOME, LABEL_MANAGED_BY, MANAGED_BY, RawObject
from slipway.crd.v1alpha1 import Allocation
from slipway.crd.workspacepods import HomeTemplate


def user_of(allocation: Allocation) -> str:
    """Return the user whose home the allocation requests; empty: it was applied without a user."""
    return allocation.metadata.annotations.get(ANNOTATION_USER, "")


def claim_of(allocation: Allocation, template: HomeTemplate) -> RawObject:
    """Return the claim for the allocation's user; it is created once."""
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
