"""What-if questions, each answered by a process of its own, so that the planner never runs on the api's event loop.

Owns the limits (number at a time, time, memory) and the reads of the cluster for a question. The simulator defines what
a question means. It is a module of the scheduler that is started as a program and never imported, so that the api does
not load the planner. Each simulation reads the cluster again; nothing is cached.

The places for questions are limited, and one user can never occupy all of them (`ConcurrencyLimit`).

The recent past of a pool, for estimates: how long work ran, when it arrived, and what it requested. It comes from the
view of allocations (`seen_allocations.py`). Kubernetes is read only for the last few ended allocations, because the
view does not keep their specs. The past reaches back as far as ended allocations are retained. Must not know what an
estimate is.
"""

import asyncio
import contextlib
import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from slipway.api.allocations.seen_allocations import SeenAllocations
from slipway.api.ports import Kube
from slipway.crd.fielderrors import pointer
from slipway.crd.transitions import user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError, FieldError, InvalidError, InvariantError, PermanentError, ThrottledError
from slipway.facts.core_objects import RangesByNamespace, encode_fact, fact_of, object_key, ranges_by_namespace
from slipway.facts.volumes import DIRECT, ClaimKey, read_volume, unreadable
from slipway.kube.resources import (
    ALLOCATIONS,
    JOBS,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_POOLS,
    RESOURCE_QUOTAS,
    Resource,
)
from slipway.model.facts import VOLUMES, AllocationFact, VolumeFact
from slipway.model.lifecycle import Phase
from slipway.model.numbers import number_in
from slipway.model.times import parse_time, stored_duration
from slipway.runtime import log
from slipway.runtime.clock import Clock


class ConcurrencyLimit:
    """At most `most` operations run at a time; one user may run all but one of them, but always at least one.

    An empty user is unknown and has no limit of its own. `what` names the operations, in the plural.
    """

    def __init__(self, most: int, what: str, *, retry_s: float) -> None:
        self._most = most
        self._what = what
        self._retry_s = retry_s
        self._taken = 0
        self._of_users: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, user: str) -> Generator[None]:
        """Occupy a place while the context is open. Raises ThrottledError when none is free for the user."""
        share = max(1, self._most - 1)
        if user and self._of_users[user] >= share:
            raise ThrottledError(
                f"{user[:128]} has {share} of {self._most} {self._what} in progress, and one user may have no more "
                "at a time; try again when it has ended",
                retry_after_s=self._retry_s,
            )
        if self._taken >= self._most:
            raise ThrottledError(f"{self._most} {self._what} are in progress already", retry_after_s=self._retry_s)
        self._taken += 1
        self._of_users[user] += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._of_users[user] -= 1
            if not self._of_users[user]:
                del self._of_users[user]


DAY_S: Final = 86_400.0
RUNS_MAX: Final = 1_000
"""Number of the last ended allocations whose run times are returned."""
PIECES_MAX: Final = 50
"""Number of the last ended allocations that are returned whole, as samples of the work that arrives."""


class PastWork(msgspec.Struct, frozen=True, kw_only=True):
    """The past of a pool. Times are epoch seconds."""

    runs: list[dict[str, Any]] = []
    """of ended allocations, the last to end first: queue, user, gpus, ran_s and limit_s"""
    since: float = 0.0
    """`arrivals` is complete from this time on"""
    arrivals: list[float] = []
    """times of creation, ascending"""
    ended: list[Allocation] = []
    """the last ended allocations with their whole specs, the last to end first"""


