"""Takes a backup: reads everything that Slipway's promises rest on, while it runs.

Owns the order of the reads. Each kind is one consistent LIST; kinds are of slightly different moments, as for anybody
who watches. What must agree is usage: whether an ended allocation stands in the daily totals is noted at both, and the
totals are read before and after the allocations until both reads are the same.
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
    """The calls that this makes."""


class Taker:
    """Takes one. `secrets` are further Secrets of the services' namespace, by name; `with_secrets` is for all."""

    def __init__(self, kube: Kube, namespace: str, *, with_secrets: bool, secrets: tuple[str, ...] = ()) -> None:
        self._kube = kube
        self._namespace = namespace
        self._with_secrets = with_secrets
        self._secrets = secrets

    async def take(self) -> list[BackupLine]:
        """Every object, in the order in which it is put back.

        Raises:
            ControlPlaneError: something cannot be read: half of a backup is none.
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
        # As they were made: what waits keeps its order also where nothing else tells it.
        allocations.sort(key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.uid))
        return lines + [BackupLine(kinds.kind_of(kinds.KEPT_ALLOCATIONS), each) for each in allocations]

    async def _settled(self) -> tuple[list[BackupObject], list[BackupObject]]:
        """The totals, and the allocations of a time at which they did not change."""
        maps = await self._list(kinds.USAGE)
        for _ in range(ROUNDS_MAX):
            allocations = (await self._kube.list(kinds.KEPT_ALLOCATIONS)).items
            again = await self._list(kinds.USAGE)
            if _versions(again) == _versions(maps):
                return maps, allocations
            maps = again
        raise UnavailableError("usage is being added faster than it can be read; try again")

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
    """It stands in the totals already: a later reader must not add it again."""
    annotations = {**allocation.metadata.annotations, ANNOTATION_USAGE: BOOKED}
    return msgspec.structs.replace(
        allocation, metadata=msgspec.structs.replace(allocation.metadata, annotations=annotations)
    )
