"""The history of a live system's objects, from lists and watches, and the content of its streams, as evidence.

This module owns the record and whether it is complete. It only reads. It must not know the checks.

Promises
- `begin` is one consistent LIST of each kind; `follow` then records every version from there on.
- When a watch cannot continue from its position, the kind is listed again. From then on the evidence states that
  versions may be missing (`is_sampled`). An object that is gone by then is recorded as deleted, its final state
  unknown.
- The versions of an object that existed at the beginning start with that LIST (`starts_late`).
Not promised: the history before `begin`, the writers of versions, and data that no server stores.

Of an object, evidence has the whole spec and status, and the time of the last change.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID, ObjectMeta
from slipway.errors import ControlPlaneError, ExpiredError, InvariantError
from slipway.kube.ports import Lists, Watches, WatchEvent, WatchType
from slipway.kube.resources import (
    ALLOCATIONS,
    CONFIG_MAPS,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_POOLS,
    SERVICES,
    Resource,
)
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.ops.audit.evidence import AuditEvidence, HintHistory, Version
from slipway.ops.audit.records import SETTLE_S
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams.ports import DeadLetter, EventLog, Streams

Json = dict[str, Any]


class FieldsEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of managedFields, of which only the time is read."""

    time: str = ""


class Metadata(ObjectMeta, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Object metadata with managedFields, which contain the time of the last change."""

    managed_fields: list[FieldsEntry] = []


class ObservedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One object. The content of a ConfigMap or a Secret is never read."""

    metadata: Metadata
    spec: Json = {}
    status: Json = {}

    @property
    def body(self) -> Json:
        """The object as evidence, without managedFields."""
        body: Json = msgspec.to_builtins(self)
        body["metadata"].pop("managedFields", None)
        return body


class AuditedResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource to list and watch."""

    resource: Resource[ObservedObject]
    label_selector: str = ""

    @property
    def name(self) -> str:
        """The name of the resource in versions."""
        return self.resource.plural


def _kind(resource: Resource[Any], label_selector: str = "") -> AuditedResource:
    return AuditedResource(
        resource=Resource(
            group=resource.group,
            version=resource.version,
            plural=resource.plural,
            kind=resource.kind,
            namespaced=resource.namespaced,
            struct=ObservedObject,
        ),
        label_selector=label_selector,
    )


KINDS: tuple[AuditedResource, ...] = (
    _kind(RESOURCE_POOLS),
    _kind(QUEUES),
    _kind(NODES),
    _kind(ALLOCATIONS),
    # Pods of others are read too, because they also use nodes.
    _kind(PODS),
    _kind(CONFIG_MAPS, LABEL_ALLOCATION_UID),
    _kind(SERVICES, LABEL_ALLOCATION_UID),
)


def changed_at(obj: ObservedObject, now: float) -> float:
    """Return the time of the last change (epoch seconds), never earlier than the real one; `now` when it is unknown.

    The time comes from the server's managedFields, to the second. Without them, it is the latest time in the object
    itself.
    """
    noted = [_epoch(entry.time) for entry in obj.metadata.managed_fields]
    if any(noted):
        return min(now, max(noted) + 1.0)
    is_ending = obj.spec.get("desired") == "Stopped" and obj.status.get("phase") != Phase.TERMINATED
    if is_ending:
        return now
    return min(now, max(_times(obj)) or now)


def _times(obj: ObservedObject) -> Iterator[float]:
    meta, status = obj.metadata, obj.status
    yield _epoch(meta.creation_timestamp or "")
    yield _epoch(meta.deletion_timestamp or "")
    for condition in status.get("conditions") or ():
        yield _epoch(str(condition.get("lastTransitionTime") or ""))
    for entry in status.get("transitions") or ():
        yield _epoch(str(entry.get("time") or ""))
    for container in status.get("containerStatuses") or ():
        yield from _state_times(container.get("state") or {})


def _state_times(state: Mapping[str, Any]) -> Iterator[float]:
    for detail in state.values():
        yield _epoch(str(detail.get("startedAt") or ""))
        yield _epoch(str(detail.get("finishedAt") or ""))


def _epoch(text: str) -> float:
    try:
        return parse_time(text) if text else 0.0
    except ValueError:
        return 0.0


AGAIN_S = 1.0
VERSIONS_MAX = 500_000
"""Limit on the recorded versions. Beyond it the oldest are dropped, and the history is incomplete."""

Key = tuple[str, str, str]
"""(kind, namespace, name)"""

_log = log.get_logger(__name__)


class AuditReader(Lists, Watches, Protocol):
    """The calls to Kubernetes."""


class HistoryCollector:
    """Records the history while `follow` runs."""

    def __init__(self, kube: AuditReader, clock: Clock, *, kinds: Sequence[AuditedResource] = KINDS) -> None:
        self.versions: list[Version] = []
        self.is_sampled = False
        self._kube = kube
        self._clock = clock
        self._kinds = kinds
        self._last: dict[Key, Version] = {}
        self._positions: dict[str, str] = {}
        self._listed = set[str]()
        self._listed_to = 0

    async def begin(self) -> None:
        """List every kind.

        Raises:
            ControlPlaneError: a kind cannot be read.
        """
        for kind in self._kinds:
            await self._list(kind)

    async def follow(self) -> None:
        """Record until cancelled. Lists each kind that was not listed yet."""
        async with TaskGroup() as tasks:
            for kind in self._kinds:
                tasks.create_task(self._follow(kind))

    def evidence(
        self, *, streams: Mapping[str, Sequence[AllocationEvent]] | None = None, pending_hints: int = 0
    ) -> AuditEvidence:
        """Return everything that was recorded until now. `streams` is None when there are no streams."""
        now = self._clock.now()
        return AuditEvidence(
            versions=sorted(self.versions, key=lambda version: version.number),
            streams=streams or {},
            has_streams=streams is not None,
            pending_hints=pending_hints,
            is_at_rest=all(now - version.at > SETTLE_S for version in self._last.values() if _is_ours(version)),
            end_at=now,
            is_sampled=self.is_sampled,
            starts_late=True,
            listed_to=self._listed_to,
            has_writers=False,
        )

    # --- one kind -------------------------------------------------------------------------------------------------

    async def _follow(self, kind: AuditedResource) -> None:
        while True:
            try:
                if kind.name not in self._positions:
                    await self._list(kind)
                began_s = self._clock.monotonic()
                await self._watch(kind)
                if self._clock.monotonic() - began_s < AGAIN_S:
                    # When a server ends every watch at once, wait before the next request.
                    await self._clock.sleep(AGAIN_S)
            except ExpiredError:
                self._positions.pop(kind.name, None)
                await self._clock.sleep(AGAIN_S)
            except InvariantError:
                raise
            except ControlPlaneError as error:
                _log.warning("watch interrupted", resource=kind.name, error=str(error), retry_s=AGAIN_S)
                await self._clock.sleep(AGAIN_S)

    async def _list(self, kind: AuditedResource) -> None:
        listed = await self._kube.list(kind.resource, label_selector=kind.label_selector)
        number = int(listed.resource_version) if listed.resource_version.isdigit() else 0
        now, there, is_first = self._clock.now(), set[Key](), kind.name not in self._listed
        for item in listed.items:
            key = _key(kind, item)
            there.add(key)
            known = self._last.get(key)
            if known is None or known.number < item.metadata.version:
                self._record(kind, item, at=changed_at(item, now) if is_first else now)
        for key, known in list(self._last.items()):
            if key[0] == kind.name and key not in there:
                self._add(key, number, now, known.obj, is_deletion=True)
        if is_first:
            self._listed.add(kind.name)
            self._listed_to = max(self._listed_to, number)
        else:
            self.is_sampled = True
        self._positions[kind.name] = listed.resource_version

    async def _watch(self, kind: AuditedResource) -> None:
        """Record the events of one watch, until it ends."""
        stream = self._kube.watch(
            kind.resource, resource_version=self._positions[kind.name], label_selector=kind.label_selector
        )
        async with aclosing(cast("AsyncGenerator[WatchEvent[ObservedObject], None]", stream)) as events:
            async for event in events:
                if event.object is not None:
                    is_deletion = event.type is WatchType.DELETED
                    self._record(kind, event.object, at=self._clock.now(), is_deletion=is_deletion)
                if event.resource_version:
                    self._positions[kind.name] = event.resource_version

    def _record(self, kind: AuditedResource, item: ObservedObject, *, at: float, is_deletion: bool = False) -> None:
        self._add(_key(kind, item), item.metadata.version, at, item.body, is_deletion=is_deletion)

    def _add(self, key: Key, number: int, at: float, obj: Mapping[str, Any], *, is_deletion: bool) -> None:
        before = self._last.get(key)
        version = Version(
            number=number,
            at=at,
            writer="",
            resource=key[0],
            namespace=key[1],
            name=key[2],
            is_deletion=is_deletion,
            obj=obj,
            before=before.obj if before is not None and before.uid == str(obj["metadata"]["uid"]) else None,
        )
        if is_deletion:
            self._last.pop(key, None)
        else:
            self._last[key] = version
        self.versions.append(version)
        if len(self.versions) > VERSIONS_MAX:
            del self.versions[: VERSIONS_MAX // 10]
            self.is_sampled = True


def _key(kind: AuditedResource, item: ObservedObject) -> Key:
    return kind.name, item.metadata.namespace, item.metadata.name


def _is_ours(version: Version) -> bool:
    """Whether the object is part of our work. Nodes and pods of others change all the time."""
    return version.resource == "allocations" or "slipway.dev/allocation-uid" in (
        version.obj["metadata"].get("labels") or {}
    )


PAGE = 500
AT_ONCE = 16
NAME = "audit"
_MS = 1_000.0


class Flows(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one look. `streams` is {AllocationID: its events}."""

    streams: dict[str, list[AllocationEvent]]
    pending_hints: int = 0
    deliveries: tuple[HintHistory, ...] = ()
    """Deliveries of the hints that became dead letters."""


async def read_streams(streams: Streams, allocations: Iterable[AllocationId]) -> Flows:
    """Return all stream content of these allocations.

    Raises:
        TransientError: the streams cannot be read.
    """
    slots, found = asyncio.Semaphore(AT_ONCE), dict[str, list[AllocationEvent]]()

    async def one(allocation: AllocationId) -> None:
        async with slots:
            found[str(allocation)] = await _events(streams.events, allocation)

    await asyncio.gather(*map(one, allocations))
    return Flows(
        streams=found,
        pending_hints=await streams.work_queue(NAME).backlog(),
        deliveries=tuple(_delivered(letter) for letter in await _letters(streams)),
    )


async def _events(log: EventLog, allocation: AllocationId) -> list[AllocationEvent]:
    events: list[AllocationEvent] = []
    after: str | None = None
    while True:
        page = await log.read(allocation, after=after, limit=PAGE)
        events += [stored.event for stored in page]
        if len(page) < PAGE:
            return events
        after = page[-1].cursor


async def _letters(streams: Streams) -> list[DeadLetter]:
    found: list[DeadLetter] = []
    after: str | None = None
    while True:
        page = await streams.dead.page(after=after, limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found
        after = page[-1].id


def _delivered(letter: DeadLetter) -> HintHistory:
    key = letter.fields.get("key", "")
    return HintHistory(
        hint=f"{letter.source} {letter.entry_id}",
        allocation=key.rpartition("/")[2],
        times=letter.deliveries,
        added_at=int(letter.entry_id.partition("-")[0] or 0) / _MS,
        dead_at=int(letter.id.partition("-")[0] or 0) / _MS,
        # An entry that names no allocation could not be decoded.
        is_poison=not key,
    )
