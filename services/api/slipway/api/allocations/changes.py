"""Changes of a spec after the launch: kill, terminate, priority, queue, hold, pause, and the signals of an attempt.

Every write is one JSON patch whose first operation tests the uid, so that a new object with the same name is never
changed. The server orders concurrent patches of different fields itself. A patch that was computed from the object
(signals) also tests its resourceVersion, and is computed again when the object has changed.

Must not write status.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from slipway.api.allocations.lookup import Lookup
from slipway.api.http.decoding import summary
from slipway.api.http.errors import ConflictError, PreconditionError
from slipway.api.launch.catalog import Catalog
from slipway.api.launch.publish import LaunchPublisher
from slipway.api.ports import Kube
from slipway.api.tasks.preemption_notice import signals_of
from slipway.crd.meta import ANNOTATION_BATCH
from slipway.crd.transitions import id_of, is_admitted
from slipway.crd.v1alpha1 import Allocation, PreemptSignal, ResourcePool, Signals
from slipway.errors import FieldError, InvalidError, StaleError
from slipway.kube.ports import PatchType
from slipway.kube.resources import ALLOCATIONS
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time, parse_duration, stored_duration
from slipway.runtime.clock import Clock

STALE_TRIES_MAX = 8
STOPPED = "Stopped"

Json = dict[str, Any]
Signal = Callable[[Signals], Signals]


class SpecWriter:
    """Writes the specs of allocations."""

    def __init__(self, kube: Kube, lookup: Lookup, announcer: LaunchPublisher, clock: Clock, *, mark: str = "") -> None:
        self._kube = kube
        self._lookup = lookup
        self._announcer = announcer
        self._clock = clock
        self._mark = mark

    def marking(self, mark: str) -> "SpecWriter":
        """Return a writer whose every write also sets `mark` as the annotation of the last batch; empty: no mark."""
        return SpecWriter(self._kube, self._lookup, self._announcer, self._clock, mark=mark)

    async def kill(self, allocation: Allocation) -> Allocation:
        """Commit the cancel. An allocation that has ended or was cancelled does not change."""
        if has_ended(allocation) or allocation.spec.desired == STOPPED:
            return allocation
        return await self.write(allocation, {"desired": STOPPED})

    async def shorten_grace(self, allocation: Allocation, grace_s: int) -> Allocation:
        """Limit the grace period of a cancelled attempt's pods to `grace_s` seconds, unless it is already shorter."""

        def hurried(signals: Signals) -> Signals:
            known = signals.grace_s
            return msgspec.structs.replace(signals, grace_s=grace_s if known is None else min(known, grace_s))

        try:
            return await self.signal(allocation, hurried)
        except ConflictError:
            return await self._lookup.reload(allocation)

    async def delete(self, allocation: Allocation, *, version: str = "") -> None:
        """Delete the object, which cancels the allocation."""
        meta = allocation.metadata
        try:
            await self._kube.delete(
                ALLOCATIONS, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=version or None
            )
        except StaleError as error:
            raise _moved(allocation) from error
        self._announcer.deleted(allocation)

    async def write(self, allocation: Allocation, fields: Mapping[str, Any], *, version: str = "") -> Allocation:
        """Set fields of the spec (wire names). Without `version`, a conflict with another change leads to a retry.

        Raises:
            PreconditionError: `version` is given and is not the current one.
            NotFoundError: the allocation does not exist any more.
        """
        for tries_left in reversed(range(STALE_TRIES_MAX)):
            try:
                return await self._write(allocation, fields, version)
            except StaleError as error:
                allocation = await self._lookup.reload(allocation)
                if version:
                    raise _moved(allocation) from error
                if not tries_left:
                    raise
        raise AssertionError

    async def rework(
        self, allocation: Allocation, work: Callable[[Allocation], Mapping[str, Any]], *, version: str = ""
    ) -> Allocation:
        """Change image, command, env or resources of a held allocation; `work` computes the fields (wire names).

        Raises:
            ConflictError: the allocation is not held, or was admitted.
            PreconditionError: `version` is given and is not the current one.
        """
        for _ in range(STALE_TRIES_MAX):
            check_reworkable(allocation)
            try:
                return await self.write(allocation, work(allocation), version=allocation.metadata.resource_version)
            except PreconditionError:
                if version:
                    raise
                allocation = await self._lookup.reload(allocation)
        raise StaleError("the allocation was changed at the same time, several times; try again")

    async def _write(self, allocation: Allocation, fields: Mapping[str, Any], version: str) -> Allocation:
        """Send the patch once."""
        meta = allocation.metadata
        operations: list[Json] = [{"op": "test", "path": "/metadata/uid", "value": meta.uid}]
        if self._mark and not meta.annotations:
            # The patch creates the annotations map, and must not replace a map that another writer has just created.
            version = version or meta.resource_version
        if version:
            operations.append({"op": "test", "path": "/metadata/resourceVersion", "value": version})
        if self._mark:
            operations.append(_annotated(allocation, self._mark))
        operations += [{"op": "add", "path": f"/spec/{name}", "value": value} for name, value in fields.items()]
        changed = await self._kube.patch(
            ALLOCATIONS, meta.name, operations, namespace=meta.namespace, type_=PatchType.JSON
        )
        self._announcer.changed(changed)
        return changed

    async def signal(
        self,
        allocation: Allocation,
        change: Signal,
        *,
        attempt: int | None = None,
        fields: Mapping[str, Any] = MappingProxyType({}),
    ) -> Allocation:
        """Change the signals of the current attempt and, in the same write, other fields of the spec (wire names).

        Raises:
            ConflictError: the allocation has ended, or `attempt` is not the current one.
        """
        for _ in range(STALE_TRIES_MAX):
            check_attempt(allocation, attempt)
            before = signals_of(allocation)
            after = change(before)
            news = {**fields, **({"signals": msgspec.to_builtins(after)} if after != before else {})}
            if not news:
                return allocation
            try:
                return await self.write(allocation, news, version=allocation.metadata.resource_version)
            except PreconditionError:
                allocation = await self._lookup.reload(allocation)
        raise StaleError("the allocation was changed at the same time, several times; try again")

    async def preempt(self, allocation: Allocation, reason: str, *, requeue: bool = False) -> Allocation:
        """Signal every rank to save its work and end; an earlier signal stays. `requeue`: another attempt follows."""
        at = format_time(self._clock.now())

        def raised(signals: Signals) -> Signals:
            if signals.preempt is not None:
                return signals
            asked = PreemptSignal(n=1, reason=reason, at=at, attempt=signals.attempt, requeue=requeue)
            return msgspec.structs.replace(signals, preempt=asked)

        return await self.signal(allocation, raised)

    async def forget(self, allocation: Allocation, nodes: Iterable[str]) -> Allocation:
        """Mark this attempt's pods on these nodes as lost: they are treated as ended and are deleted by force."""
        return await self.signal(
            allocation,
            lambda signals: msgspec.structs.replace(signals, lost_nodes=sorted({*signals.lost_nodes, *nodes})),
            attempt=allocation.status.attempt,
        )

    async def pause(self, allocation: Allocation, reason: str) -> Allocation:
        """Hold the allocation. Placed ranks are signalled to save their work; after a resume, another attempt follows.

        Hold and signal are one write. So the allocation is never held without the signal, or signalled without the
        hold.
        """
        attempt, at = allocation.status.attempt, format_time(self._clock.now())

        def raised(signals: Signals) -> Signals:
            asked = signals.preempt or PreemptSignal(n=1, reason=reason, at=at, attempt=signals.attempt)
            return msgspec.structs.replace(signals, preempt=msgspec.structs.replace(asked, requeue=True))

        for _ in range(STALE_TRIES_MAX):
            if allocation.status.phase is not Phase.PENDING and allocation.status.attempt == attempt:
                return await self.signal(allocation, raised, attempt=attempt, fields={"hold": True})
            # The allocation is pending, or is already at another attempt, so no rank of this attempt runs.
            check_attempt(allocation, None)
            try:
                return await self.write(allocation, {"hold": True}, version=allocation.metadata.resource_version)
            except PreconditionError:
                allocation = await self._lookup.reload(allocation)
                attempt = allocation.status.attempt
        raise StaleError("the allocation was changed at the same time, several times; try again")

    async def terminate(self, allocation: Allocation, reason: str) -> Allocation:
        """End the allocation for good: signal it to save its work if it is preemptible and ready, else kill it."""
        status = allocation.status
        if not (allocation.spec.preemptible and status.ready and status.phase is Phase.RUNNING):
            return await self.kill(allocation)
        at = format_time(self._clock.now())

        def raised(signals: Signals) -> Signals:
            asked = signals.preempt or PreemptSignal(n=1, reason=reason, at=at, attempt=signals.attempt)
            return msgspec.structs.replace(signals, preempt=msgspec.structs.replace(asked, requeue=False))

        fields = {"hold": False} if allocation.spec.hold else {}
        try:
            return await self.signal(allocation, raised, attempt=status.attempt, fields=fields)
        except ConflictError:
            # The attempt has ended, and the next attempt has nothing to save yet.
            return await self.kill(await self._lookup.reload(allocation))


