"""Usage: totals of deleted work, work that is not in them yet, and running work, each counted once."""

import csv
import io
from typing import Any

import msgspec
import pytest

from slipway.accounting.daily_totals import ANNOTATION_USAGE, BOOKED, Bill, added, bills_of, manifest
from slipway.accounting.usage import carried
from slipway.crd.figures import DayTotals
from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import Admission, Allocation
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, NAMESPACES, QUEUES
from slipway.model.lifecycle import Event
from slipway.model.times import format_time
from tests.support.api_world import ApiWorld

SYSTEM = "slipway-system"


async def ended(world: ApiWorld, *, slots: int = 2, user: str = "ada", flavor: str = "", **body: Any) -> Allocation:
    """An allocation that was launched and has ended, as scheduler and watcher write it."""
    launched = await world.launch(headers={"x-slipway-user": user}, **body)
    admission = Admission(decision_id="d1", epoch=1, flavor=flavor)
    await world.step(launched["name"], Event.ASSIGNED, admission=admission)
    running = await world.step(launched["name"], Event.RUNNING, slots=slots)
    now = world.clock.now() + 10.0
    over = record(running, Event.TERMINATED, now=now, ended_at=format_time(now))
    return await world.kube.replace_status(ALLOCATIONS, carried(running, over))


async def book(world: ApiWorld, *work: Allocation) -> None:
    """Write the work into the totals, as the watcher does."""
    days: dict[str, list[Bill]] = {}
    for each in work:
        for day, bill in bills_of(each).items():
            days.setdefault(day, []).append(bill)
    await world.kube.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    for day, bills in days.items():
        stored = added(DayTotals(), bills, world.clock.now(), None)
        assert stored is not None
        await world.kube.create(CONFIG_MAPS, manifest(day, stored), namespace=SYSTEM)


async def slot_seconds(world: ApiWorld, query: str = "") -> float:
    answer = await world.get(f"/usage{query}")
    assert answer.status_code == 200, answer.text
    return float(answer.json()["total"]["slotSeconds"])


async def test_ended_work_counts_once_before_and_after_it_is_booked(world: ApiWorld) -> None:
    """The sum is that of the object, then that of the totals: while the object is unmarked, marked, and gone."""
    work = await ended(world)
    first = await slot_seconds(world, "?to=2099-01-01&from=2098-12-01")
    assert first == 0.0
    from_object = await slot_seconds(world, _around(world))
    assert from_object >= 20.0
    await book(world, work)
    assert await slot_seconds(world, _around(world)) == from_object
    meta = {"metadata": {"annotations": {ANNOTATION_USAGE: BOOKED}}}
    await world.kube.patch(ALLOCATIONS, work.metadata.name, meta, namespace="default")
    assert await slot_seconds(world, _around(world)) == from_object
    gone: dict[str, Any] = {"metadata": {"finalizers": []}}
    await world.kube.patch(ALLOCATIONS, work.metadata.name, gone, namespace="default")
    await world.kube.delete(ALLOCATIONS, work.metadata.name, namespace="default")
    assert await slot_seconds(world, _around(world)) == from_object
    assert (await world.get(f"/usage{_around(world)}")).json()["total"]["ended"] == 1


def _around(world: ApiWorld) -> str:
    """A query up to tomorrow, so that a midnight during the test does no harm."""
    return f"?to={format_time(world.clock.now() + 86_400)[:10]}"


async def test_running_work_counts_up_to_now(world: ApiWorld) -> None:
    """The sum grows with each read."""
    launched = await world.launch()
    await world.step(launched["name"], Event.ASSIGNED)
    await world.step(launched["name"], Event.RUNNING, slots=1)
    row = (await world.get(f"/usage{_around(world)}")).json()["total"]
    later = (await world.get(f"/usage{_around(world)}")).json()["total"]
    assert later["seconds"]["Running"] >= row["seconds"]["Running"]
    assert (row["admitted"], row["ended"]) == (1, 0)


