"""Events on their way to receivers, on virtual time: order, retries, dead letters, and which receiver delays which."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from slipway.api.webhooks import delivery
from slipway.api.webhooks.delivery import SILENCE_S, DeliveryLimits, WebhookDispatcher, WebhookRouter
from slipway.api.webhooks.formats import BodyFormat
from slipway.api.webhooks.hook import Config, Webhook
from slipway.api.webhooks.registry import WebhookRegistry
from slipway.api.webhooks.sender import DeliveryResult, Message
from slipway.errors import DeniedError
from slipway.kube.errors import Verb
from slipway.model.events import AllocationEvent
from slipway.model.times import format_time
from slipway.runtime import telemetry
from slipway.runtime.clock import SeededRandom
from slipway.runtime.service import ServiceStop
from slipway.streams import keys
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import DeadLetter, StreamEntry
from tests.support.kube_core import CoreKube
from tests.support.otlp import collector
from tests.support.redis import an_event
from tests.support.small_cluster import a_client, a_core, furnish
from tests.support.virtual_time import VirtualClock, run_virtual
from tests.unit.runtime.test_telemetry import RecordingSink

NAMESPACE = "slipway-system"
OK = DeliveryResult(delivered=True, status=200)
ERROR = DeliveryResult(delivered=False, status=500, detail="answered 500")
GONE = DeliveryResult(delivered=False, status=410, detail="answered 410", is_final=True)


class Receivers:
    """What receivers answer, by webhook; `seen` is what reached them, with the time."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.seen: list[tuple[str, str, float]] = []
        self.answers: dict[str, Callable[[Message], Awaitable[DeliveryResult]]] = {}
        self.under_way: dict[str, int] = {}
        self.most: dict[str, int] = {}

    async def send(self, webhook: Webhook, message: Message) -> DeliveryResult:
        name = webhook.name
        self.seen.append((name, message.id, self.clock.monotonic()))
        self.under_way[name] = self.under_way.get(name, 0) + 1
        self.most[name] = max(self.most.get(name, 0), self.under_way[name])
        try:
            answer = self.answers.get(name)
            return await answer(message) if answer is not None else OK
        finally:
            self.under_way[name] -= 1

    def ids(self, name: str) -> list[str]:
        return [message_id for webhook, message_id, _ in self.seen if webhook == name]


