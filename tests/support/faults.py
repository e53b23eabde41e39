"""What can go wrong between a process and the world: every call of a simulated process passes here.

Owns the numbering of effects and where a fault strikes. An effect is a call that may change Kubernetes or Redis; each
process role numbers its own from 1, over all its restarts, so that an equal run has equal numbers. A `Fault` names one
(role, number, moment) and what happens there. Must not know what the services are for.

A crash kills the process inside the call: nothing of it runs afterwards (`support/loop.py`). A timeout that was
"applied" raises after the call took effect, the other kinds before.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TypeVar, cast

import msgspec

from slipway.crd.meta import RawObject
from slipway.errors import ControlPlaneError, DeadlineError, StaleError, ThrottledError, UnavailableError
from slipway.kube.answers import Verb
from slipway.kube.ports import Listed, PatchType, WatchEvent
from slipway.kube.resources import LEASES, PODS, Resource
from slipway.kube.wire import metadata_of
from slipway.runtime.clock import Random
from slipway.streams.ports import Claimed
from tests.support.kube_core import CoreKube
from tests.support.loop import Owner

T = TypeVar("T")
R = TypeVar("R")

Patch = RawObject | list[RawObject]
READS = frozenset({Verb.GET, Verb.LIST, Verb.WATCH, Verb.LOG})
STREAM_EFFECTS = frozenset(
    {"append", "send", "ring", "ack", "release", "dead_letter", "heartbeat", "touch", "replay", "drop"}
)
STREAM_TAKES = frozenset({"claim", "claim_abandoned", "trim"})
"""Calls that change something only when they answer something: known afterwards, so there is no "before"."""
RECURRING_MAX = 3
"""Of what a process repeats for ever (renewals, beats, heartbeats) so many are numbered."""


class Kind(StrEnum):
    """What strikes."""

    CRASH = "crash"
    FREEZE = "freeze"
    FLUSH = "flush"
    CONFLICT = "conflict"
    THROTTLED = "throttled"
    SERVER_ERROR = "server-error"
    TIMEOUT = "timeout"
    TIMEOUT_APPLIED = "timeout-applied"


ERRORS = (Kind.CONFLICT, Kind.THROTTLED, Kind.SERVER_ERROR, Kind.TIMEOUT, Kind.TIMEOUT_APPLIED)


class Fault(msgspec.Struct, frozen=True):
    """One fault; written `crash@watcher:17:after`."""

    kind: Kind
    role: str
    number: int
    moment: str = "before"

    def __str__(self) -> str:
        return f"{self.kind.value}@{self.role}:{self.number}:{self.moment}"

    @staticmethod
    def parse(text: str) -> "Fault":
        """Raises ValueError for anything else than `[kind@]role:number:moment`."""
        kind, _, point = text.rpartition("@")
        role, number, moment = point.rsplit(":", 2)
        if moment not in ("before", "after"):
            raise ValueError(f"{text!r}: the moment is before or after")
        return Fault(Kind(kind or "crash"), role, int(number), moment)


class Effect(msgspec.Struct, kw_only=True):
    """One call that may change the world, as a server's own audit log would have it."""

    role: str
    process: str
    number: int
    verb: str
    target: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    at: float = 0.0
    is_recurring: bool = False
    has_before: bool = True
    is_kube: bool = True
    outcome: str = ""
    """`ok`, the error's class, or empty: never answered."""

    @property
    def label(self) -> str:
        """Readable."""
        return f"{self.role}:{self.number} {self.verb} {self.target} {self.name}".rstrip()


class Process(Owner):
    """One incarnation of one service: an owner that knows its role."""

    def __init__(self, role: str, generation: int) -> None:
        super().__init__(f"{role}-{generation}")
        self.role = role
        self.generation = generation