def _annotated(allocation: Allocation, mark: str) -> Json:
    """Return the patch operation that writes the mark."""
    if not allocation.metadata.annotations:
        return {"op": "add", "path": "/metadata/annotations", "value": {ANNOTATION_BATCH: mark}}
    return {"op": "add", "path": f"/metadata/annotations/{ANNOTATION_BATCH.replace('/', '~1')}", "value": mark}


def has_ended(allocation: Allocation) -> bool:
    """Whether the allocation has ended for good."""
    return allocation.status.phase is Phase.TERMINATED


def check_limits(fields: Mapping[str, str], pool: ResourcePool) -> None:
    """Raise InvalidError for limits (wire names) that are no durations, or are longer than the pool permits."""
    longest, errors = pool.spec.limits_max, list[FieldError]()
    for name, given in fields.items():
        try:
            asked_s = parse_duration(given)
        except ValueError as error:
            errors.append(FieldError(f"/{name}", str(error)))
            continue
        if longest is not None and asked_s > stored_duration(longest):
            detail = f"pool {pool.metadata.name} permits at most {longest} (limitsMax); ask for less"
            errors.append(FieldError(f"/{name}", detail))
    if errors:
        raise InvalidError(summary("the change", tuple(errors)), fields=tuple(errors))


def check_reworkable(allocation: Allocation) -> None:
    """Raise ConflictError unless image, command, env and resources of the allocation can still change."""
    name = id_of(allocation)
    if has_ended(allocation):
        raise ConflictError(f"allocation {name} has ended; nothing of it can change")
    if allocation.status.admission is not None:
        raise ConflictError(
            f"allocation {name} was admitted: image, command, args, env and resources can no longer change; "
            "launch another one"
        )
    if not allocation.spec.hold:
        raise ConflictError(
            f"allocation {name} is not held, so it could start at any moment; hold it first: slipway hold {name}"
        )


