"""The objects of an attempt besides its pods: those that were created, the PodGroup, the volume claims.

`CreatedObjects` remembers the ConfigMaps and Services that this process has created or adopted, until it deletes them,
so that the teardown needs no reads. It is not the truth: the teardown reads an object that is missing here from the API
server, and an object that is remembered here may have been deleted or replaced since. The uid in each delete detects
that.

`PodGroups` creates the PodGroup of a gang that kube-scheduler binds, if the API server serves that kind, or adopts it.
Which attempts have a group, and its fields, is in `slipway.pods.manifest` ([decision
80](docs/adr/0080-gangs-that-kube-scheduler-binds-are-pod-groups.md)).

Promises: a launch without a group makes no call; the API server is asked once per process whether it serves groups, and
again after it has answered the create of a group with 404. A group is never deleted here: it belongs to the ConfigMap
of its attempt, and the garbage collector of the cluster deletes both.

Volume claims: `make_once` creates those that are created on first use, `needs_scheduler` finds those that only
kube-scheduler can bind. kube-scheduler picks the node of a volume that waits for its first consumer; a pod that we
bound ourselves would wait for that volume for ever. So kube-scheduler binds the pods of such a launch, on the nodes
that were planned ([decision 65](docs/adr/0065-what-only-kube-scheduler-can-give-is-left-to-it.md)).

Promises: a launch without claims makes no call; the only write is the creation of a missing claim. The planner knows
from which nodes a bound volume can be reached (`facts/volumes.py`).

Source: Kubernetes, "Storage Classes": volumeBindingMode; the annotations of the volume controller.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipway.crd.meta import LABEL_ALLOCATION_UID, ObjectMeta, RawObject
from slipway.crd.roleresources import object_of, objects_of
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.errors import AlreadyExistsError, ClaimPendingError, DeniedError, NotFoundError, UnavailableError
from slipway.kube.objects import StorageClass
from slipway.kube.resources import POD_GROUPS, STORAGE_CLASSES, VOLUME_CLAIMS, Resource
from slipway.pods import manifest
from slipway.pods.manifest import Manifests
from slipway.podworker.ports import Kube

BUNDLES_MAX = 16_384
"""The number of objects that are remembered. Beyond it, the oldest are forgotten. An entry uses some 300 bytes."""


class CreatedObjects:
    """The objects that this process remembers."""

    def __init__(self) -> None:
        self._uids: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def add(self, resource: Resource[Any], meta: ObjectMeta) -> None:
        """Remember an object that exists and is ours."""
        self._uids[resource.plural, meta.namespace, meta.name] = meta.uid
        if len(self._uids) > BUNDLES_MAX:
            self._uids.popitem(last=False)

    def pop(self, resource: Resource[Any], namespace: str, name: str) -> ObjectMeta | None:
        """Return the metadata for the delete of one object and forget the object; None when it is not remembered."""
        uid = self._uids.pop((resource.plural, namespace, name), None)
        return None if uid is None else ObjectMeta(name=name, namespace=namespace, uid=uid)


class PodGroups:
    """Creates and adopts groups; remembers whether the API server serves them."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._is_served: bool | None = None

    async def grouped(self, manifests: Manifests) -> Manifests:
        """Return the manifests with pods that name their group; unchanged when the attempt has no group.

        Raises:
            TransientError: the API server cannot be reached now.
        """
        found = manifest.grouped(manifests)
        return found if found.group and await self._served() else manifests

    async def ensure(self, manifests: Manifests, spec: AllocationSpec, config_map: ObjectMeta) -> None:
        """Create the group of these manifests, or adopt it.

        Raises:
            AlreadyExistsError: a group of another owner has the name.
            UnavailableError: an older group of that name is being deleted, or groups are not served any more.
        """
        body = manifest.body_of(manifests, spec, config_map)
        try:
            await self._kube.create(POD_GROUPS, body)
        except AlreadyExistsError:
            await self._adopt(manifests.group, config_map, body["metadata"]["labels"][LABEL_ALLOCATION_UID])
        except NotFoundError as error:
            self._is_served = None
            raise UnavailableError(f"PodGroup {manifests.group} cannot be created: {error}") from error

    async def _served(self) -> bool:
        if self._is_served is None:
            try:
                self._is_served = await self._kube.serves(POD_GROUPS)
            except DeniedError:
                # Without the right to ask, gangs start as they do on a server without groups.
                self._is_served = False
        return self._is_served

    async def _adopt(self, name: str, config_map: ObjectMeta, uid: str) -> None:
        try:
            found = (await self._kube.get(POD_GROUPS, name, namespace=config_map.namespace)).metadata
        except NotFoundError as error:
            raise UnavailableError(f"PodGroup {name} was deleted while it was read", retry_after_s=0.0) from error
        if found.deletion_timestamp is None and found.labels.get(LABEL_ALLOCATION_UID) != uid:
            raise AlreadyExistsError(f"PodGroup {name} exists and belongs to another owner")
        is_current = any(owner.uid == config_map.uid for owner in found.owner_references)
        if found.deletion_timestamp is not None or not is_current:
            # This group belongs to the ConfigMap of an earlier try, and the cluster deletes both.
            raise UnavailableError(f"PodGroup {name} is being deleted")


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
