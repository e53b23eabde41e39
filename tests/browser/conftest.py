"""One browser and one stack for all tests of pages.

The browser is the machine's Chromium; if there is none and we may install packages, it is installed from Debian.
Otherwise these tests are skipped, with the name of what is missing.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, Page, find, running_browser
from tests.conformance.cluster.binaries import MissingProgramError, ensure_debian
from tests.support.local_stack import RunningStack, running_stack

PICTURES = "SLIPWAY_PICTURES"
"""The variable with a folder in which the pictures of a run are stored."""


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    try:
        program = find() or ensure_debian("chromium-headless-shell")
    except MissingProgramError as error:
        pytest.skip(f"no browser: {error}")
    with running_browser(program) as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Generator[Page]:
    with browser.page() as fresh:
        fresh.look()
        yield fresh


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """Four services, a cluster and a Valkey, all real; programs in pods are real too."""
    with running_stack(tmp_path_factory.mktemp("stack") / "data", cpus=32, memory="64Gi") as running:
        yield running


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get(PICTURES) or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
