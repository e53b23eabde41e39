"""The work of `slipway backup` and `slipway restore`: connect, then take or restore a backup. Owns the clients."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from slipway.errors import InvalidError
from slipway.kube import client
from slipway.kube.client import KubeClient
from slipway.model.times import format_time
from slipway.ops.backup import backup
from slipway.ops.backup.backup import FORMAT, BackupJob, Header
from slipway.ops.backup.restore import RestoredObject, RestoreJob
from slipway.runtime.clock import SystemClock, SystemRandom
from slipway.runtime.service import version

T = TypeVar("T")
AGENT = "slipway-backup"


class BackupTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, and the namespace of the services. An empty `kubeconfig` means the pod's own account, or kubectl's
    file.
    """

    kubeconfig: str = ""
    namespace: str = "slipway-system"


def run_backup(place: BackupTarget, path: Path, *, with_secrets: bool, secrets: tuple[str, ...]) -> dict[str, int]:
    """Write a backup, and return {kind: number of objects}.

    Raises:
        ControlPlaneError: the cluster cannot be read.
        OSError: the file cannot be written.
    """
    clock = SystemClock()

    async def work(kube: KubeClient) -> dict[str, int]:
        began = clock.now()
        lines = await BackupJob(kube, place.namespace, with_secrets=with_secrets, secrets=secrets).take()
        header = Header(
            slipway_backup=FORMAT, created_at=format_time(began), version=version(), namespace=place.namespace
        )
        backup.write_file(path, header, lines)
        counts: dict[str, int] = {}
        for line in lines:
            counts[line.kind] = counts.get(line.kind, 0) + 1
        return counts

    return _connected(place, work)


def run_restore(place: BackupTarget, path: Path, *, is_dry: bool) -> tuple[Header, list[RestoredObject]]:
    """Restore a backup.

    Raises:
        OSError, InvalidError: the file is no backup, or services are running, which is not allowed.
        ControlPlaneError: the cluster cannot be reached.
    """
    header, lines = backup.read_file(path)
    if header.namespace != place.namespace:
        raise InvalidError(
            f"the backup is of namespace {header.namespace}; restore it with --namespace {header.namespace}"
        )

    async def work(kube: KubeClient) -> list[RestoredObject]:
        giver = RestoreJob(kube, SystemClock(), place.namespace, is_dry=is_dry)
        if not is_dry and (held := await giver.running()):
            raise InvalidError(
                f"services are running ({', '.join(held)}) and would treat restored work as new; stop them first: "
                f"kubectl --namespace {place.namespace} scale deployment --replicas 0 --selector "
                "'app.kubernetes.io/component in (api,scheduler,podworker,watcher)'"
            )
        return await giver.restore(lines)

    return header, _connected(place, work)


def _connected(place: BackupTarget, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with client.connect(
            place.kubeconfig or None, clock=SystemClock(), random=SystemRandom(), user_agent=AGENT
        ) as kube:
            return await work(kube)

    return asyncio.run(main())
