"""The records of a world, as evidence for the audit.

Owns the translation, and the two observations that must be made during the run: the entries appended to the event
streams, and the work that an acknowledged hint still demanded.
"""

import msgspec

from slipway.crd.members import members, unreleased
from slipway.crd.meta import condition_of
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.local.apiserver.objects import name_of, namespace_of
from slipway.local.apiserver.store import ObjectKey, ObjectVersion
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId, split_allocation_id
from slipway.ops.audit.evidence import (
    REDIS,
    STREAM_BYTES,
    AckedHint,
    AuditEvidence,
    ClientPromise,
    ContainerRun,
    EmittedText,
    FencedWrite,
    SizeSample,
    Version,
)
from slipway.pods.ended import waits_for_reader
from slipway.podworker.intent import AddRanks, Bind, LaunchIntent, RestartRanks, Teardown, decide
from slipway.streams import keys, pages
from slipway.streams.pages import ZERO
from slipway.streams.ports import Claimed, NoTally, WorkHint
from tests.support.faults import Process
from tests.support.hint_tracker import HintTracker
from tests.support.kube_scheduler import OURS
from tests.support.log_evidence import printed_by, stored_logs
from tests.support.world import World

ALLOCATIONS = "allocations.slipway.dev"
ENTRIES_MAX = 10_000
_EXTRA = 1


