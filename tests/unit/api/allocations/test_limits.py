"""When an allocation would end by itself, as `explain` states it: the same times by which the scheduler ends it."""

from slipway.api.allocations.explain import is_watched, limits, state_sentence
from slipway.kube.resources import ALLOCATIONS
from slipway.model.times import format_time
from tests.support.api_world import ApiWorld
from tests.support.builders import T0, AllocationStory, a_pod, an_allocation
from tests.support.reductions import NOW, a_running, once

IDLE_AT = {"idle": format_time(T0 + 600)}


def idle(**spec: object) -> AllocationStory:
    return a_running(idleTimeout="10m", **spec).with_status(deadlines=IDLE_AT)  # pyright: ignore[reportArgumentType]


def test_use_moves_the_idle_end() -> None:
    """The idle end is the later of the stored time and one timeout after the last use of any kind."""
    (unused,) = limits(idle().it, {"since": T0}, NOW)
    assert (unused.name, unused.at) == ("idle", format_time(T0 + 600))
    assert "not used since it began to run" in unused.detail
    (used,) = limits(idle().it, {"since": T0, "proxy": T0 + 10, "reported": T0 + 15}, NOW)
    assert used.at == format_time(T0 + 615)
    assert f"last used {format_time(T0 + 15)}" in used.detail


def test_what_is_not_known_counts_as_use_now() -> None:
    """Without the mark the end is one timeout from now; without Redis the end is unknown."""
    (lost,) = limits(idle().it, {"proxy": T0}, NOW)
    assert lost.at == format_time(NOW + 600)
    (away,) = limits(idle().it, None, NOW)
    assert (away.at, "Redis is unavailable" in away.detail) == ("", True)


def test_the_next_one_comes_first() -> None:
    """The limit that ends first is first, of those whose time is known; each has its name."""
    deadlines = {**IDLE_AT, "maxRuntime": format_time(T0 + 300)}
    story = a_running(idleTimeout="10m", maxRuntime="5m").with_status(deadlines=deadlines)
    assert [item.name for item in limits(story.it, {"since": T0}, NOW)] == ["maxRuntime", "idle"]
    assert [item.name for item in limits(story.it, None, NOW)] == ["maxRuntime", "idle"]
    assert "maxRuntime of 5m" in limits(story.it, None, NOW)[0].detail


def test_while_it_waits_there_is_its_patience() -> None:
    """The time follows from when the allocation began to wait."""
    (waits,) = limits(an_allocation(pendingTimeout="1m").it, None, NOW)
    assert (waits.name, waits.at) == ("pending", format_time(T0 + 60))


def test_what_is_told_or_over_has_only_its_grace_left() -> None:
    """After a stop only the grace of its preemption remains; work that is ending or has ended has no limits."""
    story = a_running(preemptible=True, preemptionGrace="2m", idleTimeout="10m").with_status(deadlines=IDLE_AT)
    told = once(story.ready().stopped("IdleTimeout").it, a_pod().running()).allocation
    assert [item.name for item in limits(told, {"since": T0}, NOW)] == ["preemption"]
    assert limits(idle().killed().it, {"since": T0}, NOW) == []
    over = once(idle().killed().it, a_pod().running()).allocation
    assert (limits(over, {"since": T0}, NOW), is_watched(over)) == ([], False)


def test_explain_says_that_it_was_told() -> None:
    """The message states until when the work may be saved, why, and what follows."""
    story = a_running(preemptible=True, preemptionGrace="2m", idleTimeout="10m").ready()
    told = once(story.stopped("IdleTimeout").it, a_pod().running()).allocation
    said = state_sentence(told)
    assert said.startswith(f"running, and asked to save its work by {format_time(NOW + 120)} (IdleTimeout)")
    assert said.endswith("ends for good")
    evicted = once(story.stopped("Preempted", requeue=True).it, a_pod().running()).allocation
    assert state_sentence(evicted).endswith("the next attempt")


async def test_explain_tells_it(world: ApiWorld) -> None:
    """The deadlines come from the object and from Redis; without Redis explain still answers."""
    launched = await world.launch(kind="notebook", name="nb", command=[], idleTimeout="10m")
    await world.run("nb")
    began = world.clock.now() - 300
    found = await world.stored("nb")
    stored = AllocationStory(found).with_status(deadlines={"idle": format_time(began + 600)}).it
    await world.kube.replace_status(ALLOCATIONS, stored)
    await world.streams.activity.touch({launched["id"]: {"since": began, "proxy": began + 60}})
    (deadline,) = (await world.get(f"/allocations/{launched['id']}/explain")).json()["deadlines"]
    assert deadline["name"] == "idle"
    assert deadline["at"] == format_time(began + 60 + 600)
    world.server.absent = True
    answer = await world.get(f"/allocations/{launched['id']}/explain")
    assert (answer.status_code, answer.json()["deadlines"][0].get("at")) == (200, None)
