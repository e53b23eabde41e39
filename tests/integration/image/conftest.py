"""The image, made once: by the Dockerfile's own lines, of the sources as they are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import Container, made_image, require_root
from tests.support.dockerfile import Image


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """With this Python where Docker would have the one of the base image."""
    require_root()
    with made_image(tmp_path_factory.mktemp("image")) as made:
        yield made


@pytest.fixture
def container(image: Image, tmp_path: Path) -> Container:
    """One that nothing is mounted in but its /tmp."""
    return Container(image, tmp_path / "container")


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where the ranks of a gang leave a mark for each start."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder
