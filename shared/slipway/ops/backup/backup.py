"""Takes a backup: reads all objects that Slipway's promises depend on, while Slipway runs.

This module owns the order of the reads. Each kind is one consistent LIST; the kinds are from slightly different
moments. Only usage must be consistent: whether an ended allocation is in the daily totals is recorded at the totals and
at the allocation. So the totals are read before and after the allocations, until both reads are equal.
"""

from typing import Protocol

import msgspec

from slipway.crd import totals
from slipway.crd.totals import ANNOTATION_USAGE, BOOKED
from slipway.errors import UnavailableError
from slipway.kube.ports import Lists
from slipway.model import ids
from slipway.ops.backup import kinds
from slipway.ops.backup.file import BackupLine, BackupObject
from slipway.ops.backup.kinds import BackupKind

ROUNDS_MAX = 10


class Kube(Lists, Protocol):
    """The calls to Kubernetes."""


class BackupJob:
    """Takes one backup. With `with_secrets`, it contains Secrets; `secrets` are names of further Secrets of the
    services' namespace.
    """

    def __init__(self, kube: Kube, namespace: str, *, with_secrets: bool, secrets: tuple[str, ...] = ()) -> None:
        self._kube = kube
        self._namespace = namespace
        self._with_secrets = with_secrets
        self._secrets = secrets

    async def take(self) -> list[BackupLine]:
        """Return every object, in the order of a restore.

        Raises:
            ControlPlaneError: an object cannot be read; an incomplete backup is of no use.
        """
        lines: list[BackupLine] = []
        for group in kinds.BEFORE:
            lines += _lines(group, await self._list(group))
        if self._with_secrets:
            lines += _lines(kinds.ALL_SECRETS, await self._our_secrets())
        maps, allocations = await self._settled()
        named = {token for each in maps for token in totals.tokens_in(_totals(each))}
        allocations = [_marked(each) if totals.token_of(each.metadata.uid) in named else each for each in allocations]
        lines += _lines(kinds.USAGE, maps)
        # Sort by creation, so that waiting allocations keep their order even when no other field defines it.
        allocations.sort(key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.uid))
        return lines + [BackupLine(kinds.kind_of(kinds.KEPT_ALLOCATIONS), each) for each in allocations]

    async def _settled(self) -> tuple[list[BackupObject], list[BackupObject]]:
        """Return the totals and the allocations from a moment at which the totals did not change."""
        maps = await self._list(kinds.USAGE)
        for _ in range(ROUNDS_MAX):
            allocations = (await self._kube.list(kinds.KEPT_ALLOCATIONS)).items
            again = await self._list(kinds.USAGE)
            if _versions(again) == _versions(maps):
                return maps, allocations
            maps = again
        raise UnavailableError("the usage records change faster than they can be read; try again")

    async def _our_secrets(self) -> list[BackupObject]:
        hooks = await self._list(kinds.HOOKS)
        names = {each.metadata.name for each in hooks if each.metadata.namespace == self._namespace}
        return hooks + [
            each
            for each in await self._list(kinds.ALL_SECRETS)
            if each.metadata.name not in names
            and not each.metadata.name.startswith(ids.VALUES_PREFIX)
            and (kinds.are_tokens(each) or each.metadata.name in self._secrets)
        ]

    async def _list(self, group: BackupKind) -> list[BackupObject]:
        namespace = self._namespace if group.is_own else None
        return (await self._kube.list(group.resource, namespace=namespace, label_selector=group.label_selector)).items


def _lines(group: BackupKind, found: list[BackupObject]) -> list[BackupLine]:
    return [BackupLine(group.kind, each) for each in found]


def _versions(found: list[BackupObject]) -> list[tuple[str, str]]:
    return sorted((each.metadata.name, each.metadata.resource_version) for each in found)


def _totals(found: BackupObject) -> totals.DayTotals:
    try:
        return totals.decode(found.data)
    except msgspec.DecodeError:
        return totals.DayTotals()


def _marked(allocation: BackupObject) -> BackupObject:
    """Mark an allocation that is already in the totals, so that a restore does not add it again."""
    annotations = {**allocation.metadata.annotations, ANNOTATION_USAGE: BOOKED}
    return msgspec.structs.replace(
        allocation, metadata=msgspec.structs.replace(allocation.metadata, annotations=annotations)
    )
