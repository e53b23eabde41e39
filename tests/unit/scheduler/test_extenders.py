"""A pool with extenders: who is asked, how long a tick waits for them, and what happens while they fail."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from slipway.crd.meta import condition_of
from slipway.crd.v1alpha1 import ExtenderSpec
from slipway.facts.custom_resources import extender_fact
from slipway.kube.extender import ExtenderClient
from slipway.kube.extender_wire import ExtenderFault
from slipway.kube.resources import ALLOCATIONS, QUEUES, RESOURCE_POOLS
from slipway.model.facts import AllocationFact, ExtenderFact, NodeFact, PodFact, RoleFact
from slipway.model.lifecycle import Phase
from slipway.runtime.clock import Clock, SeededRandom, SystemClock
from slipway.runtime.health import ProcessHealth
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler.extenders import ANSWER_S, PATIENCE_S, PAUSE_FIRST_S, Extenders
from slipway.scheduler.leader import Scheduler
from slipway.scheduler.plan.state.extender_results import ExtenderVerb, Question, VictimOffer, VictimRank
from slipway.scheduler.plan.state.nodes import NodeTable
from slipway.scheduler.settings import Settings
from slipway.scheduler.standby import SchedulerDeps
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.extender import an_extender, names_of, passes, say
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish, launch, look
from tests.support.virtual_time import VirtualClock, run_virtual

TABLE = NodeTable([NodeFact(name="n0"), NodeFact(name="n1")])
EXTENDER = ExtenderFact(url="http://x", filter_verb="filter")


class FakeExtender:
    """An extender that takes `takes_s` to answer; `fault` is the error that it raises."""

    def __init__(self, clock: Clock, takes_s: float = 0.0) -> None:
        self.clock = clock
        self.takes_s = takes_s
        self.fault = ""
        self.calls = 0

    async def post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes:
        self.calls += 1
        await self.clock.sleep(self.takes_s)
        if self.fault:
            raise ExtenderFault(self.fault)
        return json.dumps(passes(json.loads(body))).encode()


def a_question(ask: bytes = b"a", extender: ExtenderFact = EXTENDER) -> Question:
    role = RoleFact(name="worker", count=1, minimum=1)
    return Question(
        extender=extender, verb=ExtenderVerb.FILTER, request_key=ask, role=role, owner=None, nodes=TABLE.names
    )


def in_the_background(story: Callable[[Extenders, FakeExtender, VirtualClock], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        clock = VirtualClock()
        extender_server = FakeExtender(clock)
        extenders = Extenders(extender_server, clock)
        async with TaskGroup() as tasks:
            extenders.run_in(tasks)
            await story(extenders, extender_server, clock)
            extenders.stop()

    run_virtual(main)


def test_a_quick_answer_is_waited_for_and_remembered() -> None:
    """An answer is known for a while after one call; later it is still used, but asked for again."""

    async def story(extenders: Extenders, extender_server: FakeExtender, clock: VirtualClock) -> None:
        question = a_question()
        assert await extenders.ask([question], TABLE, PATIENCE_S)
        answer = extenders.answers(TABLE)[question.key]
        assert (answer.passed, answer.is_stale) == ({"n0", "n1"}, False)
        await clock.sleep(ANSWER_S + 0.1)
        assert extenders.answers(TABLE)[question.key].is_stale

    in_the_background(story)


def test_a_tick_waits_no_longer_than_its_patience() -> None:
    """The answer arrives in the background; the next tick does not wait for this extender at all."""

    async def story(extenders: Extenders, extender_server: FakeExtender, clock: VirtualClock) -> None:
        extender_server.takes_s = 3.0
        began = clock.monotonic()
        assert not await extenders.ask([a_question()], TABLE, PATIENCE_S)
        assert clock.monotonic() - began == pytest.approx(PATIENCE_S)
        await clock.sleep(3.0)
        assert a_question().key in extenders.answers(TABLE)

        began = clock.monotonic()
        assert not await extenders.ask([a_question(b"b")], TABLE, PATIENCE_S)
        assert clock.monotonic() == began

    in_the_background(story)


def test_an_answer_from_before_a_decision_is_used_but_asked_for_again() -> None:
    """The call began before the decision, which may have changed the answer; without any answer, work would wait."""

    async def story(extenders: Extenders, extender_server: FakeExtender, clock: VirtualClock) -> None:
        extender_server.takes_s = 3.0
        await extenders.ask([a_question()], TABLE, PATIENCE_S)
        extenders.forget()
        await clock.sleep(3.1)
        assert extenders.answers(TABLE)[a_question().key].is_stale

        await extenders.ask([a_question()], TABLE, PATIENCE_S)
        await clock.sleep(3.1)
        assert not extenders.answers(TABLE)[a_question().key].is_stale

    in_the_background(story)


def test_a_question_is_under_way_once() -> None:
    """One call is under way, however many ticks ask the question."""

    async def story(extenders: Extenders, extender_server: FakeExtender, clock: VirtualClock) -> None:
        extender_server.takes_s = 3.0
        for _ in range(5):
            await extenders.ask([a_question()], TABLE, PATIENCE_S)
        assert extender_server.calls == 1

    in_the_background(story)


def test_one_that_fails_is_left_alone_for_a_while() -> None:
    """Questions to it are answered with the fault at once; after a pause one call finds out whether it works again."""

    async def story(extenders: Extenders, extender_server: FakeExtender, clock: VirtualClock) -> None:
        extender_server.fault = "it answers 500"
        await extenders.ask([a_question()], TABLE, PATIENCE_S)
        assert extenders.answers(TABLE)[a_question().key].fault == "it answers 500"
        assert await extenders.ask([a_question(b"b")], TABLE, PATIENCE_S)
        assert extenders.answers(TABLE)[a_question(b"b").key].fault == "it answers 500"
        assert extender_server.calls == 1

        extender_server.fault = ""
        await clock.sleep(PAUSE_FIRST_S + 0.1)
        assert extenders.answers(TABLE)[a_question().key].is_stale
        await extenders.ask([a_question()], TABLE, PATIENCE_S)
        await clock.sleep(0.0)
        await clock.sleep(0.0)
        answers = extenders.answers(TABLE)
        assert not answers[a_question().key].fault
        assert a_question(b"b").key not in answers  # to be asked again

    in_the_background(story)


def test_answers_are_about_the_nodes_as_they_were() -> None:
    """For other nodes no answer is known. After a decision all answers are forgotten, because they may have changed."""

    async def story(extenders: Extenders, extender_server: FakeExtender, clock: VirtualClock) -> None:
        await extenders.ask([a_question()], TABLE, PATIENCE_S)
        assert not extenders.answers(NodeTable([NodeFact(name="n0")]))
        await extenders.ask([a_question()], TABLE, PATIENCE_S)
        extenders.forget()
        assert not extenders.answers(TABLE)

    in_the_background(story)


async def test_who_would_go_is_named_by_the_uids_of_the_pods_that_stand() -> None:
    """The uid is that of the pod of that attempt; a rank without a pod has an id of its own. The stored answer has our
    ids."""

    class RecordingExtender:
        async def post(self, extender: ExtenderFact, verb: str, body: bytes) -> bytes:
            bodies.append((verb, json.loads(body)))
            return json.dumps({"NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": "pod-uid"}]}}}).encode()

    bodies: list[tuple[str, Any]] = []
    low = AllocationFact(namespace="d", name="low", uid="u", version=1, attempt=2)
    pods = [
        PodFact(namespace="d", name=str(attempt), uid=uid, allocation_uid="u", attempt=attempt, rank=0)
        for attempt, uid in ((1, "old"), (2, "pod-uid"))
    ]
    guard = ExtenderFact(url="http://x", preempt_verb="spare", node_cache_capable=True)
    offers = (VictimOffer("n0", (VictimRank(low, 0),)), VictimOffer("n1", (VictimRank(low, 1),)))
    question = msgspec.structs.replace(
        a_question(extender=guard), verb=ExtenderVerb.PREEMPT, nodes=("n0", "n1"), offers=offers
    )
    extenders = Extenders(RecordingExtender(), VirtualClock(), pods=lambda: pods)
    assert await extenders.ask([question], TABLE, PATIENCE_S)

    [(verb, body)] = bodies
    victims = {node: each["Pods"] for node, each in body["NodeNameToMetaVictims"].items()}
    assert (verb, victims) == ("spare", {"n0": [{"UID": "pod-uid"}], "n1": [{"UID": "u-2-1"}]})
    answer = extenders.answers(TABLE)[question.key]
    assert (answer.passed, answer.offered) == ({"n0"}, {"n0": ("u-2-0",), "n1": ("u-2-1",)})


# --- a whole scheduler, and an extender behind a real socket


class Pool:
    """A cluster with one pool, whose scheduler calls real extenders on the real clock."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.core = a_core(clock.now)
        self.kube = a_client(self.core)
        self.client = ExtenderClient()
        self.parts = SchedulerDeps(
            kube=a_client(self.core, seed=2),
            streams=MemoryStreams(MemoryServer(clock)),
            clock=clock,
            random=SeededRandom(3),
            health=ProcessHealth(clock),
            settings=Settings(tick_max_ms=10_000),
            identity="one",
            extenders=self.client,
        )

    async def use(self, *extenders: dict[str, Any]) -> None:
        change = {"spec": {"extenders": list(extenders)}}
        await self.kube.patch(RESOURCE_POOLS, "default", change)

    async def launch_gpu(self, name: str) -> None:
        manifest = a_manifest(name, priority=5)
        manifest["spec"]["ranks"] = [{"name": "worker", "resources": {"cpu": "1", "nvidia.com/gpu": "1"}}]
        await self.kube.create(ALLOCATIONS, manifest, namespace="default")

    async def once(self) -> None:
        for candidate, _ in await Scheduler(self.parts).discover():
            await candidate.run_once()

    async def why(self, name: str = "job") -> tuple[str, str]:
        waiting = condition_of((await look(self.kube, name)).status.conditions, "Admitted")
        return (waiting.reason, waiting.message) if waiting else ("", "")

    async def nodes(self, name: str = "job") -> list[str]:
        admission = (await look(self.kube, name)).status.admission
        return [placement.node for placement in admission.placements] if admission else []


