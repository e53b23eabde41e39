"""Both clients of the SDK against the real api, over an in-process cluster and streams, on a real socket."""

from collections.abc import AsyncGenerator

import pytest

from slipway.sdk import AsyncClient, Client
from tests.support.api_world import ApiWorld, api_world
from tests.support.http_stub import serve_app
from tests.support.sdk import Shell


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:  # pyright: ignore[reportUnusedFunction]
    """Hide the servers, users, logins and stacks of the machine that the tests run on."""
    for name in ("SLIPWAY_SERVER", "SLIPWAY_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLIPWAY_USER", "ada")
    monkeypatch.setenv("SLIPWAY_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
async def world() -> AsyncGenerator[ApiWorld, None]:
    """An api over an empty, furnished cluster."""
    async with api_world() as fresh:
        yield fresh


@pytest.fixture
async def url(world: ApiWorld) -> AsyncGenerator[str, None]:
    """The URL of that api."""
    async with serve_app(world.app, before_stop=world.stop.set) as address:
        yield address


@pytest.fixture(params=[Client, AsyncClient])
async def shell(request: pytest.FixtureRequest, url: str) -> AsyncGenerator[Shell, None]:
    """Each of the two clients in turn."""
    made = Shell(request.param(url))
    yield made
    await made.close()