class EvidenceRecorder:
    """Records what happens in one world; create it before the world starts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._appended: list[AllocationEvent] = []
        self._acked: list[AckedHint] = []
        self._asked: dict[tuple[int, str], _Demand | None] = {}
        self._read: dict[ObjectKey, tuple[ObjectVersion, Allocation]] = {}
        self._hints = HintTracker(world.server, world.clock)
        world.injector.claimed = self._claimed
        world.injector.acking = self._acking
        world.server.on_add = self._added

    def evidence(self, *, is_at_rest: bool, rest_from: float | None = None) -> AuditEvidence:
        """All evidence as of now. `rest_from` is the time since which no work was left."""
        world = self._world
        return AuditEvidence(
            versions=[
                Version(
                    number=change.version,
                    at=at,
                    writer=writer,
                    resource=change.resource.split(".")[0],
                    namespace=change.key[0],
                    name=change.key[1],
                    is_deletion=change.type == "DELETED",
                    obj=change.record.obj,
                    before=change.previous.obj if change.previous is not None else None,
                )
                for at, writer, change in world.changes
            ],
            streams=self.streams(),
            appended=self._appended,
            requests=[
                FencedWrite(
                    process=effect.process,
                    verb=effect.verb,
                    resource=effect.target,
                    name=effect.name,
                    uid=effect.uid,
                    resource_version=effect.resource_version,
                    outcome=effect.outcome,
                )
                for effect in world.injector.effects
                if effect.is_kube
            ],
            containers=[
                ContainerRun(
                    allocation_uid=item.allocation_uid,
                    attempt=item.attempt,
                    rank=item.rank,
                    pod_uid=item.pod_uid,
                    started_at=item.started_at,
                    ended_at=item.ended_at,
                    code=item.code,
                )
                for item in world.kubelets.containers
            ],
            promises=[
                ClientPromise(kind=item.kind, uid=item.uid, version=item.version, at=item.at) for item in world.promises
            ],
            acked=self._acked,
            pending_hints=self.pending(),
            deliveries=self._hints.deliveries(),
            has_streams=world.setup.has_redis,
            answers=world.answers,
            canaries=world.canaries,
            restarts=world.restarts,
            measures=self.sizes(),
            spoken=self.spoken() if world.canaries else (),
            logs=stored_logs(world.server) if world.setup.has_redis else None,
            printed=printed_by(world.kubelets) if world.setup.has_redis else (),
            store_losses=world.server.losses,
            # A lost machine is an interruption as well.
            interruptions=len(world.injector.struck) + len(world.kubelets.away),
            last_fault_at=max(world.last_fault_at, *(at for at, _ in world.injector.struck), 0.0),
            is_at_rest=is_at_rest,
            rest_from=rest_from,
            end_at=world.clock.now(),
        )

    def streams(self) -> dict[str, list[AllocationEvent]]:
        """{AllocationID: its stream}."""
        server, found_keys = self._world.server, self._world.server.keys()
        found: dict[str, list[AllocationEvent]] = {}
        for key in found_keys:
            if key.startswith(keys.ALLOCATION.prefix):
                stored = pages.events(server.after(key, ZERO, ENTRIES_MAX), NoTally())
                found[key.removeprefix(keys.ALLOCATION.prefix).strip("{}")] = [item.event for item in stored]
        return found

    def newest(self, allocation: AllocationId) -> AllocationEvent | None:
        """The last event of its stream."""
        stored = pages.events(self._world.server.newest(keys.allocation(allocation), 1), NoTally())
        return stored[-1].event if stored else None

    def allocations(self) -> dict[str, Allocation]:
        """{name: the stored allocation}; unchanged objects are not decoded again."""
        found: dict[str, Allocation] = {}
        for record in self._world.core.store.scan(ALLOCATIONS):
            key = namespace_of(record.obj), name_of(record.obj)
            known = self._read.get(key)
            if known is None or known[0] is not record:
                known = self._read[key] = (record, msgspec.convert(record.obj, Allocation))
            found[key[1]] = known[1]
        return found

    def spoken(self) -> list[EmittedText]:
        """All data in Redis, as text."""
        server, found = self._world.server, self._world.server.keys()
        return [
            EmittedText(place=REDIS, name=key, text=b" ".join(fields.values()).decode(errors="replace"))
            for key in found
            if (stream := server.stream(key)) is not None
            for fields in stream.entries.values()
        ]

    def sizes(self) -> list[SizeSample]:
        """The sizes of the streams of allocations."""
        server, found = self._world.server, self._world.server.keys()
        return [
            SizeSample(
                kind=STREAM_BYTES,
                subject=key.removeprefix(keys.ALLOCATION.prefix).strip("{}"),
                at=self._world.clock.now(),
                value=sum(
                    len(name) + len(value) for fields in stream.entries.values() for name, value in fields.items()
                ),
            )
            for key in found
            if key.startswith(keys.ALLOCATION.prefix) and (stream := server.stream(key)) is not None
        ]

    def pending(self) -> int:
        """Hints that were delivered and not acknowledged."""
        count = 0
        for key in keys.WORK_KEYS:
            stream = self._world.server.stream(key)
            if stream is not None:
                count += sum(len(group.pending) for group in stream.groups.values())
        return count

    # --- during the run -------------------------------------------------------------------------------------------

    def _added(self, key: str, fields: dict[str, bytes], entry_id: tuple[int, int]) -> None:
        if key.startswith(keys.ALLOCATION.prefix):
            self._appended += [item.event for item in pages.events([(entry_id, fields)], NoTally())]

    def _claimed(self, claimed: list[Claimed]) -> None:
        for each in claimed:
            if each.hint is not None:
                self._asked[each.shard, each.entry_id] = self._demands(each.hint)

    def _acking(self, process: Process, claimed: list[Claimed]) -> None:
        for each in claimed:
            asked = self._asked.get((each.shard, each.entry_id))
            if each.hint is None or asked is None:
                continue
            demands = self._demands(each.hint)
            if demands is not None and demands.is_part_of(asked):
                self._acked.append(
                    AckedHint(
                        allocation=each.hint.allocation,
                        demands=demands.text,
                        others=self._others(each),
                        process=process.name,
                    )
                )

    def _demands(self, hint: WorkHint) -> "_Demand | None":
        """The work that the allocation demands of the pod worker now; None when there is none, or when it is marked
        Stuck."""
        parts = split_allocation_id(hint.allocation)
        record = self._world.core.store.find(ALLOCATIONS, hint.namespace, parts[0] if parts else "")
        if record is None:
            return None
        allocation = msgspec.convert(record.obj, Allocation)
        if id_of(allocation) != hint.allocation or _is_stuck(allocation):
            return None
        attempt = allocation.status.attempt
        # In a namespace that is being deleted nothing can be launched or bound: created objects must be removed.
        match decide(allocation, namespace_terminating=self._is_terminating(hint.namespace)):
            case LaunchIntent():
                return _Demand(text=f"the launch of attempt {attempt}", starts=attempt)
            case Bind():
                unbound = [uid for uid, node in self._released(allocation) if not self._is_let_go(uid, node)]
                return _Demand(text=f"the binding of {unbound}", starts=attempt) if unbound else None
            case AddRanks(n, _):
                unbound = [uid for uid, node in self._released(allocation) if not self._is_let_go(uid, node)]
                is_due = bool(unbound or unreleased(allocation))
                return _Demand(text=f"growth {n} of attempt {attempt}", starts=attempt) if is_due else None
            case RestartRanks():
                unbound = [uid for uid, node in self._released(allocation) if not self._is_let_go(uid, node)]
                return _Demand(text=f"restarts of attempt {attempt}", starts=attempt) if unbound else None
            case Teardown(through):
                left = self._left(allocation, through)
                return _Demand(text=f"the removal of {left}") if left else None
            case _:
                return None

    def _is_terminating(self, namespace: str) -> bool:
        record = self._world.core.store.find("namespaces", "", namespace)
        return record is not None and bool(record.obj["metadata"].get("deletionTimestamp"))

    def _released(self, allocation: Allocation) -> list[tuple[str, str]]:
        """(uid, node) of each released pod."""
        return [(each.pod_uid, each.placement.node) for each in members(allocation) if each.pod_uid]

    def _is_let_go(self, uid: str, node: str) -> bool:
        """Whether the pod needs no binding: it is on its node, is left to another scheduler, or is gone."""
        for record in self._world.core.store.scan("pods"):
            if record.obj["metadata"]["uid"] == uid and not record.obj["metadata"].get("deletionTimestamp"):
                spec = record.obj["spec"]
                is_left = spec.get("schedulerName") != OURS and not spec.get("schedulingGates")
                return spec.get("nodeName") == node or is_left
        return True

    def _left(self, allocation: Allocation, through: int) -> list[str]:
        return [
            str(record.obj["metadata"]["name"])
            for record in self._world.core.store.scan("pods")
            if record.obj["metadata"].get("labels", {}).get("slipway.dev/allocation-uid") == allocation.metadata.uid
            and int(record.obj["metadata"]["labels"]["slipway.dev/attempt"]) <= through
            and not record.obj["metadata"].get("deletionTimestamp")
            and not waits_for_reader(msgspec.convert(record.obj, Pod), allocation)
        ]

    def _others(self, claimed: Claimed) -> int:
        """The number of other open hints for the same allocation.

        A hint that the server has lost (flushed or trimmed) would not be delivered again in any case: then this returns
        `_EXTRA`.
        """
        stream = self._world.server.stream(keys.work(claimed.shard))
        if stream is None or claimed.hint is None:
            return _EXTRA
        if not any(f"{milliseconds}-{number}" == claimed.entry_id for milliseconds, number in stream.entries):
            return _EXTRA
        group = stream.groups.get(keys.WORK_GROUP)
        key, count = f"{claimed.hint.namespace}/{claimed.hint.allocation}".encode(), 0
        for entry_id, fields in stream.entries.items():
            is_open = group is None or entry_id in group.pending or entry_id > group.delivered
            is_same = f"{entry_id[0]}-{entry_id[1]}" == claimed.entry_id
            if is_open and not is_same and fields.get("key") == key:
                count += 1
        return count


class _Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The work that a hint demands. `starts` is the attempt to start, from its objects to its bindings."""

    text: str
    starts: int = 0

    def is_part_of(self, asked: "_Demand") -> bool:
        """Whether this is the work of `asked`, or the rest of it."""
        return self.text == asked.text or (self.starts != 0 and self.starts == asked.starts)


def _is_stuck(allocation: Allocation) -> bool:
    found = condition_of(allocation.status.conditions, "Stuck")
    return found is not None and found.status == "True"
