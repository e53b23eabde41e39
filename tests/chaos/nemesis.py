"""Injects the faults: what each kind does on this stage, and how it ends.

Owns the table from a kind to its action. An action is an async context: entering it begins the fault, and leaving it
ends it; for some (a kill) both are one moment. It must not judge anything.
"""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import msgspec
import redis

from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.runtime.clock import SystemClock
from tests.chaos import faults, plans, upgrade
from tests.chaos.faults import Fault
from tests.chaos.history import History
from tests.chaos.load import Launched, Load
from tests.chaos.proxy.rules import Effect, Rule
from tests.chaos.stage import NAMES, NO_SHIFT, Stage
from tests.conformance.system.operator import NOT_FOUND
from tests.support import chart

Doing = Callable[[Fault, random.Random], AbstractAsyncContextManager[None]]
RETRY_AFTER_S = 1
WATCH_DELAY_S = 3.0
REDIS_DELAY_S = 0.15
HALF, SOME = 0.5, 0.3
AGAIN_S = 0.3
STALL_S = 60.0
"""A silent watch is given up after 40 s (`kube/rest.py`); a process that is stopped meanwhile notices it later."""
STARTS_MAX = 3
QUOTAS = "resourcequotas"
THREE, SIX = 3, 6
"""The number of launches in a separate workspace."""
WORDS_OF_CLOCKS = {
    "clock +10 min": "+600",
    "clock -10 min": "-600",
    "clock rate 1.5": "+0 x1.5",
    "clock rate 0.5": "+0 x0.5",
}
_LIMITS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "others over quota": (QUOTAS, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}),
    "others refused": (
        "limitranges",
        {"metadata": {"name": "large"}, "spec": {"limits": [{"type": "Container", "min": {"cpu": "64"}}]}},
    ),
}
"""{kind: the collection of the object that forbids all pods of a workspace, and the object}"""
_CALLS = {
    "429 Retry-After": Rule(kind=Effect.ANSWER, status=429, retry_after_s=RETRY_AFTER_S, share=HALF),
    "500": Rule(kind=Effect.ANSWER, status=500, share=HALF),
    "503": Rule(kind=Effect.ANSWER, status=503, share=HALF),
    "504": Rule(kind=Effect.ANSWER, status=504, share=HALF),
    "reset mid body": Rule(kind=Effect.RESET_BODY, share=HALF),
    "slow body 1 B/s": Rule(kind=Effect.SLOW_BODY, share=SOME),
    "timeout applied": Rule(kind=Effect.TIMEOUT_APPLIED, share=SOME),
    "timeout not applied": Rule(kind=Effect.TIMEOUT_NOT_APPLIED, share=SOME),
    "watch stalled": Rule(kind=Effect.WATCH_STALLED),
    "watch closed": Rule(kind=Effect.WATCH_CLOSED),
    "watch 410": Rule(kind=Effect.WATCH_GONE),
    "watch duplicated": Rule(kind=Effect.WATCH_DUPLICATED),
    "watch delayed": Rule(kind=Effect.WATCH_DELAYED, delay_s=WATCH_DELAY_S),
    "redis cut off": Rule(kind=Effect.REDIS_CUT),
    "redis silent": Rule(kind=Effect.REDIS_STALLED),
    "redis slow": Rule(kind=Effect.REDIS_SLOW, delay_s=REDIS_DELAY_S),
    "redis torn replies": Rule(kind=Effect.REDIS_TORN, share=0.1),
}