async def past_work(seen: SeenAllocations, pool: str, now: float) -> PastWork:
    """Return the past of this pool; an empty one while the view of allocations cannot answer."""
    listed = await seen.all()
    if listed is None:
        return PastWork()
    own = [each for each in listed.items if each.spec.pool == pool]
    arrivals = sorted(parse_time(each.metadata.creation_timestamp) for each in own)
    ended = [each for each in own if each.status.phase is Phase.TERMINATED and ran_s(each) > 0]
    ended.sort(key=lambda each: each.status.ended_at, reverse=True)
    return PastWork(
        runs=[_run(each) for each in ended[:RUNS_MAX]],
        since=max(now - DAY_S, arrivals[0]) if arrivals else now,
        arrivals=[at for at in arrivals if at > now - DAY_S],
        ended=await seen.whole(ended[:PIECES_MAX]) or [],
    )


def ran_s(allocation: Allocation) -> float:
    """Return how long the last attempt of an ended allocation ran, in seconds; 0 when it did not run."""
    status = allocation.status
    if not status.started_at or not status.ended_at:
        return 0.0
    return max(0.0, parse_time(status.ended_at) - parse_time(status.started_at))


def _run(allocation: Allocation) -> dict[str, Any]:
    limit = allocation.spec.max_runtime
    return {
        "queue": allocation.spec.queue,
        "user": user_of(allocation),
        "gpus": allocation.status.slots,
        "ran_s": ran_s(allocation),
        "limit_s": stored_duration(limit) if limit else None,
    }


MODULE: Final = "slipway.scheduler.simulate.child"
CLAIMS_MAX: Final = 64
"""The most volume claims that are read for one question; the planner assumes that other claims are reachable from every
node."""
CLAIMS_AT_ONCE: Final = 8
SLICE: Final = 64
"""Number of objects that are converted to facts before other tasks of the event loop may run."""
RETRY_S: Final = 2.0
MORE_PART: Final = 0.4
"""The part of the time limit that a forecast without likely bounds waits for the one with them."""
READ_BYTES: Final = 65_536
POOL: Final = "default"
LISTED: tuple[Resource[Any], ...] = (NODES, PODS, QUEUES, JOBS, NAMESPACES, RESOURCE_QUOTAS)
_PATH = re.compile(r"^([A-Za-z_][\w.\[\]/-]*): (.+)$", re.DOTALL)
_STEP = re.compile(r"[^.\[\]]+")
_ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
_PASSED_ON = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "LANG", "LC_ALL", "TMPDIR", "HOME")

ReadLive = Callable[[], Awaitable[Sequence[Allocation]]]
"""Returns all live allocations."""
ReadPast = Callable[[str, float], Awaitable[PastWork]]
"""(name of the pool, now) -> the past of the pool"""
Facts = dict[str, dict[str, msgspec.Raw]]
_log = log.get_logger(__name__)


