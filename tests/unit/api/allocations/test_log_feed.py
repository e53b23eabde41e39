"""Following a log: nothing that is stored is left out, however late it comes from the store."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
import pytest

from slipway.api.allocations import log_feed
from slipway.api.allocations.log_feed import LINES_AT_ONCE, LINES_MAX, POD_LINES_MAX, STORE_TRIES, LogFeed, LogFilter
from slipway.api.schemas import LogLineView
from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError, DeadlineError, DeniedError, ThrottledError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import PODS
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.model.times import format_time
from slipway.streams.logpacks import EVENT, LogKey, LogLine, LogPosition, StoredLine
from slipway.streams.memory_logs import MemoryLogs
from slipway.streams.ports import LogLines, NoTally
from tests.support.api_world import ApiWorld
from tests.support.clock import wait_until
from tests.support.logs import end_logs, store_lines


class LateLogs(MemoryLogs):
    """A store whose followers get nothing until the reader has asked twice where the logs end."""

    def __init__(self, world: ApiWorld) -> None:
        super().__init__(world.server, NoTally())
        self._asked = 0
        self._goes_on = asyncio.Event()

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]:
        self._asked += 1
        if self._asked > 2:
            self._goes_on.set()
        return await super().positions(allocation)

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[list[StoredLine]]:
        await self._goes_on.wait()
        async with aclosing(super().follow(allocation, after=after)) as pages:
            async for page in pages:
                yield page


async def test_what_is_stored_is_sent_before_following_ends(world: ApiWorld) -> None:
    """The allocation has ended and its logs are stored to their end; a follower that is slow still gets every line."""
    answer = await world.launch()
    lines = [LogLine(attempt=1, rank=0, time=f"2026-01-02T03:04:0{n}Z", text=f"line {n}") for n in range(5)]
    await store_lines(world.streams, AllocationId(answer["id"]), lines)
    await end_logs(world.streams, AllocationId(answer["id"]))
    ended = await world.step(answer["name"], Event.TERMINATED)
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    feed = LogFeed(LateLogs(world), world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(15):
        await feed.follow(ended, LogFilter(), emit)
    assert found == [f"line {n}" for n in range(5)]


async def test_a_rank_that_lags_loses_no_line_while_redis_is_away(world: ApiWorld) -> None:
    """Each rank goes on after its own last line, not after the newest of all; each line comes once."""
    await world.launch(name="gang", ranks=[{"count": 2}])
    gang = await world.run("gang")
    world.server.absent = True
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    async def come(*texts: str) -> None:
        await wait_until(lambda: sorted(found) == sorted(texts), f"{texts}, each once")

    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    said = world.pod_logs.said
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(feed.follow(gang, LogFilter(tail=1), emit))
        said[0] = ["2026-01-02T03:04:10Z first of 0"]
        await come("first of 0")
        said[1] = ["2026-01-02T03:04:05Z first of 1", "2026-01-02T03:04:06Z second of 1"]
        await come("first of 0", "first of 1", "second of 1")
        said[0].append("2026-01-02T03:04:11Z second of 0")
        await come("first of 0", "first of 1", "second of 1", "second of 0")
        following.cancel()


class BusyLogs(MemoryLogs):
    """A store that does not answer in time, `times` times, after `after` answers."""

    def __init__(self, world: ApiWorld, *, times: int, after: int = 0) -> None:
        super().__init__(world.server, NoTally())
        self._times, self._after = times, after

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 500) -> list[StoredLine]:
        if self._after > 0:
            self._after -= 1
        elif self._times > 0:
            self._times -= 1
            raise DeadlineError("redis did not answer within 2 s")
        return await super().read(allocation, after=after, limit=limit)


async def read_all(world: ApiWorld, logs: LogLines, allocation: Allocation) -> list[str]:
    feed = LogFeed(logs, world.kube, world.parts.lookup, world.clock)
    async with aclosing(feed.pages(allocation, LogFilter())) as pages:
        return [line.text async for page in pages for line in page]


def numbered(count: int) -> list[LogLine]:
    return [LogLine(attempt=1, rank=0, time=f"2026-01-02T03:04:05.{n:09}Z", text=f"line {n}") for n in range(count)]


async def test_a_store_that_is_busy_for_a_moment_still_gives_the_whole_log(world: ApiWorld) -> None:
    """A pod has at most the last lines, so it is asked only when the store stays away."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    world.pod_logs.said[0] = ["2026-01-02T03:04:09Z the last line, on the node"]
    await store_lines(world.streams, AllocationId(answer["id"]), numbered(3))
    assert await read_all(world, BusyLogs(world, times=2), running) == ["line 0", "line 1", "line 2"]


