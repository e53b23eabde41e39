"""The volume claims of a launch: creates those that are created on first use, and finds those that only kube-scheduler
can bind.

Owns the check of a claim, and its creation. kube-scheduler picks the node of a volume that waits for its first
consumer; a pod that we bound ourselves would wait for that volume for ever. So kube-scheduler binds the pods of such a
launch, on the nodes that were planned
([decision 65](docs/adr/0065-what-only-kube-scheduler-can-give-is-left-to-it.md)).

Promises: a launch without claims makes no call; the only write is the creation of a missing claim. The planner knows
from which nodes a bound volume can be reached (`kube/volumes.py`).

Source: Kubernetes, "Storage Classes": volumeBindingMode; the annotations of the volume controller.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import object_of, objects_of
from slipway.errors import AlreadyExistsError, ClaimPendingError, NotFoundError
from slipway.kube.objects import StorageClass
from slipway.kube.resources import STORAGE_CLASSES, VOLUME_CLAIMS
from slipway.podworker.ports import Kube

ANNOTATION_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
WAITS = "WaitForFirstConsumer"


async def needs_scheduler(kube: Kube, namespace: str, pods: Iterable[Mapping[str, Any]]) -> bool:
    """Whether pods (as JSON) have a volume whose node kube-scheduler has to choose. If not, all their claims are bound.

    Raises:
        ClaimPendingError: a claim does not exist, or its volume is still being bound.
        DeniedError: the account of the pod worker may not read them.
    """
    volumes = [volume for pod in pods for volume in objects_of(object_of(pod.get("spec")).get("volumes"))]
    names = {str(object_of(volume.get("persistentVolumeClaim")).get("claimName") or "") for volume in volumes}
    waiting = [name for name in sorted(names - {""}) if await _is_waiting(kube, namespace, name)]
    if waiting:
        return True
    for class_name in sorted({name for volume in volumes for name in _ephemeral_class(volume)}):
        found = await _class(kube, class_name or None)
        if found is not None and found.volume_binding_mode == WAITS:
            return True
    return False


async def make_once(kube: Kube, claim: RawObject) -> None:
    """Create the claim, unless a claim of that name exists. Of several concurrent calls, one creates it.

    Raises:
        QuotaExceededError, InvalidError: the API server refuses the claim.
    """
    name, namespace = str(claim["metadata"]["name"]), str(claim["metadata"]["namespace"])
    try:
        await kube.get(VOLUME_CLAIMS, name, namespace=namespace)
    except NotFoundError:
        with contextlib.suppress(AlreadyExistsError):
            await kube.create(VOLUME_CLAIMS, claim)


async def _is_waiting(kube: Kube, namespace: str, name: str) -> bool:
    """Whether the claim waits for its first consumer; False when it is bound."""
    try:
        claim = await kube.get(VOLUME_CLAIMS, name, namespace=namespace)
    except NotFoundError:
        raise ClaimPendingError(f"volume claim {name} does not exist") from None
    if claim.spec.volume_name:
        return False
    class_name = claim.spec.storage_class_name
    found = await _class(kube, class_name) if class_name != "" else None
    if found is not None and found.volume_binding_mode == WAITS:
        return True
    raise ClaimPendingError(f"volume claim {name} is not bound to a volume yet")


def _ephemeral_class(volume: Mapping[str, Any]) -> Sequence[str]:
    """Return the storage class of a generic ephemeral volume ("" is the default class); () for other volumes."""
    template = object_of(object_of(volume.get("ephemeral")).get("volumeClaimTemplate"))
    return (str(object_of(template.get("spec")).get("storageClassName") or ""),) if template else ()


async def _class(kube: Kube, name: str | None) -> StorageClass | None:
    """Return the storage class of that name, or the default class (for None). None when it does not exist: then volumes
    are bound at once."""
    try:
        if name is not None:
            return await kube.get(STORAGE_CLASSES, name)
        classes = (await kube.list(STORAGE_CLASSES)).items
    except NotFoundError:
        return None
    return next((item for item in classes if item.metadata.annotations.get(ANNOTATION_DEFAULT_CLASS) == "true"), None)
