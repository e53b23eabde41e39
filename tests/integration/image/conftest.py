"""The image, made once from the present sources by the lines of the Dockerfile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container import Container, made_image, require_root
from tests.support.dockerfile import Image


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image, with this Python in place of that of the base image."""
    require_root()
    with made_image(tmp_path_factory.mktemp("image")) as made:
        yield made


@pytest.fixture
def container(image: Image, tmp_path: Path) -> Container:
    """A container in which nothing but its /tmp is mounted."""
    return Container(image, tmp_path / "container")


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """The folder in which the ranks of a gang leave a mark for each start."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder
