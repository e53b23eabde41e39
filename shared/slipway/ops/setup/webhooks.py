"""Brings webhooks of an older release into their own namespace, before the api of the new one looks there.

Owns that move, and when it is done. The namespace is made where it is missing, as one of the Helm release that will
have it. Each Secret is copied, as old as it was, so that what it has not been sent yet is still its; then the old one
is marked. It stays: the api of the older release reads it until it is replaced, and again after a rollback.

`python -m slipway.ops.setup.webhooks`, a hook of the chart. It may be run again: what is marked, or there already, is
left.
"""

import sys
from typing import Protocol

from slipway.crd.meta import ANNOTATION_CREATED, ANNOTATION_MOVED, LABEL_MANAGED_BY, LABEL_WEBHOOK, RawObject
from slipway.errors import AlreadyExistsError
from slipway.kube import client
from slipway.kube.objects import Secret
from slipway.kube.ports import Creates, Lists, Patches
from slipway.kube.resources import NAMESPACES, SECRETS
from slipway.ops.setup.settings import MoveSettings
from slipway.runtime import log, service
from slipway.runtime.service import ServiceContext

NAME = "webhooks"
_log = log.get_logger(__name__)


class Kube(Lists, Patches, Creates, Protocol):
    """The calls that this makes."""


async def move(kube: Kube, *, source: str, target: str, release: str) -> int:
    """Copy every webhook of `source` that is not marked; how many there were. `release` is Helm's name of us."""
    namespace: RawObject = {
        "metadata": {
            "name": target,
            "labels": {LABEL_MANAGED_BY: "Helm"},
            "annotations": {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": source},
        }
    }
    try:
        await kube.create(NAMESPACES, namespace)
    except AlreadyExistsError:
        _log.info("there already", kind=NAMESPACES.kind, name=target)
    listed = await kube.list(SECRETS, namespace=source, label_selector=LABEL_WEBHOOK)
    waiting = [each for each in listed.items if ANNOTATION_MOVED not in each.metadata.annotations]
    for secret in waiting:
        name = secret.metadata.name
        try:
            await kube.create(SECRETS, _copy(secret, target), namespace=target)
            _log.info("copied", kind=SECRETS.kind, name=name, to=target)
        except AlreadyExistsError:
            _log.info("there already", kind=SECRETS.kind, name=name)
        await kube.patch(SECRETS, name, {"metadata": {"annotations": {ANNOTATION_MOVED: target}}}, namespace=source)
    return len(waiting)


def _copy(secret: Secret, namespace: str) -> RawObject:
    meta = secret.metadata
    annotations = {ANNOTATION_CREATED: meta.creation_timestamp or "", **meta.annotations}
    return {
        "metadata": {"name": meta.name, "namespace": namespace, "labels": meta.labels, "annotations": annotations},
        "type": secret.type or "Opaque",
        "data": secret.data,
    }


def main() -> int:
    """Exit code 0 when all have moved, 1 when it is to be tried again."""
    return service.run(NAME, MoveSettings, build, argv=["--once", *sys.argv[1:]])


async def build(context: ServiceContext[MoveSettings]) -> None:
    """Move them."""
    settings = context.settings
    kube = await context.resources.enter_async_context(
        client.connect(
            settings.kubeconfig or None, clock=context.clock, random=context.random, user_agent="slipway-webhooks"
        )
    )
    await move(kube, source=settings.namespace, target=settings.move_to, release=settings.move_release)


if __name__ == "__main__":
    raise SystemExit(main())