class WebhookHarness:
    """A cluster that keeps webhooks, a Redis, receivers, and replicas of the api as far as webhooks go."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kube: CoreKube = a_client(a_core(self.clock.now))
        self.server = MemoryServer(self.clock)
        self.receivers = Receivers(self.clock)
        self.registry = self.a_registry()
        self.tasks: asyncio.TaskGroup | None = None

    def a_registry(self) -> WebhookRegistry:
        return WebhookRegistry(self.kube, self.clock, SeededRandom(2), namespace=NAMESPACE)

    async def add(self, name: str, **config: Any) -> None:
        settings = msgspec.convert({"url": "https://a.example/", **config}, Config)
        await self.registry.create(Webhook(name=name, config=settings, key=b"k" * 32))

    def replica(
        self, tasks: asyncio.TaskGroup, name: str = "api-0", *, stop: ServiceStop | None = None, **limits: Any
    ) -> asyncio.Task[None]:
        """A process; cancelling it is kill -9, `stop` is SIGTERM."""
        return tasks.create_task(self._serve(name, DeliveryLimits(**limits), stop or ServiceStop()))

    def count_lists(self) -> list[str]:
        """What is LISTed from now on, by plural."""
        found: list[str] = []

        async def seen(verb: Verb, plural: str) -> None:
            if verb is Verb.LIST:
                found.append(plural)

        self.kube.before = seen
        return found

    async def publish(self, *seqs: int, name: str = "train") -> None:
        streams = MemoryStreams(self.server)
        await streams.events.append([StreamEntry(event=self.event(seq, name)) for seq in seqs])

    def event(self, seq: int, name: str = "train") -> AllocationEvent:
        return an_event(seq, name=name, time=format_time(self.clock.now()))

    async def letters(self) -> list[DeadLetter]:
        return await MemoryStreams(self.server).dead.page()

    async def backlog(self, name: str) -> int:
        return (await MemoryStreams(self.server).webhooks("test").backlog([name]))[0]

    async def _serve(self, name: str, limits: DeliveryLimits, stop: ServiceStop) -> None:
        queues, registry = MemoryStreams(self.server).webhooks(name), self.a_registry()
        dispatcher = WebhookDispatcher(
            queues, registry, self.receivers, clock=self.clock, random=SeededRandom(name), limits=limits
        )
        router = WebhookRouter(queues, registry, self.clock, routed=dispatcher.wake)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(registry.run(stop))
            tasks.create_task(dispatcher.run(stop))
            tasks.create_task(self._loop(router.step, stop))
            tasks.create_task(self._loop(lambda: dispatcher.step(is_first=router.is_first), stop))

    async def _loop(self, step: Callable[[], Awaitable[float]], stop: ServiceStop) -> None:
        while not stop.is_set():
            await self.clock.sleep(max(0.001, await step()))


def run_with_harness(story: Callable[[WebhookHarness, asyncio.TaskGroup], Coroutine[Any, Any, None]]) -> None:
    """Run `story` on virtual time, and end what it started."""

    async def main() -> None:
        harness = WebhookHarness()
        await furnish(harness.kube)
        async with asyncio.TaskGroup() as tasks:
            before = asyncio.all_tasks()
            await story(harness, tasks)
            for task in asyncio.all_tasks() - before:
                task.cancel()

    run_virtual(main)


def ids(*seqs: int, name: str = "train") -> list[str]:
    return [f"{name}-0123abcd/{seq}" for seq in seqs]


def test_events_go_out_in_order_each_once() -> None:
    """Each webhook gets the events that it wants, each once and in the order of their seq; then its queue is empty."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        await harness.add("all")
        await harness.add("none", events=["running"])
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.publish(1, 2, 3)
        await harness.publish(4)
        await harness.clock.sleep(5)
        assert harness.receivers.ids("all") == ids(1, 2, 3, 4)
        assert harness.receivers.ids("none") == []
        assert await harness.backlog("all") == 0

    run_with_harness(story)


def test_each_webhook_gets_the_form_that_it_reads() -> None:
    """The same event as a CloudEvent for programs and as a message for a chat; a new form holds from its change on."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        got: list[tuple[str, set[str]]] = []

        async def answer(message: Message) -> DeliveryResult:
            got.append((message.content_type.partition(";")[0], set(msgspec.json.decode(message.body))))
            return OK

        await harness.add("program")
        await harness.add("chat", format="slack", pageUrl="https://slipway.example.org")
        harness.receivers.answers |= {"program": answer, "chat": answer}
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.publish(1)
        await harness.clock.sleep(5)
        chat = ("application/json", {"text", "blocks"})
        assert chat in got
        assert [kind for kind, _ in got if kind == "application/cloudevents+json"] == ["application/cloudevents+json"]
        found = await harness.registry.get("chat")
        changed = msgspec.structs.replace(found.config, format=BodyFormat.TEAMS)
        await harness.registry.replace(msgspec.structs.replace(found, config=changed))
        await harness.publish(2)
        await harness.clock.sleep(5)
        assert ("application/json", {"type", "attachments"}) in got[2:]

    run_with_harness(story)


def test_an_event_goes_out_at_once() -> None:
    """An event is delivered within a fraction of a second, also if no event came for some time before."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        await harness.add("hook")
        harness.replica(tasks)
        for seq in range(1, 6):
            await harness.clock.sleep(7.3)
            published_s = harness.clock.monotonic()
            await harness.publish(seq)
            await harness.clock.sleep(1)
            assert harness.receivers.ids("hook")[-1] == ids(seq)[0]
            assert harness.receivers.seen[-1][2] - published_s < 0.1

    run_with_harness(story)