class Trouble:
    """Numbers the effects of all processes, and lets the planned faults strike.

    `crash`, `freeze` and `flush` are what the world does for the fault of that kind.
    """

    def __init__(self, faults: tuple[Fault, ...], random: Random, now: Callable[[], float]) -> None:
        self.effects: list[Effect] = []
        self.struck: list[tuple[float, Fault]] = []
        self.crash: Callable[[Process], None] = lambda _process: None
        self.freeze: Callable[[Process], None] = lambda _process: None
        self.flush: Callable[[], None] = lambda: None
        self.claimed: Callable[[list[Claimed]], None] = lambda _claimed: None
        self.acking: Callable[[Process, list[Claimed]], None] = lambda _process, _claimed: None
        self.latency_s = 0.002
        self.is_closed = False
        """The run is over: nobody reaches anything any more."""
        self._faults = {(fault.role, fault.number, fault.moment): fault for fault in faults}
        self._numbers: dict[str, int] = {}
        self._recurring: dict[tuple[str, str, str], int] = {}
        self._random = random
        self._now = now

    async def latency(self) -> None:
        """The way there, or back."""
        await asyncio.sleep(self._random.random() * self.latency_s)

    def check(self, process: Process) -> None:
        """A process that is being thrown away reaches nothing any more."""
        if process.is_dead or self.is_closed:
            raise asyncio.CancelledError

    def number(self, process: Process, effect: Effect) -> None:
        """Give the effect its number and log it. What recurs for ever is numbered a few times only."""
        effect.at = self._now()
        kind = (process.role, effect.verb, effect.target)
        if effect.is_recurring:
            self._recurring[kind] = self._recurring.get(kind, 0) + 1
        if not effect.is_recurring or self._recurring[kind] <= RECURRING_MAX:
            effect.number = self._numbers[process.role] = self._numbers.get(process.role, 0) + 1
        self.effects.append(effect)

    async def strike(self, process: Process, effect: Effect, moment: str) -> None:
        """Raise, crash, freeze or flush if that is planned for this moment."""
        fault = self._faults.pop((process.role, effect.number, moment), None) if effect.number else None
        if fault is None:
            return
        self.struck.append((self._now(), fault))
        match fault.kind:
            case Kind.CRASH:
                self.crash(process)
                await asyncio.get_running_loop().create_future()
            case Kind.FREEZE:
                self.freeze(process)
                await asyncio.sleep(0)
            case Kind.FLUSH:
                self.flush()
            case _:
                error = error_of(fault.kind, is_kube=effect.is_kube)
                effect.outcome = type(error).__name__
                raise error


def error_of(kind: Kind, *, is_kube: bool) -> ControlPlaneError:
    """What a caller sees."""
    match kind:
        case Kind.CONFLICT if is_kube:
            return StaleError("injected: the object has been modified")
        case Kind.THROTTLED if is_kube:
            return ThrottledError("injected: too many requests", retry_after_s=1.0)
        case Kind.TIMEOUT | Kind.TIMEOUT_APPLIED:
            return DeadlineError("injected: no answer in time")
        case _:
            return UnavailableError("injected: internal error")


class ProcessKube:
    """`KubeApi` as one process sees it. `lag_s` is {plural: how late its watch is}."""

    def __init__(self, inner: CoreKube, process: Process, trouble: Trouble) -> None:
        inner.before = inner.after = _nothing
        self._inner = inner
        self._process = process
        self._trouble = trouble
        self.lag_s: dict[str, float] = {}
        self.committed_at: Callable[[int], float] = lambda _version: 0.0
        """When a version was committed, by the event loop's time; for the lag"""

    # --- reads ------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        return await self._read(lambda: self._inner.get(resource, name, namespace=namespace))

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Listed[T]:
        return await self._read(
            lambda: self._inner.list(
                resource,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                continue_=continue_,
            )
        )

    async def watch(
        self, resource: Resource[T], *, resource_version: str, namespace: str | None = None, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        self._trouble.check(self._process)
        await self._trouble.latency()
        events = self._inner.watch(
            resource, resource_version=resource_version, namespace=namespace, label_selector=label_selector
        )
        async for event in events:
            lag_s = self.lag_s.get(resource.plural, 0.0)
            if lag_s:
                due = self.committed_at(int(event.resource_version or 0)) + lag_s
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            yield event

    async def may(
        self, verb: str, resource: Resource[Any], *, namespace: str | None = None, subresource: str = ""
    ) -> bool:
        return await self._read(lambda: self._inner.may(verb, resource, namespace=namespace, subresource=subresource))

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        return await self._read(
            lambda: self._inner.read_log(
                namespace, pod, container=container, tail_lines=tail_lines, since_time=since_time
            )
        )

    async def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]:
        self._trouble.check(self._process)
        await self._trouble.latency()
        async for line in self._inner.follow_log(namespace, pod, container=container, since_time=since_time):
            yield line

    # --- writes -----------------------------------------------------------------------------------------------------

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T:
        name, *_ = _named(body)
        return await self._write(
            self._effect(Verb.CREATE, resource, name, namespace=namespace),
            lambda: self._inner.create(resource, body, namespace=namespace, dry_run=dry_run),
        )

    async def replace(self, resource: Resource[T], body: Any) -> T:
        effect = self._effect(Verb.UPDATE, resource, *_named(body))
        effect.is_recurring = resource is LEASES
        return await self._write(effect, lambda: self._inner.replace(resource, body))

    async def replace_status(self, resource: Resource[T], body: Any) -> T:
        effect = self._effect(Verb.UPDATE, resource, *_named(body))
        effect.target += "/status"
        return await self._write(effect, lambda: self._inner.replace_status(resource, body))

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> T:
        return await self._write(
            self._effect(Verb.PATCH, resource, name, namespace=namespace),
            lambda: self._inner.patch(resource, name, patch, namespace=namespace, type_=type_),
        )

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: str = "Background",
    ) -> None:
        effect = self._effect(Verb.DELETE, resource, name, "", uid or "", resource_version or "", namespace=namespace)
        await self._write(
            effect,
            lambda: self._inner.delete(
                resource,
                name,
                namespace=namespace,
                uid=uid,
                resource_version=resource_version,
                grace_s=grace_s,
                propagation=propagation,
            ),
        )

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        effect = self._effect(Verb.BIND, PODS, pod, namespace, uid)
        await self._write(effect, lambda: self._inner.bind(namespace, pod, uid, node))

    # --- the way there and back ---------------------------------------------------------------------------------------

    def _effect(
        self,
        verb: Verb,
        resource: Resource[Any],
        name: str,
        namespace_: str = "",
        uid: str = "",
        resource_version: str = "",
        *,
        namespace: str | None = None,
    ) -> Effect:
        return Effect(
            role=self._process.role,
            process=self._process.name,
            number=0,
            verb=verb.value,
            target=resource.plural,
            name=name,
            namespace=namespace or namespace_,
            uid=uid,
            resource_version=resource_version,
        )

    async def _read(self, call: Callable[[], Awaitable[R]]) -> R:
        self._trouble.check(self._process)
        await self._trouble.latency()
        answer = await call()
        await self._trouble.latency()
        return answer

    async def _write(self, effect: Effect, call: Callable[[], Awaitable[R]]) -> R:
        trouble, process = self._trouble, self._process
        trouble.check(process)
        await trouble.latency()
        trouble.number(process, effect)
        await trouble.strike(process, effect, "before")
        with _noted(effect):
            answer = await call()
        await trouble.strike(process, effect, "after")
        await trouble.latency()
        return answer


