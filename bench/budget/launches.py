"""The cost of a launch: the services run in virtual time on the simulation's models, without faults.

Owns the workloads and the counts: calls of the Kubernetes API by service, verb and resource, bytes that the commits of
each service write to etcd (the whole object, as JSON), calls of Redis by service, entries and bytes by stream. Counts
are per 1,000 launches (of gangs: per 1,000 pods), except for `rest` and `served`: there the api runs too, and counts
are per minute. The same code gives the same counts. Must not read a clock.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.kube.resources import QUEUES
from slipway.model.lifecycle import Phase
from slipway.streams.pages import Id
from tests.support.api_clients import Client
from tests.support.faults import Effect, Process
from tests.support.kubelet import Script
from tests.support.simulated_log import Burst
from tests.support.small_cluster import a_manifest
from tests.support.world import REDIS, Setup, World, run_world

WARM_S = 20.0
TAIL_S = 10.0
"""Seconds to wait after the last change, so that delayed work (a second hint, usage, clean-up) is counted."""
REST_S = 60.0
A_LINE = (Burst(0.0, 1),)
"""The output of a rank at its start; it prints two more lines at its end. The benchmark `output` measures logs."""
RUNS_S = 5.0
SEED = 1
NODES = Setup(nodes=4, cpus=64)
SERVED = msgspec.structs.replace(NODES, replicas={"api": 1}, api={"redis_url": REDIS})
PAGES = ("/nodes", "/pools", "/queues", "/queues/default", "/allocations")
_RECURRING = frozenset({"leases"})

Play = Callable[[World], Awaitable[None]]


class Meter:
    """Counts the calls of the services of one world to its Kubernetes and Redis, from the meter's creation on."""

    def __init__(self, world: World) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._begun = len(world.changes)
        self._tap("number", "writes")
        self._tap("number_read", "reads")
        world.server.on_add = self._added

    def done(self) -> Counter[str]:
        """Return the counts, with the bytes of the commits."""
        for _, writer, change in self._world.changes[self._begun :]:
            if writer and change.resource.partition(".")[0] not in _RECURRING:
                self.counts[f"etcd bytes, {_service(writer)}"] += len(msgspec.json.encode(change.record.obj))
        return self.counts

    def _tap(self, name: str, what: str) -> None:
        number: Callable[[Process, Effect], None] = getattr(self._world.injector, name)

        def counted(process: Process, effect: Effect) -> None:
            number(process, effect)
            service = _service(process.role)
            if not effect.is_kube:
                self.counts[f"redis calls, {service}"] += 1
            elif effect.target not in _RECURRING:
                self.counts[f"kube {what}, {service}: {effect.verb} {effect.target}"] += 1

        setattr(self._world.injector, name, counted)

    def _added(self, key: str, fields: dict[str, bytes], _entry_id: Id) -> None:
        stream = _stream(key)
        self.counts[f"redis entries, {stream}"] += 1
        self.counts[f"redis bytes, {stream}"] += sum(len(name) + len(value) for name, value in fields.items())


async def steady(world: World) -> None:
    """Launch 100 single ranks, 20 per second, as on a busy day."""
    await _launch(world, 100, 1, pause_s=0.05)


async def burst(world: World) -> None:
    """Launch 200 single ranks at once, as from a sweep."""
    await _launch(world, 200, 1, pause_s=0.0)


async def gangs(world: World) -> None:
    """Launch 10 gangs of 16, two per second."""
    await _launch(world, 10, 16, pause_s=0.5)


async def queued(world: World) -> None:
    """Launch 100 single ranks, ten per second, in a queue with room for eight: its usage changes while others wait."""
    limit = {"limit": {"cpu": "32"}}
    await world.kube.create(QUEUES, {"metadata": {"name": "busy"}, "spec": {"pool": "default", **limit}})
    for number in range(100):
        manifest = a_manifest(f"job-{number}", cpu=str(3 + number % 3), queue="busy")
        # The api sets this finalizer too.
        manifest["metadata"]["finalizers"] = [TEARDOWN_FINALIZER]
        await world.apply(manifest)
        await asyncio.sleep(0.1)
    await _until(world, Phase.TERMINATED)


