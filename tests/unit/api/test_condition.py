"""What the api tells the doctor of its inside."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest

from slipway.api.settings import Settings
from slipway.ops.doctor.command import inside_of
from slipway.runtime.service import version
from tests.support.api_world import ApiWorld, api_world


@pytest.fixture
async def redis_world() -> AsyncGenerator[ApiWorld, None]:
    """An api that was told of a Redis."""
    async with api_world(Settings(redis_url="redis://127.0.0.1:1/0")) as fresh:
        yield fresh


async def test_without_redis(world: ApiWorld) -> None:
    """It says so, and what it is."""
    told = (await world.get("/condition")).json()
    assert (told["version"], told["auth"], told["hasRedis"], told["redis"]) == (version(), "none", False, None)
    assert (told["taskListen"], told["taskDoorAnswers"]) == ("", None)


async def test_with_redis(redis_world: ApiWorld) -> None:
    """The server's condition, in the very shape that the doctor reads; and why there is none when it is away."""
    inside = inside_of((await redis_world.get("/condition")).json())
    assert inside.redis is not None
    assert inside.redis.policy == "noeviction"
    redis_world.server.absent = True
    told = (await redis_world.get("/condition")).json()
    assert told["redis"] is None
    assert told["redisError"]


async def test_the_tasks_door() -> None:
    """Whether somebody answers where ranks are to call."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = Settings(task_listen=f"127.0.0.1:{port}")
    async with api_world(settings) as world:
        assert (await world.get("/condition")).json()["taskDoorAnswers"] is True
        server.close()
        await server.wait_closed()
        assert (await world.get("/condition")).json()["taskDoorAnswers"] is False
    anywhere = msgspec.structs.replace(settings, task_listen="127.0.0.1:0")
    async with api_world(anywhere) as world:
        assert (await world.get("/condition")).json()["taskDoorAnswers"] is None