class ProcessPort:
    """Any one port of the streams as one process sees it: the same methods, with faults."""

    def __init__(self, inner: Any, name: str, process: Process, trouble: Trouble) -> None:
        self._inner = inner
        self._name = name
        self._process = process
        self._trouble = trouble

    def __getattr__(self, method: str) -> Any:
        inner = getattr(self._inner, method)
        if method == "follow":
            return inner
        return self._call(method, inner)

    def _call(self, method: str, inner: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        trouble, process = self._trouble, self._process

        async def called(*args: Any, **options: Any) -> Any:
            trouble.check(process)
            await trouble.latency()
            effect = Effect(
                role=process.role,
                process=process.name,
                number=0,
                verb=method,
                target=self._name,
                is_kube=False,
                is_recurring=self._name == "feed" or method in ("heartbeat", "trim"),
            )
            if method in STREAM_EFFECTS:
                trouble.number(process, effect)
                if method == "ack":
                    trouble.acking(process, list(args[0]))
                await trouble.strike(process, effect, "before")
                with _noted(effect):
                    answer = await inner(*args, **options)
                await trouble.strike(process, effect, "after")
            else:
                answer = await inner(*args, **options)
                if method in STREAM_TAKES and answer:
                    effect.has_before = False
                    if method != "trim":
                        trouble.claimed(answer)
                    trouble.number(process, effect)
                    await trouble.strike(process, effect, "after")
            await trouble.latency()
            return answer

        return called


class ProcessStreams:
    """`Streams` as one process sees them."""

    def __init__(self, inner: Any, process: Process, trouble: Trouble) -> None:
        self._inner, self._process, self._trouble = inner, process, trouble
        for name in ("events", "firehose", "hints", "wake", "feed", "logs", "traces", "activity", "dead", "health"):
            setattr(self, name, ProcessPort(getattr(inner, name), name, process, trouble))

    def work_queue(self, consumer: str) -> Any:
        return ProcessPort(self._inner.work_queue(consumer), "queue", self._process, self._trouble)

    async def aclose(self) -> None:
        return None


@contextmanager
def _noted(effect: Effect) -> Generator[None]:
    try:
        yield
    except ControlPlaneError as error:
        effect.outcome = type(error).__name__
        raise
    effect.outcome = "ok"


def _named(body: Any) -> tuple[str, str, str, str]:
    """(name, namespace, uid, resourceVersion)."""
    if isinstance(body, dict):
        meta = cast("RawObject", body)["metadata"]
        return meta["name"], meta.get("namespace", ""), meta.get("uid", ""), meta.get("resourceVersion", "")
    known = metadata_of(body)
    return known.name, known.namespace, known.uid, known.resource_version


async def _nothing(_verb: Verb, _plural: str) -> None:
    """`CoreKube` need not wait: the process's own latency has."""