async def served(world: World) -> None:
    """Play a minute in which users launch through the api every two seconds and read pages every ten seconds.

    Each event is compared with a webhook.
    """
    ada = Client(world, "ada")
    for second in range(0, int(REST_S), 2):
        launched = await ada.launch(f"served-{second}", key=f"served-{second}")
        if launched.status not in (200, 201):
            raise RuntimeError(f"a launch was refused: {launched.text}")
        for path in PAGES if second % 10 == 0 else ():
            page = await ada.ask("page", "GET", path)
            if page.status != 200:
                raise RuntimeError(f"{path} was not answered: {page.text}")
        await asyncio.sleep(2.0)


async def _add_webhook(world: World) -> None:
    """Add a disabled webhook, so that nothing leaves the simulation; each batch of events is compared with it."""
    hook = {"name": "hook", "url": "https://receiver.example/", "enabled": False}
    made = await Client(world, "ada").ask("webhook", "POST", "/webhooks", body=hook)
    if made.status != 201:
        raise RuntimeError(f"the webhook was not created: {made.text}")


async def rest(world: World) -> None:
    """Play a minute without a change, while 20 allocations run."""
    await asyncio.sleep(REST_S)


WORKLOADS: dict[str, tuple[Play, float]] = {
    "steady": (steady, 100 / 1_000),
    "burst": (burst, 200 / 1_000),
    "gangs": (gangs, 160 / 1_000),
    "queued": (queued, 100 / 1_000),
    "served": (served, REST_S / 60.0),
    "rest": (rest, REST_S / 60.0),
}
"""{name: (the workload, the divisor of its counts)}"""
WITH_API = ("served", "rest")


def measure(name: str) -> dict[str, float]:
    """Return {name of a count: count} of one workload."""
    play, divisor = WORKLOADS[name]

    async def counted(world: World) -> Counter[str]:
        world.server.is_replicated = lambda: False
        world.kubelets.simulated = lambda _attempt, _rank: A_LINE
        world.kubelets.script = lambda _attempt, _rank: Script(runs_s=None if name == "rest" else RUNS_S)
        if name == "rest":
            await _launch(world, 20, 1, pause_s=0.05, is_ended=False)
        await asyncio.sleep(WARM_S)
        if name == "served":
            await _add_webhook(world)
            await asyncio.sleep(WARM_S)
        meter = Meter(world)
        await play(world)
        return meter.done()

    counts: Counter[str] = run_world(counted, SERVED if name in WITH_API else NODES, seed=SEED)
    return {f"{name}, {what}": round(count / divisor, 1) for what, count in sorted(counts.items())}


async def _launch(world: World, count: int, ranks: int, *, pause_s: float, is_ended: bool = True) -> None:
    """Launch `count` allocations; wait until all have ended (or run), and for `TAIL_S` longer."""
    for number in range(count):
        await world.launch(f"job-{number}", ranks=ranks, cpu="100m")
        if pause_s:
            await asyncio.sleep(pause_s)
    await _until(world, Phase.TERMINATED if is_ended else Phase.RUNNING)


async def _until(world: World, phase: Phase) -> None:
    """Wait until all allocations are in this phase, and for `TAIL_S` longer."""

    async def all_there() -> bool:
        return {_phase(record.obj) for record in world.core.store.scan("allocations.slipway.dev")} == {phase.value}

    await world.until(all_there)
    await asyncio.sleep(TAIL_S)


def _phase(allocation: dict[str, Any]) -> str:
    return str(allocation.get("status", {}).get("phase"))


def _service(role: str) -> str:
    return role.partition("-")[0].rstrip("0123456789")


def _stream(key: str) -> str:
    """Return the kind of a stream from its key: `alloc` for `slipway:alloc:{ID}`, `work` for `slipway:work:{00}`."""
    return key.split(":")[1].partition("{")[0]


def main() -> None:
    """`python -m bench.budget.launches NAME`: print the counts as JSON."""
    json.dump(measure(sys.argv[1]), sys.stdout)


if __name__ == "__main__":
    main()
