"""A long queue in a browser: only entries near the visible part are requested and drawn, and all can be reached."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.browser.chromium import Page
from tests.browser.test_pages import Visit, answer, choose, command
from tests.support.local_stack import RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

COUNT = 260
DRAWN_MAX = 120
QUEUES = "/apis/slipway.dev/v1alpha1/queues"
ROWS = "[...document.querySelectorAll('.waiting tbody[data-index]')]"


class LongQueue(NamedTuple):
    """The queue's name, and the waiting ids in their order."""

    name: str
    ids: list[str]


@contextmanager
def a_line(stack: RunningStack) -> Generator[LongQueue]:
    """Create that many held allocations, ordered by their priorities."""
    name = fresh("long")
    manifest = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
    stack.kubernetes("POST", QUEUES, {**manifest, "spec": {"pool": "default"}})
    wait_until(lambda: name in [each["name"] for each in stack.ask(lambda api: api.get("/queues"))["items"]], name)
    bodies = [command("pass", name=f"{name}-{at:03}", hold=True, priority=900 - at, queue=name) for at in range(COUNT)]
    found = LongQueue(name, [stack.launch(body) for body in bodies])
    yield found
    stack.ask(lambda api: api.post("/allocations/batch", {"verb": "kill", "ids": found.ids}))


@pytest.fixture(scope="module")
def line(stack: RunningStack) -> Generator[LongQueue]:
    """A queue that no test changes."""
    with a_line(stack) as found:
        yield found


@pytest.fixture
def own_line(stack: RunningStack) -> Generator[LongQueue]:
    """A queue for one test."""
    with a_line(stack) as found:
        yield found


@pytest.fixture
def visit(stack: RunningStack, page: Page) -> Visit:
    return Visit(stack, page)


def drawn(visit: Visit) -> list[str]:
    """The positions that are in the page."""
    return list(visit.page.run(f"{ROWS}.map(row => row.querySelector('.place').innerText.trim())"))


def scroll(visit: Visit, to: str) -> None:
    visit.page.run(f"window.scrollTo(0, {to})")


def shows_place(visit: Visit, place: int) -> None:
    """Whether that position, with its allocation, is visible."""
    visit.page.wait_for(
        f"{ROWS}.some(row => row.querySelector('.place').innerText.trim() === '{place}' && row.querySelector('th')"
        f"?.innerText.includes('-{place - 1:03} ') && row.getBoundingClientRect().top < innerHeight"
        " && row.getBoundingClientRect().bottom > 0)"
    )


def asked(visit: Visit) -> int:
    """The number of positions that the page has requested in all."""
    return int(
        visit.page.run(
            "performance.getEntriesByType('resource').map(each => new URL(each.name))"
            ".filter(url => url.pathname.endsWith('/waiting'))"
            ".reduce((sum, url) => sum + Number(url.searchParams.get('limit')), 0)"
        )
    )


def test_rows_near_the_viewport_are_requested_and_drawn(visit: Visit, line: LongQueue) -> None:
    """This does not depend on the length; a reader of the table sees the total. The user can go to the end and to
    the middle."""
    visit.go(f"/queues/{line.name}")
    visit.page.wait_for(f"document.querySelector('.waiting')?.getAttribute('aria-rowcount') === '{COUNT + 1}'")
    shows_place(visit, 1)
    assert asked(visit) < COUNT
    for where, place in (
        ("document.body.scrollHeight", COUNT),
        ("document.body.scrollHeight / 2", COUNT // 2),
        ("0", 1),
    ):
        scroll(visit, where)
        shows_place(visit, place)
        assert len(drawn(visit)) < DRAWN_MAX
    visit.is_clean()


def test_an_address_leads_to_a_place_far_down(visit: Visit, line: LongQueue) -> None:
    """The address opens the explanation at that position."""
    visit.go(f"/queues/{line.name}?why={line.ids[199]}")
    shows_place(visit, 200)
    visit.page.wait_for("document.querySelector('tr.detail dl')?.innerText.includes('Number 200')")
    visit.is_clean()


def test_the_filter_covers_rows_that_are_not_loaded(visit: Visit, line: LongQueue) -> None:
    """The filter finds entries that were never shown; they keep their positions, and the count is shown."""
    visit.go(f"/queues/{line.name}")
    visit.put("[aria-label='Filter waiting workloads']", f"{line.name}-23".upper())
    visit.shows(f"10 of {COUNT}")
    visit.page.wait_for(f"{ROWS}.length === 10")
    assert drawn(visit) == [str(place) for place in range(231, 241)]
    visit.put("[aria-label='Filter waiting workloads']", "nothing")
    visit.shows("No workload matches")
    visit.is_clean()


def test_rows_that_were_never_shown_can_be_moved_and_killed(
    stack: RunningStack, visit: Visit, own_line: LongQueue
) -> None:
    """All can be selected; moving to the end puts them behind entries that the page has never requested."""
    visit.go(f"/queues/{own_line.name}")
    visit.put("[aria-label='Filter waiting workloads']", f"{own_line.name}-00")
    visit.press("Select these 10")
    visit.shows("10 selected")
    visit.press("Move")
    choose(visit, "#bulk-place", "end")
    answer(visit, "Move 10 workloads?", "Move 10")

    def order() -> list[str]:
        found = stack.ask(lambda api: api.get(f"/queues/{own_line.name}"))["waiting"]
        return [str(each["id"]) for each in found]

    assert order() == own_line.ids[10:] + own_line.ids[:10]
    visit.go(f"/queues/{own_line.name}")
    visit.press("Select all")
    visit.shows(f"{COUNT} selected")
    visit.press("Kill")
    answer(visit, f"Kill {COUNT} workloads?", f"Kill {COUNT}")
    visit.shows("No workload waits here")
    assert order() == []
    visit.is_clean()
