"""The pure parts of the api, without HTTP: strict reading, header rules, timelines, caches, capacity."""

import asyncio

import msgspec
import pytest

from slipway.api.allocations.view import timeline
from slipway.api.cluster.seen_nodes import SeenNode
from slipway.api.http.decoding import checked, object_of, place_of
from slipway.api.http.streaming import first_of
from slipway.api.http.ttl_cache import LoadingCache, Throttle
from slipway.api.launch.capacity import capacity_warnings, offers_of
from slipway.api.launch.overlays import merged
from slipway.api.proxy.headers import raw_fields, request_fields, response_fields, wire_fields
from slipway.crd.resolve import resolve
from slipway.errors import InvalidError, UnavailableError
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event, Phase
from slipway.runtime.tasks import TaskGroup
from tests.support.allocations import a_pool, an_allocation
from tests.support.clock import FakeClock
from tests.support.slow_load import SlowLoad, outcome, turns


class Inner(msgspec.Struct):
    count: int
    name: str | None = None


class Outer(msgspec.Struct, rename="camel"):
    inner_list: list[Inner] = []
    by_name: dict[str, Inner] = {}
    maybe: Inner | None = None


@pytest.mark.parametrize(
    ("value", "pointers"),
    [
        ({"innerList": [{"count": 1}], "maybe": None}, []),
        ({"inner_list": []}, ["/inner_list"]),
        ({"innerList": [{"count": 1}, {"count": "x"}]}, ["/innerList/1/count"]),
        ({"byName": {"a/b": {}}}, ["/byName/a~1b/count"]),
        ({"maybe": {"count": 1, "extra": 2}}, ["/maybe/extra"]),
        ({"maybe": [1], "innerList": {}}, ["/maybe", "/innerList"]),
    ],
)
def test_strict_reading_points_at_each_problem(value: dict[str, object], pointers: list[str]) -> None:
    """Each problem is named by its place: a JSON pointer, escaped as in RFC 6901."""
    if not pointers:
        checked(value, Outer)
        return
    with pytest.raises(InvalidError) as refused:
        checked(value, Outer)
    assert sorted(field.pointer for field in refused.value.fields) == sorted(pointers)


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("Expected `int`, got `str` - at `$.ranks[0].count`", ("/ranks/0/count", "must be a whole number, not text")),
        ("Expected `int`, got `str`", ("", "must be a whole number, not text")),
        ("Expected `str`, got `int` - at `$.env[...]`", ("/env", "must be text, not a whole number")),
    ],
)
def test_places_in_messages(message: str, place: tuple[str, str]) -> None:
    """The paths in messages of msgspec become JSON pointers, and the names of types become plain words."""
    assert place_of(message) == place


def test_depth_is_bounded() -> None:
    """32 levels are enough for any pod template."""
    object_of(b'{"a":' * 32 + b"1" + b"}" * 32)
    with pytest.raises(InvalidError, match="deeper than 32"):
        object_of(b'{"a":' * 33 + b"1" + b"}" * 33)


def test_merging() -> None:
    """Objects merge, lists and scalars are replaced, null takes away; nothing is changed in place."""
    under = {"a": {"x": 1, "y": 2}, "b": [1], "c": 3, "d": None}
    assert merged(under, {"a": {"y": None, "z": 4}, "b": [2], "c": None}) == {"a": {"x": 1, "z": 4}, "b": [2]}
    assert under["a"] == {"x": 1, "y": 2}


OWN = ("10.0.0.1:8888", "slipway.example")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/proxy/id/lab", "/proxy/id/lab"),
        ("/proxy/id", "/proxy/id/"),
        ("/there?x=1#y", "/proxy/id/there?x=1#y"),
        ("/proxy/idle", "/proxy/id/proxy/idle"),
        ("http://10.0.0.1:8888/x", "/proxy/id/x"),
        ("http://slipway.example/x", "/proxy/id/x"),
        ("http://SLIPWAY.example:80/api/v1/me", "/proxy/id/api/v1/me"),
        ("https://slipway.example:443/proxy/id/x", "/proxy/id/x"),
        ("//slipway.example/x", "/proxy/id/x"),
        ("http://slipway.example", "/proxy/id/"),
        ("http://slipway.example//evil.example/", "/proxy/id//evil.example/"),
        ("next?x=1", "next?x=1"),
        ("?page=2", "?page=2"),
        ("#part", "#part"),
        ("http://slipway.example?x=1", "/proxy/id/?x=1"),
        ("https://login.example/a?b#c", "https://login.example/a?b#c"),
        ("http://slipway.example:81/x", "http://slipway.example:81/x"),
        ("ftp://slipway.example/x", "ftp://slipway.example/x"),
        ("http://[", "http://["),
    ],
)
def test_a_redirect_to_the_workload_stays_below_its_path(said: str, told: str) -> None:
    """The redirect may name the workload's own address or the name that the client used; a redirect elsewhere is the
    client's to follow."""
    for name in ("Location", "Content-Location"):
        assert response_fields([(name, said)], own=OWN, prefix="/proxy/id") == [(name, told)]