def test_an_event_reaches_a_webhook_that_was_there_before_it() -> None:
    """The webhook is made only a moment before the event."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.publish(1, name="early")
        await harness.clock.sleep(2)
        await harness.add("new")
        await harness.publish(1)
        await harness.clock.sleep(5)
        assert harness.receivers.ids("new") == ids(1)

    run_with_harness(story)


def test_an_event_reaches_a_webhook_although_the_watch_shows_it_later() -> None:
    """The webhook gets each event since it was made, once and in order, and none from before."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        await harness.add("old")
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.publish(1, name="early")
        await harness.clock.sleep(5)
        harness.kube.is_stalled = True
        await harness.add("new")
        await harness.publish(1, 2)
        await harness.clock.sleep(1)
        assert harness.receivers.ids("new") == []
        harness.kube.is_stalled = False
        await harness.add("other", events=["preempting"])
        await harness.publish(3)
        await harness.clock.sleep(5)
        assert harness.receivers.ids("new") == ids(1, 2, 3)
        assert harness.receivers.ids("old") == ids(1, name="early") + ids(1, 2, 3)

    run_with_harness(story)


def test_the_webhooks_are_listed_once() -> None:
    """However many batches are routed and delivered, no further LIST is needed; changes come by the watch."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        await harness.add("hook")
        harness.replica(tasks)
        await harness.clock.sleep(5)
        lists = harness.count_lists()
        for seq in range(1, 21):
            await harness.publish(seq)
            await harness.clock.sleep(4)
        [webhook] = (await harness.registry.listed()).values()
        await harness.registry.delete(webhook)
        await harness.publish(21)
        await harness.clock.sleep(120)
        assert harness.receivers.ids("hook") == ids(*range(1, 21))
        assert lists == ["secrets"], "the one of this test"

    run_with_harness(story)


def test_events_go_out_while_the_webhooks_cannot_be_watched() -> None:
    """Without a watch the webhooks are LISTed each time that events are routed."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        async def refuse(verb: Verb, plural: str) -> None:
            if (verb, plural) == (Verb.WATCH, "secrets"):
                raise DeniedError("slipway-api cannot watch secrets")

        harness.kube.before = refuse
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.add("hook")
        await harness.publish(1)
        await harness.clock.sleep(5)
        assert harness.receivers.ids("hook") == ids(1)

    run_with_harness(story)


def test_a_failed_try_is_repeated_and_holds_back_what_follows_of_its_subject() -> None:
    """Pauses grow; other subjects go on meanwhile; a Retry-After is honoured."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        failures = {ids(1)[0]: [ERROR, ERROR, msgspec.structs.replace(ERROR, status=503, retry_after_s=40.0)]}

        async def answer(message: Message) -> DeliveryResult:
            left = failures.get(message.id)
            return left.pop(0) if left else OK

        await harness.add("hook")
        harness.receivers.answers["hook"] = answer
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.publish(1, 2)
        await harness.publish(1, name="other")
        await harness.clock.sleep(60)
        assert [each for each in harness.receivers.ids("hook") if each.startswith("train")] == ids(1, 1, 1, 1, 2)
        times = [at_s for _, message_id, at_s in harness.receivers.seen if message_id in ids(1)]
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert 0.5 <= pauses[0] <= 1.1
        assert 1.0 <= pauses[1] <= 2.1
        assert 40.0 <= pauses[2] <= 41.1
        [other_at_s] = [at_s for _, message_id, at_s in harness.receivers.seen if message_id.startswith("other")]
        assert other_at_s - times[0] < 0.5

    run_with_harness(story)


def test_an_abandoned_delivery_is_a_dead_letter_and_can_be_replayed() -> None:
    """After the budget there is a dead letter with webhook, event and cause; the next event of the subject goes out."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        is_broken = True

        async def answer(message: Message) -> DeliveryResult:
            return ERROR if is_broken and message.id == ids(1)[0] else OK

        await harness.add("hook")
        harness.receivers.answers["hook"] = answer
        harness.replica(tasks, retry_s=600.0)
        await harness.clock.sleep(5)
        await harness.publish(1, 2)
        await harness.clock.sleep(1_000)
        [letter] = await harness.letters()
        assert (letter.source, letter.cause) == (keys.DEAD_DELIVERY, "answered 500")
        assert (letter.fields["webhook"], letter.fields["id"]) == ("hook", ids(1)[0])
        assert letter.deliveries > delivery.TRIES_MIN
        assert harness.receivers.ids("hook")[-1] == ids(2)[0]
        is_broken = False
        assert await MemoryStreams(harness.server).dead.replay(letter.id)
        await harness.clock.sleep(5)
        assert harness.receivers.ids("hook")[-1] == ids(1)[0]
        assert (await harness.letters(), await harness.backlog("hook")) == ([], 0)

    run_with_harness(story)


