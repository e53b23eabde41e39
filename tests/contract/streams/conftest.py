"""Every test here runs on the in-memory model and on each real server of this machine, single and as a cluster."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator

import pytest

from slipway.streams.ports import Streams
from tests.support.redis import TARGETS, Backend, MemoryBackend, RedisBackend, running_server, server_binary
from tests.support.redis_cluster import Cluster

_PARAMS = [name if name == "memory" else pytest.param(name, marks=pytest.mark.costly) for name in TARGETS]


@pytest.fixture(scope="session", params=_PARAMS)
def target(request: pytest.FixtureRequest) -> Generator[Callable[[], Backend]]:
    """The factory of a test's backend; servers run for the whole session."""
    name: str = request.param
    if name == "memory":
        yield MemoryBackend
    elif name.endswith("-cluster"):
        cluster = Cluster(server_binary(name))
        try:
            asyncio.run(cluster.start())
            yield cluster.backend
        finally:
            asyncio.run(cluster.stop())
    else:
        with running_server(name) as process:
            yield lambda: RedisBackend(process.url)


@pytest.fixture
async def backend(target: Callable[[], Backend]) -> AsyncGenerator[Backend]:
    """An empty server."""
    found = target()
    await found.flush()
    yield found
    await found.aclose()


@pytest.fixture
def streams(backend: Backend) -> Streams:
    """The ports as one process has them."""
    return backend.connect()