def beside_a_pool(story: Callable[[Pool], Coroutine[Any, Any, None]], **cluster: int) -> None:
    async def main() -> None:
        pool = Pool()
        await furnish(pool.kube, **cluster)
        try:
            await story(pool)
        finally:
            await pool.client.aclose()

    asyncio.run(main())


def test_a_filter_and_scores_decide_where_work_goes() -> None:
    """The filter refuses n0, the scores prefer n2 to n1; the nodes that were sent are those that fit."""

    async def story(pool: Pool) -> None:
        with an_extender() as extender:

            def answer(verb: str, body: Any) -> Any:
                if verb == "filter":
                    return passes(body, lambda name: name != "n0", why="reserved")
                return [{"Host": name, "Score": 10 if name == "n2" else 0} for name in names_of(body)]

            extender.answer = answer
            await pool.use({"urlPrefix": extender.url, "filterVerb": "filter", "prioritizeVerb": "prioritize"})
            await launch(pool.kube)
            await pool.once()

            assert await pool.nodes() == ["n2"]
            assert extender.asked("filter")[0] == ["n0", "n1", "n2"]
            assert extender.asked("prioritize")[0] == ["n1", "n2"]
            _, body = extender.requests[0]
            assert set(body) == {"Pod", "Nodes", "NodeNames"}
            assert body["Pod"]["metadata"]["namespace"] == "default"
            assert body["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1"

    beside_a_pool(story, nodes=3)


def test_refusals_are_told_in_the_extenders_own_words() -> None:
    """The condition counts the nodes by the extender's reason."""

    async def story(pool: Pool) -> None:
        with an_extender() as extender:
            extender.answer = lambda verb, body: passes(body, lambda name: False, why="no licence left")
            await pool.use({"urlPrefix": extender.url, "filterVerb": "filter", "nodeCacheCapable": True})
            await launch(pool.kube)
            await pool.once()

            code, message = await pool.why()
            assert code == "NoFit"
            assert "2 are refused by extender 127.0.0.1" in message
            assert "no licence left" in message
            assert extender.requests[0][1]["NodeNames"] == ["n0", "n1"]

    beside_a_pool(story)


@pytest.mark.parametrize("behaviour", ["500", "lies", "hangs", "drips", "redirects"])
@pytest.mark.parametrize("ignorable", [True, False])
def test_a_broken_extender_holds_up_its_own_work_alone(behaviour: str, *, ignorable: bool) -> None:
    """Work that the extender manages waits and names it; other work starts. An `ignorable` extender is treated as
    absent."""

    async def story(pool: Pool) -> None:
        with an_extender() as extender:
            replies = {
                "500": say(b"oops", 500),
                "lies": say(b'{"NodeNames": ["elsewhere"]}'),
                "redirects": say(b"", 307, Location="http://127.0.0.1:1/filter"),
                "hangs": extender.hang,
                "drips": extender.drip,
            }
            extender.answer = lambda verb, body: replies[behaviour]
            spec = {"urlPrefix": extender.url, "filterVerb": "filter", "httpTimeout": "200ms", "ignorable": ignorable}
            await pool.use({**spec, "managedResources": [{"name": "nvidia.com/gpu"}], "nodeCacheCapable": True})
            await pool.launch_gpu("managed")
            await launch(pool.kube, "other")
            await pool.once()

            assert (await look(pool.kube, "other")).status.phase is Phase.ASSIGNED
            managed = await look(pool.kube, "managed")
            if ignorable:
                assert managed.status.phase is Phase.ASSIGNED
            else:
                assert managed.status.phase is Phase.PENDING
                code, message = await pool.why("managed")
                assert code == "WaitingForExtender"
                assert extender.url.removeprefix("http://") in message

    beside_a_pool(story, gpus=2)


def test_a_leader_goes_on_while_an_extender_hangs_and_uses_its_answer_when_it_comes() -> None:
    """Other work is placed in that time; the late answer wakes the leader, which waits for nothing else."""

    async def story(pool: Pool) -> None:
        with an_extender() as extender:
            gate = asyncio.Event()
            loop = asyncio.get_running_loop()

            def answer(verb: str, body: Any) -> Any:
                asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)
                return passes(body, lambda name: name == "n1")

            extender.answer = answer
            spec = {"urlPrefix": extender.url, "filterVerb": "filter", "httpTimeout": "20s"}
            await pool.use({**spec, "managedResources": [{"name": "nvidia.com/gpu"}]})
            await pool.launch_gpu("managed")
            await launch(pool.kube, "other")
            [(candidate, stop)] = await Scheduler(pool.parts).discover()
            async with TaskGroup() as tasks:
                leading = tasks.create_task(candidate.compete(stop))
                await eventually(lambda: _is(pool, "other", Phase.ASSIGNED))
                await eventually(lambda: _waits_for_extender(pool, "managed"))
                gate.set()
                await eventually(lambda: _is(pool, "managed", Phase.ASSIGNED))
                assert await pool.nodes("managed") == ["n1"]
                stop.set()
                await leading

    beside_a_pool(story, gpus=2)