class Nemesis:
    """Injects every kind of fault on one stage."""

    def __init__(self, stage: Stage, history: History, load: Load) -> None:
        self._stage = stage
        self._history = history
        self._load = load
        self.struck: dict[str, int] = {}
        """{kind: number of requests or connections that a rule of the proxy has struck}"""
        self.lost_at: dict[str, list[float]] = {}
        """{node: when it was lost}"""
        self._clock = SystemClock()
        self._doings: dict[str, Doing] = dict(self._table())

    def do(self, fault: Fault) -> AbstractAsyncContextManager[None]:
        """A context in which the fault is active."""
        return self._doings[fault.kind](fault, random.Random(fault.chance))

    def _table(self) -> Iterator[tuple[str, Doing]]:
        for role in faults.ROLES:
            yield f"kill -9 {role}", self._kill
            yield f"SIGSTOP {role}", self._stop
        yield "rolling restart", self._roll
        yield "rolling upgrade", self._upgrade
        for kind in WORDS_OF_CLOCKS:
            yield kind, self._shift
        for kind in _CALLS:
            yield kind, self._rule
        yield "redis kill -9", self._redis_gone
        yield "redis torn tail", self._redis_gone
        yield "redis comes back empty", self._redis_gone
        yield "redis failover", self._redis_failed_over
        yield "redis FLUSHALL", self._redis_flushed
        yield "redis SIGSTOP", self._redis_stopped
        yield "redis OOM", self._redis_full
        yield "apiserver restart", self._part_restarted
        yield "apiserver kill -9", self._part_restarted
        yield "etcd restart", self._part_restarted
        yield "etcd SIGSTOP", self._etcd_stopped
        yield "node lost", self._node_lost
        yield "node removed", self._node_removed
        yield "pods deleted", self._pods_deleted
        yield "namespace deleted", self._namespace_deleted
        for kind in _LIMITS:
            yield kind, self._others_limited

    # --- our processes ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _kill(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        name = self._victim(fault.kind.rpartition(" ")[2], chance)
        await asyncio.to_thread(self._stage.installation.kill, name)
        yield

    @asynccontextmanager
    async def _stop(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        pid = await self._pid(self._victim(fault.kind.rpartition(" ")[2], chance))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @asynccontextmanager
    async def _roll(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        # As with four Deployments that allow one unavailable replica each.
        queues = _shuffled_replicas(chance)
        await asyncio.gather(*(self._begin_anew(names) for names in queues))
        yield

    @asynccontextmanager
    async def _upgrade(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        """Upgrade one replica of each service to the next version, and after a while the others; the next time,
        back."""
        queues = _shuffled_replicas(chance)
        is_next = not self._stage.is_next
        if is_next:
            await self._define(self._stage.next)
        self._stage.is_next = is_next
        await asyncio.gather(*(self._begin_anew(names[:1], is_next=is_next) for names in queues))
        yield
        await asyncio.gather(*(self._begin_anew(names[1:], is_next=is_next) for names in queues))

    async def _define(self, version: upgrade.Copy) -> None:
        """Apply its custom resource definitions as an administrator does, without waiting."""
        words = [word for file in version.definitions for word in ("-f", str(file))]
        kubectl = self._stage.operator.kubectl
        while True:
            done = await asyncio.to_thread(kubectl, "apply", "--server-side", "--force-conflicts", *words)
            if not done.code:
                return
            await asyncio.sleep(AGAIN_S)

    async def _begin_anew(self, names: Sequence[str], *, is_next: bool | None = None) -> None:
        """Stop each in order and start it with that version, one after the other."""
        for name in names:
            process = self._stage.processes[name]
            await asyncio.to_thread(process.end)
            if is_next is not None:
                self._stage.set_version(name, is_next=is_next)
            process.start()
            await asyncio.to_thread(process.await_ready)

    @asynccontextmanager
    async def _shift(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        names = chance.sample(NAMES, chance.randint(1, len(NAMES)))
        for name in names:
            self._stage.shift_clock(name, WORDS_OF_CLOCKS[fault.kind])
        try:
            yield
        finally:
            for name in names:
                self._stage.shift_clock(name, NO_SHIFT)

    # --- connections ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _rule(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        number = await asyncio.to_thread(self._stage.proxy.add, _CALLS[fault.kind])
        try:
            yield
        finally:
            struck = await asyncio.to_thread(self._stage.proxy.drop, number)
            self.struck[fault.kind] = self.struck.get(fault.kind, 0) + struck
        if fault.kind == "watch stalled":
            await self._stalls_are_noticed()

    async def _stalls_are_noticed(self) -> None:
        """A struck watch stays silent for ever: the fault lasts until its reader has given it up."""
        try:
            async with asyncio.timeout(STALL_S):
                while await asyncio.to_thread(self._stage.proxy.stalled_watches):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            raise RuntimeError(f"a watch is silent for {STALL_S:g} s, and its reader has not noticed") from None

    # --- Redis ------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _redis_gone(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        server = self._stage.redis
        await server.kill()
        if fault.kind == "redis torn tail":
            server.tear()
        if fault.kind == "redis comes back empty":
            server.forget()
        try:
            yield
        finally:
            await server.start()

    @asynccontextmanager
    async def _redis_failed_over(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        """Writes during the fault are acknowledged, and are missing afterwards."""
        server = self._stage.redis
        await asyncio.to_thread(server.fork)
        yield
        await server.kill()
        server.fail_over()
        await server.start()

    @asynccontextmanager
    async def _redis_flushed(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        await self._redis("FLUSHALL")
        yield

    @asynccontextmanager
    async def _redis_stopped(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        pid = self._stage.redis.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @asynccontextmanager
    async def _redis_full(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        await self._redis("CONFIG", "SET", "maxmemory", "1")
        try:
            yield
        finally:
            await self._redis("CONFIG", "SET", "maxmemory", "0")

    async def _redis(self, *words: str) -> None:
        def run() -> None:
            client = redis.Redis(port=self._stage.redis.port)
            try:
                client.execute_command(*words)  # pyright: ignore[reportUnknownMemberType]
            finally:
                client.close()

        await asyncio.to_thread(run)

    # --- the control plane ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _part_restarted(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        part, _, how = fault.kind.partition(" ")
        cluster, sign = self._stage.cluster, signal.SIGTERM if how == "restart" else signal.SIGKILL
        await asyncio.to_thread(cluster.stop_part, part, sign)
        try:
            yield
        finally:
            cluster.start_part(part)
            await self._await_cluster()

    async def _await_cluster(self) -> None:
        """Wait until the API server answers. A server that gets no processor for a minute exits, and is restarted."""
        cluster = self._stage.cluster
        for _ in range(STARTS_MAX):
            try:
                await asyncio.to_thread(cluster.await_ready)
                return
            except RuntimeError:
                await asyncio.to_thread(cluster.stop_part, "apiserver", signal.SIGKILL)
                cluster.start_part("apiserver")
        await asyncio.to_thread(cluster.await_ready)

    @asynccontextmanager
    async def _etcd_stopped(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        pid = self._stage.cluster.pid("etcd")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    # --- nodes and objects ------------------------------------------------------------------------------------------

    def _lose(self, node: str) -> None:
        self.lost_at.setdefault(node, []).append(self._clock.now())
        self._stage.nodes.lose(node)

    @asynccontextmanager
    async def _node_lost(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        node = chance.choice(self._stage.nodes.names)
        self._lose(node)
        try:
            yield
        finally:
            self._stage.nodes.recover(node)

    @asynccontextmanager
    async def _node_removed(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        node = chance.choice(self._stage.nodes.names)
        self._lose(node)
        await self._insist(lambda: self._stage.operator.delete(f"/api/v1/nodes/{node}"))
        try:
            yield
        finally:
            self._stage.nodes.recover(node)

    @asynccontextmanager
    async def _pods_deleted(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        living = [each.id for each in self._load.launches.values() if self._phase(each.id) is Phase.RUNNING]
        for id_ in chance.sample(living, min(len(living), 3)):
            name = f"{id_}-{self._attempt(id_)}-0"
            await self._insist(lambda name=name: self._stage.operator.delete(f"/api/v1/namespaces/default/pods/{name}"))
        yield

    @asynccontextmanager
    async def _namespace_deleted(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        name = f"doomed-{fault.chance:08x}"
        await self._launch_elsewhere(name, chance, THREE)
        await asyncio.sleep(chance.uniform(0.0, 2.0))
        await self._insist(lambda: self._stage.operator.delete(f"/api/v1/namespaces/{name}"))
        yield

    @asynccontextmanager
    async def _others_limited(self, fault: Fault, chance: random.Random) -> AsyncGenerator[None]:
        """The API server refuses everything that one workspace launches: for ever, or until a limit is raised."""
        name = f"limited-{fault.chance:08x}"
        path, limit = _LIMITS[fault.kind]
        await self._launch_elsewhere(name, chance, SIX, {path: limit})
        try:
            yield
        finally:
            await self._insist(lambda: self._stage.operator.delete(f"/api/v1/namespaces/{name}"))

    async def _launch_elsewhere(
        self, name: str, chance: random.Random, count: int, limits: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Launch in a new workspace of that name; the results do not matter."""
        operator = self._stage.operator
        labels = {"slipway.dev/workspace": "true"}
        await self._insist(
            lambda: operator.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        )
        for path, limit in (limits or {}).items():
            at = f"/api/v1/namespaces/{name}/{path}"
            await self._insist(lambda at=at, limit=limit: operator.create(at, limit))
            if path == QUOTAS:
                # A quota is effective once a controller has seen it.
                await self._insist(lambda at=at: [quota["status"]["hard"] for quota in operator.items(at)])
        for number in range(count):
            plan = plans.draw(chance, may_keep=True)
            view = await self._load.operator.launch({**plan.body, "workspace": name}, key=f"{name}-{number}")
            launched = Launched(id=str(view["id"]), plan=plan, at=self._load.now(), is_given_up=True)
            launched.killed_at = launched.at
            self._load.launches[launched.id] = launched

    # --- victims ----------------------------------------------------------------------------------------------------

    def _victim(self, role: str, chance: random.Random) -> str:
        """The process in that role."""
        service = "scheduler" if role in ("leader", "standby") else role
        names = faults.replicas_of(service, NAMES)
        if service == "scheduler":
            pids = {self._stage.processes[name].pid_if_any: name for name in names}
            leading = next((pids[pid] for pid in self._history.holders() if pid in pids), None)
            if leading is not None:
                return leading if role == "leader" else next(name for name in names if name != leading)
        return chance.choice(names)

    async def _pid(self, name: str) -> int:
        """The pid of that process, once it has one: another fault of the wave may just have killed it."""
        while True:
            pid = self._stage.processes[name].pid_if_any
            if pid is not None:
                return pid
            await asyncio.sleep(AGAIN_S)

    def _phase(self, id_: str) -> Phase | None:
        allocation = self._object(id_)
        return allocation.status.phase if allocation is not None else None

    def _attempt(self, id_: str) -> int:
        allocation = self._object(id_)
        return allocation.status.attempt if allocation is not None else 1

    def _object(self, id_: str) -> Allocation | None:
        version = self._history.last(id_)
        return msgspec.convert(version.obj, Allocation) if version is not None else None

    async def _insist(self, call: Callable[[], object]) -> None:
        """Repeat an administrator's call while the API server is down, or does not have the object yet."""
        while True:
            try:
                await asyncio.to_thread(call)
                return
            except httpx2.HTTPStatusError as error:
                if error.response.status_code in (NOT_FOUND, 409):
                    return
            except (httpx2.HTTPError, LookupError):
                pass
            await asyncio.sleep(AGAIN_S)


def _shuffled_replicas(chance: random.Random) -> list[list[str]]:
    """The processes of each service, in random order."""
    found: list[list[str]] = []
    for service in chart.SERVICES:
        names = faults.replicas_of(service, NAMES)
        found.append(chance.sample(names, len(names)))
    return found