async def test_sums_are_by_what_is_asked_for_and_agree(world: ApiWorld) -> None:
    """Sums by one dimension, by several, or with a filter are parts of the same whole."""
    await ended(world, user="ada", slots=1)
    await ended(world, user="bob", slots=2, queue="other")
    await ended(world, user="bob", slots=3, kind="training")
    whole = await slot_seconds(world, _around(world))
    for by in ("user", "queue", "pool", "workspace", "kind", "day", "month", "user,kind"):
        body = (await world.get(f"/usage{_around(world)}&by={by}")).json()
        assert sum(row["slotSeconds"] for row in body["items"]) == pytest.approx(whole)
        assert body["by"] == by.split(",")
        assert all(list(row["by"]) == by.split(",") for row in body["items"])
    users = {row["by"]["user"]: row for row in (await world.get(f"/usage{_around(world)}")).json()["items"]}
    assert (users["ada"]["ended"], users["bob"]["ended"]) == (1, 2)
    bobs = await slot_seconds(world, _around(world) + "&user=bob")
    assert bobs == pytest.approx(users["bob"]["slotSeconds"])
    assert await slot_seconds(world, _around(world) + "&user=nobody-else") == 0.0


async def test_gpu_time_is_told_by_flavor(world: ApiWorld) -> None:
    """Sums by flavor are the same before and after work is booked, also beside other work of the same user and queue.
    Work without a flavor has an empty name."""
    work = [
        await ended(world, flavor="h100", slots=2),
        await ended(world, flavor="a100", slots=1),
        await ended(world, slots=4),
        await ended(world, flavor="h100", slots=0),
    ]
    await ended(world, user="bob", flavor="h100", slots=1)

    async def by_type(by: str = "gpuType") -> dict[tuple[str, ...], float]:
        body = (await world.get(f"/usage{_around(world)}&by={by}")).json()
        assert sum(row["slotSeconds"] for row in body["items"]) == pytest.approx(body["total"]["slotSeconds"])
        assert {(row["ended"], row["admitted"]) for row in body["items"]} == {(0, 0)}, "not told by type"
        return {tuple(row["by"].values()): row["slotSeconds"] for row in body["items"]}

    found = await by_type("user,gpuType")
    assert list(found) == [("ada", ""), ("ada", "a100"), ("ada", "h100"), ("bob", "h100")]
    assert found["ada", "h100"] == pytest.approx(2 * found["ada", "a100"], rel=0.2)
    assert list(await by_type()) == [("",), ("a100",), ("h100",)]
    await book(world, *work)
    assert await by_type("user,gpuType") == pytest.approx(found)


async def test_csv_by_accept_or_by_parameter(world: ApiWorld) -> None:
    """The rows are the same; names that a spreadsheet would calculate are only text."""
    await ended(world, user="=cmd()")
    for answer in (
        await world.get(f"/usage{_around(world)}&by=user,day&format=csv"),
        await world.get(f"/usage{_around(world)}&by=user,day", accept="text/csv"),
    ):
        assert answer.headers["content-type"].startswith("text/csv")
        assert "attachment" in answer.headers["content-disposition"]
        (row,) = csv.DictReader(io.StringIO(answer.text))
        assert row["user"] == "'=cmd()"
        assert (row["ended"], float(row["slot_seconds"]) >= 20.0) == ("1", True)
    preferred = await world.get(f"/usage{_around(world)}&format=json", accept="text/csv")
    assert preferred.headers["content-type"].startswith("application/json")


async def test_raw_is_one_line_for_each_allocation(world: ApiWorld) -> None:
    """The line has what the allocation used in those days; there is CSV too."""
    work = await ended(world)
    body = (await world.get(f"/usage/raw{_around(world)}")).json()
    (row,) = body["items"]
    assert row["id"].startswith(work.metadata.name)
    assert row["slotSeconds"] == await slot_seconds(world, _around(world))
    (line,) = csv.DictReader(io.StringIO((await world.get(f"/usage/raw{_around(world)}&format=csv")).text))
    assert float(line["slot_seconds"]) == row["slotSeconds"]
    assert (await world.get("/usage/raw?from=2020-01-01&to=2020-01-02")).json()["items"] == []


