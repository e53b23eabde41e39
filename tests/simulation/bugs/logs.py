"""Seeded bugs of the logs: lines that are omitted, doubled, not counted, or lost with their pod."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from slipway.crd.v1alpha1 import Allocation
from slipway.errors import PermanentError
from slipway.kube.objects import Pod
from slipway.pods.ended import waits_for_reader
from slipway.podworker import teardown
from slipway.streams import memory_logs
from slipway.streams.logpacks import LogAppended, LogPack, LogPosition
from slipway.watcher import cleanup, logfollower
from slipway.watcher.logfollower import LogFollower
from slipway.watcher.loglines import LineSplitter
from slipway.watcher.podlogs import PodLogs
from slipway.watcher.view import ReductionView
from tests.simulation.bugs.bug import Bug

CRASH = "crash@watcher:*append logs:after"


def _a_line_late(patch: pytest.MonkeyPatch) -> None:
    """A resumed log treats one line too many as stored."""
    cutter = logfollower.LineSplitter

    def late(position: LogPosition) -> LineSplitter:
        return cutter(msgspec.structs.replace(position, seen=position.seen + 1) if position.second else position)

    patch.setattr(logfollower, "LineSplitter", late)


def _from_the_beginning_again(patch: pytest.MonkeyPatch) -> None:
    """A resumed log is read from its beginning, and all of it is stored behind the present lines."""
    cutter = logfollower.LineSplitter

    def fresh(_position: LogPosition) -> LineSplitter:
        return cutter(LogPosition())

    patch.setattr(logfollower, "LineSplitter", fresh)


def _what_is_too_much_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """Data that is read ahead does not wait for space: it is dropped."""
    put = logfollower._ChunkBuffer.put  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: Any, chunk: bytes) -> None:
        if self._bytes < logfollower.AHEAD_BYTES:
            await put(self, chunk)

    patch.setattr(logfollower._ChunkBuffer, "put", seeded)  # pyright: ignore[reportPrivateUsage]


def _left_out_uncounted(patch: pytest.MonkeyPatch) -> None:
    """Beyond a pack the oldest lines are omitted, and the others are numbered as if these had not existed."""
    store = LogFollower._store_lines  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: Any, **how: Any) -> bool:
        while self._bytes >= logfollower.PACK_BYTES:
            self._bytes -= len(self._lines.popleft()) + 1
            self._number -= 1
        return await store(self, **how)

    patch.setattr(LogFollower, "_store_lines", seeded)


def _given_up_unread(patch: pytest.MonkeyPatch) -> None:
    """The finalizer of an ended pod is removed, whether its log was read or not."""

    def drained(_self: PodLogs, _pod: Any) -> bool:
        return True

    patch.setattr(PodLogs, "is_drained", drained)


def _deleted_with_the_others(patch: pytest.MonkeyPatch) -> None:
    """The pod worker deletes pods that ended by themselves, like running ones."""

    def none(_allocation: Any) -> frozenset[str]:
        return frozenset()

    patch.setattr(teardown, "recorded", none)


def _by_its_record(patch: pytest.MonkeyPatch) -> None:
    """A pod whose end is recorded is deleted, whether its log was read or not."""

    def deletable(view: ReductionView, after: Allocation) -> tuple[Pod, ...]:
        return tuple(pod for pod in view.pods if waits_for_reader(pod, after))

    patch.setattr(cleanup, "deletable", deletable)


def _unread_by_another(patch: pytest.MonkeyPatch) -> None:
    """A log that cannot be opened is given up, also while another process is reading it."""

    def seeded(self: Any, error: Any, failures: int, *, is_over: bool) -> bool:
        del failures
        return bool(self.gone_at < math.inf or is_over) and isinstance(error, PermanentError)

    patch.setattr(LogFollower, "_is_final", seeded)


def _a_refusal_is_no_matter(patch: pytest.MonkeyPatch) -> None:
    """A pack that the store refuses is treated as stored."""

    async def append(self: Any, pack: LogPack) -> bool:
        await self._retry(lambda: self._writer.write(pack))
        self._stored = pack.position
        return True

    patch.setattr(LogFollower, "_append", append)


def _whatever_comes_is_stored(patch: pytest.MonkeyPatch) -> None:
    """The store does not check the position that the writer assumes."""
    append = memory_logs.MemoryLogs._append  # pyright: ignore[reportPrivateUsage]

    def seeded(self: Any, pack: LogPack) -> LogAppended:
        states = self._server.hash_get(memory_logs.keys.log_state(pack.allocation))
        position = memory_logs.logpacks.decode_position(states.get(pack.source.name))
        moved = position.number - pack.after.number if not pack.key else 0
        return append(self, msgspec.structs.replace(pack, after=position, first=pack.first + moved))

    patch.setattr(memory_logs.MemoryLogs, "_append", seeded)


def _no_end_no_line(patch: pytest.MonkeyPatch) -> None:
    """A last line without a line end is dropped."""

    def end(_self: LineSplitter) -> Sequence[bytes]:
        return []

    patch.setattr(LineSplitter, "end", end)


def _read_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A log that was read after its container had ended is treated as stored, also when the store refused it."""
    follow = LogFollower._follow  # pyright: ignore[reportPrivateUsage]

    async def seeded(self: Any) -> bool:
        await follow(self)
        if self._known is not None:
            self._stored, self._number = self._known, self._known.number
        return True

    patch.setattr(LogFollower, "_follow", seeded)


