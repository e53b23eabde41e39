"""Every test here runs on the in-memory model and on each real server of this machine."""

from collections.abc import AsyncGenerator, Generator

import pytest

from slipway.local.valkey import ValkeyProcess
from slipway.streams.ports import Streams
from tests.support.redis import BACKENDS, Backend, MemoryBackend, RedisBackend, running_server


@pytest.fixture(scope="session", params=BACKENDS)
def server(request: pytest.FixtureRequest) -> Generator[ValkeyProcess | None]:
    """One server for the whole session; None stands for the model."""
    if request.param == "memory":
        yield None
        return
    with running_server(request.param) as process:
        yield process


@pytest.fixture
async def backend(server: ValkeyProcess | None) -> AsyncGenerator[Backend]:
    """An empty server."""
    if server is None:
        yield MemoryBackend()
        return
    real = RedisBackend(server.url)
    await real.flush()
    yield real
    await real.aclose()


@pytest.fixture
def streams(backend: Backend) -> Streams:
    """The ports as one process has them."""
    return backend.connect()
