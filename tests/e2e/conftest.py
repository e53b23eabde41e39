"""One stack for the whole session; a folder for the marks of a test's pods."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.local_stack import RunningStack, running_stack


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """Four services, a cluster with two nodes, a Valkey: all real processes."""
    with running_stack(tmp_path_factory.mktemp("stack") / "data", cpus=32, memory="64Gi") as running:
        yield running


@pytest.fixture(scope="module")
def stack(_shared: RunningStack) -> Generator[RunningStack]:
    """The stack of all files of tests; a test leaves nothing running to the next."""
    yield _shared
    _shared.end_everything()


@pytest.fixture(autouse=True)
def _everything_works(request: pytest.FixtureRequest) -> None:  # pyright: ignore[reportUnusedFunction]
    """Wait until every service works: an earlier test may have killed a service in its last step."""
    if "stack" in request.fixturenames:
        request.getfixturevalue("stack").await_ready()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """The folder in which pods, which are processes of this machine, leave marks."""
    folder = tmp_path / "marks"
    folder.mkdir(mode=0o777)
    return folder