class InterruptedLogs(MemoryLogs):
    """A store whose first follower is cut off after its first page."""

    is_cut = False

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[list[StoredLine]]:
        async with aclosing(super().follow(allocation, after=after)) as pages:
            async for page in pages:
                yield page
                if not self.is_cut:
                    self.is_cut = True
                    raise DeadlineError("redis did not answer within 2 s")


async def test_following_goes_on_in_a_store_that_was_busy_for_a_moment(world: ApiWorld) -> None:
    """The pod has at most the last lines: if they were sent, the lines before them would not be shown any more."""
    answer = await world.launch()
    await world.run(answer["name"])
    world.pod_logs.said[0] = ["2026-01-02T03:04:09Z on the node"]
    lines = numbered(2000)
    await store_lines(world.streams, AllocationId(answer["id"]), lines)
    await end_logs(world.streams, AllocationId(answer["id"]))
    ended = await world.step(answer["name"], Event.TERMINATED)
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    logs = InterruptedLogs(world.server, NoTally())
    async with asyncio.timeout(15):
        await LogFeed(logs, world.kube, world.parts.lookup, world.clock).follow(ended, LogFilter(), emit)
    assert (logs.is_cut, found) == (True, [line.text for line in lines])


async def test_a_store_that_fails_midway_is_an_error_and_restarts_nothing(world: ApiWorld) -> None:
    """Lines of the pod after those of the store would repeat some, and a reader could not resume after them."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    world.pod_logs.said[0] = ["2026-01-02T03:04:09Z on the node"]
    await store_lines(world.streams, AllocationId(answer["id"]), numbered(LINES_AT_ONCE + 1))
    with pytest.raises(DeadlineError):
        await read_all(world, BusyLogs(world, times=9, after=1), running)


async def test_where_neither_store_nor_pod_answers_the_log_is_not_called_empty(world: ApiWorld) -> None:
    """An empty answer would say that nothing was printed."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    world.server.absent = True
    assert await read_all(world, world.streams.logs, running) == []
    for pod in (await world.kube.list(PODS)).items:
        await world.kube.delete(PODS, pod.metadata.name, namespace=pod.metadata.namespace, grace_s=0)
    with pytest.raises(UnavailableError, match="its store does not answer, and no pod has the log"):
        await read_all(world, world.streams.logs, running)


async def test_an_answer_from_a_pod_says_where_it_is_cut(world: ApiWorld) -> None:
    """A node returns only its last lines. A page has the newest of all ranks, because a reader cannot resume after
    them."""
    await world.launch(name="gang", ranks=[{"count": 2}])
    gang = await world.run("gang")
    world.server.absent = True
    for rank in (0, 1):
        world.pod_logs.said[rank] = [
            f"2026-01-02T03:04:05.{2 * n + rank:09}Z {rank}: {n}" for n in range(POD_LINES_MAX + 2)
        ]
    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    page = await feed.page(gang, LogFilter())
    whole = await read_all(world, world.streams.logs, gang)
    marks = [at for at, text in enumerate(whole) if "not shown here" in text]
    assert (marks, whole[1], len(whole)) == ([0, 2], "0: 2", 2 * (POD_LINES_MAX + 1))
    assert whole[0].startswith("older lines of this rank are not shown here: this answer comes from the nodes")
    assert page[0].text.endswith(f"the last {LINES_MAX} lines of all ranks together")
    assert [line.text for line in page[-2:]] == [f"{rank}: {POD_LINES_MAX + 1}" for rank in (0, 1)]


