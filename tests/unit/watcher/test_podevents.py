"""Events of pods become lines of their logs: each once, whichever watcher runs, and distinct from the ranks' own
lines."""

import asyncio
from typing import Any

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.errors import Verb
from slipway.kube.objects import Pod
from slipway.kube.resources import EVENTS
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time
from slipway.runtime.service import ServiceStop
from slipway.streams.logpacks import LogLine
from tests.support.watcher_harness import WatcherHarness, play


async def happen(harness: WatcherHarness, pod: Pod, name: str, reason: str, message: str, **fields: Any) -> None:
    """Create an Event as a kubelet does."""
    now = format_time(harness.clock.now(), "seconds")
    about = {"kind": "Pod", "namespace": "default", "name": pod.metadata.name, "uid": pod.metadata.uid}
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Normal",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        **fields,
    }
    await harness.kube.create(EVENTS, body)


async def again(harness: WatcherHarness, name: str, count: int) -> None:
    """Raise the count of the Event, as for a repeat."""
    now = format_time(harness.clock.now(), "seconds")
    await harness.kube.patch(EVENTS, name, {"count": count, "lastTimestamp": now}, namespace="default")


async def lines(harness: WatcherHarness, allocation: Allocation) -> list[LogLine]:
    return [item.line for item in await harness.streams.logs.read(id_of(allocation)) if item.line.stream == "event"]


async def a_running_pod(harness: WatcherHarness) -> tuple[Allocation, Pod]:
    await harness.launch("n0")
    allocation = await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
    [pod] = await harness.pods()
    return allocation, pod


def test_an_event_of_a_pod_is_a_line_of_its_rank() -> None:
    """An Event of a pod becomes a readable line with the Event's time, rank and attempt, which is marked as no output
    of the rank."""

    async def story(harness: WatcherHarness) -> None:
        allocation, pod = await a_running_pod(harness)
        at = format_time(harness.clock.now(), "seconds")
        await happen(harness, pod, "e1", "Pulling", 'Pulling image "python:3.11"')
        await happen(harness, pod, "e2", "Created", "Created container: main")
        await harness.clock.sleep(1)
        [line] = await lines(harness, allocation)
        assert (line.text, line.rank, line.attempt) == ("Pulling image python:3.11", 0, 1)
        assert line.time[:19] == at[:19]

    play(story)


def test_events_of_other_pods_are_not_logged() -> None:
    """Events of other pods, and of other kinds of objects, do not become lines."""

    async def story(harness: WatcherHarness) -> None:
        allocation, pod = await a_running_pod(harness)
        other = pod.metadata
        await happen(harness, pod, "e1", "Pulled", "x", involvedObject={"kind": "Node", "name": "n0", "uid": other.uid})
        about = {"kind": "Pod", "namespace": "default", "name": "web-0", "uid": "other"}
        await happen(harness, pod, "e2", "Pulled", "x", involvedObject=about)
        about = {"kind": "Pod", "namespace": "default", "name": f"{id_of(allocation)[:-1]}0-1-0", "uid": "other"}
        await happen(harness, pod, "e3", "Pulled", "x", involvedObject=about)
        await harness.clock.sleep(1)
        assert await lines(harness, allocation) == []

    play(story)


def test_an_event_of_a_pod_that_is_gone_is_still_told() -> None:
    """An Event of a deleted pod still becomes a line: the pod's name identifies its rank."""

    async def story(harness: WatcherHarness) -> None:
        allocation, pod = await a_running_pod(harness)
        about = {"kind": "Pod", "namespace": "default", "name": pod.metadata.name, "uid": "an earlier pod"}
        await happen(harness, pod, "e1", "Evicted", "The node was low on memory.", involvedObject=about)
        await harness.clock.sleep(1)
        [line] = await lines(harness, allocation)
        assert line.text == "evicted: The node was low on memory."

    play(story)


def test_repeats_are_folded() -> None:
    """Repeats are reported at the first, then whenever their number has doubled."""

    async def story(harness: WatcherHarness) -> None:
        allocation, pod = await a_running_pod(harness)
        await happen(harness, pod, "e1", "BackOff", 'Back-off pulling image "a"')
        for count in range(2, 11):
            await harness.clock.sleep(1)
            await again(harness, "e1", count)
        await harness.clock.sleep(1)
        said = "Waiting for image a: the pull failed and is retried"
        found = [line.text for line in await lines(harness, allocation)]
        assert found == [said, f"{said} (2 times)", f"{said} (4 times)", f"{said} (8 times)"]

    play(story)


def test_a_watch_that_ends_is_taken_up_where_it_ended() -> None:
    """When the server ends the watch, as it does regularly, the watcher resumes it without a LIST, a gap or a
    repeat."""

    async def story(harness: WatcherHarness) -> None:
        allocation, pod = await a_running_pod(harness)
        lists: list[str] = []

        async def note(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.LIST, "events"):
                lists.append(plural)

        harness.its.before = note
        for number in range(6):
            await happen(harness, pod, f"e{number}", "FailedMount", f"volume {number}")
            await harness.clock.sleep(70)
        found = [line.text for line in await lines(harness, allocation)]
        assert found == [f"Waiting for a volume: volume {number}" for number in range(6)]
        assert lists == []

    play(story)


def test_a_restart_of_the_watcher_repeats_nothing_and_misses_nothing() -> None:
    """A restarted watcher reports the Events of the time in between, and does not repeat an Event or its count."""

    async def story(harness: WatcherHarness) -> None:
        stop = ServiceStop()
        watching = asyncio.ensure_future(harness.run(harness.watcher, stop))
        allocation, pod = await a_running_pod(harness)
        await happen(harness, pod, "e1", "Pulling", 'Pulling image "a"')
        await happen(harness, pod, "e2", "BackOff", 'Back-off pulling image "a"')
        await again(harness, "e2", 4)
        await harness.clock.sleep(1)
        before = [line.text for line in await lines(harness, allocation)]
        stop.set()
        await watching
        await happen(harness, pod, "e3", "Pulled", 'Successfully pulled image "a" in 2s')
        await again(harness, "e2", 6)
        await harness.clock.sleep(30)
        stop = ServiceStop()
        watching = asyncio.ensure_future(harness.run(harness.another("two"), stop))
        await harness.clock.sleep(30)
        assert [line.text for line in await lines(harness, allocation)] == [*before, "image pulled in 2 s"]
        stop.set()
        await watching

    play(story, watches=False)
