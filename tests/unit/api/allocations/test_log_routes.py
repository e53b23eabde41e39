"""Log lines: every form, filter and source."""

import asyncio
from typing import Any

import httpx2
import msgspec
import pytest

from slipway.api.allocations import log_routes as routes
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.streams import keys
from slipway.streams.logpacks import LogLine
from tests.support.api_world import ApiWorld
from tests.support.clock import wait_until
from tests.support.http_stub import serve_app
from tests.support.logs import a_pack, end_logs, store_lines

JSON = {"accept": "application/json"}


def a_line(text: str, *, rank: int = 0, attempt: int = 1, second: int = 0) -> LogLine:
    time = f"2026-01-02T03:04:{second:02d}.000000Z"
    return LogLine(attempt=attempt, rank=rank, stream="stdout", time=time, text=text)


async def texts(world: ApiWorld, path: str) -> list[str]:
    return [item["text"] for item in (await world.get(path, **JSON)).json()["items"]]


async def a_gang_with_lines(world: ApiWorld) -> AllocationId:
    answer = await world.launch(ranks=[{"count": 2}])
    lines = [a_line("a", second=1), a_line("b", rank=1, second=2), a_line("c", second=3), a_line("d", second=59)]
    await store_lines(world.streams, answer["id"], lines)
    return AllocationId(answer["id"])


async def test_text_is_the_default_and_names_ranks_where_there_are_several(world: ApiWorld) -> None:
    """Plain lines are for pipes; `prefix=false` leaves the ranks out."""
    gang = await a_gang_with_lines(world)
    response = await world.get(f"/allocations/{gang}/logs")
    assert response.headers["content-type"].startswith("text/plain")
    assert response.text == "[0] a\n[1] b\n[0] c\n[0] d\n"
    assert (await world.get(f"/allocations/{gang}/logs?prefix=false")).text == "a\nb\nc\nd\n"
    assert (await world.get(f"/allocations/{gang}/logs?rank=1")).text == "b\n"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["a", "b", "c", "d"]),
        ("?tail=2", ["c", "d"]),
        ("?tail=0", []),
        ("?rank=0&tail=2", ["c", "d"]),
        ("?attempt=2", []),
        ("?since=2026-01-02T03:04:03Z", ["c", "d"]),
        ("?until=2026-01-02T03:04:03Z", ["a", "b"]),
        ("?since=2026-01-02T03:04:02Z&until=2026-01-02T03:04:04Z", ["b", "c"]),
        ("?search=C", ["c"]),
        ("?search=c&tail=3", ["c"]),
        ("?search=nowhere", []),
    ],
)
async def test_filters(world: ApiWorld, query: str, expected: list[str]) -> None:
    """Each filter leaves the lines that match it; `tail` counts only the lines that the other filters leave."""
    gang = await a_gang_with_lines(world)
    assert await texts(world, f"/allocations/{gang}/logs{query}") == expected


