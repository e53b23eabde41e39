"""The condition of the api, as it tells the doctor."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest

from slipway.api.settings import Settings
from slipway.ops.doctor.command import api_condition_of
from slipway.runtime.service import version
from tests.support.api_world import ApiWorld, api_world


@pytest.fixture
async def redis_world() -> AsyncGenerator[ApiWorld, None]:
    """An api with the address of a Redis."""
    async with api_world(Settings(redis_url="redis://127.0.0.1:1/0")) as fresh:
        yield fresh


async def test_without_redis(world: ApiWorld) -> None:
    """The condition states that there is no Redis, the version, and the mode of authentication."""
    told = (await world.get("/condition")).json()
    assert (told["version"], told["auth"], told["hasRedis"], told["redis"]) == (version(), "none", False, None)
    assert (told["taskListen"], told["taskDoorAnswers"]) == ("", None)


async def test_with_redis(redis_world: ApiWorld) -> None:
    """The condition of the Redis server has the shape that the doctor reads; when Redis is away, it is null, with the
    error."""
    inside = api_condition_of((await redis_world.get("/condition")).json())
    assert inside.redis is not None
    assert inside.redis.policy == "noeviction"
    redis_world.server.absent = True
    told = (await redis_world.get("/condition")).json()
    assert told["redis"] is None
    assert told["redisError"]


async def test_the_condition_tells_whether_the_tasks_port_answers() -> None:
    """The condition tells whether a server answers at the address that ranks call; null when the port is not known."""
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