class Bounds(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The bounds of a start, in epoch seconds; None: unknown."""

    earliest: float | None = None
    latest: float | None = None
    likely: "Bounds | None" = None
    likely_unknown: str = ""
    """why there are no likely bounds"""


class Forecast(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The planner's forecast for a waiting allocation. With an empty `code` it starts at once."""

    code: str = ""
    message: str = ""
    reasons: dict[str, int] = {}
    position: int = 0
    ahead: int = 0
    ahead_slots: int = 0
    change: list[dict[str, Any]] = []
    helps: list[str] = []
    estimated_start: Bounds = Bounds()


class Simulator:
    """Runs simulations: at most `most` at a time, of which one user may run all but one."""

    def __init__(
        self, kube: Kube, clock: Clock, live: ReadLive, *, most: int, timeout_s: float, memory_bytes: int
    ) -> None:
        self._kube = kube
        self._live = live
        self._clock = clock
        self._places = ConcurrencyLimit(most, "simulations", retry_s=RETRY_S)
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes

    async def ask(self, body: dict[str, Any], *, user: str = "") -> Any:
        """Return the answer to the request body of `user`.

        Raises:
            InvalidError: the body is not valid.
            ThrottledError: too many simulations run already.
            PermanentError: the simulation exceeds its time or its memory.
        """
        return await self._answered({"body": body}, "" if "scenario" in body else body.get("pool", POOL), user)

    async def forecast(self, pool: str, key: str, past: ReadPast | None = None, *, user: str = "") -> Forecast:
        """Return the planner's forecast for the allocation `key`, which waits in `pool`.

        `past` reads the past of the pool, for the likely bounds. Raises as `ask` does.
        """
        said = await self._answered({"explain": key, "pool": pool}, pool, user, past)
        return msgspec.convert(said, Forecast)

    async def _answered(self, request: dict[str, Any], pool: str, user: str, past: ReadPast | None = None) -> Any:
        """Return the answer to a request; the request gets the facts of `pool`, unless that is empty."""
        with self._places.held(user):
            return await self._within_time(request, pool, past)

    async def _within_time(self, request: dict[str, Any], pool: str, past: ReadPast | None) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                now = self._clock.now()
                facts = await self._facts(pool, first=request.get("explain", "")) if pool else {}
                whole = request | {"now": now, "facts": facts}
                if past is not None:
                    whole["past"] = await self._past(await past(pool, now))
                return _read(await self._run(msgspec.json.encode(whole)))
        except TimeoutError as exc:
            raise PermanentError(
                f"the simulation was not done within {self._timeout_s:g} s; ask for less: an earlier `until`, "
                "fewer nodes or allocations"
            ) from exc

    async def _facts(self, pool: str, *, first: str = "") -> Facts:
        """Return the facts of the cluster as the scheduler would see it now.

        At most `CLAIMS_MAX` volume claims are read, those of the allocation `first` before others. Raises InvalidError
        when there is no such pool.
        """
        pools, limit_ranges = await asyncio.gather(self._kube.list(RESOURCE_POOLS), self._kube.list(LIMIT_RANGES))
        by_name = {each.metadata.name: each for each in pools.items}
        if pool not in by_name:
            detail = f"there is no pool {pool[:80]}"
            raise InvalidError(f"pool: {detail}", fields=(FieldError("/pool", detail),))
        live = await self._live()
        lists = await asyncio.gather(*(self._kube.list(resource) for resource in LISTED))
        ranges = ranges_by_namespace(limit_ranges.items)
        items: dict[str, Sequence[Any]] = {ALLOCATIONS.plural: live, RESOURCE_POOLS.plural: pools.items}
        items |= {resource.plural: listed.items for resource, listed in zip(LISTED, lists, strict=True)}
        claims = _Claims(pool, first)
        facts = {plural: await self._encoded(found, by_name, ranges, claims) for plural, found in items.items()}
        if by_name[pool].spec.binding == DIRECT:
            facts[VOLUMES] = await self._volumes(claims.chosen())
        return facts

    async def _past(self, past: PastWork) -> dict[str, Any]:
        """Return the past in the form that the simulator reads."""
        listed = (await self._kube.list(RESOURCE_POOLS)).items if past.ended else []
        pools = {each.metadata.name: each for each in listed}
        pieces = [{"fact": msgspec.Raw(encode_fact(fact_of(each, pools))), "ran_s": ran_s(each)} for each in past.ended]
        return {"runs": past.runs, "since": past.since, "arrivals": past.arrivals, "pieces": pieces}

    async def _encoded(
        self, items: Sequence[Any], pools: dict[str, Any], ranges: RangesByNamespace, claims: "_Claims"
    ) -> dict[str, msgspec.Raw]:
        found: dict[str, msgspec.Raw] = {}
        for number, item in enumerate(items, 1):
            fact = fact_of(item, pools, ranges=ranges)
            if isinstance(fact, AllocationFact):
                claims.note(fact)
            found[object_key(item.metadata)] = msgspec.Raw(encode_fact(fact))
            if number % SLICE == 0:
                await self._clock.sleep(0)
        return found

    async def _volumes(self, claims: Mapping[ClaimKey, bool]) -> dict[str, msgspec.Raw]:
        """Read these claims as the scheduler would: {claim: whether it is created on first use}."""
        slots = asyncio.Semaphore(CLAIMS_AT_ONCE)

        async def read(key: ClaimKey, is_home: bool) -> VolumeFact:
            async with slots:
                try:
                    return await read_volume(self._kube, *key, is_home=is_home)
                except InvariantError:
                    raise
                except ControlPlaneError as exc:
                    return unreadable(*key, exc)

        found = await asyncio.gather(*(read(key, is_home) for key, is_home in claims.items()))
        return {"/".join(key): msgspec.Raw(msgspec.json.encode(fact)) for key, fact in zip(claims, found, strict=True)}

    async def _run(self, request: bytes) -> bytes:
        """Run the simulator; return the last line that it wrote. Its process has ended when this returns or raises."""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", MODULE, str(self._memory_bytes)),
            env=environment | _ONE_THREAD,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await self._exchange(process, request)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        code = await process.wait()
        told = err.decode("utf-8", "replace").strip()[-2000:]
        lines = out.split(b"\n")[:-1]
        if lines:
            if code > 0:
                _log.error("likely start failed", code=code, error=told)
            return lines[-1]
        if code < 0 or "MemoryError" in told:
            raise PermanentError("the simulation needs more memory than it may use; ask for less")
        _log.error("simulation failed", code=code, error=told)
        raise ControlPlaneError("the simulation failed")

    async def _exchange(self, process: asyncio.subprocess.Process, request: bytes) -> tuple[bytes, bytes]:
        """Return (stdout, stderr) of the process.

        After the first line the process has `MORE_PART` of the time limit for a second one; then it is killed.
        """
        to, out, err = process.stdin, process.stdout, process.stderr
        if to is None or out is None or err is None:
            raise InvariantError("the process of a simulation has no pipes")
        said = bytearray()

        async def send() -> None:
            # A process that ends early reports the reason on stderr.
            with suppress(BrokenPipeError, ConnectionResetError):
                to.write(request)
                await to.drain()
            to.close()

        async def listen() -> None:
            while b"\n" not in said and (piece := await out.read(READ_BYTES)):
                said.extend(piece)
            try:
                async with asyncio.timeout(self._timeout_s * MORE_PART):
                    while piece := await out.read(READ_BYTES):
                        said.extend(piece)
            except TimeoutError:
                process.kill()

        _, _, complaint = await asyncio.gather(send(), listen(), err.read())
        return bytes(said), complaint


class _Claims:
    """The volume claims of pending allocations in `pool`, those of the allocation `first` before others."""

    def __init__(self, pool: str, first: str) -> None:
        self._pool = pool
        self._first = first
        self._named: tuple[dict[ClaimKey, bool], dict[ClaimKey, bool]] = ({}, {})

    def note(self, fact: AllocationFact) -> None:
        """Add the claims of an allocation, if it is pending in the pool."""
        if fact.pool != self._pool or fact.phase is not Phase.PENDING:
            return
        named = self._named[fact.key != self._first]
        for claim in (claim for role in fact.roles for claim in role.claims):
            key = (fact.namespace, claim)
            named[key] = named.get(key, False) or claim == fact.home

    def chosen(self) -> dict[ClaimKey, bool]:
        """Return {claim: whether it is created on first use} of the first `CLAIMS_MAX` claims."""
        first, others = self._named
        return dict(itertools.islice({**first, **others}.items(), CLAIMS_MAX))


def _read(out: bytes) -> Any:
    said = msgspec.json.decode(out)
    error = said.get("error")
    if error is None:
        return said["answer"]
    found = _PATH.match(error)
    if found is None:
        raise InvalidError(error, fields=(FieldError("", error),))
    words = _STEP.findall(found[1])
    steps = [word if (number := number_in(word)) is None else number for word in words]
    raise InvalidError(error, fields=(FieldError(pointer(*steps), found[2]),))
