"""The account tokens in a pod's volumes: requested, and renewed in place before they expire, as a kubelet does.

Owns the times of renewal. Must not know the purpose of the tokens. Invariants: a container that reads the file finds a
complete token; when a renewal fails, the old token stays until a retry succeeds; a token is never logged.
"""

from collections.abc import Mapping, Sequence

from slipway.crd.roleresources import object_of, objects_of
from slipway.errors import ControlPlaneError, InvariantError, PermanentError
from slipway.kube.ports import KubeApi
from slipway.local.node.disk import PodDisk
from slipway.local.node.podview import NodePod, tokens_of
from slipway.runtime import log
from slipway.runtime.clock import Clock

RENEW_AT = 0.8
"""Fraction of its lifetime after which a token is renewed."""
AGE_S_MAX = 86_400.0
"""Maximum age in seconds: a token is renewed after a day, even if its lifetime is longer."""
AGAIN_S = 5.0

_log = log.get_logger(__name__)


class Projection:
    """One token in one file of a pod."""

    def __init__(self, volume: str, path: str, audience: str, life_s: int) -> None:
        self.volume = volume
        self.path = path
        self.audience = audience
        self.life_s = life_s

    @property
    def renew_s(self) -> float:
        """Seconds from the creation of a token to its renewal."""
        return min(AGE_S_MAX, self.life_s * RENEW_AT)


def projections(pod: NodePod) -> Sequence[Projection]:
    """Return every token of the pod's volumes; the audience "" means the API server's own."""
    return [
        Projection(
            str(volume.get("name")),
            str(token.get("path") or "token"),
            str(token.get("audience") or ""),
            int(token.get("expirationSeconds") or 3600),
        )
        for volume in objects_of(pod.spec.get("volumes"))
        for source in objects_of(object_of(volume.get("projected")).get("sources"))
        for token in [object_of(source.get("serviceAccountToken"))]
        if token
    ]


async def tokens(kube: KubeApi, pod: NodePod) -> Mapping[str, bytes]:
    """Return {audience: token} for the pod's tokens; tokens that the API server refuses are left out.

    Raises:
        TransientError: the API server does not answer now.
    """
    lives = {each.audience: each.life_s for each in projections(pod)}
    made = {audience: await _token(kube, pod, audience, life_s) for audience, life_s in sorted(lives.items())}
    return {audience: token for audience, token in made.items() if token}


async def keep_renewed(kube: KubeApi, pod: NodePod, disk: PodDisk, clock: Clock, *, are_fresh: bool) -> None:
    """Renew the pod's tokens until cancelled; return at once when the pod has none.

    Without `are_fresh` the first renewal is at once, because after a restart of the node's process the age of the files
    is unknown.
    """
    wanted = projections(pod)
    if wanted and are_fresh:
        await clock.sleep(min(each.renew_s for each in wanted))
    while wanted:
        wait_s = min(each.renew_s for each in wanted)
        try:
            found = await tokens(kube, pod)
            for each in wanted:
                if each.audience in found:
                    disk.replace(each.volume, each.path, found[each.audience])
        except InvariantError:
            raise
        except (ControlPlaneError, OSError) as error:
            _log.warning("tokens of a pod not renewed yet", pod=pod.metadata.name, error=str(error))
            wait_s = AGAIN_S
        await clock.sleep(wait_s)


async def _token(kube: KubeApi, pod: NodePod, audience: str, life_s: int) -> bytes:
    """Return a token bound to the pod, or b"" when the API server refuses it."""
    meta = pod.metadata
    bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
    spec = {"audiences": [audience] if audience else [], "expirationSeconds": life_s, "boundObjectRef": bound}
    account = str(pod.spec.get("serviceAccountName") or "default")
    wish = {"metadata": {"name": account}, "spec": spec}
    try:
        made = await kube.create(tokens_of(account), wish, namespace=meta.namespace)
    except PermanentError as error:
        _log.warning("no token for a pod", pod=meta.name, error=str(error))
        return b""
    return str(made.status.get("token") or "").encode()