async def test_raw_of_one_allocation_is_its_line(world: ApiWorld) -> None:
    """Other work has no line. An unknown allocation is not found; one that used nothing in those days has no line."""
    work = await ended(world)
    await world.launch(name="another")
    (row,) = (await world.get(f"/usage/raw{_around(world)}&id={work.metadata.name}")).json()["items"]
    assert row["id"].startswith(work.metadata.name)
    long_ago = await world.get(f"/usage/raw?from=2020-01-01&to=2020-01-02&id={row['id']}")
    assert (long_ago.status_code, long_ago.json()["items"]) == (200, [])
    assert (await world.get(f"/usage/raw{_around(world)}&id=nothing-12345678")).status_code == 404


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("by=colour", "by"),
        ("from=yesterday", "from"),
        ("to=2026-13-45", "to"),
        ("from=2026-02-01&to=2026-01-01", "from"),
        ("from=2020-01-01&to=2026-01-01", "from"),
        ("format=xml", "format"),
    ],
)
async def test_bad_parameters_are_named(world: ApiWorld, query: str, name: str) -> None:
    """A bad parameter gets 400, with what may be written."""
    answer = await world.get(f"/usage?{query}")
    assert answer.status_code == 400
    assert f"?{name}=" in answer.json()["errors"][0]["detail"]


async def test_many_days_have_a_place_among_few(world: ApiWorld) -> None:
    """Each day is a read of the API server, so only three such queries run at a time; a query for two months needs no
    place."""
    places, many = world.parts.totals_places, "/usage?from=2025-12-01&to=2026-11-28"
    with places.held("a"), places.held("b"), places.held("c"):
        refused = await world.get(many)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert (await world.get("/usage")).status_code == 200
    assert (await world.get(many)).status_code == 200


async def test_totals_that_can_not_be_read_are_said_to_be(world: ApiWorld) -> None:
    """The answer is 503, which names the day: never a 500, and never a sum that silently lacks a day."""
    await world.kube.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    today = format_time(world.clock.now())[:10]
    broken = {"metadata": {"name": f"slipway-usage-{today}"}, "data": {"totals": "oops"}}
    await world.kube.create(CONFIG_MAPS, broken, namespace=SYSTEM)
    answer = await world.get(f"/usage{_around(world)}")
    assert (answer.status_code, today in answer.json()["detail"]) == (503, True)


async def test_waits_are_averaged_by_day_and_queue(world: ApiWorld) -> None:
    """The average is that of the work that was admitted on the day."""
    await ended(world)
    (day,) = (await world.get(f"/queue-stats{_around(world)}")).json()["days"]
    assert (day["pool"], day["queue"], day["admitted"]) == ("default", "default", 1)
    assert day["averageQueuedSeconds"] == pytest.approx(day["queuedSeconds"])
    assert msgspec.json.encode(day)


async def test_what_stands_now_is_told_without_the_days(world: ApiWorld) -> None:
    """Without days neither ended work nor totals are read, however broken the totals are."""
    await ended(world)
    await world.launch()
    await world.kube.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
    today = format_time(world.clock.now())[:10]
    broken = {"metadata": {"name": f"slipway-usage-{today}"}, "data": {"totals": "oops"}}
    await world.kube.create(CONFIG_MAPS, broken, namespace=SYSTEM)
    assert (await world.get("/queue-stats")).status_code == 503
    told = (await world.get("/queue-stats?days=false")).json()
    assert (told["days"], [each["queued"] for each in told["queues"]]) == ([], [1])


async def test_a_queue_that_only_the_totals_remember_is_no_unknown_name(world: ApiWorld) -> None:
    """Queue and object are gone: for days on which the queue used nothing, the answer is empty, and no error."""
    work = await ended(world, queue="closed")
    await book(world, work)
    await world.kube.delete(ALLOCATIONS, work.metadata.name, namespace=work.metadata.namespace)
    await world.kube.delete(QUEUES, "closed")
    for path in ("/usage?queue=closed&", "/usage/raw?queue=closed&", "/history?queue=closed&"):
        answer = await world.get(f"{path}from=2020-01-01&to=2020-01-02")
        assert answer.status_code == 200, answer.text
    refused = await world.get("/usage?queue=clsoed")
    assert (refused.status_code, refused.json()["detail"]) == (
        422,
        "queue: there is no queue clsoed; there are: default",
    )