async def queue_limit(catalog: Catalog, allocation: Allocation) -> str:
    """Return the queue's run limit: the one at admission, or else the present one. Empty when there is none."""
    admission = allocation.status.admission if is_admitted(allocation) else None
    if admission is not None:
        return admission.max_runtime or ""
    _, _, text = await catalog.run_limit(allocation.spec.queue)
    return text


async def is_beyond_queue(catalog: Catalog, allocation: Allocation, asked: str) -> bool:
    """Whether a `maxRuntime` is longer than its queue, or an earlier override by an administrator, permits."""
    limit = allocation.spec.max_runtime_override or await queue_limit(catalog, allocation)
    return bool(limit) and parse_duration(asked) > stored_duration(limit)


async def check_queue_change(catalog: Catalog, allocation: Allocation, fields: Mapping[str, Any]) -> None:
    """Raise InvalidError at `/queue` when the pool has no such queue. After admission, the API server refuses it."""
    if "queue" in fields and allocation.status.admission is None:
        await catalog.check_queue(fields["queue"], allocation.spec.pool)


def check_attempt(allocation: Allocation, attempt: int | None) -> None:
    """Raise ConflictError when the allocation has ended, or `attempt` is not the current one."""
    current = allocation.status.attempt
    if has_ended(allocation):
        raise ConflictError(f"allocation {id_of(allocation)} has ended")
    if attempt is not None and attempt != current:
        raise ConflictError(f"attempt {attempt} is not running; the current one is {current}")


def _moved(allocation: Allocation) -> PreconditionError:
    return PreconditionError(
        f"allocation {id_of(allocation)} has changed since the version of If-Match; GET it again and decide again"
    )
