"""The volume claims of a launch: those that are made on first use, and which of them only kube-scheduler can bind.

Owns the judgement on a claim, and the create of one. kube-scheduler is who picks the node for a volume that waits for
its first consumer; a pod that we bind past it would wait for that volume for ever. So such a launch is left to
kube-scheduler, on the nodes that were planned
([decision 65](docs/adr/0065-what-only-kube-scheduler-can-give-is-left-to-it.md)).

Promises: a launch without claims costs nothing; nothing is written but a claim that is not there. From where a volume
that is bound already can be reached is known to the plan (`kube/volumes.py`).

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
    """Whether pods (as JSON) have a volume whose node kube-scheduler has to choose; the claims of all others are bound.

    Raises:
        ClaimPendingError: a claim does not exist, or is not bound yet and will be without anybody's help.
        DeniedError: our account may not look.
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
    """Make the claim, unless there is one of its name. Of several who do this at once, one makes it.

    Raises:
        QuotaExceededError, InvalidError: it cannot be made (now).
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
    """The storage class of a generic ephemeral volume, "" for the default one; nothing for other volumes."""
    template = object_of(object_of(volume.get("ephemeral")).get("volumeClaimTemplate"))
    return (str(object_of(template.get("spec")).get("storageClassName") or ""),) if template else ()


async def _class(kube: Kube, name: str | None) -> StorageClass | None:
    """The storage class of that name, or the default one; None when there is none: then volumes are bound at once."""
    try:
        if name is not None:
            return await kube.get(STORAGE_CLASSES, name)
        classes = (await kube.list(STORAGE_CLASSES)).items
    except NotFoundError:
        return None
    return next((item for item in classes if item.metadata.annotations.get(ANNOTATION_DEFAULT_CLASS) == "true"), None)