@pytest.mark.parametrize(
    "query", ["since=soon", "until=5", "search=" + "x" * 257, "tail=-1", "tail=x", "rank=x", "follow=maybe"]
)
async def test_bad_parameters(world: ApiWorld, query: str) -> None:
    """A bad parameter gets 400, which names it."""
    gang = await a_gang_with_lines(world)
    response = await world.get(f"/allocations/{gang}/logs?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "malformed")


async def test_a_page_is_resumed_by_its_cursor(world: ApiWorld) -> None:
    """Lines that are stored later are on the next page."""
    gang = await a_gang_with_lines(world)
    cursor = (await world.get(f"/allocations/{gang}/logs", **JSON)).json()["metadata"]["continue"]
    await store_lines(world.streams, gang, [a_line("e")])
    assert await texts(world, f"/allocations/{gang}/logs?after={cursor}") == ["e"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
async def test_pages_of_the_newest_lines_lead_to_the_older_ones(world: ApiWorld, size: int) -> None:
    """Each line and each mark of a gap is on one page, whatever is printed meanwhile; the last page leads nowhere."""
    gang = AllocationId((await world.launch(ranks=[{"count": 2}]))["id"])
    for rank, after, first, count in ((0, 0, 1, 2), (1, 0, 4, 1), (0, 2, 6, 2), (1, 4, 5, 1), (0, 7, 9, 1)):
        lines = [a_line(f"{first + place}", rank=rank) for place in range(count)]
        await world.streams.logs.append([a_pack(gang, lines, after=after, first=first)])
    found: list[tuple[int, int, str]] = []
    cursor, count = "", 0
    while True:
        path = f"/allocations/{gang}/logs?order=desc&tail={size}&after={cursor}"
        answer = (await world.get(path, **JSON)).json()
        found += [(item["rank"], item.get("missing", 0), item["text"]) for item in answer["items"]]
        cursor = answer["metadata"]["continue"]
        if not cursor:
            break
        count += 1
        await world.streams.logs.append([a_pack(gang, [a_line("new")], after=8 + count, first=9 + count)])
    assert [(rank, text) for rank, missing, text in found if not missing] == [
        (0, "9"), (1, "5"), (0, "7"), (0, "6"), (1, "4"), (0, "2"), (0, "1"),
    ]  # fmt: skip
    assert [each[:2] for each in found if each[1]] == [(0, 1), (0, 3), (1, 3)]


async def test_a_mark_before_a_line_that_is_not_wanted_is_on_one_page(world: ApiWorld) -> None:
    """The line that it stands before decides the page, also when a filter leaves that line out."""
    gang = AllocationId((await world.launch())["id"])
    for after, first, texts_ in ((0, 1, ("one",)), (1, 4, ("left out", "two")), (5, 6, ("three",))):
        await world.streams.logs.append([a_pack(gang, [a_line(text) for text in texts_], after=after, first=first)])
    found, cursor = list[str](), ""
    path = f"/allocations/{gang}/logs?order=desc&tail=1&regex=true&search=^(one|two|three)$"
    while not found or cursor:
        answer = (await world.get(f"{path}&after={cursor}", **JSON)).json()
        found += ["gap" if item.get("missing") else item["text"] for item in answer["items"]]
        cursor = answer["metadata"]["continue"]
    assert found == ["three", "two", "gap", "one"]


async def test_a_reader_of_new_lines_only_can_come_back_before_the_first_one(world: ApiWorld) -> None:
    """It is sent the position at which it began, so that what is printed while its connection is cut is not lost."""
    gang = await a_gang_with_lines(world)
    path = f"/allocations/{gang}/logs?follow=true&tail=0"
    async with serve_app(world.app, before_stop=world.stop.set) as url:
        found, resumed = list[str](), list[str]()
        following = asyncio.ensure_future(follow(url, path, found, accept="text/event-stream"))
        await wait_until(lambda: any(line.startswith("id: ") for line in found), "its position")
        following.cancel()
        await store_lines(world.streams, gang, [a_line("meanwhile")])
        last = found[-1].removeprefix("id: ")
        again = asyncio.ensure_future(follow(url, path, resumed, accept="text/event-stream", **{"last-event-id": last}))
        await wait_until(lambda: any("meanwhile" in line for line in resumed), "the line")
        again.cancel()
    assert not any(line.startswith("data:") for line in found)
    assert sum(line.startswith("data:") for line in resumed) == 1


async def pages(world: ApiWorld, path: str, lines: int) -> list[tuple[int, int, str]]:
    """(rank, how many are missing, else 0, and the text) of each item, page after page of so many lines."""
    found: list[tuple[int, int, str]] = []
    cursor = ""
    while True:
        answer = (await world.get(f"{path}?head={lines}&after={cursor}", **JSON)).json()
        found += [(item["rank"], item.get("missing", 0), item["text"]) for item in answer["items"]]
        if not answer["items"]:
            return found
        cursor = answer["metadata"]["continue"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 100])
async def test_each_gap_stands_on_one_page(world: ApiWorld, size: int) -> None:
    """Wherever a page ends, no mark of a gap is lost or comes twice, and each page leads on to the next."""
    answer = await world.launch(ranks=[{"count": 2}])
    id_ = AllocationId(answer["id"])
    for rank, after, first, count in ((0, 0, 1, 2), (1, 0, 4, 1), (0, 2, 6, 2), (1, 4, 5, 1), (0, 7, 9, 1)):
        lines = [a_line(f"{first + place}", rank=rank) for place in range(count)]
        [stored] = await world.streams.logs.append([a_pack(id_, lines, after=after, first=first)])
        assert stored.is_appended
    found = await pages(world, f"/allocations/{id_}/logs", size)
    lines, marks = [each for each in found if not each[1]], [each[:2] for each in found if each[1]]
    assert [(rank, text) for rank, _, text in lines] == [
        (0, "1"), (0, "2"), (1, "4"), (0, "6"), (0, "7"), (1, "5"), (0, "9"),
    ]  # fmt: skip
    assert marks == [(1, 3), (0, 3), (0, 1)]


@pytest.mark.parametrize("before", [9_999, 10_000], ids=["the mark would be last", "the mark would be first"])
async def test_a_hole_between_two_pages_is_marked_once(world: ApiWorld, before: int) -> None:
    """A page that is full at a hole is followed by one that begins with the mark of it."""
    gang = AllocationId((await world.launch())["id"])
    for first in range(0, before, 2_500):
        part = [a_line(str(number)) for number in range(first + 1, min(before, first + 2_500) + 1)]
        await world.streams.logs.append([a_pack(gang, part, after=first)])
    after_it = [a_line("later"), a_line("last")]
    await world.streams.logs.append([a_pack(gang, after_it, after=before, first=before + 6)])

    seen: list[tuple[int, int]] = []
    after = ""
    while True:
        page = (await world.get(f"/allocations/{gang}/logs{after}", **JSON)).json()
        seen += [(item["number"], item.get("missing", 0)) for item in page["items"]]
        if not page["items"]:
            break
        after = f"?after={page['metadata']['continue']}"
    assert seen == [
        *((number, 0) for number in range(1, before + 1)),
        (before + 1, 5),
        (before + 6, 0),
        (before + 7, 0),
    ]


async def test_a_log_that_is_stored_again_is_read_once(world: ApiWorld) -> None:
    """A store that lost the position of a log, and kept its lines, gets the lines again under the same numbers."""
    gang = AllocationId((await world.launch())["id"])
    await store_lines(world.streams, gang, [a_line("a"), a_line("b")])
    world.server.drop(keys.log_state(gang))
    await store_lines(world.streams, gang, [a_line("a"), a_line("b"), a_line("c")])
    assert await texts(world, f"/allocations/{gang}/logs") == ["a", "b", "c"]


@pytest.mark.parametrize("is_absent", [False, True], ids=["nothing-stored", "no-redis"])
async def test_lines_come_from_the_pods_where_there_is_no_stream(world: ApiWorld, is_absent: bool) -> None:
    """Lines come from the pods without Redis, and before the first line was stored."""
    answer = await world.launch(ranks=[{"count": 2}])
    await world.run(answer["name"])
    world.pod_logs.is_talking = True
    world.server.absent = is_absent
    expected = [f"I am {answer['id']}-1-{rank}" for rank in (0, 1)]
    assert await texts(world, f"/allocations/{answer['id']}/logs") == expected
    assert await texts(world, f"/allocations/{answer['id']}/logs?rank=1") == expected[1:]


async def follow(url: str, path: str, found: list[str], **headers: str) -> None:
    async with (
        httpx2.AsyncClient(base_url=url, timeout=20) as client,
        client.stream("GET", f"/api/v1{path}", headers=headers) as response,
    ):
        async for line in response.aiter_lines():
            if line:
                found.append(line)


@pytest.mark.parametrize("accept", ["text/plain", "text/event-stream"])
async def test_following_ends_when_the_log_is_stored_to_its_end(world: ApiWorld, accept: str) -> None:
    """Following does not end with the allocation, so lines that arrive late are not lost."""
    gang = await a_gang_with_lines(world)
    name = (await world.get(f"/allocations/{gang}")).json()["name"]
    found: list[str] = []
    async with serve_app(world.app, before_stop=world.stop.set) as url:
        following = asyncio.ensure_future(follow(url, f"/allocations/{gang}/logs?follow=true", found, accept=accept))
        await wait_until(lambda: any("d" in line for line in found[-1:]), "the lines that there are")
        await store_lines(world.streams, gang, [a_line("live")])
        await wait_until(lambda: "live" in found[-1], "the new line")
        await world.step(name, Event.TERMINATED)
        await store_lines(world.streams, gang, [a_line("late")])
        await wait_until(lambda: "late" in found[-1], "the late line")
        await store_lines(world.streams, gang, [a_line("later")])
        await end_logs(world.streams, gang)
        async with asyncio.timeout(8):
            await following
    lines = [line for line in found if not line.startswith(("id:", "retry:"))]
    assert len(lines) == 7


async def test_following_works_without_redis(world: ApiWorld) -> None:
    """The lines come from the pods, each once."""
    answer = await world.launch()
    await world.run(answer["name"])
    world.pod_logs.is_talking = True
    world.server.absent = True
    found: list[str] = []
    async with serve_app(world.app, before_stop=world.stop.set) as url:
        following = asyncio.ensure_future(follow(url, f"/allocations/{answer['id']}/logs?follow=true", found))
        await wait_until(lambda: found == [f"I am {answer['id']}-1-0"], "the pod's line")
        await world.step(answer["name"], Event.TERMINATED)
        async with asyncio.timeout(8):
            await following
    assert found == [f"I am {answer['id']}-1-0"]


async def test_a_shell_escape_stays_one_line(world: ApiWorld) -> None:
    """Text of a task cannot forge a server-sent event."""
    answer = await world.launch()
    await store_lines(world.streams, answer["id"], [a_line("x\r\rdata: forged\r\r")])
    await end_logs(world.streams, answer["id"])
    await world.step(answer["name"], Event.TERMINATED)
    found: list[str] = []
    async with serve_app(world.app, before_stop=world.stop.set) as url:
        await follow(url, f"/allocations/{answer['id']}/logs", found, accept="text/event-stream")
    data: list[Any] = [line for line in found if line.startswith("data:")]
    assert len(data) == 1


async def a_gang_with_events(world: ApiWorld) -> AllocationId:
    """Four ranks that print, and what Kubernetes says about one of them."""
    answer = await world.launch(name="gang", ranks=[{"count": 4}])
    lines = [a_line(f"epoch {rank}: loss=0.{rank}", rank=rank, second=rank) for rank in range(4)]
    said = LogLine(attempt=1, rank=0, stream="event", time="2026-01-02T03:04:00Z", text="Pulling image a")
    await store_lines(world.streams, answer["id"], [said, *lines])
    return AllocationId(answer["id"])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("rank=1", "1"),
        ("rank=0,2&stream=stdout", "02"),
        ("rank=1-3", "123"),
        ("rank=0&rank=3&stream=stdout", "03"),
        ("rank=9", ""),
        ("stream=event", "P"),
        ("stream=stdout", "0123"),
        ("stream=stdout,event", "P0123"),
        ("search=LOSS=0.2", "2"),
        ("search=loss=0\\.[12]&regex=true", "12"),
        ("search=(?i)^EPOCH 3&regex=true", "3"),
        ("search=^loss&regex=true", ""),
        ("order=desc", "3210P"),
        ("order=desc&tail=2", "32"),
        ("order=asc&tail=2", "23"),
        ("head=2", "P0"),
        ("head=3&stream=stdout&order=desc", "210"),
    ],
)
async def test_lines_are_chosen_by_rank_source_and_pattern(world: ApiWorld, query: str, expected: str) -> None:
    """A request chooses several ranks, either source, a text or a pattern, in either order; `tail` means the newest in
    both."""
    gang = await a_gang_with_events(world)
    found = await texts(world, f"/allocations/{gang}/logs?{query.replace('+', '%2B')}")
    assert "".join(text[0] if text[0] == "P" else text[6] for text in found) == expected


