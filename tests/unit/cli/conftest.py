"""The command against the real api, over an in-process cluster and streams, on a real socket."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.api_world import ApiWorld, api_world
from tests.support.cli import CliUser
from tests.support.http_stub import serve_app


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:  # pyright: ignore[reportUnusedFunction]
    """Hide the servers, users and stacks of the machine that the tests run on."""
    for name in ("SLIPWAY_SERVER", "SLIPWAY_USER", "SLIPWAY_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLIPWAY_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
async def world() -> AsyncGenerator[ApiWorld, None]:
    """An api over an empty, furnished cluster."""
    async with api_world() as fresh:
        yield fresh


@pytest.fixture
async def cli_user(world: ApiWorld) -> AsyncGenerator[CliUser, None]:
    """A user of that api."""
    async with serve_app(world.app, before_stop=world.stop.set) as url:
        yield CliUser(url)
