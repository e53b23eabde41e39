"""GET /queues/NAME/waiting: those that wait in a queue, a part at a time."""

import pytest

from slipway.kube.resources import ALLOCATIONS, QUEUES
from tests.support.api_world import ApiWorld, Json

GPUS = [{"count": 2, "resources": {"nvidia.com/gpu": 1}}]


async def ask(world: ApiWorld, query: str = "", queue: str = "default") -> Json:
    answer = await world.get(f"/queues/{queue}/waiting{query}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def names(part: Json) -> list[str]:
    return [str(each["name"]) for each in part["items"]]


async def queued(world: ApiWorld, count: int) -> list[str]:
    """Launch `count` waiting allocations in the order of their priorities, and return their names from the first on."""
    made = [await world.launch(priority=900 - at, ranks=GPUS, name=f"work-{at}") for at in range(count)]
    return [str(each["name"]) for each in made]


async def test_parts_follow_each_other_to_the_end(world: ApiWorld) -> None:
    """Each part has its begin, the number of all, and a cursor; the last part has no cursor."""
    wanted = await queued(world, 5)
    found, query, begins = list[str](), "?limit=2", list[int]()
    while query:
        part = await ask(world, query)
        assert part["count"] == 5
        found, begins = found + names(part), [*begins, part["first"]]
        cursor = part["metadata"].get("continue", "")
        query = f"?limit=2&continue={cursor}" if cursor else ""
    assert (found, begins) == (wanted, [1, 3, 5])


async def test_a_part_may_begin_anywhere(world: ApiWorld) -> None:
    """A window that jumps into the middle reads nothing of what is before it; behind the end there is nothing."""
    wanted = await queued(world, 4)
    part = await ask(world, "?from=3&limit=1")
    assert (names(part), part["first"], part["count"]) == ([wanted[2]], 3, 4)
    assert names(await ask(world, "?from=5")) == []


async def test_a_cursor_holds_when_others_come_and_leave(world: ApiWorld) -> None:
    """A cursor goes on behind its item, also when that item and those before it are gone and new ones are there."""
    wanted = await queued(world, 4)
    cursor = (await ask(world, "?limit=2"))["metadata"]["continue"]
    for name in wanted[:2]:
        await world.kube.delete(ALLOCATIONS, name, namespace="default")
    await world.launch(priority=950, name="first")
    part = await ask(world, f"?continue={cursor}")
    assert (names(part), part["first"]) == (wanted[2:], 2)


async def test_a_cursor_holds_at_a_place_of_many_digits(world: ApiWorld) -> None:
    """Places between two neighbours grow longer than the numbers of a machine."""
    place = f"{'9' * 20}.{'1' * 40}"
    first, second = [await world.launch(name=name, queuePosition=place) for name in ("a", "b")]
    ids = {str(first["id"]), str(second["id"])}
    part = await ask(world, "?limit=1")
    rest = await ask(world, f"?continue={part['metadata']['continue']}")
    assert {str(each["id"]) for each in part["items"] + rest["items"]} == ids


async def test_what_is_before_one_is_counted_in_the_whole_queue(world: ApiWorld) -> None:
    """Place, number and GPUs ahead do not depend on the part or on the search."""
    await queued(world, 3)
    for query in ("?from=3", "?search=WORK-2", "?search=work%20k-2", "?search=notyet&from=3"):
        part = await ask(world, query)
        (item,) = part["items"]
        assert (item["position"], item["ahead"], item["slotsAhead"], item["slots"]) == (3, 2, 4, 2)


async def test_a_queue_shows_its_own_only(world: ApiWorld) -> None:
    """A queue does not show the work of another queue in its pool. Without the waiting work the view of the queue is
    the same."""
    await world.kube.create(QUEUES, {"metadata": {"name": "other"}, "spec": {"pool": "default"}})
    await queued(world, 1)
    await world.launch(queue="other", name="elsewhere")
    assert [name.partition("-")[0] for name in names(await ask(world, "", "other"))] == ["elsewhere"]
    whole, bare = [(await world.get(f"/queues/default{query}")).json() for query in ("", "?waiting=false")]
    assert (len(whole["waiting"]), bare) == (1, {**whole, "waiting": []})


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("?continue=x", "continue"),
        ("?continue=waits.e30", "continue"),
        ("?continue=waits.WzEsMV0", "continue"),
        ("?from=0", "from"),
        ("?limit=501", "limit"),
        (f"?search={'x' * 201}", "search"),
    ],
)
async def test_bad_parts_are_named(world: ApiWorld, query: str, name: str) -> None:
    """A parameter that is wrong is refused with 400, and the answer names it."""
    answer = await world.get(f"/queues/default/waiting{query}")
    assert (answer.status_code, name in answer.json()["detail"]) == (400, True)


async def test_a_part_has_one_beginning(world: ApiWorld) -> None:
    """A cursor and a place contradict each other."""
    await queued(world, 2)
    cursor = (await ask(world, "?limit=1"))["metadata"]["continue"]
    answer = await world.get(f"/queues/default/waiting?from=1&continue={cursor}")
    assert (answer.status_code, "cannot be combined with continue" in answer.json()["detail"]) == (400, True)


async def test_a_queue_that_is_not_there(world: ApiWorld) -> None:
    """The answer is the same as for the queue itself."""
    assert (await world.get("/queues/none/waiting")).status_code == 404