def refuse_logs(world: ApiWorld, error: ControlPlaneError, *, answered: int) -> None:
    """Let each read of a pod's log fail, after `answered` reads that succeed."""
    left = answered

    async def before(verb: Verb, plural: str) -> None:
        nonlocal left
        if verb is Verb.LOG:
            left -= 1
            if left < 0:
                raise error

    world.kube.before = before


@pytest.mark.parametrize("wanted", [LogFilter(), LogFilter(tail=1), LogFilter(head=1), LogFilter(is_reversed=True)])
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (DeniedError("forbidden"), "the api has no permission to read logs of pods"),
        (ThrottledError("slow down"), "too many requests to the API server"),
        (DeadlineError("too late"), "no answer in time"),
        (UnavailableError("dial tcp: i/o timeout"), "the API server or the node does not answer"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
async def test_a_log_of_a_pod_that_cannot_be_read_has_a_mark_with_the_reason(
    world: ApiWorld, error: ControlPlaneError, why: str, wanted: LogFilter
) -> None:
    """The mark is beside the lines of the other ranks, and does not count as one of the wanted lines."""
    await world.launch(name="gang", ranks=[{"count": 2}])
    gang = await world.run("gang")
    world.pod_logs.said = {rank: [f"2026-01-02T03:04:05Z of {rank}"] for rank in (0, 1)}
    refuse_logs(world, error, answered=1)
    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    line, mark = sorted(await feed.page(gang, wanted), key=lambda each: each.stream == EVENT)
    assert (line.text, mark.rank) == ("of 0", 1)
    assert mark.text == f"the log of this rank cannot be read from its node now: {why}"


async def test_where_no_pod_can_be_read_the_log_is_not_called_empty(world: ApiWorld) -> None:
    """A store without lines: each rank has a mark. A store that does not answer either: an error with the reason."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    refuse_logs(world, DeniedError("forbidden"), answered=0)
    [mark] = await read_all(world, world.streams.logs, running)
    assert mark.endswith("the api has no permission to read logs of pods")
    world.server.absent = True
    with pytest.raises(UnavailableError, match="no log can be read from the nodes: the api has no permission"):
        await read_all(world, world.streams.logs, running)


async def test_a_container_that_has_not_started_has_no_mark(world: ApiWorld) -> None:
    """The API server refuses to read a log that does not exist yet; no line is missing."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    [pod] = (await world.kube.list(PODS)).items
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    meta = {"name": pod.metadata.name, "namespace": "default", "resourceVersion": pod.metadata.resource_version}
    await world.kube.replace_status(PODS, {"metadata": meta, "status": {"containerStatuses": [waiting]}})
    refuse_logs(world, UnavailableError('container "main" in pod "p" is waiting to start'), answered=0)
    assert await read_all(world, world.streams.logs, running) == []


async def test_a_follower_is_told_once_which_log_cannot_be_read(world: ApiWorld) -> None:
    """The pods are read again and again; the mark comes once, and is not one of the last lines that were requested."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    world.server.absent = True
    world.pod_logs.said[0] = ["2026-01-02T03:04:05Z a line", "2026-01-02T03:04:06Z the last line"]
    refuse_logs(world, DeadlineError("too late"), answered=0)
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        wanted = LogFilter(tail=1, streams=frozenset(["stdout"]))
        following = group.create_task(feed.follow(running, wanted, emit))
        await wait_until(lambda: bool(found), "the mark")
        refuse_logs(world, DeadlineError("too late"), answered=1)
        await wait_until(lambda: "the last line" in found, "the last line, when the pod can be read again")
        following.cancel()
    assert found == ["the log of this rank cannot be read from its node now: no answer in time", "the last line"]


async def test_the_log_of_the_main_container_is_read_beside_other_containers(world: ApiWorld) -> None:
    """The API server asks for the name of a container when a pod has several."""
    containers = [{"name": "helper", "image": "a"}, {"name": "trainer", "image": "a"}]
    answer = await world.launch(ranks=[{"template": {"spec": {"containers": containers}}}])
    running = await world.run(answer["name"])
    [pod] = (await world.kube.list(PODS)).items
    named = {"metadata": {"annotations": {ANNOTATION_MAIN_CONTAINER: "trainer"}}}
    await world.kube.patch(PODS, pod.metadata.name, named, namespace="default")
    world.pod_logs.said[0] = ["2026-01-02T03:04:05Z a line"]
    assert await read_all(world, world.streams.logs, running) == ["a line"]


async def a_gang_of_which_one_log_has_no_end(world: ApiWorld) -> Allocation:
    """Two ranks that exited; of the second the store has one line and no end."""
    await world.launch(name="gang", ranks=[{"count": 2}])
    gang = await world.run("gang")
    lines = [LogLine(attempt=1, rank=rank, time="2026-01-02T03:04:05Z", text=f"of {rank}") for rank in (0, 1)]
    await store_lines(world.streams, id_of(gang), lines[:1])
    await end_logs(world.streams, id_of(gang))
    await store_lines(world.streams, id_of(gang), lines[1:])
    ranks = [msgspec.structs.replace(each, exit_code=0) for each in gang.status.ranks or ()]
    return await world.step("gang", Event.TERMINATED, ranks=ranks, ended_at=format_time(world.clock.now() - 60))


@pytest.mark.parametrize(
    ("wanted", "texts"),
    [
        (LogFilter(), ["of 0", "of 1", "not stored"]),
        (LogFilter(tail=1), ["of 1", "not stored"]),
        (LogFilter(is_reversed=True), ["not stored", "of 1", "of 0"]),
        (LogFilter(search="of"), ["of 0", "of 1", "not stored"]),
        (LogFilter(ranks=frozenset([0])), ["of 0"]),
        (LogFilter(head=1), ["of 0"]),
        (LogFilter(container="helper"), []),
    ],
)
async def test_a_log_of_what_has_ended_that_is_not_stored_to_its_end_says_so(
    world: ApiWorld, wanted: LogFilter, texts: list[str]
) -> None:
    """The mark is at the rank of the log, after its lines, and only if the request includes the end of that log."""
    ended = await a_gang_of_which_one_log_has_no_end(world)
    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    found = await feed.page(ended, wanted)
    assert [line.text if line.cursor else "not stored" for line in found] == texts
    assert all("not stored to its end" in line.text for line in found if not line.cursor)
    assert {line.rank for line in found if not line.cursor} <= {1}


async def test_a_follower_is_told_which_logs_had_no_end(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line came for a while after the end of the allocation, so a mark states that the log may be short."""
    monkeypatch.setattr(log_feed, "END_S", 1.0)
    ended = await a_gang_of_which_one_log_has_no_end(world)
    found: list[LogLineView] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(page)

    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(15):
        await feed.follow(ended, LogFilter(), emit)
    assert [line.text for line in found[:2]] == ["of 0", "of 1"]
    [mark] = found[2:]
    assert (mark.rank, mark.stream, "lines may be missing here; read it again later" in mark.text) == (1, "event", True)


async def test_of_thousands_of_logs_without_an_end_some_are_named_and_all_counted(world: ApiWorld) -> None:
    """Each log without an end has a mark, up to a limit; the last mark says how many more there are."""
    many = log_feed.OPEN_SAID_MAX + 7
    await world.launch(name="wide", ranks=[{"count": many}])
    wide = await world.run("wide")
    ranks = [msgspec.structs.replace(each, exit_code=0) for each in wide.status.ranks or ()]
    ended = await world.step("wide", Event.TERMINATED, ranks=ranks, ended_at="2026-01-02T03:04:05Z")
    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    found = await feed.page(ended, LogFilter())
    assert len(found) == log_feed.OPEN_SAID_MAX
    assert found[-1].text.endswith("are lost, or no longer stored; 7 other logs are incomplete too")


async def test_a_request_at_the_end_gets_the_last_lines(world: ApiWorld) -> None:
    """The request comes between the end of the allocation and the end of its stored log: the answer waits for that, but
    not long."""
    await world.launch(name="late")
    late = await world.run("late")
    ranks = [msgspec.structs.replace(each, exit_code=3) for each in late.status.ranks or ()]
    ended = await world.step("late", Event.TERMINATED, ranks=ranks, ended_at=format_time(world.clock.now()))
    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(15), asyncio.TaskGroup() as group:
        asked = group.create_task(feed.page(ended, LogFilter()))
        await asyncio.sleep(0)
        line = LogLine(attempt=1, rank=0, time="2026-01-02T03:04:05Z", text="last words")
        await store_lines(world.streams, id_of(late), [line])
        await end_logs(world.streams, id_of(late))
    assert [each.text for each in asked.result()] == ["last words"]


async def test_lines_of_pods_are_whole_and_keep_the_order_of_their_log(world: ApiWorld) -> None:
    """Only a line end ends a line. Nodes write times with any offset and any number of digits; some text has none."""
    await world.launch(name="gang", ranks=[{"count": 2}])
    gang = await world.run("gang")
    world.server.absent = True
    world.pod_logs.said[0] = [
        "2026-01-02T03:04:05.1Z a",
        "2026-01-02T03:04:05.12Z 10%\r20%\r",
        "2026-01-02T03:04:05.2Z b\u2028c\x0cd",
        "a word of the node",
        "2026-01-02T03:04:04Z after the clock went back",
    ]
    world.pod_logs.said[1] = ["2026-01-02T05:04:05.15+02:00 of the other node"]
    page = await LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock).page(gang, LogFilter())
    assert [line.text for line in page] == [
        "a",
        "20%",
        "of the other node",
        "b\u2028c\x0cd",
        "a word of the node",
        "after the clock went back",
    ]