async def test_a_wrong_cursor_is_refused_before_a_stream_begins(world: ApiWorld) -> None:
    """A reader that gets 200 and a broken stream would reconnect with the same cursor for ever."""
    gang = await a_gang_with_lines(world)
    for accept in ("text/plain", "text/event-stream", "application/json"):
        answer = await world.get(
            f"/allocations/{gang}/logs?follow=true", **{"accept": accept, "last-event-id": "unknown"}
        )
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


async def test_a_text_that_breaks_off_does_not_look_whole(world: ApiWorld) -> None:
    """The api drains while plain text is followed: its reader has no other sign than a body without an end."""
    gang = await a_gang_with_lines(world)
    found: list[str] = []
    async with serve_app(world.app, before_stop=world.stop.set) as url:
        following = asyncio.ensure_future(
            follow(url, f"/allocations/{gang}/logs?follow=true", found, accept="text/plain")
        )
        await wait_until(lambda: len(found) == 4, "the lines that there are")
        world.stop.set()
        with pytest.raises(httpx2.RemoteProtocolError):
            await following


async def test_what_kubernetes_says_is_marked_in_text(world: ApiWorld) -> None:
    """A reader does not take it for the rank's own output; in JSON the stream tells them apart."""
    gang = await a_gang_with_events(world)
    assert (await world.get(f"/allocations/{gang}/logs?rank=0")).text == "-- Pulling image a\nepoch 0: loss=0.0\n"
    items = (await world.get(f"/allocations/{gang}/logs?rank=0", **JSON)).json()["items"]
    assert [item["stream"] for item in items] == ["event", "stdout"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("rank=two", "such as 3, 0,2 or 4-7"),
        ("rank=3-1", "must ascend"),
        ("rank=0-9999", "at most"),
        ("rank=-1", "such as 3"),
        ("stream=stderr", "the streams are stdout and event"),
        ("search=(a&regex=true", "missing )"),
        ("search=(a)%5C1&regex=true", "invalid escape sequence"),
        ("order=newest", "asc (oldest first) or desc"),
        ("order=desc&follow=true", "is always in order"),
        ("regex=perhaps", "true or false"),
        ("head=2&follow=true", "no last line yet"),
        ("head=-1", "whole number"),
    ],
)
async def test_bad_filters_are_named(world: ApiWorld, query: str, said: str) -> None:
    """A bad filter gets 400, with the parameter and the values that it accepts."""
    gang = await a_gang_with_lines(world)
    response = await world.get(f"/allocations/{gang}/logs?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "malformed")
    assert said in response.json()["errors"][0]["detail"]


async def test_containers_of_a_role_and_those_that_others_added_have_logs(world: ApiWorld) -> None:
    """A role's own template counts, and so does a proxy that a mesh has added: it is known by its lines."""
    helper = {"spec": {"containers": [{"name": "main"}, {"name": "helper", "image": "a"}]}}
    launched = await world.launch(name="x", ranks=[{"name": "a"}, {"name": "b", "template": helper}])
    line = LogLine(attempt=1, rank=0, time="2026-01-02T03:04:05Z", text="proxied", container="proxy")
    await store_lines(world.streams, AllocationId(launched["id"]), [line])
    path = f"/allocations/{launched['id']}/logs"
    assert (await world.get(f"{path}?container=helper")).status_code == 200
    assert (await world.get(f"{path}?container=proxy")).text == "[0] proxied\n"
    refused = await world.get(f"{path}?container=nobody")
    assert refused.status_code == 400
    assert "they have main, helper, proxy" in refused.json()["detail"]


async def test_a_long_answer_ends_with_the_mark_of_a_log_that_has_no_end(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text of more than a page is streamed, and ends with the same mark as one that fits."""
    monkeypatch.setattr(routes, "LINES_MAX", 2)
    launched = await world.launch(name="x")
    running = await world.run("x")
    await store_lines(world.streams, AllocationId(launched["id"]), [a_line(f"line {n}", second=n) for n in range(5)])
    ranks = [msgspec.structs.replace(each, exit_code=0) for each in running.status.ranks or ()]
    await world.step("x", Event.TERMINATED, ranks=ranks, ended_at="2026-01-02T03:05:00Z")
    lines = (await world.get(f"/allocations/{launched['id']}/logs")).text.splitlines()
    assert lines[:5] == [f"line {n}" for n in range(5)]
    assert len(lines) == 6
    assert lines[5].startswith("-- the log of this rank is not stored to its end")
