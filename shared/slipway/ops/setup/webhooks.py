"""Moves webhooks of an older release into their own namespace, before the api of the new release reads that namespace.

This module owns the move and its completion. A missing namespace is created, as part of the Helm release that will own
it. Each Secret is copied with its old creation time, so that events it has not received yet are still sent to it. Then
the old Secret is marked. It is kept: the api of the older release reads it until that api is replaced, and again after
a rollback.

`python -m slipway.ops.setup.webhooks` is a hook of the chart. It may run again: marked Secrets and existing copies are
left unchanged.
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
    """The calls to Kubernetes."""


async def move(kube: Kube, *, source: str, target: str, release: str) -> int:
    """Copy every unmarked webhook of `source`; return how many there were. `release` is Helm's name of our release."""
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
        _log.info("already exists", kind=NAMESPACES.kind, name=target)
    listed = await kube.list(SECRETS, namespace=source, label_selector=LABEL_WEBHOOK)
    waiting = [each for each in listed.items if ANNOTATION_MOVED not in each.metadata.annotations]
    for secret in waiting:
        name = secret.metadata.name
        try:
            await kube.create(SECRETS, _copy(secret, target), namespace=target)
            _log.info("copied", kind=SECRETS.kind, name=name, to=target)
        except AlreadyExistsError:
            _log.info("already exists", kind=SECRETS.kind, name=name)
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
    """Return exit code 0 when all webhooks are moved, 1 when the move should be tried again."""
    return service.run(NAME, MoveSettings, build, argv=["--once", *sys.argv[1:]])


async def build(context: ServiceContext[MoveSettings]) -> None:
    """Move the webhooks."""
    settings = context.settings
    kube = await context.resources.enter_async_context(
        client.connect(
            settings.kubeconfig or None, clock=context.clock, random=context.random, user_agent="slipway-webhooks"
        )
    )
    await move(kube, source=settings.namespace, target=settings.move_to, release=settings.move_release)


if __name__ == "__main__":
    raise SystemExit(main())
