"""etcd is restored from an older copy under the whole system, in virtual time: each service reads everything again.

Writes after the copy are lost, so the invariants over a history do not apply. These rules do: running allocations
continue and end once, waiting ones start, and later launches run.
"""

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slipway.errors import NotFoundError, StaleError
from slipway.kube.reflector import DOUBT_S, Reflector
from slipway.kube.resources import ALLOCATIONS
from slipway.model.reasons import Result
from tests.simulation.scenario import has_ended, is_running
from tests.support.kubelet import Script
from tests.support.small_cluster import look
from tests.support.world import Setup, World, run_world

AGAIN_S = 3 * DOUBT_S
"""Seconds until every reflector has doubted its watch, and has listed until it trusts the answers."""

LOST = 2000
"""Writes between the copy and the loss: more than are repeated while the bug is searched for."""


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _copy_of(world: World) -> dict[str, Any]:
    """A copy of the API server's store, without its subscribers and its clock."""
    outside = (world, world.core, world.clock, world.loop, world.kubelets, world.kube, world.kube_scheduler)
    readers = [getattr(each, "__self__", each) for each in world.core.store._subscribers]  # pyright: ignore[reportPrivateUsage]
    return copy.deepcopy(world.core.__dict__, {id(each): each for each in (*outside, *readers)})


def _put_back(world: World, older: dict[str, Any]) -> None:
    """Replace the store by the copy. Watches stay open, and are silent."""
    readers = world.core.store._subscribers  # pyright: ignore[reportPrivateUsage]
    world.core.__dict__.update(older)
    world.core.store._subscribers = readers  # pyright: ignore[reportPrivateUsage]


async def _story(world: World) -> None:
    """`running` runs and `waiting` waits when the copy is made; `lost` is launched afterwards."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=AGAIN_S / 2)
    before = await world.launch("running", ranks=8)
    await world.when(is_running, name="running")
    waiting = await world.launch("waiting", ranks=8)
    await asyncio.sleep(1.0)
    older = _copy_of(world)
    version = world.core.version
    await world.launch("lost", ranks=8)
    for number in range(LOST):
        await world.kube.patch(
            ALLOCATIONS, "waiting", {"metadata": {"annotations": {"example.com/n": f"{number}"}}}, namespace="default"
        )
    await asyncio.sleep(5.0)
    assert world.core.version > version + LOST
    _put_back(world, older)
    assert world.core.version == version
    with pytest.raises(NotFoundError):
        await look(world.kube, "lost")
    assert len(world.kubelets.live(before.metadata.uid)) == 8
    for name in ("running", "waiting"):
        found = await world.when(has_ended, name=name, timeout_s=3 * AGAIN_S)
        assert (found.status.result, found.status.attempt) == (Result.SUCCEEDED, 1)
    assert not world.kubelets.live(waiting.metadata.uid)
    await world.launch("later", ranks=8)
    await world.when(has_ended, name="later", timeout_s=3 * AGAIN_S)
    assert not world.broken


def _play() -> None:
    run_world(_story, Setup())


def test_after_an_older_copy_was_put_back_each_service_moves_again() -> None:
    """A running allocation ends once, in its first attempt; a waiting one starts; a later launch runs."""
    _play()


def _believes_no_older_list(_self: Any, _version: int) -> None:
    raise StaleError("below what was seen before")


def _keeps_what_was_newer(_self: Any, _version: int) -> None:
    """Seeded bug: the LIST is accepted, and the store still compares versions."""


@pytest.mark.parametrize("bug", [_believes_no_older_list, _keeps_what_was_newer])
def test_a_reflector_that_does_not_begin_anew_is_found(
    bug: Callable[[Any, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a seeded bug an allocation waits or runs for ever."""
    monkeypatch.setattr(Reflector, "_begin_anew", bug)
    with pytest.raises(TimeoutError):
        _play()