def test_what_can_never_be_delivered_is_given_up_at_once() -> None:
    """An event that is answered with 410 Gone becomes a dead letter without another try."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        async def answer(_message: Message) -> DeliveryResult:
            return GONE

        await harness.add("hook")
        harness.receivers.answers["hook"] = answer
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.publish(1)
        await harness.clock.sleep(5)
        assert harness.receivers.ids("hook") == ids(1)
        assert [letter.cause for letter in await harness.letters()] == ["answered 410"]

    run_with_harness(story)


def test_a_dead_receiver_holds_up_no_other_one() -> None:
    """A hundred events for one that hangs: the other has all of its own within seconds."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        async def hang(_message: Message) -> DeliveryResult:
            await harness.clock.sleep(10)
            return DeliveryResult(delivered=False, detail="no answer within 10 s")

        await harness.add("dead")
        await harness.add("good")
        harness.receivers.answers["dead"] = hang
        harness.replica(tasks, concurrency=4)
        await harness.clock.sleep(5)
        for number in range(100):
            await harness.publish(1, name=f"run{number}")
        await harness.clock.sleep(10)
        assert len(harness.receivers.ids("good")) == 100
        assert harness.receivers.most["dead"] == 4
        assert await harness.backlog("dead") == 100

    run_with_harness(story)


def test_tries_to_one_receiver_are_bounded() -> None:
    """There are never more tries at once than the limit, however many subjects there are."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        async def slow(_message: Message) -> DeliveryResult:
            await harness.clock.sleep(0.5)
            return OK

        await harness.add("hook")
        harness.receivers.answers["hook"] = slow
        harness.replica(tasks, concurrency=8)
        await harness.clock.sleep(5)
        for number in range(60):
            await harness.publish(1, name=f"run{number}")
        await harness.clock.sleep(30)
        assert harness.receivers.most["hook"] == 8
        assert len(harness.receivers.ids("hook")) == 60

    run_with_harness(story)


def test_several_replicas_deliver_each_event_once() -> None:
    """One replica works at a time; when it is killed another one goes on, and nothing is lost."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        await harness.add("hook")
        first = harness.replica(tasks, "api-0")
        harness.replica(tasks, "api-1")
        harness.replica(tasks, "api-2")
        await harness.clock.sleep(10)
        for seq in range(1, 21):
            await harness.publish(seq)
            await harness.clock.sleep(0.1)
        await harness.clock.sleep(5)
        assert harness.receivers.ids("hook") == ids(*range(1, 21))
        first.cancel()
        await harness.publish(21)
        await harness.clock.sleep(SILENCE_S + 10)
        assert harness.receivers.ids("hook") == ids(*range(1, 22))

    run_with_harness(story)


