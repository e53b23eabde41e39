"""Copies the Events of Kubernetes about our pods into their logs, as lines for users.

Owns which rank an Event is about, and which Events were reported already. `pod_messages.py` has the words. A warning
about a blocked start is also stored in `podwarnings.py`, and `warned` is called with the uid of the allocation to
reconcile.

Promises: a line has the time of its Event, so each reader of the same Event creates the same line; at the start of a
term all recent Events are read, and the store refuses lines that it has already; repetitions of an Event are reported
when their number has doubled. Best effort: nothing depends on it.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol, cast

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION, LABEL_ALLOCATION_UID, LABEL_RANK
from slipway.crd.transitions import id_of
from slipway.errors import ControlPlaneError, InvariantError, StaleError
from slipway.kube.objects import KubeEvent, ObjectReference
from slipway.kube.ports import KubeReader, WatchType
from slipway.kube.resources import EVENTS
from slipway.model.ids import AllocationId, split_allocation_id
from slipway.model.times import format_time, parse_time
from slipway.pods.ended import attempt_of
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.streams.logpacks import LogKey, LogPack
from slipway.watcher import pod_messages
from slipway.watcher.informers import Informers
from slipway.watcher.logfollower import LogPackWriter, event_pack

RETRY_S = 10.0
AGAIN_S = 0.5
"""The pause after a watch that the server has ended normally."""
UNSYNCED_PAUSE_S = 0.05
RECENT_S = 900.0
"""Older Events are not read at the start of a term."""
SAID_MAX = 20_000

_log = log.get_logger(__name__)


class _Closable(Protocol):
    async def aclose(self) -> None: ...


class EventTarget(msgspec.Struct, frozen=True):
    """The rank that an Event is about."""

    allocation: AllocationId
    attempt: int
    rank: int


class PodEvents:
    """Follows the Events of pods, one term at a time."""

    def __init__(
        self,
        reader: KubeReader,
        writer: LogPackWriter,
        informers: Informers,
        clock: Clock,
        *,
        warned: Callable[[str], None] = lambda _uid: None,
        has_logs: bool = True,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._warned = warned
        self._has_logs = has_logs
        self._informers = informers
        self._clock = clock
        self._reported: OrderedDict[str, int] = OrderedDict()
        """{uid of an Event: its count when it was last reported}"""
        self._version = ""
        """the resource version up to which this term has read all Events; empty: none yet"""

    async def run(self) -> None:
        """Copy Events until cancelled. Raises only InvariantError."""
        try:
            await self._follow()
        finally:
            self._informers.warnings.forget_all()

    async def _follow(self) -> None:
        self._version = ""
        while True:
            liveness.beat()
            pause_s = RETRY_S
            try:
                while not self._informers.is_synced:
                    await self._clock.sleep(UNSYNCED_PAUSE_S)
                    liveness.beat()
                if not self._version:
                    self._version = await self._catch_up()
                await self._watch()
                pause_s = AGAIN_S
            except InvariantError:
                raise
            except StaleError:
                self._version = ""  # the server has no history from this version on
            except ControlPlaneError as error:
                self._version = ""  # the log store may be unreachable, so an Event may not have been reported
                _log.debug("events interrupted", error=str(error))
            await self._clock.sleep(pause_s)

    async def _catch_up(self) -> str:
        """Report the recent Events that were not watched; return the resource version from which to watch."""
        listed = await self._reader.list(EVENTS, field_selector="involvedObject.kind=Pod")
        since = self._clock.now() - RECENT_S
        found: list[tuple[KubeEvent, EventTarget]] = []
        for event in listed.items:
            target = self._target_of(event.involved_object)
            if target is not None and _epoch(event) >= since:
                found.append((event, target))
        for event, target in sorted(found, key=lambda each: _epoch(each[0])):
            await self._write(event, target)
            liveness.beat()
        return listed.resource_version

    async def _watch(self) -> None:
        watch = self._reader.watch(EVENTS, resource_version=self._version)
        async with aclosing(cast("_Closable", watch)):
            async for change in watch:
                self._version = change.resource_version or self._version
                liveness.beat()
                event = change.object
                if event is None or change.type is WatchType.DELETED or event.involved_object.kind != "Pod":
                    continue
                target = self._target_of(event.involved_object)
                if target is not None:
                    await self._write(event, target)

    async def _write(self, event: KubeEvent, target: EventTarget) -> None:
        count = pod_messages.count_of(event)
        if not pod_messages.is_worth_reporting(count, self._reported.get(event.metadata.uid, 0)):
            return
        if self._informers.warnings.note(event, pod_messages.text_of(event)):
            pod = self._informers.pods.by_uid(event.involved_object.uid)
            self._warned(pod.metadata.labels.get(LABEL_ALLOCATION_UID, "") if pod is not None else "")
        pack = _pack(event, target, count) if self._has_logs else None
        if pack is not None:
            await self._writer.write(pack)
        self._remember(event, count)

    def _remember(self, event: KubeEvent, count: int) -> None:
        self._reported[event.metadata.uid] = count
        self._reported.move_to_end(event.metadata.uid)
        if len(self._reported) > SAID_MAX:
            self._reported.popitem(last=False)

    def _target_of(self, about: ObjectReference) -> EventTarget | None:
        """Return the rank from the pod's labels; if the pod is gone, or not seen yet, from its name. None if it is not
        ours."""
        pod = self._informers.pods.by_uid(about.uid)
        if pod is not None:
            labels = pod.metadata.labels
            rank = labels.get(LABEL_RANK, "")
            if LABEL_ALLOCATION_UID not in labels or not rank.isdigit():
                return None
            return EventTarget(AllocationId(labels.get(LABEL_ALLOCATION, "")), attempt_of(pod.metadata), int(rank))
        id_, _, rest = about.name.rpartition("-")
        id_, _, attempt = id_.rpartition("-")
        parts = split_allocation_id(id_)
        if parts is None or not (attempt.isdigit() and rest.isdigit()):
            return None
        found = self._informers.allocations.get(parts[0], about.namespace)
        if found is None or id_of(found) != id_:
            return None
        return EventTarget(AllocationId(id_), int(attempt), int(rest))


def _pack(event: KubeEvent, target: EventTarget, count: int) -> LogPack | None:
    text = pod_messages.text_of(event)
    if not text:
        return None
    line = f"{format_time(_epoch(event))} {pod_messages.with_count(text, count)}"
    return event_pack(
        target.allocation, LogKey(attempt=target.attempt, rank=target.rank), line, event.metadata.uid, count
    )


def _epoch(event: KubeEvent) -> float:
    """Return when the Event happened last (epoch seconds); 0 for an Event without any time."""
    text = pod_messages.time_of(event)
    return parse_time(text) if text else 0.0