def test_other_fields_are_left_alone() -> None:
    """Other fields are not changed, also an empty one, and bytes that are no ASCII."""
    fields = [("Link", "</x>"), ("X-Empty", ""), ("Content-Disposition", 'attachment; filename="\xc3\xbc.ipynb"')]
    assert response_fields(fields, own=OWN, prefix="/proxy/id") == fields
    raw = [(b"content-disposition", 'attachment; filename="日本語.ipynb"'.encode())]
    assert wire_fields(response_fields(raw_fields(raw), own=OWN, prefix="/proxy/id")) == raw
    with pytest.raises(ValueError, match="x-bad"):
        wire_fields([("x-bad", "a\x7fb")])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/proxy/id/lab", "/proxy/id/lab"),
        ("/proxy/id", "/proxy/id/"),
        ("/", "/proxy/id/"),
        ("/app", "/proxy/id/app"),
        ("relative", "/proxy/id/"),
        ("", "/proxy/id/"),
    ],
)
def test_a_cookie_keeps_its_path_below_that_of_its_workload(said: str, told: str) -> None:
    """The other attributes of the cookie stay, except Domain."""
    field = ("Set-Cookie", f"a=1; Path={said}; HttpOnly; Pathology=1; Domain=example; SameSite=Lax")
    kept = response_fields([field], own=OWN, prefix="/proxy/id")
    assert kept == [("Set-Cookie", f"a=1; Path={told}; HttpOnly; Pathology=1; SameSite=Lax")]


def test_fields_that_the_client_calls_hop_by_hop_end_here() -> None:
    """Fields that the client names in `Connection` are not passed on (RFC 9110)."""
    fields = [("Connection", "X-A, close"), ("X-A", "1"), ("X-B", "2"), ("Host", "h")]
    kept = dict(request_fields(fields, client="1.1.1.1", scheme="http", prefix="/p"))
    assert kept == {
        "X-B": "2",
        "Host": "h",
        "X-Forwarded-For": "1.1.1.1",
        "X-Forwarded-Host": "h",
        "X-Forwarded-Proto": "http",
        "X-Forwarded-Prefix": "/p",
    }


def an_event(seq: int, type_: Event, phase: Phase, second: int, attempt: int = 1) -> AllocationEvent:
    return AllocationEvent(
        allocation_id=AllocationId("a-01234567"),
        namespace="default",
        name="a",
        uid="01234567",
        created_ms=0,
        seq=seq,
        attempt=attempt,
        type=type_,
        phase=phase,
        time=f"2026-01-02T03:04:{second:02d}Z",
    )


def test_a_timeline_adds_up() -> None:
    """Each phase of each attempt is one span; the total is from first to last."""
    events = [
        an_event(1, Event.REQUESTED, Phase.PENDING, 0),
        an_event(2, Event.ASSIGNED, Phase.ASSIGNED, 2),
        an_event(3, Event.RUNNING, Phase.RUNNING, 5),
        an_event(4, Event.READY, Phase.RUNNING, 6),
        an_event(5, Event.RESTARTED, Phase.PENDING, 10, 2),
        an_event(6, Event.TERMINATED, Phase.TERMINATED, 13, 2),
    ]
    view = timeline(AllocationId("a-01234567"), events, now=0.0)
    assert [(span.phase, span.attempt, span.seconds) for span in view.spans] == [
        ("Pending", 1, 2.0),
        ("Assigned", 1, 3.0),
        ("Running", 1, 5.0),
        ("Pending", 2, 3.0),
    ]
    assert view.seconds_by_phase == {"Pending": 5.0, "Assigned": 3.0, "Running": 5.0}
    assert view.total_seconds == 13.0
    assert timeline(AllocationId("a-01234567"), events[:3], now=1_767_323_055.0).spans[-1].to is None


