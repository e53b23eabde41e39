"""A typed client that others generate from the OpenAPI document works against the api."""

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway.api.app import ENDPOINTS
from slipway.api.http import openapi
from tests.support.api_world import api_world
from tests.support.http_stub import serve_app

PACKAGE = "slipway_rest_client"
CONFIG = f"package_name_override: {PACKAGE}\npost_hooks: []\n"
BINARY = ["GET /api/v1/allocations/{id}/context"]
"""Operations that the generator omits, because it has no type for a gzipped archive."""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the package, and the generator's output."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.json").write_text(json.dumps(openapi.document(ENDPOINTS, "1.2.3")))
    (folder / "config.yaml").write_text(CONFIG)
    argv = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    argv += ["--path", "openapi.json", "--config", "config.yaml", "--output-path", PACKAGE]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def test_the_generator_understands_every_operation(generated: tuple[Path, str]) -> None:
    """The generator omits only archives, and has no other warning."""
    _, said = generated
    warned = [line for line in said.splitlines() if line.startswith(("WARNING", "ERROR", "/components"))]
    assert [line.removeprefix("WARNING parsing ").partition(" within")[0] for line in warned] == BINARY


async def test_it_launches_reads_lists_and_kills(generated: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies and answers have the client's types, and a refusal has the problem type of the document."""
    folder, _ = generated
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])

    def part(name: str) -> Any:
        return importlib.import_module(f"{PACKAGE}.{name}")

    models = part("models")
    allocations = "api.allocations"
    async with (
        api_world() as world,
        serve_app(world.app, before_stop=world.stop.set) as url,
        part("client").Client(base_url=url) as client,
        asyncio.timeout(60),
    ):
        body = models.LaunchBody(kind=models.Kind.COMMAND, image="busybox", command=["true"], name="typed")
        made = await part(f"{allocations}.post_allocations").asyncio(client=client, body=body, idempotency_key="once")
        assert isinstance(made, models.AllocationView)
        again = await part(f"{allocations}.post_allocations").asyncio(client=client, body=body, idempotency_key="once")
        assert again.id == made.id
        found = await part(f"{allocations}.get_allocations_id").asyncio(made.id, client=client)
        assert (found.name, found.phase, found.kind) == ("typed", models.Phase.PENDING, models.Kind.COMMAND)
        listed = await part(f"{allocations}.get_allocations").asyncio(client=client, active=True)
        assert [each.id for each in listed.items] == [made.id]
        await part(f"{allocations}.post_allocations_id_kill").asyncio(made.id, client=client)
        assert (await world.stored("typed")).spec.desired == "Stopped"
        absent = await part(f"{allocations}.get_allocations_id").asyncio("nothing", client=client)
        assert isinstance(absent, models.Problem)
        assert (absent.status, absent.code) == (404, "not-found")
