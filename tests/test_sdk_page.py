"""docs/sdk.md, run: its blocks are one program, from top to bottom, against the real api.

The test plays the scheduler, the nodes and the watcher: each allocation that waits and is not held runs, prints a line
and ends successfully.
"""

import asyncio
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event, Kind, Phase
from slipway.model.reasons import Result
from slipway.sdk import Client
from slipway.streams.logpacks import LogLine
from tests.support.api_world import ApiWorld, api_world
from tests.support.http_stub import serve_app
from tests.support.logs import end_logs, store_lines

PAGE = Path(__file__).parent.parent / "docs" / "sdk.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TURN_S = 0.02
METHOD = re.compile(r"`(?:client\.)?([a-z_]+)\(")


async def play(world: ApiWorld) -> None:
    """Advance each allocation by one step, over and over."""
    while True:
        for name in await world.names():
            found = await world.stored(name)
            seen = found.status.seq
            if found.status.phase is Phase.TERMINATED:
                continue
            if found.spec.desired == "Stopped":
                moved = await world.step(name, Event.TERMINATED, result=Result.CANCELED)
            elif found.status.phase is Phase.PENDING and not found.spec.hold:
                moved = await world.run(name)
            elif found.status.phase is Phase.RUNNING and found.spec.kind is not Kind.NOTEBOOK:
                id_ = AllocationId(f"{name}-{found.metadata.uid[:8]}")
                line = LogLine(rank=0, attempt=1, stream="stdout", time="2026-01-02T03:04:05Z", text="hello")
                await store_lines(world.streams, id_, [line])
                await end_logs(world.streams, id_)
                moved = await world.step(name, Event.TERMINATED, result=Result.SUCCEEDED)
            else:
                continue
            await world.publish(moved, after=seen)
        await asyncio.sleep(TURN_S)


def run_page() -> str:
    """Run all blocks as one program and return its output."""
    text = PAGE.read_text("utf-8")
    names: dict[str, Any] = {"__name__": "__page__"}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for found in BLOCK.finditer(text):
            # Empty lines in front, so that a traceback names the line of the page.
            lines = "\n" * text.count("\n", 0, found.start(1))
            exec(compile(lines + found[1], str(PAGE), "exec"), names)
    return out.getvalue()


async def test_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of the page works as shown, and its output is what its comments say."""
    for name in ("SLIPWAY_API_TOKEN", "SLIPWAY_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLIPWAY_USER", "ada")
    async with api_world() as world, serve_app(world.app, before_stop=world.stop.set) as url:
        monkeypatch.setenv("SLIPWAY_SERVER", url)
        playing = asyncio.ensure_future(play(world))
        running = asyncio.ensure_future(asyncio.to_thread(run_page))
        await asyncio.wait({playing, running}, return_when=asyncio.FIRST_COMPLETED)
        playing.cancel()
        await asyncio.wait({playing, running})
        printed = running.result()
    for said in (
        "Succeeded\n0 hello",
        "<Client of http://127.0.0.1:",
        "gpu: there is no such field; did you mean gpus?\n/gpu\n",
        "has not ended after 0.1 s: it is Pending - ",
        "requested\n['assigned', 'running', 'terminated']\n[]\n",
        "not-found 404",
        "['Succeeded', 'Succeeded', 'Succeeded']",
    ):
        assert said in printed, printed


def test_the_page_names_methods_that_there_are() -> None:
    """Each call that the page shows is a method of the client or of a run."""
    from slipway.sdk import Run

    named = set(METHOD.findall(PAGE.read_text("utf-8")))
    assert len(named) >= 12
    assert {name for name in named if not hasattr(Client, name) and not hasattr(Run, name)} == set()
