"""The order of starts: whether a rank may start, by the roles that its role depends on."""

import asyncio
from typing import Any

import msgspec
import pytest

from slipway.api.tasks.startorder import view_of
from slipway.crd.meta import Condition
from slipway.crd.v1alpha1 import RoleSpec
from slipway.kube.objects import Pod, PodStatus
from tests.support.api_world import ApiWorld
from tests.support.builders import an_allocation

ROLES: list[dict[str, Any]] = [
    {"name": "server", "count": 2},
    {"name": "worker", "count": 2, "dependsOn": [{"role": "server", "until": "ready"}]},
    {"name": "eval", "count": 1, "dependsOn": [{"role": "server"}, {"role": "worker"}]},
]
GANG = an_allocation().with_spec(ranks=msgspec.convert(ROLES, list[RoleSpec])).assigned().released().it


def pod(phase: str, *, is_ready: bool = False) -> Pod:
    conditions = [Condition(type="Ready", status="True" if is_ready else "False")]
    made = msgspec.convert({"metadata": {"name": "x"}, "spec": {"containers": []}}, Pod)
    return msgspec.structs.replace(made, status=PodStatus(phase=phase, conditions=conditions))


RUNS, READY, WAITS, DONE = pod("Running"), pod("Running", is_ready=True), pod("Pending"), pod("Succeeded")


@pytest.mark.parametrize(
    ("rank", "pods", "message"),
    [
        (0, {}, ""),
        (2, {}, "waits for role server (0 of 2 ranks ready)"),
        (2, {0: READY, 1: RUNS}, "waits for role server (1 of 2 ranks ready)"),
        (3, {0: READY, 1: READY}, ""),
        (2, {0: READY, 1: DONE}, ""),
        (4, {0: RUNS, 1: RUNS, 2: WAITS, 3: RUNS}, "waits for role worker (1 of 2 ranks started)"),
        (
            4,
            {0: RUNS},
            "waits for role server (1 of 2 ranks started) and role worker (0 of 2 ranks started)",
        ),
        (4, dict.fromkeys(range(4), RUNS), ""),
        (4, {**dict.fromkeys(range(4), RUNS), 1: pod("Failed")}, "waits for role server (1 of 2 ranks started)"),
    ],
)
def test_who_waits_for_whom(rank: int, pods: dict[int, Pod], message: str) -> None:
    """A role is as far as the last of its ranks; a rank that succeeded is as far as it will be. A pod that was not seen
    does not exist."""
    found = view_of(GANG, rank, pods)
    assert (found.start, found.message) == (not message, message)


def test_a_role_without_a_place_keeps_nobody_waiting() -> None:
    """An elastic gang starts with its minimum: a role without a placed rank does not start now."""
    placed = an_allocation().with_spec(ranks=msgspec.convert(ROLES, list[RoleSpec])).assigned().released()
    admission = placed.it.status.admission
    assert admission is not None
    some = [each for each in admission.placements if each.role != "worker"]
    story = placed.with_status(admission=msgspec.structs.replace(admission, placements=some))
    assert view_of(story.it, 4, {0: RUNS, 1: RUNS}).start


async def a_gang(world: ApiWorld) -> tuple[str, str]:
    answer = await world.launch(ranks=[{"name": "server"}, {"name": "worker", "dependsOn": [{"role": "server"}]}])
    return answer["name"], answer["id"]


async def test_a_rank_asks_until_it_may_start(world: ApiWorld) -> None:
    """The request is a long poll: it is answered when a change lets the rank start."""
    name, id_ = await a_gang(world)
    path = f"/allocations/{id_}/ranks/1/start?attempt=1"
    waits = {"attempt": 1, "start": False, "message": "waits for role server (0 of 1 ranks started)"}
    assert (await world.get(path)).json() == waits
    assert (await world.get(f"/allocations/{id_}/ranks/0/start")).json()["start"] is True
    asking = asyncio.ensure_future(world.get(f"{path}&timeout_seconds=10"))
    await world.run(name)
    assert (await asking).json()["start"] is True


@pytest.mark.parametrize(
    ("rank", "query", "status", "word"),
    [("2", "", 422, "there is no rank 2"), ("x", "", 422, "there is no rank 'x'"), ("1", "?attempt=2", 409, "attempt")],
)
async def test_who_is_no_rank_of_this_attempt_is_refused(
    world: ApiWorld, rank: str, query: str, status: int, word: str
) -> None:
    _, id_ = await a_gang(world)
    answer = await world.get(f"/allocations/{id_}/ranks/{rank}/start{query}")
    assert (answer.status_code, word in answer.json()["detail"]) == (status, True)
