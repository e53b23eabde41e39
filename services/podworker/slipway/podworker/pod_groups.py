"""Creates the PodGroup of a gang that kube-scheduler binds, if the API server serves that kind.

Owns the requests about groups, and whether an existing group may be used. Which attempts have a group, and its fields,
is in `slipway.pods.podgroup`
([decision 80](docs/adr/0080-gangs-that-kube-scheduler-binds-are-pod-groups.md)).

Promises: a launch without a group makes no call; the API server is asked once per process whether it serves groups, and
again after a create of a group found that it does not. A group is never deleted here: it belongs to the ConfigMap of
its attempt, and the garbage collector of the cluster deletes both.
"""

from slipway.crd.meta import LABEL_ALLOCATION_UID, ObjectMeta
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.errors import AlreadyExistsError, DeniedError, NotFoundError, UnavailableError
from slipway.kube.resources import POD_GROUPS
from slipway.pods import podgroup
from slipway.pods.manifest import Manifests
from slipway.podworker.ports import Kube


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
        found = podgroup.grouped(manifests)
        return found if found.group and await self._served() else manifests

    async def ensure(self, manifests: Manifests, spec: AllocationSpec, config_map: ObjectMeta) -> None:
        """Create the group of these manifests, or adopt it.

        Raises:
            AlreadyExistsError: a group of another owner has the name.
            UnavailableError: an older group of that name is being deleted, or groups are not served any more.
        """
        body = podgroup.body_of(manifests, spec, config_map)
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