@pytest.mark.parametrize("says", ["agrees", "refuses", "lies"])
def test_an_extender_has_a_say_in_who_makes_room(says: str) -> None:
    """The extender gets the nodes with the pods that would be evicted; only where it agrees pods are evicted."""

    async def story(pool: Pool) -> None:
        with an_extender() as extender:

            def answer(verb: str, body: Any) -> Any:
                pods = body["NodeNameToVictims"]["n1"]["Pods"]
                agreed = {"Pods": [{"UID": each["metadata"]["uid"]} for each in pods], "NumPDBViolations": 0}
                return {"NodeNameToMetaVictims": {"agrees": {"n1": agreed}, "lies": {"n7": agreed}}.get(says)}

            extender.answer = answer
            change = {"spec": {"preemption": {"withinQueue": "LowerPriority"}}}
            await pool.kube.patch(QUEUES, "default", change)
            for index in range(2):
                await launch(pool.kube, f"low{index}", cpu="3", priority=index, preemptible=True)
                await pool.once()
            await pool.use({"urlPrefix": extender.url, "preemptVerb": "preempt"})
            await launch(pool.kube, "urgent", cpu="3", priority=9)
            await pool.once()

            verb, body = extender.requests[0]
            assert (verb, list(body)) == ("preempt", ["Pod", "NodeNameToVictims", "NodeNameToMetaVictims"])
            assert sorted(body["NodeNameToVictims"]) == ["n0", "n1"]
            stops = [(await look(pool.kube, f"low{index}")).status.stop for index in range(2)]
            where = [(await pool.nodes(f"low{index}"))[0] for index in range(2)]
            assert [stop is not None for stop in stops] == [says == "agrees" and node == "n1" for node in where]
            code, message = await pool.why("urgent")
            if says == "refuses":
                assert code == "NoFit"
                assert "refuses the evictions on all nodes" in message
            if says == "lies":
                assert code == "WaitingForExtender"
                assert "which fails: it names node n7, which it was not asked about" in message

    beside_a_pool(story)


async def eventually(probe: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async with asyncio.timeout(20):
        while not await probe():  # noqa: ASYNC110 - the cluster is polled, as kubectl would
            await asyncio.sleep(0.01)


async def _waits_for_extender(pool: Pool, name: str) -> bool:
    return (await pool.why(name))[0] == "WaitingForExtender"


async def _is(pool: Pool, name: str, phase: Phase) -> bool:
    return (await look(pool.kube, name)).status.phase is phase


def test_the_extenders_of_a_pool_are_read_as_they_are_written() -> None:
    """An extender has the field names and defaults of kube-scheduler."""
    spec = msgspec.convert({"urlPrefix": "http://x:1/s", "bindVerb": "b", "httpTimeout": "1m"}, ExtenderSpec)
    fact = extender_fact(spec)
    assert (fact.url, fact.bind_verb, fact.timeout_s, fact.weight, fact.ignorable) == (
        "http://x:1/s",
        "b",
        60.0,
        1,
        False,
    )
    assert extender_fact(msgspec.convert({"urlPrefix": "http://x"}, ExtenderSpec)).timeout_s == 5.0
