"""One stack for the whole session; a folder in which the pods of a test leave marks."""

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
    """The same one for all files of tests; none leaves anything running to the next."""
    yield _shared
    _shared.end_everything()


@pytest.fixture(autouse=True)
def _everything_works(request: pytest.FixtureRequest) -> None:  # pyright: ignore[reportUnusedFunction]
    """What an earlier test has killed, it may have killed last: its end is not yet the end of the outage."""
    if "stack" in request.fixturenames:
        request.getfixturevalue("stack").await_ready()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where pods, which are processes of this machine, leave word of themselves."""
    folder = tmp_path / "marks"
    folder.mkdir(mode=0o777)
    return folder
