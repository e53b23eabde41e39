"""Logs of pods: followed, read to the end, never twice."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from slipway.crd.meta import ANNOTATION_ADDED, ObjectMeta
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeadlineError, NotFoundError, UnavailableError
from slipway.kube.objects import Lease, LeaseSpec
from slipway.kube.resources import ALLOCATIONS, LEASES, PODS
from slipway.local.apiserver.objects import Json
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time
from slipway.runtime.service import ServiceStop
from slipway.streams.logpacks import STDOUT, GapFinder, LogAppended, LogKey, LogPack, LogPosition
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.watcher.informers import Informers
from slipway.watcher.logfollower import FollowerDeps, LogFollower, LogPackWriter
from tests.support.builders import T0, a_pod, an_allocation
from tests.support.cycles import cyclic_garbage
from tests.support.virtual_time import VirtualClock, run_virtual
from tests.support.watcher_harness import WatcherHarness, play


class SilentNode:
    """A node whose logs are followed and never read at once."""

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        raise NotImplementedError


class FakeContainerLogs:
    """The logs of all containers: a line each `every_s` while they run (`LogKey` of the core's client)."""

    def __init__(self, harness: WatcherHarness) -> None:
        self._post = harness
        self.lines: dict[str, list[tuple[float, str]]] = {}
        self.is_broken = False
        self.is_removed = False
        self.reads_max = math.inf
        """number of reads after which the node has removed the log"""
        self.silent = 0
        """number of next reads that get nothing: no line, no error and no end"""
        self.rotated_at = 0.0
        """lines from before this time are removed"""
        self.bugs: set[str] = set()
        """pods whose log meets a bug of ours"""
        self.broken_off_at: list[float] = []
        """times at which a log that is followed ends as if its container had"""
        self.unended: set[str] = set()
        """texts without a line end"""
        self.new_file_at = math.inf
        """lines from this time on are in a file that a reader who opened the log earlier does not get"""
        self.lost_between = (math.inf, math.inf)
        """lines of these times were in a file that is removed before the reader reaches it"""
        self.cuts: list[int] = []
        """each of the next reads ends after this number of bytes, as if that were all, because its node went away"""
        self.opens_s = 0.0
        """time that a node needs to open a log, in seconds; the log of a pod that is killed in that time is removed"""
        self.reads = 0

    def write(self, uid: str, text: str) -> None:
        self.lines.setdefault(uid, []).append((self._post.clock.now(), text))

    async def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        del node
        self.reads += 1
        if self.is_broken:
            raise UnavailableError("no logs today")
        if self.is_removed or self.reads > self.reads_max:
            raise NotFoundError("unable to retrieve container logs")
        await asyncio.sleep(self.opens_s)
        if self.opens_s and self._has_ended(pod):
            raise NotFoundError("unable to retrieve container logs")
        if self.silent:
            self.silent -= 1
            await asyncio.Event().wait()
        uid, since, sent = str(pod["metadata"]["uid"]), query.get("sinceTime", ""), 0
        cut = self.cuts.pop(0) if self.cuts else None
        opened_at = self._post.clock.now()
        while True:
            if uid in self.bugs:
                raise IndexError("pop from an empty deque")
            found = self.lines.get(uid, [])
            fresh = found[sent:]
            sent += len(fresh)
            for at, text in fresh:
                began, ended = self.lost_between
                if at < self.rotated_at or at >= self.new_file_at > opened_at or began <= at < ended:
                    continue
                if not since or format_time(at, "seconds") >= since:
                    end = "" if text in self.unended else "\n"
                    line = f"{format_time(at, 'microseconds')} {text}{end}".encode()
                    yield line if cut is None else line[:cut]
                    if cut is not None and cut <= len(line):
                        return
                    cut = None if cut is None else cut - len(line)
            if query.get("follow") != "true" or (not fresh and self._has_ended(pod)):
                return
            if self.broken_off_at and self._post.clock.now() >= self.broken_off_at[0]:
                del self.broken_off_at[0]
                return
            await asyncio.sleep(0.02)

    def _has_ended(self, pod: Json) -> bool:
        meta = pod["metadata"]
        found: Any = self._post.core.list("pods").records
        for record in found:
            if record.obj["metadata"]["uid"] == meta["uid"]:
                return record.obj["status"].get("phase") in ("Succeeded", "Failed")
        return True


def with_journal(harness: WatcherHarness) -> FakeContainerLogs:
    container_logs = FakeContainerLogs(harness)
    harness.its._logs = container_logs  # pyright: ignore[reportPrivateUsage]
    return container_logs


async def log_messages(harness: WatcherHarness, allocation: Allocation) -> list[str]:
    """The messages about the allocation's logs, beside their lines."""
    stored = await harness.streams.logs.read(id_of(allocation), limit=100_000)
    return [item.line.text for item in stored if item.line.stream == "event"]


async def texts(harness: WatcherHarness, allocation: Allocation) -> list[str]:
    stored = await harness.streams.logs.read(id_of(allocation), limit=100_000)
    return [item.line.text for item in stored if item.line.stream != "event"]


def is_running(allocation: Allocation) -> bool:
    return allocation.status.phase is Phase.RUNNING


def is_let_go(allocation: Allocation) -> bool:
    return allocation.status.phase is Phase.TERMINATED and not allocation.metadata.finalizers


async def uid_of_rank(harness: WatcherHarness, rank: int) -> str:
    return next(pod.metadata.uid for pod in await harness.pods() if pod.metadata.name.endswith(f"-{rank}"))


def test_the_log_of_a_short_command_is_complete() -> None:
    """The last line is read before the pod's finalizer goes."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(18):
            container_logs.write(uid, f"line {number}")
            await asyncio.sleep(0.05)
        ended = await harness.until(is_let_go, "the end")
        assert await texts(harness, ended) == [f"line {number}" for number in range(18)]
        lines = await harness.streams.logs.read(id_of(ended))
        assert {(stored.line.rank, stored.line.attempt, stored.line.stream) for stored in lines} == {(0, 1, "stdout")}
        assert container_logs.reads == 1, "it was followed to its end: there is nothing left to read"

    play(story)


def test_a_rank_that_fails_at_once_costs_the_others_no_line() -> None:
    """A rank that fails at once costs the others no line: their pods are deleted only when their logs are open, however
    soon after their start."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.opens_s = 0.7
        harness.kubelet.runs_s, harness.kubelet.codes = {0: 0.05}, {0: 1}
        await harness.launch("n0", "n1")
        await harness.until(is_running, "running")
        container_logs.write(await uid_of_rank(harness, 1), "import failed")
        ended = await harness.until(is_let_go, "the end")
        assert await texts(harness, ended) == ["import failed"]

    play(story)


def test_the_log_of_a_rank_that_came_back_is_opened_once() -> None:
    """The log of a restarted rank continues after the stored lines of the previous pod: no write is refused, and
    nothing is read again."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {1: 2.0}
        running = await harness.launch()
        await harness.until(is_running, "running")
        source, now = LogKey(attempt=1, rank=1), format_time(harness.clock.now() - 10.0, "microseconds")
        ended = LogPosition(number=1, second=now[:19] + "Z", seen=1, time=now, is_ended=True)
        before = LogPack(
            allocation=id_of(running), source=source, after=LogPosition(), first=1, lines=[f"{now} before".encode()],
            position=ended, share_bytes=10_000,
        )  # fmt: skip
        await harness.streams.logs.append([before])
        (found,) = harness.core.list("pods").records
        meta = found.obj["metadata"]
        again = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": meta["name"][:-1] + "1",
                "namespace": meta["namespace"],
                "labels": {**meta["labels"], "slipway.dev/rank": "1"},
                "annotations": {**meta.get("annotations", {}), ANNOTATION_ADDED: "1"},
            },
            "spec": found.obj["spec"],
        }
        await harness.kube.create(PODS, again, namespace=meta["namespace"])
        await asyncio.sleep(0.2)
        container_logs.write(await uid_of_rank(harness, 1), "after")
        await asyncio.sleep(0.5)
        assert await texts(harness, running) == ["before", "after"]
        assert container_logs.reads == 2
        await asyncio.sleep(5)
        assert container_logs.reads == 2, "what the store has of the pod before is no part of this pod's log"

    play(story)


@pytest.mark.parametrize("ahead_s", [-60.0, 0.0, 60.0])
@pytest.mark.parametrize("is_read", [False, True], ids=["log of the pod before", "its own log"])
def test_whose_log_has_ended_is_known_by_the_clock_of_its_node(ahead_s: float, is_read: bool) -> None:
    """The log of a restarted rank's pod is stored once, after the log of the previous pod, also when the node's clock
    is ahead of the API server's or behind it."""

    async def main() -> None:
        clock = VirtualClock()
        streams, world, owner = MemoryStreams(MemoryServer(clock)), Informers(), an_allocation(1).it
        source, texts = LogKey(attempt=1, rank=0), dict[float, str]()
        # By the clock of the API server the previous pod ended at 10 s, and this one was created at 12 s.
        story = a_pod(of=owner).with_metadata(
            annotations={ANNOTATION_ADDED: "1"}, creation_timestamp=format_time(T0 + 12.0)
        )
        story = story.running(at_s=13.0 + ahead_s).exited(at_s=20.0 + ahead_s, started_s=13.0 + ahead_s)
        world.pods.replace([story.it], 1)

        class Node(SilentNode):
            async def follow_log(
                self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
            ) -> AsyncIterator[bytes]:
                del namespace, pod, container
                lines = [f"{format_time(when, 'microseconds')} {text}\n" for when, text in texts.items()]
                yield "".join(line for line in lines if line >= since_time).encode()

        async def follow() -> list[str]:
            writer = LogPackWriter(streams.logs)
            means = FollowerDeps(
                reader=Node(), store=streams.logs, writer=writer, informers=world, clock=clock, leads=lambda: True
            )
            follower = LogFollower(
                means, pod=story.it, source=source, container="main", is_fresh=False, share_bytes=100_000
            )
            writing = asyncio.ensure_future(writer.run())
            await follower.run()
            writing.cancel()
            stored = await streams.logs.read(id_of(owner), limit=100)
            return [each.line.text for each in stored if each.line.stream == STDOUT]

        last = format_time(T0 + 9.0 + ahead_s, "microseconds")
        ended = LogPosition(number=1, second=f"{last[:19]}Z", seen=1, time=last, is_ended=True)
        before = LogPack(
            allocation=id_of(owner), source=source, after=LogPosition(), first=1, lines=[f"{last} before".encode()],
            position=ended, share_bytes=100_000,
        )  # fmt: skip
        await streams.logs.append([before])
        texts[T0 + 14.0 + ahead_s] = "after"
        assert await follow() == ["before", "after"]
        if is_read:
            assert await follow() == ["before", "after"]

    run_virtual(main)


def test_an_error_shortly_before_the_end_is_among_the_last_lines() -> None:
    """Of a flood that cannot be read in time, the last lines are stored: also an error on the other stream, which
    stands in front of all that the pipe of the flood still held."""
    lines = [f"line {number} {'x' * 80}" for number in range(20_000)]
    lines.insert(-500, "RuntimeError: the cause")

    async def main() -> None:
        clock = VirtualClock()
        streams, world, owner = MemoryStreams(MemoryServer(clock)), Informers(), an_allocation(1).it
        pod = a_pod(of=owner).running(at_s=1.0).exited(at_s=20.0, started_s=1.0).it
        world.pods.replace([pod], 1)

        class Node(SilentNode):
            async def follow_log(
                self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
            ) -> AsyncIterator[bytes]:
                del namespace, pod, container, since_time
                for at, line in enumerate(lines):
                    yield f"{format_time(T0 + 2.0 + at / 10_000, 'microseconds')} {line}\n".encode()

        writer = LogPackWriter(streams.logs)
        follower = LogFollower(
            FollowerDeps(
                reader=Node(), store=streams.logs, writer=writer, informers=world, clock=clock, leads=lambda: True
            ),
            pod=pod, source=LogKey(attempt=1, rank=0), container="main", is_fresh=True, share_bytes=10_000_000,
        )  # fmt: skip
        follower.is_hurried = True
        writing = asyncio.ensure_future(writer.run())
        await follower.run()
        writing.cancel()
        stored = [each.line for each in await streams.logs.read(id_of(owner), limit=20_000)]
        texts = [line.text for line in stored if line.stream == STDOUT]
        assert len(texts) < 1_000, "the rest is left out"
        assert texts == lines[-len(texts) :]
        assert "RuntimeError: the cause" in texts

    run_virtual(main)


def test_a_log_that_its_node_does_not_send_delays_the_end_for_a_second() -> None:
    """A log that its node does not send delays the end for one second. Then it is treated as open, because a log
    without lines looks the same, and the other ranks are deleted."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.opens_s = 60.0
        harness.kubelet.runs_s, harness.kubelet.codes = {0: 0.05}, {0: 1}
        began = harness.clock.now()
        await harness.launch("n0", "n1")
        await harness.until(lambda found: found.status.phase in (Phase.TERMINATING, Phase.TERMINATED), "ending")
        assert 1.0 <= harness.clock.now() - began < 3.0

    play(story)


def test_a_log_that_is_broken_off_is_read_to_the_end() -> None:
    """A log that ends before its container is read again to the end, whether the pod's end is known a moment later or
    not."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 4.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        began = harness.clock.now()
        container_logs.broken_off_at = [began + 0.5, began + 2.6]
        for number in range(39):
            container_logs.write(uid, f"line {number}")
            await asyncio.sleep(0.1)
        ended = await harness.until(is_let_go, "the end")
        assert await texts(harness, ended) == [f"line {number}" for number in range(39)]
        assert container_logs.reads in (3, 4)

    play(story)


def test_an_earlier_end_mark_does_not_cover_a_time_without_reads() -> None:
    """An earlier end of the log is not taken as its end when lines were written while it could not be read, also when
    the node's clock is behind ours."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 2.5}
        harness.kubelet._now = lambda: harness.clock.now() - 30.0  # pyright: ignore[reportPrivateUsage]
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        began = harness.clock.now()
        container_logs.broken_off_at = [began + 0.2]
        container_logs.write(uid, "before")
        await asyncio.sleep(0.5)
        container_logs.is_broken = True
        container_logs.write(uid, "meanwhile")
        await asyncio.sleep(2.2)
        container_logs.is_broken = False
        ended = await harness.until(is_let_go, "the end")
        assert await texts(harness, ended) == ["before", "meanwhile"]

    play(story)


def test_lines_of_one_time_are_all_told() -> None:
    """Lines with equal times are each stored once, also when the log is read again."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for text in ("a", "b", "b"):
            container_logs.write(uid, text)
        container_logs.broken_off_at = [harness.clock.now()]
        await asyncio.sleep(0.5)
        for text in ("c", "d"):
            container_logs.write(uid, text)
        ended = await harness.until(is_let_go, "the end")
        assert await texts(harness, ended) == ["a", "b", "b", "c", "d"]
        assert container_logs.reads > 1

    play(story)


def test_lines_come_while_it_runs_and_once_after_a_restart() -> None:
    """Lines are stored while the container runs; another watcher continues after the last stored line without a
    repeat."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        stop = ServiceStop()
        first = asyncio.ensure_future(harness.watcher.run(stop))
        running = await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(5):
            container_logs.write(uid, f"line {number}")
            await asyncio.sleep(0.3)
        await asyncio.sleep(1)
        assert await texts(harness, running) == [f"line {number}" for number in range(5)]
        stop.set()
        await first
        again = ServiceStop()
        second = asyncio.ensure_future(harness.another("two").run(again))
        for number in range(5, 8):
            container_logs.write(uid, f"line {number}")
            await asyncio.sleep(0.3)
        await asyncio.sleep(20)
        assert await texts(harness, running) == [f"line {number}" for number in range(8)]
        again.set()
        await second

    play(story, watches=False)


def test_a_log_that_can_not_be_read_holds_nothing_up_for_long() -> None:
    """The object of a pod whose log cannot be read is kept for a short time only."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.is_broken = True
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        ended = await harness.until(is_let_go, "the end", timeout_s=90)
        assert container_logs.reads < 60
        [told] = await log_messages(harness, ended)
        assert told.startswith("the end of the log of this rank could not be read from its node: ")

    play(story)


@pytest.mark.parametrize(
    ("trouble", "away_s"),
    [("is_broken", 45.0), ("is_removed", 15.0)],
    ids=["kubelet away", "container runtime away"],
)
def test_a_node_that_is_started_again_costs_no_line(trouble: str, away_s: float) -> None:
    """A restart of the node costs no line of a pod that ended just before, although its kubelet cannot be reached, or
    cannot reach its runtime, for a while."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.0}
        setattr(container_logs, trouble, True)
        await harness.launch()
        await harness.until(is_running, "running")
        container_logs.write(await uid_of_rank(harness, 0), "one")
        await asyncio.sleep(away_s)
        setattr(container_logs, trouble, False)
        ended = await harness.until(is_let_go, "the end", timeout_s=30)
        assert (await texts(harness, ended), await log_messages(harness, ended)) == (["one"], [])

    play(story)


def test_a_log_that_waits_for_the_store_is_waited_for() -> None:
    """While the store is away for a while, the pod of a log that was read stays, and no line is lost."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(400):
            container_logs.write(uid, f"line {number} ".ljust(1_000, "."))
        harness.server.absent = True
        await asyncio.sleep(25)
        assert await harness.pods()
        harness.server.absent = False
        ended = await harness.until(is_let_go, "the end", timeout_s=60)
        assert len(await texts(harness, ended)) == 400
        assert await log_messages(harness, ended) == []

    play(story)


def test_a_store_that_is_away_for_a_moment_ends_no_long_wait() -> None:
    """A short outage of the store does not end the long wait for a node that is away: the whole log is read when both
    are back."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.0}
        container_logs.is_broken = True
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(400):
            container_logs.write(uid, f"line {number} ".ljust(1_000, "."))
        await asyncio.sleep(50)
        harness.server.absent = True
        container_logs.is_broken = False
        await asyncio.sleep(10)
        harness.server.absent = False
        ended = await harness.until(is_let_go, "the end", timeout_s=90)
        assert (len(await texts(harness, ended)), await log_messages(harness, ended)) == (400, [])

    play(story)


def test_a_log_that_brings_nothing_is_read_again() -> None:
    """A read that the node holds open without sending anything is repeated, so that no line of an ended pod is lost."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.silent = 1
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        await harness.until(is_running, "running")
        container_logs.write(await uid_of_rank(harness, 0), "one")
        ended = await harness.until(is_let_go, "the end", timeout_s=30)
        assert (await texts(harness, ended), await log_messages(harness, ended)) == (["one"], [])

    play(story)


def test_a_log_that_has_ended_leaves_nothing_to_the_collector() -> None:
    """A cut read raises through groups of tasks; neither the error nor the follower stays in a reference cycle. The
    garbage collector of a service seldom visits old objects, so a thousand ended logs would keep their pods until
    then."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.silent = 2
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch(name="first")
        await asyncio.sleep(20)
        container_logs.silent = 2
        with cyclic_garbage() as left:
            await harness.launch(name="second")
            await asyncio.sleep(20)
        assert container_logs.silent == 0
        assert not [each for each in left if isinstance(each, BaseException | LogFollower)]

    play(story)


def test_a_reading_that_waits_for_the_store_is_not_cut() -> None:
    """A read that waits for the store is not cut. Only a node that sends nothing is read again, because the node may
    have removed lines that were read."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        await harness.until(is_running, "running")
        container_logs.write(await uid_of_rank(harness, 0), "one")
        harness.server.absent = True
        await asyncio.sleep(9)
        harness.server.absent = False
        ended = await harness.until(is_let_go, "the end", timeout_s=60)
        assert (await texts(harness, ended), await log_messages(harness, ended), container_logs.reads) == (
            ["one"],
            [],
            1,
        )

    play(story)


def test_a_log_that_is_given_up_is_said_to_be() -> None:
    """A log that is given up says so to its readers, with the time that was waited; its pod is released."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.silent = 99
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        ended = await harness.until(is_let_go, "the end", timeout_s=90)
        assert "it did not arrive within" in " ".join(await log_messages(harness, ended))
        assert not await harness.pods()

    play(story)


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_log_that_is_given_up_has_an_end_though_the_store_does_not_answer_once(is_applied: bool) -> None:
    """A log that is given up gets its end and one message, also when the store fails once, so that its followers do not
    wait for ever."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.silent = 99
        harness.kubelet.runs_s = {0: 1.0}
        store, failures = harness.its_streams.logs, 0
        append = store.append

        async def once_unanswered(packs: Sequence[LogPack]) -> list[LogAppended]:
            nonlocal failures
            is_first = not failures and any(pack.key.startswith("unread") for pack in packs)
            if is_first and not is_applied:
                failures += 1
                raise DeadlineError("no answer")
            found = await append(packs)
            if is_first:
                failures += 1
                raise DeadlineError("no answer")
            return found

        store.append = once_unanswered
        await harness.launch()
        ended = await harness.until(is_let_go, "the end", timeout_s=90)
        assert failures == 1
        [told] = await log_messages(harness, ended)
        assert "it did not arrive within" in told
        assert (await store.position(id_of(ended), LogKey(attempt=1, rank=0))).is_ended

    play(story)


def test_a_pod_that_ended_by_itself_is_deleted_after_its_log_was_read() -> None:
    """A pod that ended by itself is deleted only after its log was read, because its node removes the log at the first
    delete."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.0}

        async def slow(operation: str) -> None:
            if operation == "logs.append":
                await asyncio.sleep(3)

        harness.server.on_call = slow
        await harness.launch()
        await harness.until(is_running, "running")
        container_logs.write(await uid_of_rank(harness, 0), "one")
        await harness.until(lambda found: found.status.phase is Phase.TERMINATED, "the end")
        await asyncio.sleep(1)
        [pod] = await harness.pods()
        assert pod.metadata.deletion_timestamp is None
        ended = await harness.until(is_let_go, "what follows", timeout_s=30)
        assert (await texts(harness, ended), await harness.pods()) == (["one"], [])

    play(story)


def test_lines_that_a_node_has_removed_unread_are_said_to_be_missing() -> None:
    """Lines that a node has rotated away unread are reported as missing by a line in their place, without a count."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 8.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        container_logs.write(uid, "one")
        await asyncio.sleep(1)
        container_logs.is_broken = True
        container_logs.broken_off_at.append(harness.clock.now())
        await asyncio.sleep(1.5)
        container_logs.write(uid, "two")
        await asyncio.sleep(0.5)
        container_logs.rotated_at = harness.clock.now()
        await asyncio.sleep(0.5)
        container_logs.write(uid, "three")
        container_logs.is_broken = False
        ended = await harness.until(is_let_go, "the end", timeout_s=30)
        assert await texts(harness, ended) == ["one", "three"]
        [told] = await log_messages(harness, ended)
        assert "missing: its node had removed them" in told

    play(story)


FULL = "x" * (4 * 1024 * 1024)
"""Three of these fill one log file on a node."""


@pytest.mark.parametrize(
    ("read_from_s", "first_at_s", "texts_then", "says"),
    [
        pytest.param(7.0, 5.0, [FULL] * 3, "are likely to be missing", id="at a rate that had filled a file"),
        pytest.param(7.0, 5.0, [FULL[: len(FULL) // 4]], "may be missing", id="at a rate that may have been higher"),
        pytest.param(7.0, 1.5, [FULL], "may be missing", id="a flood soon after its start"),
        pytest.param(12.0, 5.0, ["slow"], "may be missing", id="read late, and nobody can tell"),
        pytest.param(12.0, 0.5, ["slow"], "", id="read late, and printed at once"),
        pytest.param(7.0, 5.0, ["slow"], "", id="read before a node looks for full files"),
        pytest.param(0.0, 2.0, [FULL] * 3, "", id="read in time"),
        pytest.param(0.0, 5.0, [FULL] * 3, "may be missing", id="asked for in time, and perhaps opened late"),
        pytest.param(0.0, 5.0, ["slow"], "", id="asked for in time, and no flood"),
        pytest.param(0.0, 12.0, [FULL] * 3, "", id="open for long when a flood begins"),
        pytest.param(12.0, 13.0, ["slow"], "", id="silent until it was read"),
    ],
)
def test_a_log_whose_beginning_may_have_been_removed_says_so(
    read_from_s: float, first_at_s: float, texts_then: list[str], says: str
) -> None:
    """A log whose beginning may have been removed before the first read says so: only the times and the rate of the
    existing lines can show it."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 18.0}
        container_logs.is_broken = read_from_s > 0
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)

        async def reads() -> None:
            await asyncio.sleep(read_from_s)
            container_logs.is_broken = False

        async def prints() -> None:
            await asyncio.sleep(first_at_s)
            container_logs.rotated_at = harness.clock.now()
            for text in texts_then:
                container_logs.write(uid, text)
            await asyncio.sleep(2)
            container_logs.write(uid, "last")

        await asyncio.gather(reads(), prints())
        ended = await harness.until(is_let_go, "the end", timeout_s=40)
        assert (await texts(harness, ended))[-1] == "last"
        told = await log_messages(harness, ended)
        assert len(told) == bool(says)
        if says:
            assert says in told[0]
            assert "removed them, unread" in told[0]

    play(story)


@pytest.mark.parametrize(
    ("opens_s", "text", "says"),
    [
        pytest.param(2.0, FULL, "may be missing", id="a flood that comes late"),
        pytest.param(0.0, FULL, "", id="a flood that comes at once"),
        pytest.param(2.0, "slow", "", id="no flood"),
    ],
)
def test_a_flood_that_begins_before_its_node_opens_the_log_says_so(opens_s: float, text: str, says: str) -> None:
    """A log that was requested before its first line, and sent later than it was written, says that its beginning may
    be missing: the file may be the second one."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 6.0}
        container_logs.opens_s = opens_s
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        await asyncio.sleep(1)
        for _ in range(3):
            container_logs.write(uid, text)
        await asyncio.sleep(2)
        container_logs.opens_s = 0.0
        container_logs.write(uid, "last")
        ended = await harness.until(is_let_go, "the end", timeout_s=40)
        assert (await texts(harness, ended))[-1] == "last"
        assert [says in told for told in await log_messages(harness, ended)] == [True] * bool(says)

    play(story)


@pytest.mark.parametrize(
    ("size", "says"),
    [
        pytest.param(100_000, "may be missing", id="what is left of a flood"),
        pytest.param(2_000, "", id="a few lines, as of any short program"),
    ],
)
def test_a_truncated_burst_states_that_lines_may_be_missing(size: int, says: str) -> None:
    """When the only file began just before the end, the log says that more lines may have existed: the burst in it does
    not show how much came before."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 5.5}
        container_logs.is_broken = True
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        await asyncio.sleep(5)
        container_logs.write(uid, "x" * (size // 2))
        await asyncio.sleep(0.1)
        container_logs.write(uid, "y" * (size // 2))
        await asyncio.sleep(2)
        container_logs.is_broken = False
        ended = await harness.until(is_let_go, "the end", timeout_s=40)
        assert [text[0] for text in await texts(harness, ended)] == ["x", "y"]
        assert [says in told for told in await log_messages(harness, ended)] == [True] * bool(says)

    play(story)


def test_a_log_that_was_left_without_an_end_gets_one() -> None:
    """A log whose watcher was killed while its pod was removed gets an end and a message, so that its followers do not
    wait for ever."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        stop = ServiceStop()
        watching = asyncio.ensure_future(harness.watcher.run(stop))
        running = await harness.launch()
        await harness.until(is_running, "running")
        [pod] = await harness.pods()
        container_logs.write(pod.metadata.uid, "one")
        await asyncio.sleep(1)
        watching.cancel()
        await asyncio.wait([watching])
        harness.core.patch("pods", pod.metadata.namespace, pod.metadata.name, {"metadata": {"finalizers": None}})
        harness.core.delete("pods", pod.metadata.namespace, pod.metadata.name, {"gracePeriodSeconds": 0})
        await harness.kube.patch(
            ALLOCATIONS, running.metadata.name, {"spec": {"desired": "Stopped"}}, namespace="default"
        )
        again = asyncio.ensure_future(harness.another().run(stop))
        await harness.until(lambda found: found.status.phase is Phase.TERMINATED, "the end", timeout_s=60)
        await asyncio.sleep(90)
        position = await harness.streams.logs.position(id_of(running), LogKey(attempt=1, rank=0))
        assert (await texts(harness, running), position.is_ended) == (["one"], True)
        assert "its pod was deleted before its log was stored to its end" in " ".join(
            await log_messages(harness, running)
        )
        stop.set()
        await again

    play(story, watches=False)


async def a_lease_of_the_dead(harness: WatcherHarness) -> None:
    """Let a process hold the lease that was killed a moment ago."""
    now = format_time(harness.clock.now(), "microseconds")
    spec = LeaseSpec(holder_identity="killed", lease_duration_seconds=15, acquire_time=now, renew_time=now)
    lease = Lease(metadata=ObjectMeta(name="slipway-feed", namespace="slipway-system"), spec=spec)
    await harness.its.create(LEASES, lease, namespace="slipway-system")


def test_a_watcher_that_does_not_lead_reads_what_it_gives_up() -> None:
    """A watcher that does not lead yet reads the logs of the pods that it releases: after the only watcher was killed,
    its successor loses no line of pods that end before it has the lease."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        await a_lease_of_the_dead(harness)
        harness.kubelet.runs_s = {0: 1.0}
        stop = ServiceStop()
        watching = asyncio.ensure_future(harness.watcher.run(stop))
        began = harness.clock.now()
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(9):
            container_logs.write(uid, f"line {number}")
            await asyncio.sleep(0.1)
        ended = await harness.until(is_let_go, "the end")
        assert harness.clock.now() < began + 10, "it did not wait for the lease"
        assert await texts(harness, ended) == [f"line {number}" for number in range(9)]
        stop.set()
        await watching

    play(story, watches=False)


def test_a_fault_in_one_log_ends_nothing_else() -> None:
    """A bug in one log affects neither the lease, nor the allocation, nor the log of another rank."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 2.0, 1: 2.0}
        await harness.launch("n0", "n0")
        await harness.until(is_running, "running")
        container_logs.bugs = {await uid_of_rank(harness, 0)}
        uid = await uid_of_rank(harness, 1)
        for number in range(10):
            container_logs.write(uid, f"line {number}")
            await asyncio.sleep(0.1)
        leadership = harness.watcher.role.leadership
        ended = await harness.until(is_let_go, "the end", timeout_s=60)
        assert await texts(harness, ended) == [f"line {number}" for number in range(10)]
        assert leadership is not None
        assert harness.watcher.role.leadership is leadership

    play(story)


def test_a_fault_in_the_log_of_a_pod_that_is_gone_is_reported_and_leaves_nothing_in_memory() -> None:
    """The log of a pod that is gone is not read again after a bug: the log says that lines are missing, and the watcher
    forgets the failure."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        running = await harness.launch()
        await harness.until(is_running, "running")
        [pod] = await harness.pods()
        container_logs.write(pod.metadata.uid, "one")
        await asyncio.sleep(1)
        container_logs.bugs = {pod.metadata.uid}
        harness.core.patch("pods", pod.metadata.namespace, pod.metadata.name, {"metadata": {"finalizers": None}})
        harness.core.delete("pods", pod.metadata.namespace, pod.metadata.name, {"gracePeriodSeconds": 0})
        await asyncio.sleep(5)
        assert await texts(harness, running) == ["one"]
        [message] = await log_messages(harness, running)
        assert "reading it has failed" in message
        assert harness.watcher._logs._faults == {}  # pyright: ignore[reportPrivateUsage]

    play(story)


def test_a_store_that_was_emptied_is_filled_again() -> None:
    """A store that was emptied is filled again from the node, from the first line on, each line once."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 4.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(20):
            container_logs.write(uid, f"line {number}")
            await asyncio.sleep(0.1)
            if number == 10:
                harness.server.flush()
        ended = await harness.until(is_let_go, "the end")
        assert await texts(harness, ended) == [f"line {number}" for number in range(20)]

    play(story)


def test_what_was_read_and_refused_is_read_again() -> None:
    """Lines that the store refused, because it was emptied in the second in which the container ended, are read again:
    lines that were read are not always stored."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 2.5}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        began = harness.clock.now()
        container_logs.write(uid, "first")
        # Wait until the second in which the container will end.
        await asyncio.sleep(max(0.5, int(began + 2.5) + 0.05 - began))
        harness.server.flush()
        container_logs.write(uid, "last")
        ended = await harness.until(is_let_go, "the end")
        assert await texts(harness, ended) == ["first", "last"]

    play(story)


def test_lines_wait_on_their_node_while_redis_is_away() -> None:
    """While Redis is away, lines wait on their node: the watcher reads no more than it can store, so no full buffer
    drops lines."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 12.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        harness.server.absent = True
        for number in range(30_000):
            container_logs.write(uid, f"line {number}")
        await asyncio.sleep(5)
        harness.server.absent = False
        ended = await harness.until(is_let_go, "the end")
        stored = await harness.streams.logs.read(id_of(ended), limit=100_000)
        assert [each.line.number for each in stored] == list(range(1, 30_001))
        assert stored[-1].line.text == "line 29999"

    play(story)


def test_a_log_says_when_it_is_stored_to_its_end() -> None:
    """A log is marked when it is stored to its end, so that a follower knows that no more lines arrive."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.0}
        running = await harness.launch()
        await harness.until(is_running, "running")
        container_logs.write(await uid_of_rank(harness, 0), "one")
        [before] = [each async for each in positions_of(harness, running)]
        ended = await harness.until(is_let_go, "the end")
        [after] = (await harness.streams.logs.positions(id_of(ended))).values()
        assert (before.is_ended, after.is_ended, after.number) == (False, True, 1)

    play(story)


def test_the_last_line_of_a_force_deleted_pod_needs_no_line_end() -> None:
    """The last line of a pod that is removed without an end while it is followed is stored, also without a line end."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.unended.add("two")
        running = await harness.launch()
        await harness.until(is_running, "running")
        [pod] = await harness.pods()
        for text in ("one", "two"):
            container_logs.write(pod.metadata.uid, text)
        await asyncio.sleep(1)
        harness.core.patch("pods", pod.metadata.namespace, pod.metadata.name, {"metadata": {"finalizers": None}})
        harness.core.delete("pods", pod.metadata.namespace, pod.metadata.name, {"gracePeriodSeconds": 0})
        await asyncio.sleep(5)
        assert await texts(harness, running) == ["one", "two"]

    play(story)


@pytest.mark.parametrize(
    "cuts",
    [[71], [93], [94], [99], [101], [999, 32], [999, 0]],
    ids=["in a time", "at a blank", "no text", "in é", "in a word", "behind a known line", "before a known line"],
)
def test_a_log_that_ends_within_a_line_is_read_again(cuts: list[int]) -> None:
    """A log that ends within a line is read again, because an API server ends its answer normally when it loses the
    node. An incomplete line is the last one only when it arrives twice."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.is_broken = True
        harness.kubelet.runs_s = {0: 1.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for text in ("one", "again", "two: é and more"):
            container_logs.write(uid, text)
        container_logs.unended.add("two: é and more")
        await asyncio.sleep(1.5)
        container_logs.is_broken, container_logs.cuts = False, list(cuts)
        ended = await harness.until(is_let_go, "the end")
        assert await texts(harness, ended) == ["one", "again", "two: é and more"]
        assert await log_messages(harness, ended) == []

    play(story)


def test_the_last_line_of_a_pod_that_is_being_deleted_is_not_read_again() -> None:
    """The node deletes the containers of a pod that is being deleted, so its first read that ends is believed."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.unended.add("two")
        container_logs.reads_max = 1
        running = await harness.launch()
        await harness.until(is_running, "running")
        [pod] = await harness.pods()
        for text in ("one", "two"):
            container_logs.write(pod.metadata.uid, text)
        await asyncio.sleep(1)
        harness.core.delete("pods", pod.metadata.namespace, pod.metadata.name, {"gracePeriodSeconds": 1})
        await asyncio.sleep(30)
        assert await texts(harness, running) == ["one", "two"]
        assert await log_messages(harness, running) == []

    play(story)


def test_a_last_line_without_a_line_end_is_kept_when_the_log_is_gone_before_the_end_is_known() -> None:
    """A last line without a line end is stored when the node has removed the log before it is read again after the
    end."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        container_logs.unended.add("two")
        running = await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for text in ("one", "two"):
            container_logs.write(uid, text)
        container_logs.broken_off_at = [harness.clock.now() + 0.5]
        await asyncio.sleep(0.7)
        container_logs.is_removed = True
        [pod] = await harness.pods()
        harness.core.patch("pods", pod.metadata.namespace, pod.metadata.name, {"metadata": {"finalizers": None}})
        harness.core.delete("pods", pod.metadata.namespace, pod.metadata.name, {"gracePeriodSeconds": 0})
        await asyncio.sleep(5)
        assert await texts(harness, running) == ["one", "two"]
        assert len(await log_messages(harness, running)) == 1, "it is not known whether more was written"

    play(story)


def test_a_pod_that_is_force_deleted_may_have_had_another_log_file() -> None:
    """A pod that is removed may have had another log file: when the log fills a file, the node ends the answer with
    that file for a slow reader, and the log says so."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        running = await harness.launch()
        await harness.until(is_running, "running")
        [pod] = await harness.pods()
        container_logs.write(pod.metadata.uid, FULL)
        await asyncio.sleep(1)
        container_logs.is_removed = True
        harness.core.patch("pods", pod.metadata.namespace, pod.metadata.name, {"metadata": {"finalizers": None}})
        harness.core.delete("pods", pod.metadata.namespace, pod.metadata.name, {"gracePeriodSeconds": 0})
        await asyncio.sleep(5)
        assert len(await log_messages(harness, running)) == 1

    play(story)


async def positions_of(harness: WatcherHarness, allocation: Allocation) -> AsyncIterator[LogPosition]:
    """Yield the positions of the logs, once each has a line."""
    while not (found := await harness.streams.logs.positions(id_of(allocation))):  # noqa: ASYNC110 - a server's state
        await asyncio.sleep(0.05)
    for each in found.values():
        yield each


def test_a_log_that_is_written_faster_than_it_is_stored_leaves_lines_out_and_counts_them() -> None:
    """A log that is written faster than it is stored leaves lines out, because its node would remove them unread. Its
    first and last lines are stored, and each missing line is counted."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 25.0}

        async def slow(operation: str) -> None:
            if operation == "logs.append":
                await asyncio.sleep(0.5)

        harness.server.on_call = slow
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(20_000):
            container_logs.write(uid, f"line {number} {'x' * 1_000}")
            if number % 100 == 0:
                await asyncio.sleep(0.1)
        ended = await harness.until(is_let_go, "the end", timeout_s=120)
        stored = [each.line for each in await harness.streams.logs.read(id_of(ended), limit=100_000)]
        gaps = GapFinder({}, is_whole=True)
        missing = sum(mark.missing for line in stored if (mark := gaps.before(line)) is not None)
        assert 0 < missing == 20_000 - len(stored)
        assert (stored[0].text[:7], stored[-1].text[:11]) == ("line 0 ", "line 19999 ")
        assert all(line.text.startswith(f"line {line.number - 1} ") for line in stored)

    play(story)


def test_a_flood_of_a_container_that_has_ended_loses_no_line() -> None:
    """A flood of an ended container loses no line: its node removes nothing from a log that does not grow, however much
    waits there."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 1.5}

        async def slow(operation: str) -> None:
            if operation == "logs.append":
                await asyncio.sleep(0.05)

        harness.server.on_call = slow
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(20_000):
            container_logs.write(uid, f"line {number} {'x' * 1_000}")
            if number % 2_000 == 0:
                await asyncio.sleep(0.1)
        ended = await harness.until(is_let_go, "the end", timeout_s=120)
        stored = [each.line for each in await harness.streams.logs.read(id_of(ended), limit=100_000)]
        gaps = GapFinder({}, is_whole=True)
        left_out = [line for line in stored if line.follows >= 0]
        assert left_out == []
        assert sum(mark.missing for line in stored if (mark := gaps.before(line)) is not None) == 20_000 - len(stored)
        assert stored[-1].number == 20_000

    play(story)


@pytest.mark.parametrize(
    ("lines", "is_broken_off", "reads"),
    [
        pytest.param(11_000, False, 2, id="a full file"),
        pytest.param(11_000, True, 3, id="the last read alone was of less than a file"),
        pytest.param(2_000, False, 2, id="kubelets begin new files earlier than the settings say"),
    ],
)
def test_a_log_is_read_on_where_its_node_began_a_new_file_meanwhile(
    lines: int, is_broken_off: bool, reads: int
) -> None:
    """When a node begins a new log file, a kubelet ends the answer for a slow reader with the previous file: the
    watcher requests the rest, and reports nothing as missing."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 8.0}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(lines):
            container_logs.write(uid, f"line {number} {'x' * 1_000}")
            if is_broken_off and number == 5_000:
                container_logs.broken_off_at.append(harness.clock.now())
            if number % 200 == 0:
                await asyncio.sleep(0.1)
        container_logs.new_file_at = harness.clock.now()
        container_logs.write(uid, "in the new file")
        ended = await harness.until(is_let_go, "the end", timeout_s=60)
        (last,) = await harness.streams.logs.tail(id_of(ended), limit=1)
        assert (last.line.text, last.line.number, container_logs.reads) == ("in the new file", lines + 1, reads)
        assert await log_messages(harness, ended) == []

    play(story)


@pytest.mark.parametrize(
    ("second_file_s", "says"),
    [
        pytest.param(4.0, 1, id="long enough for a full file, that is gone"),
        pytest.param(1.0, 0, id="kubelets look for full files less often"),
    ],
)
def test_a_log_whose_newest_file_is_empty_at_its_end_may_have_lost_one(second_file_s: float, says: int) -> None:
    """A log whose newest file is empty at its end says that a file may be missing: its node began a new file twice
    while the reader was behind, the second time after the container's end."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 4.0 + second_file_s}
        await harness.launch()
        await harness.until(is_running, "running")
        uid = await uid_of_rank(harness, 0)
        for number in range(2_000):
            container_logs.write(uid, f"line {number} {'x' * 1_000}")
            if number % 200 == 0:
                await asyncio.sleep(0.1)
        await asyncio.sleep(2.5)
        container_logs.write(uid, "the end of the first file")
        await asyncio.sleep(0.1)
        container_logs.new_file_at = harness.clock.now()
        await asyncio.sleep(second_file_s)
        container_logs.write(uid, "in the second file")
        container_logs.rotated_at = harness.clock.now() + 0.1
        ended = await harness.until(is_let_go, "the end", timeout_s=60)
        assert (await texts(harness, ended))[-1] == "the end of the first file"
        told = await log_messages(harness, ended)
        assert len(told) == says
        assert all("may be missing: its node may have removed them, unread" in text for text in told)

    play(story)


@pytest.mark.parametrize(
    ("read_after_s", "size", "says"),
    [
        pytest.param(8.0, 1_000, 1, id="its reader was behind"),
        pytest.param(0.0, 1_000, 0, id="its reader was there"),
        pytest.param(8.0, 10, 0, id="at a rate that fills no file"),
    ],
)
def test_a_file_in_the_middle_of_a_log_may_have_been_removed(read_after_s: float, size: int, says: int) -> None:
    """A log whose times have a step says that a file in its middle may have been removed: its node began files faster
    than they were read."""

    async def story(harness: WatcherHarness) -> None:
        container_logs = with_journal(harness)
        harness.kubelet.runs_s = {0: 14.0}
        container_logs.is_broken = read_after_s > 0
        await harness.launch()
        await harness.until(is_running, "running")
        uid, began = await uid_of_rank(harness, 0), harness.clock.now()
        for number in range(4_000):
            container_logs.write(uid, f"line {number} {'x' * size}")
            if number == 1_999:
                await asyncio.sleep(4.5)
                if says:
                    container_logs.write(uid, "in the file that is gone")
                container_logs.lost_between = (began + 1.5, harness.clock.now() + 0.01)
                await asyncio.sleep(0.1)
            elif number % 100 == 0:
                await asyncio.sleep(0.04)
        await asyncio.sleep(max(0.0, began + read_after_s - harness.clock.now()))
        container_logs.is_broken = False
        ended = await harness.until(is_let_go, "the end", timeout_s=60)
        assert "in the file that is gone" not in await texts(harness, ended)
        told = await log_messages(harness, ended)
        assert len(told) == says
        assert all("may be missing: its node may have removed them, unread" in text for text in told)

    play(story)