BUGS: tuple[Bug, ...] = (
    Bug(
        name="a log goes on one line late",
        breaks="who goes on with a log begins at the line behind the last one that is stored",
        install=_a_line_late,
        hunts=(("launch-4", CRASH),),
        told_by=("I27",),
    ),
    Bug(
        name="a log begins again",
        breaks="each line of a log is stored once, however often it is read",
        install=_from_the_beginning_again,
        hunts=(("launch-4", CRASH),),
        told_by=("I27",),
    ),
    Bug(
        name="what is too much is dropped",
        breaks="a log is read no faster than it is stored: what waits, waits on its node",
        install=_what_is_too_much_is_dropped,
        hunts=(("flood", ""),),
        told_by=("I27",),
    ),
    Bug(
        name="left out and not counted",
        breaks="lines that are left out have numbers, too: so they are counted",
        install=_left_out_uncounted,
        hunts=(("launch-1", ""),),
        told_by=("I27",),
    ),
    Bug(
        name="a pod goes with its log unread",
        breaks="a pod's finalizer is removed only after its log was read",
        install=_given_up_unread,
        hunts=(("launch-4", ""), ("launch-4", CRASH)),
        told_by=("I27",),
    ),
    Bug(
        name="ended pods are deleted with the others",
        breaks="a pod that ended by itself is deleted after its log was read, which its node then removes",
        install=_deleted_with_the_others,
        hunts=(("launch-4", ""), ("launch-4", CRASH)),
        told_by=("I27",),
    ),
    Bug(
        name="a pod is deleted by its record",
        breaks="a pod is deleted after its end was seen: the record of an end does not say which logs there are",
        install=_by_its_record,
        hunts=tuple((name, "crash-stale@watcher:*append logs:before") for name in ("restart", "launch-8")),
        told_by=("I27",),
    ),
    Bug(
        name="a log that another reads is given up",
        breaks="a process that does not lead waits for the one that has the log open",
        install=_unread_by_another,
        hunts=(("from-snapshots", ""), ("launch-8", ""), ("next-version", "")),
        told_by=("I27",),
        replicas=2,
    ),
    Bug(
        name="a refusal of the store is no matter",
        breaks="a pack that is refused is read again from where the store stands",
        install=_a_refusal_is_no_matter,
        hunts=(("launch-4", "flush@watcher:*append logs:after"),),
        told_by=("I27",),
    ),
    Bug(
        name="the store takes whatever comes",
        breaks="a pack is appended only behind the line that its writer believes to be the last",
        install=_whatever_comes_is_stored,
        hunts=(("launch-4", ""), ("launch-4", "timeout-applied@watcher:*append logs:after")),
        told_by=("I27",),
        replicas=2,
    ),
    Bug(
        name="no end, no line",
        breaks="the last line counts, with a line end or without",
        install=_no_end_no_line,
        hunts=(("launch-4", ""),),
        told_by=("I27",),
    ),
    Bug(
        name="read is as good as stored",
        breaks="a log is whole when it is stored to its end, not when it was read to its end",
        install=_read_is_stored,
        hunts=(("launch-4", ""), ("launch-4", "flush@watcher:*append logs:after")),
        told_by=("I27",),
        replicas=2,
    ),
)
