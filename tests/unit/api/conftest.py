"""The fixture of these tests: one world for each test."""

from collections.abc import AsyncGenerator

import pytest

from tests.support.api_world import ApiWorld, api_world


@pytest.fixture
async def world() -> AsyncGenerator[ApiWorld, None]:
    """An api over an empty, furnished cluster."""
    async with api_world() as fresh:
        yield fresh