def test_a_restarted_process_continues_its_pending_deliveries() -> None:
    """A process of the same name goes on at once, another one after a while. Each event is delivered at least once."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        async def hang(_message: Message) -> DeliveryResult:
            await asyncio.Event().wait()
            return OK

        await harness.add("hook")
        harness.receivers.answers["hook"] = hang
        killed = harness.replica(tasks, "api-0")
        await harness.clock.sleep(5)
        await harness.publish(1)
        await harness.clock.sleep(2)
        assert harness.receivers.ids("hook") == ids(1)
        killed.cancel()
        await harness.clock.sleep(1)
        del harness.receivers.answers["hook"]
        restarted_s = harness.clock.monotonic()
        harness.replica(tasks, "api-0")
        await harness.clock.sleep(10)
        assert harness.receivers.ids("hook") == ids(1, 1)
        assert harness.receivers.seen[-1][2] - restarted_s < 6
        assert await harness.backlog("hook") == 0

    run_with_harness(story)


def test_a_process_that_is_stopped_finishes_its_tries_and_leaves_the_rest() -> None:
    """At SIGTERM what is under way is delivered and removed, and what waits is left to the next; nothing comes
    twice."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        async def slow(message: Message) -> DeliveryResult:
            await harness.clock.sleep(2.0)
            return ERROR if message.id.startswith("waiting") else OK

        await harness.add("hook")
        harness.receivers.answers["hook"] = slow
        stop = ServiceStop()
        first = harness.replica(tasks, "api-0", stop=stop)
        await harness.clock.sleep(5)
        await harness.publish(1, name="waiting")
        await harness.clock.sleep(3)
        await harness.publish(1, 2)
        await harness.clock.sleep(1)
        stop.set()
        await first
        assert harness.receivers.ids("hook").count(ids(1)[0]) == 1
        del harness.receivers.answers["hook"]
        harness.replica(tasks, "api-0")
        await harness.clock.sleep(10)
        assert [each for each in harness.receivers.ids("hook") if each.startswith("train")] == ids(1, 2)
        assert harness.receivers.ids("hook")[-1] != ids(1)[0]
        assert await harness.backlog("hook") == 0

    run_with_harness(story)


def test_a_flush_of_redis_costs_no_event_and_nothing_twice() -> None:
    """Events that are published again were delivered before, and the process that delivered them does not send them
    again."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        await harness.add("hook")
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.publish(1, 2)
        await harness.clock.sleep(5)
        harness.server.flush()
        await harness.publish(1, 2, 3)  # what the watcher does
        await harness.clock.sleep(10)
        assert harness.receivers.ids("hook") == ids(1, 2, 3)

    run_with_harness(story)


def test_what_a_disabled_or_removed_webhook_was_to_be_sent_is_dropped() -> None:
    """Other webhooks go on."""

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        async def fail(_message: Message) -> DeliveryResult:
            return ERROR

        await harness.add("off")
        await harness.add("gone")
        harness.receivers.answers |= {"off": fail, "gone": fail}
        harness.replica(tasks)
        await harness.clock.sleep(5)
        await harness.publish(1)
        await harness.clock.sleep(5)
        off = await harness.registry.get("off")
        disabled = msgspec.structs.replace(off.config, enabled=False)
        await harness.registry.replace(msgspec.structs.replace(off, config=disabled))
        await harness.registry.delete(await harness.registry.get("gone"))
        await harness.clock.sleep(120)
        tried = len(harness.receivers.seen)
        await harness.publish(2)
        await harness.clock.sleep(120)
        assert len(harness.receivers.seen) == tried
        assert (await harness.backlog("off"), await harness.letters()) == (0, [])

    run_with_harness(story)


def test_each_try_is_in_the_trace_of_its_allocation() -> None:
    """A try links to the try before, the receiver gets its trace, and a collector gets how it ended; no other log
    does."""
    root = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    told: list[str] = []

    async def first_fails(message: Message) -> DeliveryResult:
        told.append(message.traceparent)
        return ERROR if len(told) == 1 else OK

    async def story(harness: WebhookHarness, tasks: asyncio.TaskGroup) -> None:
        harness.receivers.answers["hook"] = first_fails
        await harness.add("hook")
        harness.replica(tasks)
        await harness.clock.sleep(5)
        event = msgspec.structs.replace(harness.event(1), traceparent=root)
        await MemoryStreams(harness.server).events.append([StreamEntry(event=event)])
        await harness.clock.sleep(30)

    kept = RecordingSink()
    with collector("http/protobuf") as collected:
        telemetry.setup("api", sink=kept, otlp_endpoint=collected.endpoint)
        try:
            run_with_harness(story)
        finally:
            telemetry.shutdown()
        first, second = sorted(collected.spans, key=lambda span: span.start_ns)
    assert told == [f"00-{span.trace}-{span.id}-01" for span in (first, second)]
    assert {(span.trace, span.parent, span.kind) for span in (first, second)} == {(root[3:35], root[36:52], "client")}
    assert (first.links, second.links) == ((), ((first.trace, first.id),))
    assert [span.attributes["http.response.status_code"] for span in (first, second)] == [500, 200]
    assert (first.is_error, second.is_error) == (True, False)
    assert kept.spans == []
