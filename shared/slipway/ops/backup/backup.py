"""Takes a backup: reads all objects that Slipway's promises depend on, while Slipway runs.

This module owns the order of the reads. Each kind is one consistent LIST; the kinds are from slightly different
moments. Only usage must be consistent: whether an ended allocation is in the daily totals is recorded at the totals and
at the allocation. So the totals are read before and after the allocations, until both reads are equal.

The file of a backup has a header, then one object per line, as JSON; it is gzip when its name ends in .gz. Stored of an
object are its metadata, spec, status and data, without managed fields. A restore ignores the old resourceVersion. It
needs the old uid of an object, because other objects refer to it.

The kinds are in restore order: each follows the kinds that it refers to.
"""

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from slipway.accounting import daily_totals
from slipway.accounting.daily_totals import ANNOTATION_USAGE, BOOKED, LABEL_USAGE
from slipway.crd.meta import LABEL_LAUNCH_KEY, LABEL_WEBHOOK, LABEL_WORKSPACE, ObjectMeta, RawObject
from slipway.errors import InvalidError, UnavailableError
from slipway.kube.ports import Lists
from slipway.kube.resources import (
    ALLOCATIONS,
    CONFIG_MAPS,
    JOBS,
    NAMESPACES,
    QUEUES,
    RESOURCE_POOLS,
    RESOURCE_QUOTAS,
    SECRETS,
    TEMPLATES,
    Resource,
)
from slipway.model import ids
from slipway.model.apitokens import SUFFIX
from slipway.pods.context import LABEL_CONTEXT

FORMAT = 1
LINE_BYTES_MAX = 8 * 1024 * 1024


class BackupObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An object of any kind in a backup."""

    metadata: ObjectMeta
    spec: RawObject = {}
    status: RawObject = {}
    data: dict[str, Any] = {}
    binary_data: dict[str, str] = {}
    type: str = ""
    immutable: bool = False

    def __repr__(self) -> str:
        return f"BackupObject({self.metadata.name!r})"


class BackupLine(msgspec.Struct, frozen=True):
    """One object and its kind, as `Kind.group`."""

    kind: str
    object: BackupObject


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first line of the file."""

    slipway_backup: int
    created_at: str
    version: str
    """The version of Slipway."""
    namespace: str
    """The namespace of the services."""


def write_file(path: Path, header: Header, lines: Iterable[BackupLine]) -> None:
    """Write the whole file at once, readable by its owner only, because it may contain Secrets. Raises OSError."""
    encoded = b"".join(msgspec.json.encode(each) + b"\n" for each in (header, *lines))
    content = gzip.compress(encoded) if path.suffix == ".gz" else encoded
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def read_file(path: Path) -> tuple[Header, list[BackupLine]]:
    """Return the header and the lines of a backup file.

    Raises:
        OSError: the file cannot be read.
        InvalidError: the file is no backup, or has a later format; with the line number.
    """
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        lines = _numbered(file)
        try:
            header = _decoded(next(lines, (1, b"")), Header)
            if header.slipway_backup != FORMAT:
                raise InvalidError(
                    f"{path}: a backup of format {header.slipway_backup}; this command reads format {FORMAT}"
                )
            return header, [_decoded(each, BackupLine) for each in lines]
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidError(f"{path}: the file is incomplete, damaged, or not gzip: {error}") from error


def _numbered(file: Any) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        yield number, line


def _decoded(numbered: tuple[int, bytes], type_: type[Any]) -> Any:
    number, line = numbered
    try:
        return msgspec.json.decode(line, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"line {number} does not belong to a backup: {error}") from error


class BackupKind(msgspec.Struct, frozen=True, kw_only=True):
    """One LIST of a backup. With `is_own`, it reads only the namespace of the services."""

    resource: Resource[BackupObject]
    label_selector: str = ""
    is_own: bool = False

    @property
    def kind(self) -> str:
        """The name of the kind in the lines of the file."""
        return kind_of(self.resource)


def kind_of(resource: Resource[Any]) -> str:
    """Return `Kind.group`, or `Kind` for the core group."""
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind


def _kept(resource: Resource[Any]) -> Resource[BackupObject]:
    return Resource(
        group=resource.group,
        version=resource.version,
        plural=resource.plural,
        kind=resource.kind,
        namespaced=resource.namespaced,
        struct=BackupObject,
    )


KEPT_ALLOCATIONS = _kept(ALLOCATIONS)
KEPT_NAMESPACES = _kept(NAMESPACES)
KEPT_POOLS = _kept(RESOURCE_POOLS)
KEPT_MAPS = _kept(CONFIG_MAPS)
KEPT_SECRETS = _kept(SECRETS)

