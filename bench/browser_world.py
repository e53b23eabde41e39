"""An api over a large cluster in memory, as its own process: `python -m bench.browser_world --nodes 5000 ...`.

Owns the objects (made with the same structs and the same model of the API server as in the api's tests) and their
transitions. It reads one command per line from its standard input, and answers each command with one line:

    rate N      make N transitions a second, of allocations that are created, run and end; `ok`
    move        make one transition; `{"id": ..., "word": ..., "at_ms": ...}`: the word that the page must show, and
                since when

It cannot show how long a LIST of a real API server takes. Reading an object here decodes the same JSON.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from slipway.api.settings import Settings
from slipway.crd.meta import ANNOTATION_USER
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Admission, Allocation, Placement, RankStatus, Release
from slipway.kube.resources import ALLOCATIONS, NODES
from slipway.model.lifecycle import Event, RankState
from slipway.model.reasons import Gate, Result
from slipway.model.state_words import WAITING
from slipway.runtime.http_server import HttpServer
from slipway.runtime.listen import bind, parse_listen
from slipway.streams.logpacks import LogKey, LogPack, LogPosition
from tests.support.api_world import ApiWorld, api_world

GPUS = 8
RACK = 40
USERS = ("ada", "bob", "cyd", "dan", "eve", "fay")
LOG_NAME = "talks"
LINES_AT_ONCE = 500
SHARE_BYTES = 256 * 1024 * 1024
MOVING = "moves"
LIVES = 150
"""allocations that are created, run and end while there is a rate; together with `MOVING`, fewer than the page shows"""
STEPS = (Event.ASSIGNED, Event.PULLING, Event.STARTING, Event.RUNNING, Event.TERMINATED)
PAUSE_S = 0.02


class World:
    """The objects, and their transitions."""

    def __init__(self, api: ApiWorld) -> None:
        self._api = api
        self._lives: deque[tuple[str, int]] = deque()
        self._number = 0
        self._chance = random.Random(7)
        self._waits = False
        self.rate = 0.0
        self.log = ""
        """the id of the allocation with the long log"""

    async def fill(self, *, nodes: int, running: int, queued: int, ended: int, lines: int) -> None:
        """Create all objects."""
        for number in range(nodes):
            await self._node(number)
        for number in range(ended):
            name = f"over-{number}"
            await self._launch(name, gpus=1)
            for event in (Event.ASSIGNED, Event.RUNNING, Event.TERMINATED):
                await self._step(name, event, node="node-0")
        for number in range(running):
            name = f"run-{number}"
            await self._launch(name, gpus=4)
            await self._step(name, Event.ASSIGNED, node=f"node-{number % max(1, nodes)}")
            await self._step(name, Event.RUNNING)
        for number in range(queued):
            await self._launch(f"wait-{number}", gpus=1 + number % GPUS)
            await self._api.explain(f"wait-{number}", Gate.WAITING_FOR_QUOTA.value, "queue default has used its quota")
        if lines:
            await self._talk(lines)
        # Creation times are whole seconds: the allocation must be created in a later second to be the newest.
        await asyncio.sleep(1.1)
        await self._launch(MOVING, gpus=4)
        await self._step(MOVING, Event.ASSIGNED, node="node-0")
        await self._step(MOVING, Event.RUNNING)

    async def move(self) -> dict[str, Any]:
        """Let the newest running allocation wait for input, or continue; return what the page must then show."""
        self._waits = not self._waits
        data = {"waiting": self._waits}
        found = await self._step(MOVING, Event.UPDATED, data=data, waiting=self._waits)
        word = WAITING if self._waits else "Running"
        return {"id": id_of(found), "word": word, "at_ms": self._api.clock.now() * 1_000}

    async def run(self) -> None:
        """Make `rate` transitions per second, for ever."""
        owed, last = 0.0, time.perf_counter()
        while True:
            await asyncio.sleep(PAUSE_S)
            now = time.perf_counter()
            # After a long answer of the api, the missed transitions are not all made up at once.
            owed, last = min(owed + self.rate * (now - last), self.rate), now
            while owed >= 1:
                owed -= 1
                await self._live_on()
                await asyncio.sleep(0)

    async def _live_on(self) -> None:
        """Move the next allocation one step further; launch a new one while there are few."""
        if len(self._lives) < LIVES:
            self._number += 1
            name = f"live-{self._number}"
            found = await self._launch(name, gpus=1)
            await self._api.publish(found)
            self._lives.append((name, 0))
            return
        name, step = self._lives.popleft()
        if step == len(STEPS):
            await self._api.kube.delete(ALLOCATIONS, name, namespace="default")
            return
        await self._step(name, STEPS[step], node="node-0")
        self._lives.append((name, step + 1))

    async def _step(self, name: str, event: Event, *, node: str = "", **changes: Any) -> Allocation:
        found = await self._api.stored(name)
        if event is Event.ASSIGNED:
            placements = [Placement(rank=0, role="worker", node=node)]
            changes["admission"] = Admission(decision_id="d1", epoch=1, attempt=1, placements=placements)
        if event is Event.RUNNING:
            uid = f"pod-{name}"
            where = found.status.admission.placements[0].node if found.status.admission else ""
            changes["release"] = Release(attempt=1, pod_uids=[uid])
            changes["ranks"] = [RankStatus(pod_uid=uid, node=where, phase=RankState.RUNNING)]
        if event is Event.TERMINATED:
            changes["result"] = Result.SUCCEEDED
        moved = await self._api.step(name, event, **changes)
        await self._api.publish(moved, moved.status.seq - 1)
        return moved

    async def _launch(self, name: str, *, gpus: int) -> Allocation:
        asked = {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": str(gpus)}
        container = {"name": "main", "image": "python:3.11", "command": ["python", "train.py"]}
        spec = {
            "kind": "command",
            "ranks": [{"name": "worker", "count": 1, "resources": {"requests": asked}}],
            "template": {"spec": {"containers": [container]}},
        }
        marks = {ANNOTATION_USER: self._chance.choice(USERS)}
        meta = {"name": name, "namespace": "default", "annotations": marks}
        return await self._api.kube.create(ALLOCATIONS, {"metadata": meta, "spec": spec}, namespace="default")

    async def _node(self, number: int) -> None:
        amounts = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": str(GPUS), "pods": "110"}
        ready = {"type": "Ready", "status": "True" if number % 100 else "False"}
        labels = {"kubernetes.io/hostname": f"node-{number}", "rack": f"rack-{number // RACK}"}
        labels["nvidia.com/gpu.product"] = "NVIDIA-H100-80GB-HBM3"
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}
        await self._api.kube.create(NODES, {"metadata": {"name": f"node-{number}", "labels": labels}, "status": status})

    async def _talk(self, lines: int) -> None:
        """Create an allocation that has printed this many lines and has ended."""
        await self._launch(LOG_NAME, gpus=0)
        for event in (Event.ASSIGNED, Event.RUNNING, Event.TERMINATED):
            found = await self._step(LOG_NAME, event, node="node-0")
        self.log = id_of(found)
        source, position = LogKey(attempt=1, rank=0), LogPosition()
        for first in range(1, lines + 1, LINES_AT_ONCE):
            count = min(LINES_AT_ONCE, lines + 1 - first)
            second = f"2026-01-02T03:{first // 10_000 % 60:02d}:{first // 500 % 60:02d}Z"
            texts = [
                f"{second} step {n} loss {1 / n:.6f} throughput {400 + n % 7} samples/s".encode()
                for n in range(first, first + count)
            ]
            is_last = first + count > lines
            after = LogPosition(number=first + count - 1, second=second, seen=count, time=second, is_ended=is_last)
            pack = LogPack(
                allocation=id_of(found), source=source, after=position, first=first, lines=texts,
                position=after, share_bytes=SHARE_BYTES,
            )  # fmt: skip
            (answer,) = await self._api.streams.logs.append([pack])
            assert answer.is_appended, answer
            position = answer.position


@asynccontextmanager
async def _commands() -> AsyncGenerator[asyncio.StreamReader]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    yield reader


async def _obey(world: World, api: ApiWorld) -> None:
    async with _commands() as lines:
        while line := (await lines.readline()).decode().split():
            if line[0] == "rate":
                world.rate = float(line[1])
                _say({"ok": True})
            elif line[0] == "move":
                _say(await world.move())
    api.stop.set()


def _say(told: dict[str, Any]) -> None:
    print(msgspec.json.encode(told).decode(), flush=True)


async def main() -> None:
    """Serve until the standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("nodes", "running", "queued", "ended", "lines"):
        parser.add_argument(f"--{name}", type=int, default=0)
    options = parser.parse_args()
    async with api_world(Settings(request_timeout_s=120.0)) as api:
        world = World(api)
        await world.fill(**vars(options))
        with bind(parse_listen("127.0.0.1:0")) as listener:
            server = HttpServer(api.app, [listener], drain_timeout_s=2.0, websockets=False)
            async with asyncio.TaskGroup() as tasks:
                moving = tasks.create_task(world.run())
                tasks.create_task(_obey(world, api))
                _say({"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "log": world.log})
                await server.serve(api.stop.wait)
                moving.cancel()


if __name__ == "__main__":
    asyncio.run(main())
