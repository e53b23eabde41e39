"""Launch bugs of systems like ours: partial gangs, second pods, kills of one's own pods, lost creates."""

import asyncio
from collections import Counter

import pytest

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import CONFIG_MAPS, PODS, Version
from slipway.streams.ports import WorkHint
from tests.simulation.run import run
from tests.support.faults import Effect, Fault, Kind
from tests.support.kubelet import Script
from tests.support.play import Played, play
from tests.support.world import Setup, World

RANKS = 4
REPAIRED_S = 30.0
LOST = (
    Kind.TIMEOUT,
    Kind.TIMEOUT_APPLIED,
    Kind.TIMEOUT_LATE,
    Kind.RESET,
    Kind.RESET_APPLIED,
    Kind.SERVER_TIMEOUT,
    Kind.SERVER_ERROR,
    Kind.UNAVAILABLE,
    Kind.GATEWAY,
    Kind.THROTTLED,
)
_AFTER = (Kind.TIMEOUT_APPLIED, Kind.RESET_APPLIED, Kind.SERVER_TIMEOUT)


def _has_ended(found: Allocation) -> bool:
    return found.status.phase is Phase.TERMINATED


async def _launch_four(world: World) -> None:
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=1.0)
    await world.launch(ranks=RANKS)
    await world.when(_has_ended)


def _creates(kind: str) -> list[Effect]:
    """The creates of that kind by the pod worker in an undisturbed launch of four ranks."""
    effects = run("launch-4", 1).effects
    return [item for item in effects if item.role == "podworker" and (item.verb, item.target) == ("create", kind)]


def _assert_first_attempt_whole(played: Played) -> None:
    """Check that there is one pod for each rank, with the same uid when created, released and run."""
    # A process with a late view may write once more than usual (I24): this test is not about that.
    assert [told for told in played.violations if not told.startswith("I24 ")] == []
    names = Counter(pod.metadata.name for pod in played.pods)
    assert len(names) == RANKS
    assert set(names.values()) == {1}
    (history,) = played.evidence.allocations.values()
    released = history[-1].allocation.status.release
    assert released is not None
    assert released.attempt == 1
    assert set(released.pod_uids) == {pod.metadata.uid for pod in played.pods}
    assert {ran.pod_uid for ran in played.evidence.runs} == set(released.pod_uids)


@pytest.mark.parametrize("binding", ["direct", "delegate"])
def test_a_gang_is_whole_before_any_of_it_is_bound_however_old_the_view(binding: str) -> None:
    """The watchers see allocations late; meanwhile the attempt is raised, and its pods arrive (V1)."""

    async def story(world: World) -> None:
        world.kubelets.script = lambda attempt, rank: (
            Script(runs_s=0.5, code=3) if (attempt, rank) == (1, 1) else Script(runs_s=4.0)
        )
        await world.launch(ranks=RANKS, maxRestarts=1)
        await world.when(_has_ended)

    played = play(story, Setup(lag_s={"allocations": 6.0}, binding=binding))
    assert played.violations == []
    for attempt in ("1", "2"):
        changes = [item for item in played.evidence.pods if item.pod.metadata.labels["slipway.dev/attempt"] == attempt]
        created = [item.version.number for item in changes if item.before is None]
        let_go = [item.version.number for item in changes if item.pod.spec.node_name]
        assert len(created) == RANKS
        assert max(created) < min(let_go)


@pytest.mark.parametrize("kind", ["configmaps", "pods"])
def test_a_create_whose_answer_is_lost_is_recognised(kind: str) -> None:
    """The create was executed: the object is adopted and keeps its uid; no object is left over or killed (V4)."""
    effects = _creates(kind)
    assert effects
    for effect in effects:
        fault = Fault(Kind.TIMEOUT_APPLIED, "podworker", effect.number, "after")
        played = play(_launch_four, faults=(fault,))
        _assert_first_attempt_whole(played)
        made = {version.uid for version in played.evidence.of(CONFIG_MAPS) if "slipway.dev/attempt" in _labels(version)}
        assert len(made) == 1


def test_a_launch_that_two_workers_and_two_leaders_see_makes_one_pod_a_rank() -> None:
    """The leader dies between the admission and the launch; every worker gets the hint, twice (V5)."""

    async def story(world: World) -> None:
        world.kubelets.script = lambda _attempt, _rank: Script(runs_s=1.0)
        launched = await world.launch(ranks=RANKS)
        await world.when(lambda found: found.status.admission)
        world.crash(world.processes["scheduler"])
        hint = WorkHint(namespace="default", allocation=id_of(launched))
        for _ in range(6):
            await world.streams.hints.send([hint])
            await asyncio.sleep(world.random.random() * 0.01)
        await world.when(_has_ended)

    for seed in (1, 2):
        played = play(story, Setup(replicas={"scheduler": 2, "podworker": 3}), seed=seed)
        _assert_first_attempt_whole(played)


@pytest.mark.parametrize("lag_s", [0.02, 1.0, 20.0])
def test_a_view_older_than_ones_own_write_creates_nothing(lag_s: float) -> None:
    """The watchers see writes late; long after the end an old hint is delivered again (V6)."""
    ended_at: list[float] = []

    async def story(world: World) -> None:
        await _launch_four(world)
        ended_at.append(world.clock.now())
        found = await world.when(_has_ended)
        for _ in range(3):
            await world.streams.hints.send([WorkHint(namespace="default", allocation=id_of(found))])
            await asyncio.sleep(40.0)

    played = play(story, Setup(lag_s={"allocations": lag_s, "pods": lag_s}))
    _assert_first_attempt_whole(played)
    late = [version for version in played.evidence.of(PODS, CONFIG_MAPS) if version.at > ended_at[0]]
    assert [version.name for version in late if version.before is None and version.name.startswith("job-")] == []


@pytest.mark.parametrize("kind", LOST, ids=lambda kind: kind.value)
def test_a_create_that_is_lost_in_any_way_is_repaired_soon(kind: Kind) -> None:
    """Whatever happened to the create of a rank's pod, the gang runs within half a minute (V20)."""
    effect = _creates("pods")[1]
    fault = Fault(kind, "podworker", effect.number, "after" if kind in _AFTER else "before")
    played = play(_launch_four, faults=(fault,))
    assert played.violations == []
    assert Counter(ran.rank for ran in played.evidence.runs) == dict.fromkeys(range(RANKS), 1)
    started = min(ran.started_at for ran in played.evidence.runs)
    assert started - played.evidence.versions[0].at < REPAIRED_S


def test_a_kill_before_the_release_starts_nothing_whoever_dies_when() -> None:
    """Each service is killed before and after each of its effects that follow the kill (V21)."""

    async def story(world: World) -> None:
        await world.launch(ranks=2)
        await world.created("pods")
        await world.cancel()
        killed_at.append(world.clock.now())
        await world.when(_has_ended)
        await asyncio.sleep(30.0)

    killed_at: list[float] = []
    play(story)
    boundaries = [
        Fault(Kind.CRASH, effect.role, effect.number, moment)
        for effect in run("cancel-launching", 1).effects
        if effect.at >= killed_at[0]
        and not effect.is_recurring
        and effect.role in ("scheduler", "podworker", "watcher")
        for moment in (("before", "after") if effect.has_before else ("after",))
    ]
    assert len(boundaries) >= 10
    for fault in boundaries:
        played = play(story, faults=(fault,))
        assert (fault, played.violations, played.evidence.containers) == (fault, [], [])
        assert played.deletions(PODS)


def _labels(version: Version) -> dict[str, str]:
    return version.obj["metadata"].get("labels", {})