@pytest.mark.parametrize("tail", [0, 2])
async def test_a_follower_that_comes_again_gets_what_it_missed(world: ApiWorld, tail: int) -> None:
    """A reader of server-sent events connects again with the same address, `tail` included, and its last cursor."""
    answer = await world.launch()
    id_ = AllocationId(answer["id"])
    await store_lines(world.streams, id_, numbered(5))
    [first] = await world.streams.logs.read(id_, limit=1)
    await end_logs(world.streams, id_)
    ended = await world.step(answer["name"], Event.TERMINATED)
    wanted = LogFilter(tail=tail, after=first.cursor)
    assert await followed(world, world.streams.logs, ended, wanted) == [f"line {n}" for n in range(1, 5)]


async def followed(world: ApiWorld, logs: LogLines, allocation: Allocation, wanted: LogFilter) -> list[str]:
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    async with asyncio.timeout(15):
        await LogFeed(logs, world.kube, world.parts.lookup, world.clock).follow(allocation, wanted, emit)
    return found


async def test_lines_that_came_from_pods_are_not_called_missing_afterwards(world: ApiWorld) -> None:
    """Redis goes and comes back while a log is followed: each line comes once, without a mark of missing lines."""
    answer = await world.launch()
    id_ = AllocationId(answer["id"])
    running = await world.run(answer["name"])
    lines = [LogLine(attempt=1, rank=0, time=f"2026-01-02T03:04:0{n}Z", text=f"line {n}") for n in range(5)]
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(feed.follow(running, LogFilter(), emit))
        await store_lines(world.streams, id_, lines[:1])
        await wait_until(lambda: len(found) == 1, "the line of the store")
        world.server.absent = True
        world.pod_logs.said[0] = [f"{line.time} {line.text}" for line in lines[:4]]
        await wait_until(lambda: len(found) == 4, "the lines of the pod")
        world.server.absent = False
        await store_lines(world.streams, id_, lines[1:])
        await wait_until(lambda: lines[4].text in found, "the line after them")
        following.cancel()
    assert found == [line.text for line in lines]


