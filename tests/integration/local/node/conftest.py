"""Real local nodes for every test of this folder."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.local_node import NodeWorld, node_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[NodeWorld, None]:
    """Two nodes of 4 cpus, 8Gi and 2 GPUs."""
    async with node_world(tmp_path / "nodes") as world:
        yield world
