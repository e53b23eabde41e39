"""Groups of pods for kube-scheduler: whether the API server serves them, and the create of one.

Owns the requests about groups, and whether an existing group may be used. Which attempts have a group, and its fields,
is in `slipway.pods.podgroup`
([decision 80](docs/adr/0080-gangs-that-kube-scheduler-binds-are-pod-groups.md)).

Promises: a launch that binds its pods itself costs nothing; the API server is asked once per process, and again after
it did not know a group that it served before. A group is never deleted here: it belongs to the ConfigMap of its
attempt, and the garbage collector of the cluster deletes it with that.
"""

from slipway.crd.meta import LABEL_ALLOCATION_UID, ObjectMeta
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.errors import AlreadyExistsError, DeniedError, NotFoundError, UnavailableError
from slipway.kube.resources import POD_GROUPS
from slipway.pods import podgroup
from slipway.pods.manifest import Manifests
from slipway.podworker.ports import Kube


class PodGroups:
    """What this process knows of groups."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._is_served: bool | None = None

    async def grouped(self, manifests: Manifests) -> Manifests:
        """The manifests with pods that name their group, where there is one to name.

        Raises:
            TransientError: the API server cannot be asked now.
        """
        found = podgroup.grouped(manifests)
        return found if found.group and await self._served() else manifests

    async def ensure(self, manifests: Manifests, spec: AllocationSpec, config_map: ObjectMeta) -> None:
        """Make the group of these manifests, or adopt it.

        Raises:
            AlreadyExistsError: a group of another owner has the name.
            UnavailableError: an older group of that name is on its way out, or groups are not served any more.
        """
        body = podgroup.body_of(manifests, spec, config_map)
        try:
            await self._kube.create(POD_GROUPS, body)
        except AlreadyExistsError:
            await self._adopt(manifests.group, config_map, body["metadata"]["labels"][LABEL_ALLOCATION_UID])
        except NotFoundError as error:
            self._is_served = None
            raise UnavailableError(f"PodGroup {manifests.group} cannot be made: {error}") from error

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
            # The cluster deletes it with the ConfigMap of an earlier try.
            raise UnavailableError(f"PodGroup {name} is on its way out")