async def test_recent_loads_once_at_a_time_and_keeps_no_failure() -> None:
    """A burst costs one load; an error goes only to its own caller."""
    clock, loads = FakeClock(), list[int]()
    recent = LoadingCache[str, int](clock, ttl_s=1.0)

    async def load() -> int:
        loads.append(1)
        await asyncio.sleep(0)
        return len(loads)

    async def fail() -> int:
        raise UnavailableError("away")

    assert await asyncio.gather(*(recent.get("a", load) for _ in range(10))) == [1] * 10
    clock.advance(1.5)
    with pytest.raises(UnavailableError):
        await recent.get("a", fail)
    assert await recent.get("a", load) == 2
    recent.forget("a")
    assert await recent.get("a", load) == 3


@pytest.mark.parametrize("is_failing", [True, False])
async def test_recent_loads_once_at_a_time_after_a_load_without_a_value(is_failing: bool) -> None:
    """If a load fails, or takes longer than its value is good, its other callers load once more; later ones wait for
    that."""
    clock, load = FakeClock(), SlowLoad()
    recent = LoadingCache[str, int](clock, ttl_s=1.0)
    async with TaskGroup() as group:
        first, second = (group.create_task(outcome(recent.get("a", load))) for _ in range(2))
        await turns()
        clock.advance(2.0)
        if is_failing:
            load.ends[0].set_exception(UnavailableError("away"))
        else:
            load.ends[0].set_result(1)
        await asyncio.wait([first])
        third = group.create_task(outcome(recent.get("a", load)))
        await turns()
        assert load.running == 1
        load.ends[1].set_result(2)
    assert (second.result(), third.result()) == (2, 2)
    assert isinstance(first.result(), UnavailableError) == is_failing


async def test_recent_keeps_no_value_that_was_forgotten_while_it_was_loaded() -> None:
    """What a client has just written is read again, although an older read was in progress."""
    load = SlowLoad()
    recent = LoadingCache[str, int](FakeClock(), ttl_s=1.0)
    async with TaskGroup() as group:
        before = group.create_task(recent.get("a", load))
        await turns()
        recent.forget("a")
        after = group.create_task(recent.get("a", load))
        load.ends[0].set_result(1)
        await turns()
        assert len(load.ends) == 2
        load.ends[1].set_result(2)
    assert (before.result(), after.result(), await recent.get("a", load)) == (1, 2, 2)


def test_seldom_runs_at_most_once_per_interval() -> None:
    """Each key may act once in an interval."""
    clock = FakeClock()
    seldom = Throttle(clock, every_s=5.0)
    assert [seldom.may("a"), seldom.may("a"), seldom.may("b")] == [True, False, True]
    clock.advance(5.0)
    assert seldom.may("a")


async def test_first_of_cancels_the_others_and_raises_what_was_raised() -> None:
    """An error is not wrapped in a group."""
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def fail() -> None:
        raise UnavailableError("away")

    await first_of(forever(), asyncio.sleep(0))
    with pytest.raises(UnavailableError):
        await first_of(forever(), fail())
    assert ended == ["cancelled", "cancelled"]


def a_node(name: str, **labels: str) -> SeenNode:
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "status": status}, SeenNode)


@pytest.mark.parametrize(
    ("role", "selector", "words"),
    [
        ({"count": 2, "resources": {"cpu": 4}}, {}, []),
        ({"count": 3, "resources": {"cpu": 4}}, {}, ["needs 12 cpu at once", "has 8"]),
        ({"count": 1, "resources": {"cpu": 5}}, {}, ["no node", "5 cpu", "has 4"]),
        ({"count": 2, "resources": {"cpu": 4}}, {"zone": "a"}, ["needs 8 cpu", "has 4"]),
        ({"count": 1, "resources": {"cpu": 1}}, {"zone": "none"}, ["has no nodes"]),
        ({"count": 1, "resources": {"slipway.dev/gpu-milli": 500}}, {}, []),
    ],
)
def test_capacity(role: dict[str, object], selector: dict[str, str], words: list[str]) -> None:
    """Warnings are about whole nodes, and only about nodes of the pool."""
    pool = a_pool(nodeSelector=selector)
    wanted = an_allocation(
        kind="command", ranks=[role], template={"spec": {"containers": [{"name": "m", "image": "a"}]}}
    )
    complete = msgspec.structs.replace(wanted, spec=resolve(wanted, pool).spec)
    warnings = capacity_warnings(complete, pool, offers_of(pool, [a_node("n1", zone="a"), a_node("n2")]))
    assert len(warnings) == bool(words)
    assert all(word in warnings[0] for word in words)