async def test_a_tail_is_whole_though_the_store_was_away_while_it_was_read(world: ApiWorld) -> None:
    """The store answers the first half and then not: the second try reads all of it again."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    await store_lines(world.streams, AllocationId(answer["id"]), numbered(LINES_AT_ONCE + 1))
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    feed = LogFeed(BusyLogs(world, times=STORE_TRIES, after=1), world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(feed.follow(running, LogFilter(tail=3), emit))
        await wait_until(lambda: f"line {LINES_AT_ONCE}" in found, "the last line")
        following.cancel()
    assert found == [f"line {LINES_AT_ONCE + n}" for n in (-2, -1, 0)]


async def test_a_tail_from_pods_is_not_sent_again_when_redis_comes(world: ApiWorld) -> None:
    """Following began without Redis: when it is there, lines that were printed since then come, each once."""
    answer = await world.launch()
    id_ = AllocationId(answer["id"])
    running = await world.run(answer["name"])
    lines = [LogLine(attempt=1, rank=0, time=f"2026-01-02T03:04:0{n}Z", text=f"line {n}") for n in range(8)]
    await store_lines(world.streams, id_, lines)
    world.server.absent = True
    world.pod_logs.said[0] = [f"{line.time} {line.text}" for line in lines[:4]]
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(feed.follow(running, LogFilter(tail=2), emit))
        await wait_until(lambda: len(found) == 2, "the last lines of the pod")
        world.server.absent = False
        await wait_until(lambda: lines[7].text in found, "the last line of the store")
        following.cancel()
    assert found == [line.text for line in lines[2:]]


async def test_lines_of_a_store_that_was_emptied_come_once(world: ApiWorld) -> None:
    """Redis loses its data while a log is followed, and the allocation ends: only new lines of the pod are sent."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    lines = [LogLine(attempt=1, rank=0, time=f"2026-01-02T03:04:0{n}Z", text=f"line {n}") for n in range(4)]
    await store_lines(world.streams, AllocationId(answer["id"]), lines[:3])
    world.pod_logs.said[0] = [f"{line.time} {line.text}" for line in lines]
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(feed.follow(running, LogFilter(), emit))
        await wait_until(lambda: len(found) == 3, "the lines of the store")
        world.server.flush()
        await world.step(answer["name"], Event.TERMINATED)
    assert found == [line.text for line in lines]


