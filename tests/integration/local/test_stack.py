"""Supervision of the processes of a local stack: restarts, halts, the end."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from slipway.local.process import Child
from slipway.local.stack import Stack, StackOptions
from slipway.local.stack import _free_port as free_port  # pyright: ignore[reportPrivateUsage]
from tests.support.clock import wait_until
from tests.support.local_stack import processes_of

NAME = "api"


class WatchedStack:
    """A stack whose only process is a web server that is ready at once, and the stack's messages."""

    def __init__(self, folder: Path) -> None:
        self.said = list[str]()
        self.folder = folder / "data"
        self.stack = Stack(StackOptions(folder=self.folder), say=self.said.append)

    @property
    def child(self) -> Child:
        return self.stack.children[NAME]

    async def start(self) -> None:
        self.stack.layout.make()
        (self.folder / "readyz").touch()
        port = free_port()
        module = ["http.server", "--bind", "127.0.0.1", "--directory", str(self.folder), str(port)]
        await self.stack._spawn(NAME, module, url=f"http://127.0.0.1:{port}")  # pyright: ignore[reportPrivateUsage]
        await self.child.answers("/readyz", 30.0)

    def watchers(self) -> int:
        """The number of tasks that watch the process."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return len([task for task in tasks if "Stack." in str(task.get_coro())])

    def processes(self) -> list[str]:
        return processes_of(str(self.folder))


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[WatchedStack]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = WatchedStack(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.stack.stop()


async def test_a_halted_process_is_watched_by_none_and_a_resumed_one_as_before(watched: WatchedStack) -> None:
    """However soon it is resumed, one task restarts it and one probes it."""
    before = watched.watchers()
    await watched.stack.halt(NAME)
    assert (watched.watchers(), watched.processes()) == (0, [])
    for _ in range(2):
        await watched.stack.resume(NAME)
        assert (watched.watchers(), len(watched.processes())) == (before, 1)


async def test_a_process_that_is_halted_before_its_restart_runs_once_when_it_is_resumed(watched: WatchedStack) -> None:
    """The process crashed and waits for its next start when it is halted: that start does not happen."""
    before = watched.watchers()
    watched.stack.kill(NAME)
    await wait_until(lambda: watched.said, "the crash is reported")
    await watched.stack.halt(NAME)
    assert (watched.watchers(), watched.processes()) == (0, [])
    await watched.stack.resume(NAME)
    assert (watched.watchers(), len(watched.processes())) == (before, 1)