WORKSPACES = BackupKind(resource=KEPT_NAMESPACES, label_selector=f"{LABEL_WORKSPACE}=true")
USAGE = BackupKind(resource=KEPT_MAPS, label_selector=LABEL_USAGE, is_own=True)
CONTEXTS = BackupKind(resource=KEPT_MAPS, label_selector=LABEL_CONTEXT)
HOOKS = BackupKind(resource=KEPT_SECRETS, label_selector=LABEL_WEBHOOK)
"""Secrets of webhooks, in their own namespace or in that of the services."""
ALL_SECRETS = BackupKind(resource=KEPT_SECRETS, is_own=True)
BEFORE: tuple[BackupKind, ...] = (
    WORKSPACES,
    BackupKind(resource=_kept(RESOURCE_QUOTAS), label_selector=f"{LABEL_WORKSPACE}=true"),
    BackupKind(resource=KEPT_POOLS),
    BackupKind(resource=_kept(QUEUES)),
    BackupKind(resource=_kept(TEMPLATES)),
    BackupKind(resource=_kept(JOBS)),
    CONTEXTS,
    BackupKind(resource=KEPT_MAPS, label_selector=LABEL_LAUNCH_KEY),
)
"""All kinds except usage, Secrets and the allocations themselves."""
RESOURCES = {kind_of(each): each for each in (*(group.resource for group in BEFORE), KEPT_SECRETS, KEPT_ALLOCATIONS)}


def are_tokens(secret: BackupObject) -> bool:
    """Whether a Secret contains token records and nothing else."""
    names: Iterable[str] = secret.data.keys()
    return bool(secret.data) and all(name.endswith(SUFFIX) and len(name) == 16 + len(SUFFIX) for name in names)


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
        for group in BEFORE:
            lines += _lines(group, await self._list(group))
        if self._with_secrets:
            lines += _lines(ALL_SECRETS, await self._our_secrets())
        maps, allocations = await self._settled()
        named = {token for each in maps for token in daily_totals.tokens_in(_totals(each))}
        allocations = [
            _marked(each) if daily_totals.token_of(each.metadata.uid) in named else each for each in allocations
        ]
        lines += _lines(USAGE, maps)
        # Sort by creation, so that waiting allocations keep their order even when no other field defines it.
        allocations.sort(key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.uid))
        return lines + [BackupLine(kind_of(KEPT_ALLOCATIONS), each) for each in allocations]

    async def _settled(self) -> tuple[list[BackupObject], list[BackupObject]]:
        """Return the totals and the allocations from a moment at which the totals did not change."""
        maps = await self._list(USAGE)
        for _ in range(ROUNDS_MAX):
            allocations = (await self._kube.list(KEPT_ALLOCATIONS)).items
            again = await self._list(USAGE)
            if _versions(again) == _versions(maps):
                return maps, allocations
            maps = again
        raise UnavailableError("the usage records change faster than they can be read; try again")

    async def _our_secrets(self) -> list[BackupObject]:
        hooks = await self._list(HOOKS)
        names = {each.metadata.name for each in hooks if each.metadata.namespace == self._namespace}
        return hooks + [
            each
            for each in await self._list(ALL_SECRETS)
            if each.metadata.name not in names
            and not each.metadata.name.startswith(ids.VALUES_PREFIX)
            and (are_tokens(each) or each.metadata.name in self._secrets)
        ]

    async def _list(self, group: BackupKind) -> list[BackupObject]:
        namespace = self._namespace if group.is_own else None
        return (await self._kube.list(group.resource, namespace=namespace, label_selector=group.label_selector)).items


def _lines(group: BackupKind, found: list[BackupObject]) -> list[BackupLine]:
    return [BackupLine(group.kind, each) for each in found]


def _versions(found: list[BackupObject]) -> list[tuple[str, str]]:
    return sorted((each.metadata.name, each.metadata.resource_version) for each in found)


def _totals(found: BackupObject) -> daily_totals.DayTotals:
    try:
        return daily_totals.decode(found.data)
    except msgspec.DecodeError:
        return daily_totals.DayTotals()


def _marked(allocation: BackupObject) -> BackupObject:
    """Mark an allocation that is already in the totals, so that a restore does not add it again."""
    annotations = {**allocation.metadata.annotations, ANNOTATION_USAGE: BOOKED}
    return msgspec.structs.replace(
        allocation, metadata=msgspec.structs.replace(allocation.metadata, annotations=annotations)
    )
