"""The leader's tables never return to an older version, whatever order LISTs, deltas and own writes arrive in."""

import itertools

import msgspec
import pytest

from slipway.facts.core_objects import encode_fact
from slipway.model.facts import AllocationFact, PodFact
from slipway.scheduler.cluster import TOMBSTONES_MAX, Cluster, FactTable
from slipway.scheduler.cluster_sync import apply_delta
from slipway.streams.feed import Delta
from slipway.streams.ports import FeedOp


def test_an_older_version_changes_nothing() -> None:
    table: FactTable[str] = FactTable()
    assert table.put("k", "new", 5)

    assert not table.put("k", "old", 4)
    assert not table.drop("k", 4)
    assert table.get("k") == "new"


def test_what_was_deleted_stays_deleted_for_older_news() -> None:
    table: FactTable[str] = FactTable()
    table.put("k", "one", 1)
    table.drop("k", 7)

    assert not table.put("k", "late", 6)
    assert table.put("k", "made again", 8)


def test_a_list_removes_what_it_lacks_but_not_what_is_newer() -> None:
    table: FactTable[str] = FactTable()
    table.put("old", "x", 3)
    table.put("newer", "y", 12)
    table.replace({"listed": ("z", 9)}, 10)

    assert [table.get(key) for key in ("old", "newer", "listed")] == [None, "y", "z"]


def test_what_a_list_did_not_have_comes_back_by_news_only() -> None:
    """An entry of the feed that is older than the LIST, and was recorded and sent again, brings nothing back."""
    table: FactTable[str] = FactTable()
    table.replace({"listed": ("z", 9)}, 10)

    assert not table.put("gone before we began", "an old entry", 8)
    assert table.put("listed", "newer", 11)
    assert table.put("new", "made after the LIST", 12)
    assert len(table) == 2


def test_a_server_that_went_back_in_time_may_tell_of_versions_it_had_before() -> None:
    table: FactTable[str] = FactTable()
    table.replace({"listed": ("z", 9)}, 10)
    table.rewind({"listed": ("y", 4)})

    assert table.put("new", "made on the restored server", 5)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_any_order_of_news_ends_the_same(order: tuple[int, ...]) -> None:
    table: FactTable[str] = FactTable()
    news = (
        lambda: table.put("k", "v2", 2),
        lambda: table.put("k", "v4", 4),
        lambda: table.drop("k", 6),
        lambda: table.put("k", "v8", 8),
    )
    for index in order:
        news[index]()

    assert table.get("k") == "v8"


def test_an_unchanged_fact_is_no_change() -> None:
    table: FactTable[str] = FactTable()
    table.put("k", "same", 1)
    table.take_changes()
    before = table.generation
    table.put("k", "same", 2)

    assert table.generation == before
    assert table.take_changes() == []


def test_changes_are_told_once_with_what_was_before() -> None:
    table: FactTable[str] = FactTable()
    table.put("k", "a", 1)
    table.take_changes()
    table.put("k", "b", 2)
    table.put("k", "c", 3)
    table.put("x", "y", 4)
    table.drop("x", 5)

    assert table.take_changes() == [("a", "c"), (None, None)]
    assert table.take_changes() == []


def test_deletion_records_have_a_limit() -> None:
    table: FactTable[str] = FactTable()
    for index in range(TOMBSTONES_MAX + 5):
        table.drop(f"k{index}", 10)

    assert table.put("k0", "known again", 1), "the oldest is forgotten"
    assert not table.put(f"k{TOMBSTONES_MAX}", "late", 1)


@pytest.mark.parametrize(("node", "is_news"), [("node-1", False), ("node-2", True)])
def test_a_rank_that_is_where_it_was_put_is_no_reason_to_plan(node: str, is_news: bool) -> None:
    """The pod is stored all the same: it uses its node beyond the life of its allocation."""
    cluster = Cluster()
    uid = "0123abcd-0000-4000-8000-000000000000"
    admitted = AllocationFact(namespace="team", name="run", uid=uid, version=5, placements={0: "node-1"})
    cluster.allocations.put("team/run", admitted, 5)
    pod = PodFact(namespace="team", name="run-0123abcd-1-0", uid="p", node=node, allocation_uid=uid, attempt=1, rank=0)
    before = cluster.generation

    delta = Delta(kind="pods", op=FeedOp.PUT, key="team/run-0123abcd-1-0", rv="9", data=encode_fact(pod))
    assert apply_delta(cluster, delta) is is_news
    assert (cluster.generation != before) is is_news
    assert cluster.pods.take_changes() == [(None, pod)]


def test_a_backoff_of_a_clock_that_is_ahead_lasts_as_long_as_it_was_made_for() -> None:
    now = [1_000.0]
    table = Cluster(lambda: now[0]).allocations
    ahead = AllocationFact(
        namespace="default", name="job", uid="u", version=1, attempt=2, phase_since=1_600.0, not_before=1_602.0
    )
    table.put("default/job", ahead, 1)
    first = table.get("default/job")
    now[0] = 1_001.0
    table.put("default/job", msgspec.structs.replace(ahead, hold=True), 2)
    again = table.get("default/job")

    assert first is not None
    assert again is not None
    assert (first.not_before, again.not_before, again.hold) == (1_002.0, 1_002.0, True)


def test_a_backoff_of_a_clock_that_is_right_is_what_was_written() -> None:
    table = Cluster(lambda: 1_000.0).allocations
    fact = AllocationFact(
        namespace="default", name="job", uid="u", version=1, attempt=2, phase_since=999.0, not_before=1_029.0
    )
    table.put("default/job", fact, 1)

    assert table.get("default/job") == fact
