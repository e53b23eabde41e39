"""Streams of one user and of one workspace have limits, so that others still get a place."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from slipway.api.http.errors import TooManyStreamsError, TooManyStreamsOfOneError
from slipway.api.http.streaming import NO_HOLDER, RANK_POLLS_MAX, SSE_TYPE, OpenStreams, StreamHolder
from slipway.api.settings import Settings
from tests.support.access import Teams, teams_world
from tests.support.clock import wait_until
from tests.support.http_stub import serve_app

BOTH = {"team-red": "editor", "team-blue": "editor"}
SSE = {"accept": SSE_TYPE}


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncGenerator[Teams]:
    async with teams_world("token", tmp_path, streams_max=12, streams_per_user_max=2) as world:
        yield world


@asynccontextmanager
async def following(teams: Teams, headers: dict[str, str], path: str) -> AsyncGenerator[httpx2.Response]:
    """A stream of that caller, open as long as the block lasts."""
    async with (
        serve_app(teams.world.app) as url,
        httpx2.AsyncClient(base_url=url) as client,
        client.stream("GET", f"/api/v1{path}", headers={**headers, **SSE}) as response,
    ):
        yield response


async def test_a_user_at_the_limit_is_refused_and_another_is_served(teams: Teams) -> None:
    """429 names the limit, the setting and what to close; the other user's stream opens."""
    ada, bob = [await teams.token(name, BOTH) for name in ("ada", "bob")]
    path, streams = f"/allocations/{teams.ids['red']}/events", teams.world.parts.open_streams
    async with following(teams, ada, path), following(teams, ada, "/events"):
        await wait_until(lambda: streams.count == 2, "both streams of ada")
        refused = await teams.call("GET", path, {**ada, **SSE})
        assert (refused.status_code, refused.json()["code"]) == (429, "stream-limit")
        said = refused.json()["detail"]
        assert said.startswith("ada has 2 open streams")
        assert all(part in said for part in ("SLIPWAY_STREAMS_PER_USER_MAX", "close one"))
        assert int(refused.headers["retry-after"]) >= 1
        async with following(teams, bob, path) as served:
            assert served.status_code == 200
        # A request that is no stream is not counted.
        assert (await teams.call("GET", path, {**ada, "accept": "application/json"})).status_code == 200
    await wait_until(lambda: streams.count == 0, "every place to be given back")


async def test_a_long_poll_of_a_user_takes_a_place(teams: Teams) -> None:
    """The poll uses a place while it waits, and no longer."""
    ada = await teams.token("ada", BOTH)
    path, streams = f"/allocations/{teams.ids['red']}/signals/preemption", teams.world.parts.open_streams
    waiting = asyncio.ensure_future(teams.call("GET", f"{path}?timeout_seconds=1", ada))
    await wait_until(lambda: streams.count == 1, "the poll to wait")
    async with asyncio.timeout(5):
        assert (await waiting).status_code == 200
    assert streams.count == 0


def test_a_workspace_at_its_limit_is_refused_and_another_is_served() -> None:
    """The limit counts the streams of all users of the workspace."""
    streams = OpenStreams(10, per_user=10, per_workspace=2)
    with ExitStack() as held:
        for user in ("ada", "bob"):
            held.enter_context(streams.held("logs", StreamHolder(user=user, workspace="red")))
        with pytest.raises(TooManyStreamsOfOneError, match=r"workspace red has 2 .*SLIPWAY_STREAMS_PER_WORKSPACE_MAX"):
            streams.check(StreamHolder(user="cy", workspace="red"))
        streams.check(StreamHolder(user="cy", workspace="blue"))
        streams.check(StreamHolder(user="ada"))
    assert streams.count == 0


def test_a_full_process_says_so_to_everybody() -> None:
    """The error is another one, because no single user caused it."""
    streams = OpenStreams(1, per_user=5, per_workspace=5)
    with streams.held("events"), pytest.raises(TooManyStreamsError, match="SLIPWAY_STREAMS_MAX") as refused:
        streams.check(NO_HOLDER)
    assert not isinstance(refused.value, TooManyStreamsOfOneError)


def test_ranks_that_wait_take_no_place_of_their_workspace() -> None:
    """A gang polls with all its ranks; one rank has a limit of its own."""
    streams = OpenStreams(1, per_user=1, per_workspace=1)
    with ExitStack() as held:
        for rank in range(3):
            held.enter_context(streams.polled(StreamHolder(user=f"gang-1-{rank}", is_rank=True)))
        for _ in range(RANK_POLLS_MAX - 1):
            held.enter_context(streams.polled(StreamHolder(user="gang-1-0", is_rank=True)))
        with (
            pytest.raises(TooManyStreamsOfOneError, match="gang-1-0"),
            streams.polled(StreamHolder(user="gang-1-0", is_rank=True)),
        ):
            pass
        assert streams.count == 0


def test_the_limits_of_one_follow_that_of_the_process() -> None:
    """Limits that are not set follow from it; one user never has all streams."""
    few = Settings(streams_max=8)
    assert (few.streams_of_one_user, few.streams_of_one_workspace) == (2, 6)
    set_ = Settings(streams_max=8, streams_per_user_max=5, streams_per_workspace_max=7)
    assert (set_.streams_of_one_user, set_.streams_of_one_workspace) == (5, 7)


async def test_the_refusal_of_a_call_too_many_is_held_back(tmp_path: Path) -> None:
    """A caller that repeats a refused call at once would use up the process, so the refusal is delayed; another user is
    not."""
    async with teams_world("token", tmp_path, rate_per_s=0.01, rate_burst=1) as teams:
        ada, bob = [await teams.token(name, BOTH) for name in ("ada", "bob")]
        assert (await teams.call("GET", "/me", ada)).status_code == 200
        refused = asyncio.ensure_future(teams.call("GET", "/me", ada))
        assert (await teams.call("GET", "/me", bob)).status_code == 200
        assert not refused.done()
        assert (await refused).status_code == 429
