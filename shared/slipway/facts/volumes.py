"""Builds facts of volume claims: from which nodes the volume of a claim can be reached, or why no pod can mount it yet.

Owns the reads of one claim (by name: the claim, its volume, or the class that decides when it gets a volume) and their
meaning. kube-scheduler chooses the volume of a claim that waits for its first consumer, so this module knows nothing of
it.

Access modes are not read: a volume that only one node may use at a time does not bind its pods to that node.

Source: Kubernetes, "Persistent Volumes": binding, node affinity; component-helpers/storage/volume/helpers.go:
LabelZonesToSet; kube-scheduler 1.36 volumezone/volume_zone.go: the labels of a volume.
"""

from collections.abc import Mapping

from slipway.crd.roleresources import object_of, objects_of
from slipway.errors import DeniedError, NotFoundError
from slipway.kube.objects import PersistentVolume, VolumeClaim
from slipway.kube.ports import Gets
from slipway.kube.resources import PERSISTENT_VOLUMES, STORAGE_CLASSES, VOLUME_CLAIMS
from slipway.model.facts import VolumeFact

DIRECT = "direct"
"""The binding of pools for which these facts are needed: with other bindings kube-scheduler checks volumes."""
WAITS_FOR_CONSUMER = "WaitForFirstConsumer"
ZONE_SEPARATOR = "__"
"""Separator of the zones in the label of a volume that is in several zones."""
ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)

ClaimKey = tuple[str, str]
"""(namespace, name)"""


async def read_volume(kube: Gets, namespace: str, name: str, *, is_home: bool = False) -> VolumeFact:
    """Return the current fact of the claim. The claim of a home directory is created on first use, so a missing one is
    no reason to wait.

    Raises:
        DeniedError, TransientError: the claim or its volume cannot be read.
    """
    try:
        claim = await kube.get(VOLUME_CLAIMS, name, namespace=namespace)
    except NotFoundError:
        if is_home:
            return VolumeFact(namespace=namespace, name=name)
        return waiting(namespace, name, f"does not exist in namespace {namespace}; create it or correct the name")
    if claim.metadata.deletion_timestamp is not None:
        return waiting(namespace, name, "is being deleted; create it again or name another one")
    if claim.status.phase == "Lost":
        text = f"has lost its volume {claim.spec.volume_name}, which no longer exists; name another claim"
        return waiting(namespace, name, text)
    if claim.status.phase == "Bound":
        return await _bound(kube, claim)
    if await _is_for_its_consumer(kube, claim):
        return VolumeFact(namespace=namespace, name=name)
    return waiting(namespace, name, "is not bound to a volume yet")


def volume_fact(claim: VolumeClaim, volume: PersistentVolume) -> VolumeFact:
    """Return where the volume of a bound claim can be reached, from its node affinity and its zone labels."""
    required = object_of(object_of(volume.spec.node_affinity).get("required"))
    return VolumeFact(
        namespace=claim.metadata.namespace,
        name=claim.metadata.name,
        volume=claim.spec.volume_name,
        zones=_zones(volume.metadata.labels),
        terms=tuple(dict(term) for term in objects_of(required.get("nodeSelectorTerms"))),
    )


def waiting(namespace: str, name: str, text: str) -> VolumeFact:
    """Return the fact of a claim that no pod can mount yet; `text` is the reason, which follows the name of the
    claim."""
    return VolumeFact(namespace=namespace, name=name, waits=f"volume claim {name} {text}")


def being_read(namespace: str, name: str) -> VolumeFact:
    """Return the fact of a claim that was not read yet."""
    return VolumeFact(namespace=namespace, name=name, waits=f"volume claim {name} is being read", is_unread=True)


def unreadable(namespace: str, name: str, error: Exception) -> VolumeFact:
    """Return the fact of a claim that could not be read now or earlier."""
    text = f"cannot be read: {str(error) or 'no answer in time'}"
    if isinstance(error, DeniedError):
        text += "; let the account get persistentvolumeclaims, persistentvolumes and storageclasses"
    return waiting(namespace, name, text)


async def _bound(kube: Gets, claim: VolumeClaim) -> VolumeFact:
    """Return the fact of a bound claim.

    On a local cluster the volume of a claim has no PersistentVolume object: it can be reached from every node. On other
    clusters, a claim whose volume was deleted soon becomes `Lost`.
    """
    meta = claim.metadata
    try:
        volume = await kube.get(PERSISTENT_VOLUMES, claim.spec.volume_name)
    except NotFoundError:
        return VolumeFact(namespace=meta.namespace, name=meta.name, volume=claim.spec.volume_name)
    return volume_fact(claim, volume)


async def _is_for_its_consumer(kube: Gets, claim: VolumeClaim) -> bool:
    """Whether the claim gets a volume only when kube-scheduler has a node for its pod."""
    if not claim.spec.storage_class_name or claim.spec.volume_name:
        return False
    try:
        found = await kube.get(STORAGE_CLASSES, claim.spec.storage_class_name)
    except NotFoundError:
        return False
    return found.volume_binding_mode == WAITS_FOR_CONSUMER


def _zones(labels: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return {label: the zones or regions that it names}."""
    named = {key: {part.strip() for part in labels.get(key, "").split(ZONE_SEPARATOR)} for key in ZONE_LABELS}
    return {key: tuple(sorted(values - {""})) for key, values in named.items() if values - {""}}
