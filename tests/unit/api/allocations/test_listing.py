"""Lists: filters and pages."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.api.allocations.sorted_listing import Row, Sorting
from slipway.crd.transitions import with_status
from slipway.errors import ExpiredError
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS, JOBS, NAMESPACES
from slipway.model.lifecycle import Event
from slipway.model.reasons import Result
from tests.support.api_world import ApiWorld
from tests.support.builders import an_allocation


async def listed(world: ApiWorld, query: str = "") -> set[str]:
    response = await world.get(f"/allocations{query}")
    assert response.status_code == 200, response.text
    return {item["name"] for item in response.json()["items"]}


@pytest.fixture
async def listed_world(world: ApiWorld) -> ApiWorld:
    """Five allocations of different sorts."""
    labels = {"slipway.dev/workspace": "true"}
    await world.kube.create(NAMESPACES, {"metadata": {"name": "other", "labels": labels}})
    await world.launch(name="plain")
    await world.launch(name="labelled", labels={"team": "x"}, queue="q1")
    await world.launch(name="adas", kind="training", headers={"x-slipway-user": "ada"})
    await world.launch(name="elsewhere", workspace="other")
    await world.launch(name="ended")
    await world.run("plain")
    await world.step("ended", Event.TERMINATED)
    return world


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"plain", "labelled", "adas", "elsewhere", "ended"}),
        ("?workspace=other", {"elsewhere"}),
        ("?workspace=other&phase=Running", set[str]()),
        ("?queue=q1", {"labelled"}),
        ("?pool=default&phase=Running", {"plain"}),
        ("?phase=Running,Terminated", {"plain", "ended"}),
        ("?active=true", {"plain", "labelled", "adas", "elsewhere"}),
        ("?user=ada", {"adas"}),
        ("?kind=training", {"adas"}),
        ("?labelSelector=team%3Dx", {"labelled"}),
        ("?labelSelector=team%3Dx&user=ada", set[str]()),
        ("?search=LABEL", {"labelled"}),
        ("?search=adas", {"adas"}),
        ("?search=ad%20as&active=true", {"adas"}),
        ("?search=das%20plain", set[str]()),
        ("?search=%20%20", {"plain", "labelled", "adas", "elsewhere", "ended"}),
    ],
)
async def test_filters(listed_world: ApiWorld, query: str, expected: set[str]) -> None:
    """Each filter works alone and together with others."""
    assert await listed(listed_world, query) == expected


@pytest.mark.parametrize(("query", "status", "code"), [("", 503, "not-now"), ("?continue=old", 410, "page-expired")])
async def test_an_expired_list_version_is_not_reported_as_a_conflict(
    listed_world: ApiWorld, query: str, status: int, code: str
) -> None:
    """A client that gave a page token which is too old begins again; a client without one asks the same again."""

    async def expired(verb: Verb, _plural: str) -> None:
        if verb is Verb.LIST:
            raise ExpiredError("the provided continue parameter is too old")

    listed_world.kube.before = expired
    answer = await listed_world.get(f"/allocations{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert ("retry-after" in answer.headers) is (status == 503)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?labelSelector=%3D%3D%3D", "unable to parse requirement: found '==='"),
        ("?continue=nonsense", "invalid continue token: continue key is not valid"),
    ],
)
async def test_bad_selectors_and_tokens(listed_world: ApiWorld, query: str, words: str) -> None:
    """The refusal of the Kubernetes API server is passed on, with its words; it does not become a 500."""
    answer = await listed_world.get(f"/allocations{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["detail"].startswith(words)


async def test_search_finds_by_a_part_of_the_id(listed_world: ApiWorld) -> None:
    """One word may match the id and the next one the user. A search of more than 200 characters is refused."""
    found = (await listed_world.get("/allocations?search=adas")).json()["items"][0]
    tail = found["id"].rpartition("-")[2]
    assert await listed(listed_world, f"?search={tail[:6].upper()}%20{found['user']}") == {"adas"}
    refused = await listed_world.get(f"/allocations?search={'a' * 201}")
    assert (refused.status_code, "search" in refused.json()["detail"]) == (400, True)


async def test_pages_show_everything_once(world: ApiWorld) -> None:
    """The pages have each item once, also with a filter that leaves pages empty."""
    for index in range(12):
        await world.launch(name=f"a{index}", kind="training" if index in (5, 11) else "command")
    for query, expected in (("limit=5", 12), ("limit=2&kind=training", 2)):
        names: list[str] = []
        token = ""
        while True:
            page = (await world.get(f"/allocations?{query}&continue={token}")).json()
            names += [item["name"] for item in page["items"]]
            token = page["metadata"].get("continue", "")
            if not token:
                break
        assert len(names) == len(set(names)) == expected


@pytest.mark.parametrize("sort", ["", "&sort=name"])
@pytest.mark.parametrize(
    "query",
    [
        "", "&workspace=other", "&queue=q1", "&pool=default", "&phase=Pending", "&phase=Pending,Running",
        "&active=true",
        "&active=true&phase=Pending", "&user=ada", "&kind=command", "&search=a", "&result=Canceled",
        "&createdAfter=2020-01-01T00:00:00Z", "&endedAfter=2020-01-01T00:00:00Z", "&labelSelector=team",
    ],
)  # fmt: skip
async def test_the_number_of_items_that_follow_is_right_or_missing(
    listed_world: ApiWorld, query: str, sort: str
) -> None:
    """The API server's own count is wrong where a filter is applied after it."""
    pages: list[tuple[int, int | None]] = []
    token = ""
    while not pages or token:
        page = (await listed_world.get(f"/allocations?limit=1{query}{sort}&continue={token}")).json()
        token = page["metadata"].get("continue", "")
        pages.append((len(page["items"]), page["metadata"].get("remainingItemCount")))
    for place, (_, told) in enumerate(pages):
        follow = sum(number for number, _ in pages[place + 1 :])
        assert told in (None, follow), f"{told} are told, and {follow} follow"
    if query in ("", "&workspace=other"):
        assert pages[0][1] is not None or len(pages) == 1


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?result=Canceled", {"ended"}),
        ("?result=Succeeded,Failed", set[str]()),
        ("?endedAfter=2026-01-02T00:00:00Z&endedBefore=2026-01-03T00:00:00Z", {"ended"}),
        ("?endedAfter=2026-01-03T00:00:00Z", set[str]()),
        ("?createdBefore=2020-01-01T00:00:00Z", set[str]()),
        ("?createdAfter=2020-01-01T00:00:00Z&phase=Running", {"plain"}),
        ("?job=j", set[str]()),
    ],
)
async def test_ended_work_is_found_by_its_end(listed_world: ApiWorld, query: str, expected: set[str]) -> None:
    """Ended work is found by its result and by its time; work that has not ended has no time of its end."""
    await listed_world.kube.create(JOBS, {"metadata": {"name": "j", "namespace": "default"}, "spec": {}})
    found = await listed_world.stored("ended")
    status = msgspec.structs.replace(found.status, ended_at="2026-01-02T12:00:00Z", result=Result.CANCELED)
    await listed_world.kube.replace_status(ALLOCATIONS, with_status(found, status))
    assert await listed(listed_world, query) == expected


