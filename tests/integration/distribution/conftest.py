"""A release without an image, made once for all tests of this folder."""

from pathlib import Path

import pytest

from tools.release.__main__ import ReleasePlan, make, version

EPOCH_S = 1_700_000_000


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the release's files; tests/integration/image makes and checks the image."""
    output = tmp_path_factory.mktemp("released") / "dist"
    make(ReleasePlan(version=version(), epoch_s=EPOCH_S, output=output, architecture="amd64"), None)
    return output
