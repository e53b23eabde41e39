"""The reflector keeps its promises over faults: expiry, silence, lag, errors, all on virtual time."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from typing import Any

import msgspec
import pytest

from slipway.errors import ControlPlaneError, DeniedError, ExpiredError, ThrottledError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.objects import ConfigMap
from slipway.kube.reflector import BACKOFF_MAX_S, BACKOFF_RESET_S, BELOW_MAX, DOUBT_S, Backoff, Reflector
from slipway.kube.resources import CONFIG_MAPS
from slipway.kube.rest import WATCH_S_MAX, WATCH_S_MIN
from slipway.kube.store import ObjectStore
from slipway.local.apiserver.core import ClusterCore
from slipway.runtime import telemetry
from slipway.runtime.clock import SeededRandom
from tests.support.kube_core import BOOKMARK_S, CoreKube
from tests.support.virtual_time import VirtualClock, run_virtual


class ReflectorHarness:
    """A core, a reflector over it, and the changes that its listeners received."""

    def __init__(self, bookmark_s: float = BOOKMARK_S) -> None:
        uids = count(1)
        clock = VirtualClock()
        self.core = ClusterCore(clock=clock.now, new_uid=lambda: f"uid-{next(uids)}")
        self.core.bootstrap()
        self.kube = CoreKube(self.core, random=SeededRandom(2), bookmark_s=bookmark_s)
        self.store: ObjectStore[ConfigMap] = ObjectStore()
        self.reflector = Reflector(self.kube, CONFIG_MAPS, self.store, clock=clock, random=SeededRandom(3))
        self.heard: list[str] = []
        self.calls: list[tuple[float, Verb]] = []
        self.store.on_change(self._hear)
        self.kube.before = self._count

    def _hear(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        mark = "+" if old is None else "-" if new is None else "~"
        found = new or old
        assert found is not None
        self.heard.append(mark + found.metadata.name)

    async def _count(self, verb: Verb, _plural: str) -> None:
        self.calls.append((asyncio.get_running_loop().time(), verb))

    def fail(self, verb: Verb, *errors: ControlPlaneError) -> None:
        """Let the next calls of that verb fail."""
        waiting = list(errors)

        async def before(asked: Verb, plural: str) -> None:
            await self._count(asked, plural)
            if asked is verb and waiting:
                raise waiting.pop(0)

        self.kube.before = before

    def add(self, name: str) -> dict[str, Any]:
        return self.core.create("configmaps", "default", {"metadata": {"name": name}})

    async def until(self, check: Callable[[], bool]) -> None:
        """Wait until `check` is true; it is called after every call of the reflector."""
        for _ in range(1_000_000):
            if check():
                return
            await asyncio.sleep(0)
            await asyncio.sleep(0.01)
        raise AssertionError("it did not come to that")

    def times(self, verb: Verb) -> list[float]:
        return [moment for moment, asked in self.calls if asked is verb]


def in_world(test: Callable[[ReflectorHarness], Awaitable[None]], bookmark_s: float = BOOKMARK_S) -> None:
    """Run `test` beside a running reflector, then stops it."""

    async def main() -> None:
        harness, stop = ReflectorHarness(bookmark_s), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(harness.reflector.run(stop))
            await test(harness)
            stop.set()

    run_virtual(main)


def test_lists_once_then_follows() -> None:
    """The reflector is synced after one LIST; changes arrive by the watch, with no further LIST for an hour."""

    async def check(harness: ReflectorHarness) -> None:
        harness.add("a")
        assert not harness.reflector.synced
        await harness.reflector.wait_synced()
        harness.add("b")
        harness.core.delete("configmaps", "default", "a")
        await asyncio.sleep(3600)
        assert harness.heard == ["+a", "+b", "-a"]
        assert len(harness.times(Verb.LIST)) == 1
        assert 3600 / WATCH_S_MAX <= len(harness.times(Verb.WATCH)) <= 3600 / WATCH_S_MIN
        assert harness.reflector.restarts.keys() == {"ended"}
        assert harness.store.version == harness.core.version

    in_world(check)


def test_an_interruption_is_known_until_the_watch_goes_on() -> None:
    """An interruption lasts from the refusal of a watch until another has begun, also when no object changes."""

    async def check(harness: ReflectorHarness) -> None:
        await harness.reflector.wait_synced()
        assert harness.reflector.interruption == ""
        harness.fail(Verb.WATCH, UnavailableError("away"))
        await harness.until(lambda: harness.reflector.interruption == "away")
        since = asyncio.get_running_loop().time()
        await harness.until(lambda: harness.reflector.interruption == "")
        assert asyncio.get_running_loop().time() - since < WATCH_S_MIN

    in_world(check)


def test_a_watch_that_never_runs_is_not_late() -> None:
    """A watch that never runs is not late: an alert is for watches that received something long ago, not for unused
    ones."""
    unwatched = msgspec.structs.replace(CONFIG_MAPS, plural="watched-by-no-other-test")
    series = f'slipway_watch_heard_seconds{{resource="{unwatched.plural}"}}'

    def heard() -> bool:
        return series in telemetry.render_metrics("")[1].decode()

    async def main() -> None:
        harness, stop = ReflectorHarness(), asyncio.Event()
        reflector = Reflector(harness.kube, unwatched, harness.store, clock=VirtualClock(), random=SeededRandom(3))
        assert not heard()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run(stop))
            await harness.until(heard)
            stop.set()

    run_virtual(main)


def test_a_first_list_that_fails_is_an_interruption() -> None:
    """A first LIST that fails with any error is an interruption; a LIST that succeeds ends it."""

    async def check(harness: ReflectorHarness) -> None:
        await harness.until(lambda: harness.reflector.interruption == "gone while it was read")
        await harness.reflector.wait_synced()
        assert harness.reflector.interruption == ""

    async def main() -> None:
        harness, stop = ReflectorHarness(), asyncio.Event()
        harness.fail(Verb.LIST, ExpiredError("gone while it was read"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(harness.reflector.run(stop))
            await check(harness)
            stop.set()

    run_virtual(main)


def test_bookmarks_carry_the_position_over_a_compaction() -> None:
    """The position of a quiet resource does not expire while others write: the next watch continues from a bookmark."""

    async def check(harness: ReflectorHarness) -> None:
        await harness.reflector.wait_synced()
        for number in range(60):
            harness.core.create("namespaces", "", {"metadata": {"name": f"n{number}"}})
            await asyncio.sleep(30)
            harness.core.store.compact()
        assert harness.reflector.restarts["expired"] == 0
        assert len(harness.times(Verb.LIST)) == 1

    in_world(check)


def test_a_server_that_sends_no_bookmarks() -> None:
    """On a server without bookmarks a quiet resource is no fault: the server ends each watch within a minute, and the
    view is never treated as old."""

    async def check(harness: ReflectorHarness) -> None:
        await harness.reflector.wait_synced()
        for _ in range(600):
            await asyncio.sleep(1)
            assert harness.reflector.silent_s <= WATCH_S_MAX + 1
        assert harness.reflector.restarts.keys() == {"ended"}
        assert len(harness.times(Verb.LIST)) <= 1 + 600 / DOUBT_S, "looks at the history, each a LIST of one item"

    in_world(check, bookmark_s=float("inf"))


def test_an_expired_position_relists_and_tells_what_was_missed() -> None:
    """After 410 the reflector LISTs and reports missed changes: vanished objects as deleted, new ones as created,
    unchanged ones not at all."""

    async def check(harness: ReflectorHarness) -> None:
        for name in ["kept", "gone"]:
            harness.add(name)
        await harness.reflector.wait_synced()
        await asyncio.sleep(1)
        harness.kube.is_stalled = True
        harness.core.delete("configmaps", "default", "gone")
        harness.add("new")
        harness.core.store.compact()
        harness.kube.is_stalled = False
        await asyncio.sleep(120)
        assert harness.heard == ["+gone", "+kept", "-gone", "+new"]
        assert harness.reflector.restarts["expired"] == 1

    in_world(check)


def test_a_silent_watch_is_given_up() -> None:
    """A silent watch with an open socket is replaced within the silence limit; no change is missed."""

    async def check(harness: ReflectorHarness) -> None:
        await harness.reflector.wait_synced()
        harness.kube.is_stalled = True
        harness.add("missed")
        await asyncio.sleep(39)
        assert harness.heard == []
        assert harness.reflector.silent_s >= 39
        harness.kube.is_stalled = False
        await asyncio.sleep(5)
        assert harness.heard == ["+missed"]

    in_world(check)


def test_a_stalled_watch_counts_as_unavailable() -> None:
    """While the silence lasts, watches are opened again and again, with backoff, each after a LIST of one item."""

    async def check(harness: ReflectorHarness) -> None:
        await harness.reflector.wait_synced()
        await asyncio.sleep(1)
        harness.kube.is_stalled = True
        await asyncio.sleep(600)
        assert 8 <= harness.reflector.restarts["unavailable"] <= 16
        assert len(harness.times(Verb.LIST)) == 1 + harness.reflector.restarts["unavailable"]

    in_world(check)


def test_it_never_gives_up_and_backs_off() -> None:
    """After thirty refusals of any kind the reflector still LISTs; the pauses rise to half a minute at most."""

    async def check(harness: ReflectorHarness) -> None:
        errors: list[ControlPlaneError] = [UnavailableError("down"), DeniedError("no"), ExpiredError("old")] * 10
        harness.fail(Verb.LIST, *errors)
        harness.add("a")
        await harness.reflector.wait_synced()
        moments = harness.times(Verb.LIST)
        waits = [later - earlier for earlier, later in pairwise(moments)]
        assert len(waits) == 30
        assert 0.4 <= waits[0] <= 0.8
        assert all(wait <= BACKOFF_MAX_S for wait in waits)
        assert all(wait >= BACKOFF_MAX_S / 2 for wait in waits[8:])

    in_world(check)


def test_the_server_may_ask_for_more_time() -> None:
    """Retry-After is honoured when it is longer than the backoff."""

    async def check(harness: ReflectorHarness) -> None:
        harness.fail(Verb.LIST, ThrottledError("slow", retry_after_s=77))
        await harness.reflector.wait_synced()
        assert harness.times(Verb.LIST)[1] >= 77

    in_world(check)


def test_a_list_from_the_past_is_refused() -> None:
    """A LIST of a lagging replica deletes nothing; it is repeated until it has the highest version seen."""

    async def check(harness: ReflectorHarness) -> None:
        lagging = harness.core.version
        harness.add("a")
        await harness.reflector.wait_synced()
        await asyncio.sleep(1)
        harness.kube.lists_at = lagging
        harness.fail(Verb.WATCH, ExpiredError("relist"))
        harness.core.create("namespaces", "", {"metadata": {"name": "other"}})
        lists = len(harness.times(Verb.LIST))
        await harness.until(lambda: len(harness.times(Verb.LIST)) == lists + BELOW_MAX - 1)
        assert harness.heard == ["+a"]
        harness.kube.lists_at = None
        harness.add("b")
        await asyncio.sleep(60)
        assert harness.heard == ["+a", "+b"]
        assert harness.reflector.restarts["rewound"] == 0

    in_world(check)


@pytest.mark.parametrize("breaks", [True, False], ids=["the watch breaks", "the watch ends quietly"])
def test_a_server_that_went_back_in_time_is_read_anew(breaks: bool) -> None:
    """After etcd was restored from an older copy, the store takes the current objects of the server, and follows it
    from there."""

    async def check(harness: ReflectorHarness) -> None:
        harness.add("kept")
        harness.add("deleted-later")
        await harness.reflector.wait_synced()
        older = copy.deepcopy(harness.core)
        harness.add("lost")
        harness.core.delete("configmaps", "default", "deleted-later")
        for _ in range(50):
            harness.core.patch("configmaps", "default", "kept", {"data": {"n": str(_)}})
        await asyncio.sleep(1)
        assert harness.heard[-1] == "~kept"
        harness.heard.clear()
        harness.core = harness.kube.core = older
        if breaks:
            harness.fail(Verb.WATCH, UnavailableError("the server starts"))
        await asyncio.sleep(60 + (0 if breaks else DOUBT_S + 60))
        assert sorted(harness.heard) == ["+deleted-later", "-lost", "~kept"]
        assert harness.reflector.restarts["rewound"] == 1
        assert harness.store.version == older.version
        harness.add("new")
        await asyncio.sleep(1)
        assert harness.heard[-1] == "+new"
        kept = harness.store.get("kept", "default")
        assert kept is not None
        assert kept.data == {}

    in_world(check)


def test_watches_that_end_at_once_do_not_spin() -> None:
    """When a server closes each watch as soon as it opens, new watches are opened with backoff."""

    async def check(harness: ReflectorHarness) -> None:
        await harness.reflector.wait_synced()
        watches_before = len(harness.times(Verb.WATCH))
        harness.kube.closes_watches = True
        await asyncio.sleep(1200)
        assert len(harness.times(Verb.WATCH)) - watches_before < 60

    in_world(check)


def test_backoff_is_reset_by_two_good_minutes() -> None:
    """After two minutes without failure the backoff starts from the shortest delay again."""

    async def main() -> None:
        clock = VirtualClock()
        backoff = Backoff(clock, SeededRandom(1))
        for _ in range(8):
            await clock.sleep(backoff.next_s())
        assert backoff.next_s() >= BACKOFF_MAX_S / 2
        await clock.sleep(BACKOFF_MAX_S + BACKOFF_RESET_S)
        assert backoff.next_s() <= 0.8

    run_virtual(main)


def test_own_writes_become_current() -> None:
    """An own write is current once the watch has delivered its version; until then `expect` marks it as not current."""

    async def check(harness: ReflectorHarness) -> None:
        await harness.reflector.wait_synced()
        made = harness.add("a")["metadata"]
        harness.store.expect(made["uid"], int(made["resourceVersion"]))
        assert not harness.store.is_current(made["uid"])
        await asyncio.sleep(1)
        assert harness.store.is_current(made["uid"])

    in_world(check)


def test_equal_runs_are_equal() -> None:
    """The same faults at the same times give the same calls at the same times."""

    def run() -> list[tuple[float, Verb]]:
        seen: list[tuple[float, Verb]] = []

        async def check(harness: ReflectorHarness) -> None:
            harness.fail(Verb.WATCH, *[UnavailableError("x")] * 5)
            for number in range(20):
                harness.add(f"m{number}")
                await asyncio.sleep(50)
            seen.extend(harness.calls)

        in_world(check)
        return seen

    assert run() == run()