async def test_sorted_pages_show_everything_once_in_order(world: ApiWorld) -> None:
    """The sort may have several fields, in both directions; a launch between two pages neither repeats nor hides
    items."""
    for number in range(7):
        await world.launch(name=f"a{number}", priority=number % 3)
    seen: list[tuple[int, str]] = []
    token = ""
    while True:
        page = (await world.get(f"/allocations?sort=-priority,name&limit=2&continue={token}")).json()
        seen += [(item["priority"], item["name"]) for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
        if len(seen) == 2:
            await world.launch(name="a9", priority=2)
            await world.launch(name="z", priority=0)
    assert seen == [(2, "a2"), (2, "a5"), (2, "a9"), (1, "a1"), (1, "a4"), (0, "a0"), (0, "a3"), (0, "a6"), (0, "z")]


async def test_what_is_empty_comes_last(listed_world: ApiWorld) -> None:
    """Work without an end comes last, in both directions of the sort."""
    await listed_world.kube.create(JOBS, {"metadata": {"name": "j", "namespace": "default"}, "spec": {}})
    found = await listed_world.stored("ended")
    status = msgspec.structs.replace(found.status, ended_at="2026-01-02T12:00:00Z")
    await listed_world.kube.replace_status(ALLOCATIONS, with_status(found, status))
    for sort in ("endedAt", "-endedAt"):
        items = (await listed_world.get(f"/allocations?sort={sort}")).json()["items"]
        assert (items[0]["name"], len(items)) == ("ended", 5)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sort=colour", "sort: must be one of createdAt, "),
        ("sort=--name", "sort: must be one of createdAt, "),
        ("sort=name,user,queue,kind,phase", "sort: at most 4 fields"),
        ("sort=name&continue=order.e30", "begin again without it"),
        ("sort=name&continue=x", "begin again without it"),
        ("sort=name&continue=order.WyItbmFtZSIsWyJhIl0sInUiXQ", "begin again without it"),
        ("result=Fine", "result: must be one of Succeeded, "),
        ("endedAfter=yesterday", "endedAfter: must be a time such as 2026-01-02T03:04:05Z"),
    ],
)
async def test_bad_orders_times_and_tokens_are_named(world: ApiWorld, query: str, words: str) -> None:
    """Each gets 400, with what may be written; a token of another order is refused too."""
    answer = await world.get(f"/allocations?{query}")
    assert answer.status_code == 400, answer.text
    (error,) = answer.json()["errors"]
    assert error["detail"].startswith(f"?{query.rpartition('&')[2].partition('=')[0]}="), error
    assert words in answer.json()["detail"]


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2)), max_size=8),
    st.sampled_from(["name,priority", "-name,priority", "name,-priority", "-priority,name", "-name,-priority", ""]),
)
def test_sorted_rows_are_in_the_order_that_their_page_tokens_compare_by(values: list[Any], fields: str) -> None:
    """A page goes on behind its last row: sorting and comparing are one order."""
    order = Sorting.parse(fields)
    it = an_allocation().it
    places = {"name": 0, "priority": 1}
    rows: list[tuple[Row, Any]] = [
        (([value[places[name]] for name, _ in order.fields], str(number)), it) for number, value in enumerate(values)
    ]
    found = order.sorted(rows)
    assert all(order.compare(one[0], other[0]) < 0 for one, other in pairwise(found))