@pytest.mark.parametrize("tail", [0, 1])
async def test_the_end_of_a_log_that_was_never_stored_has_its_last_lines_only(world: ApiWorld, tail: int) -> None:
    """Nothing was stored: a follower of the last lines gets as many lines of the pods as it asked for."""
    answer = await world.launch()
    await world.run(answer["name"])
    ended = await world.step(answer["name"], Event.TERMINATED)
    world.pod_logs.said[0] = [f"2026-01-02T03:04:0{n}Z line {n}" for n in range(3)]
    found = await followed(world, world.streams.logs, ended, LogFilter(tail=tail))
    assert found == ["line 2"][:tail]


async def test_what_a_node_says_instead_of_a_log_comes_once(world: ApiWorld) -> None:
    """A text without a time is no place to resume after, but is sent once, although the pods are read again and
    again."""
    answer = await world.launch()
    running = await world.run(answer["name"])
    world.server.absent = True
    said = world.pod_logs.said[0] = ["unable to retrieve container logs for containerd://1"]
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(feed.follow(running, LogFilter(), emit))
        await wait_until(lambda: bool(found), "what the node says")
        said.append("2026-01-02T03:04:05Z a line")
        await wait_until(lambda: "a line" in found, "a line")
        following.cancel()
    assert len(found) == 2
