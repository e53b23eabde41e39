"""Past use as the api shows it: of a queue, its siblings and its users, in the order of waiting work, and in
explain."""

from typing import Any

from slipway.accounting import daily_totals
from slipway.accounting.usage import DAY_MS, day_of
from slipway.api.usage.fair_share_view import turn_sentence, used_below
from slipway.crd.figures import DayTotals, TotalsRow
from slipway.crd.meta import ANNOTATION_USER, ObjectMeta
from slipway.crd.v1alpha1 import FairShare, Queue, QueueSpec, ResourcePool, ResourcePoolSpec
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, NAMESPACES, QUEUES, RESOURCE_POOLS
from slipway.model.decay import level
from slipway.model.position import place_key
from tests.support.api_world import COMMAND, ApiWorld

HOUR_MS = 3_600_000


async def a_past(world: ApiWorld, **hours: tuple[str, float]) -> None:
    """Write the totals of yesterday: {user: (queue, GPU-hours)}."""
    day = day_of(round(world.clock.now() * 1000) - DAY_MS)
    rows = [
        TotalsRow(
            workspace="default",
            user=user,
            pool="default",
            queue=queue,
            kind="training",
            slot_ms={"Running": round(amount * HOUR_MS)},
        )
        for user, (queue, amount) in sorted(hours.items())
    ]
    namespace = world.parts.settings.namespace
    await world.kube.create(NAMESPACES, {"metadata": {"name": namespace}})
    await world.kube.create(CONFIG_MAPS, daily_totals.manifest(day, DayTotals(rows=rows)), namespace=namespace)


async def two_queues(world: ApiWorld, **of_lab: Any) -> None:
    """`lab` and `other` in a pool that counts past use."""
    await world.kube.patch(RESOURCE_POOLS, "default", {"spec": {"fairShare": {"halfLife": "7d"}}})
    await world.kube.create(QUEUES, {"metadata": {"name": "lab"}, "spec": {"pool": "default", "weight": 3, **of_lab}})
    await world.kube.create(QUEUES, {"metadata": {"name": "other"}, "spec": {"pool": "default"}})


async def of_user(world: ApiWorld, name: str, user: str) -> str:
    """Launch work of a user that waits in `lab`, and return its id."""
    made = await world.launch(**COMMAND, name=name, queue="lab")
    found = next(each for each in (await world.kube.list(ALLOCATIONS)).items if each.metadata.name == made["name"])
    patch = {"metadata": {"annotations": {ANNOTATION_USER: user}}}
    await world.kube.patch(ALLOCATIONS, found.metadata.name, patch, namespace="default")
    return str(made["id"])


async def test_a_queue_shows_its_past_beside_its_siblings(world: ApiWorld) -> None:
    """The queue that has used less by weight comes first; the users are those of this queue alone."""
    await two_queues(world)
    await a_past(world, ana=("lab", 120.0), ben=("lab", 30.0), cleo=("other", 100.0))
    share = (await world.get("/queues/lab")).json()["fairShare"]
    assert (share["halfLife"], share["historyWeight"], share["userOrder"]) == ("7d", 1.0, "Submission")
    assert [(each["name"], each["weight"], each["usedPercent"]) for each in share["queues"]] == [
        ("default", 1, 0.0),
        ("lab", 3, 60.0),
        ("other", 1, 40.0),
    ]
    assert [each["user"] for each in share["users"]] == ["ana", "ben"]
    ana, ben = (each["gpuHours"] for each in share["users"])
    assert 100 < ana < 120
    assert abs(ana / ben - 4) < 0.01


async def test_a_pool_that_does_not_count_it_shows_none(world: ApiWorld) -> None:
    """The answer has null, and no totals are read."""
    assert (await world.get("/queues/default")).json()["fairShare"] is None


async def test_who_has_used_less_is_shown_first(world: ApiWorld) -> None:
    """The list of waiting work and explain have the order of the scheduler."""
    await two_queues(world, userOrder="LeastUsed")
    await a_past(world, ana=("lab", 120.0), ben=("lab", 3.0))
    first, second = await of_user(world, "one", "ana"), await of_user(world, "two", "ben")
    waiting = (await world.get("/queues/lab")).json()["waiting"]
    assert [each["id"] for each in waiting] == [second, first]
    part = (await world.get("/queues/lab/waiting?limit=1")).json()
    rest = (await world.get(f"/queues/lab/waiting?limit=1&continue={part['metadata']['continue']}")).json()
    assert [part["items"][0]["id"], rest["items"][0]["id"]] == [second, first]
    why = (await world.get(f"/allocations/{first}/explain")).json()
    assert (why["position"], why["jobsAhead"]) == (2, [second])
    assert why["fairShare"].startswith("user ana has used 1")
    assert why["fairShare"].endswith("among allocations of the same priority, ben's allocations go first")


async def test_without_a_user_order_nothing_is_said(world: ApiWorld) -> None:
    """The order is that of submission, whatever was used."""
    await two_queues(world)
    await a_past(world, ana=("lab", 120.0))
    first = await of_user(world, "one", "ana")
    await of_user(world, "two", "ben")
    places = [place_key(each["place"]) for each in (await world.get("/queues/lab")).json()["waiting"]]
    assert places == sorted(places)
    assert len(places) == 2
    assert (await world.get(f"/allocations/{first}/explain")).json()["fairShare"] == ""


def test_the_sentence_names_amounts_and_who_goes_first() -> None:
    """With equal use the sentence states that submission decides; without another user there is no sentence."""
    pool = ResourcePool(
        metadata=ObjectMeta(name="default"), spec=ResourcePoolSpec(fair_share=FairShare(half_life="7d"))
    )
    queue = Queue(metadata=ObjectMeta(name="lab"), spec=QueueSpec(user_order="LeastUsed"))
    used = {"ana": 120 * HOUR_MS, "ben": 3 * HOUR_MS}
    levels = {user: level(amount) for user, amount in used.items()}
    said = turn_sentence("ana", {"ana", "ben"}, queue, pool, used=used, levels=levels)
    assert said == (
        "user ana has used 120 GPU-h in queue lab (half-life 7d), ben 3 GPU-h: among allocations of the same priority, "
        "ben's allocations go first"
    )
    assert turn_sentence("cleo", {"dan"}, queue, pool, used={}, levels={}).endswith("the order is that of submission")
    assert turn_sentence("ana", {"ana"}, queue, pool, used=used, levels=levels) == ""


def test_a_queue_has_used_what_those_below_it_have() -> None:
    """In a circle of parents each queue counts once."""
    queues = [
        Queue(metadata=ObjectMeta(name="top"), spec=QueueSpec()),
        Queue(metadata=ObjectMeta(name="lab"), spec=QueueSpec(parent="top")),
        Queue(metadata=ObjectMeta(name="x"), spec=QueueSpec(parent="y")),
        Queue(metadata=ObjectMeta(name="y"), spec=QueueSpec(parent="x")),
    ]
    used = {"lab": {"ana": 5, "ben": 6}, "x": {"ana": 1}, "y": {"ana": 2}}
    assert [used_below(name, queues, used) for name in ("top", "lab", "x")] == [11, 11, 3]
