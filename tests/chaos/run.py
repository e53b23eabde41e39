"""One run of chaos: load, waves of faults, rest, and the audit of all the evidence.

Owns the order, and the definition of recovery: the time from the end of the last fault of a wave until a launch that
began after it has run to its end, and all launches acknowledged before are in their expected state.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import redis

from slipway.ops.audit import check
from slipway.ops.audit.check import lacking
from slipway.ops.audit.evidence import AuditEvidence, RestartPeriod, SizeSample, StoredLog
from slipway.ops.audit.logs import holes_of, judged
from slipway.runtime.clock import SystemClock
from tests.chaos import faults, gather_logs, gather_texts, table, upgrade
from tests.chaos.clients import with_uids
from tests.chaos.faults import Fault, Group, Schedule
from tests.chaos.gather import (
    AuditLog,
    Firehose,
    RedisAddress,
    read_containers,
    read_pending,
    read_streams,
    requests_of,
    said,
    writers_of,
)
from tests.chaos.history import History
from tests.chaos.load import Load
from tests.chaos.nemesis import Nemesis
from tests.chaos.pace import Pace
from tests.chaos.recovery import CHARS_MAX, REST_S, SAID_MAX, STUCK_S, Recovery
from tests.chaos.stage import ENDED_MAX, Stage
from tests.chaos.table import InjectedFault, Outcome
from tests.conformance.system.system import a_body

BYSTANDER_S = 30.0
"""The longest time of a launch, from its request to its end, while only other workspaces have trouble."""
QUIET_S = 8.0
"""Seconds after rest in which no service may write."""
CALM_S = 2.0
RETENTION_S = 90.0
"""Retention checks once a minute when its last check found nothing due."""
WARM_S = 3.0
READ_S = 15.0
"""Seconds after its end, or after Redis is back, within which the log of a container may not be stored yet."""
BEAT_S = 1.0
SAMPLE_EVERY = 5
"""Beats between two samples of memory."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run."""

    minutes: float
    seed: int
    only: Sequence[str] = ()
    """the kinds of faults; none: all"""


class Run:
    """One run on one stage."""

    def __init__(self, stage: Stage, options: Options, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._options = options
        self._say = say
        self._clock = SystemClock()
        self._history = History(stage.etcd_url, stage.folder / "history.jsonl")
        self._redis = RedisAddress(port=stage.redis.port)
        self._firehose = Firehose(self._redis)
        self._load = Load(stage.urls, options.seed, self._history)
        self._nemesis = Nemesis(stage, self._history, self._load)
        self._log = AuditLog(stage.cluster.audit_log)
        self._pace = Pace()
        probe = a_body("command", 1, {"runsS": 0.1, "startsS": 0.0})
        self._recovery = Recovery(self._history, self._load, self._pace, probe, say)
        self._rest_s: float | None = None
        self._writes_at_rest = 0
        self._measures: list[SizeSample] = []
        self._restarts: list[RestartPeriod] = []
        self._bystanders: list[float] = []
        self._mixed = upgrade.Mixed()
        self.evidence: AuditEvidence

    async def run(self) -> Outcome:
        """Run all steps."""
        began = self._clock.monotonic()
        listening = [
            asyncio.ensure_future(work)
            for work in (self._history.run(), self._firehose.run(), self._supervise(), self._pace.run())
        ]
        try:
            await self._history.catch_up()
            loading = asyncio.ensure_future(self._load.run())
            await asyncio.sleep(WARM_S)
            await self._inject()
            await self._recovery.last_launches(loading)
            await self._come_to_rest()
            await self._end()
            await self._history.catch_up()
            self._gather()
        finally:
            for task in listening:
                task.cancel()
            await asyncio.wait(listening)
            self._history.close()
            await self._load.aclose()
        self._say("auditing")
        self._recovery.violations += self._load.violations + check.audit(self.evidence)
        self._mixed = upgrade.judge(self._history.versions)
        for name, what in self._mixed.lost:
            self._recovery.tell("NEXT", name, what)
        return self._outcome(self._clock.monotonic() - began)

    async def _supervise(self) -> None:
        """Restart processes that have ended by themselves, as a kubelet would: no fault is a reason for one to end."""
        for beat in itertools.count():
            if beat % SAMPLE_EVERY == 0:
                self._measures += gather_texts.memory(self._stage.processes)
            for name, process in self._stage.processes.items():
                if process.has_crashed:
                    last = process.tail().splitlines()[-1:]
                    self._recovery.tell("CRASH", name, f"ended by itself: {''.join(last)[:CHARS_MAX]}")
                    self._say(f"{name} ended by itself")
                    process.start()
            await asyncio.sleep(BEAT_S)

    # --- faults -----------------------------------------------------------------------------------------------------

    async def _inject(self) -> None:
        kinds = [name for name in faults.KINDS if not self._options.only or name in self._options.only]
        if not self._stage.faketime:
            kinds = [name for name in kinds if faults.KINDS[name].needs != faults.FAKETIME]
        schedule = Schedule(self._options.seed, self._options.minutes, [faults.KINDS[name] for name in kinds])
        until = self._clock.monotonic() + self._options.minutes * 60.0
        for number, (is_needed, wave) in enumerate(schedule.waves(), 1):
            if not is_needed and self._clock.monotonic() > until:
                return
            is_alone = len(wave) == 1
            if not await self._recovery.wave(number, wave, lambda fault, is_alone=is_alone: self._do(fault, is_alone)):
                self._say("no more faults: what broke once and stays broken would be found in each of them")
                return

    async def _do(self, fault: Fault, is_alone: bool) -> None:
        async with self._nemesis.do(fault):
            if fault.group is Group.OTHERS:
                await self._stand_by(fault, is_alone=is_alone)
            else:
                await asyncio.sleep(fault.lasts_s)

    async def _stand_by(self, fault: Fault, *, is_alone: bool) -> None:
        """Launch one after another as a bystander. Other faults may delay these launches."""
        until = self._clock.monotonic() + fault.lasts_s
        while (began := self._clock.monotonic()) < until:
            counted = self._pace.now()
            with contextlib.suppress(TimeoutError):
                async with self._pace.limit(STUCK_S):
                    await self._recovery.launch(self._load.bystander)
            took_s = self._clock.monotonic() - began
            if is_alone:
                self._bystanders.append(took_s)
            if is_alone and self._pace.now() - counted > BYSTANDER_S:
                self._recovery.tell("LIVE", "bystander", f"{took_s:.1f} s for a launch beside {fault.kind}")

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _come_to_rest(self) -> None:
        over = self._recovery.last_fault_at or self._clock.now()
        left = await self._recovery.until(lambda: [*self._load.unsettled(self._clock.now()), *self._load.unfinished()])
        if left:
            self._recovery.tell("I18", "rest", f"not as desired after {REST_S:.0f} s: {left[:SAID_MAX]}")
            return
        self._rest_s = self._clock.now() - over
        # Work that was half done when everything was as desired is done now: acknowledgements, ConfigMaps.
        leftovers = await self._recovery.until(self._leftovers)
        if leftovers:
            self._recovery.tell("I11", "rest", f"left over: {leftovers[:SAID_MAX]}")
        await self._recovery.until(self._pending)
        # An allocation that ended last may exceed the limit only at the next check; its deletion is no write at rest.
        surplus = await self._recovery.until(lambda: self._history.beyond(ENDED_MAX), limit_s=RETENTION_S)
        if surplus:
            self._recovery.tell("I18", "rest", f"kept beyond {ENDED_MAX} that ended: {surplus[:SAID_MAX]}")
        await self._calm()
        position = self._log.position()
        await asyncio.sleep(QUIET_S)
        writes = [said(entry) for entry in self._log.entries(position)]
        self._writes_at_rest = len(writes)
        if writes:
            self._recovery.tell("I18", "rest", f"{len(writes)} writes at rest: {writes[:SAID_MAX]}")
        await self._restart_all()

    async def _calm(self) -> None:
        """Wait until services that acted at the same time, or were about to check once more, have done so."""
        deadline = self._pace.now() + REST_S
        position = -1
        while position != self._log.position() and self._pace.now() < deadline:
            position = self._log.position()
            await asyncio.sleep(CALM_S)

    async def _restart_all(self) -> None:
        """Restart every process without any request: no pod may be affected."""
        begun_at = self._clock.now()
        names = list(self._stage.processes)
        await asyncio.to_thread(self._stage.installation.halt, *names)
        for name in names:
            self._stage.processes[name].start()
        try:
            await asyncio.to_thread(self._stage.installation.await_ready)
        except AssertionError as error:
            self._recovery.tell("LIVE", "restart", f"{error}"[:CHARS_MAX])
        await asyncio.sleep(WARM_S)
        self._restarts.append(RestartPeriod(begun_at=begun_at, ended_at=self._clock.now()))

    async def _end(self) -> None:
        """End the remaining allocations, and wait until nothing of them is left."""
        try:
            async with self._pace.limit(REST_S):
                await self._load.end_kept()
        except TimeoutError:
            self._recovery.tell("LIVE", "end", "what was kept running cannot be cancelled")
        left = await self._recovery.until(lambda: [*self._load.unfinished(), *self._leftovers()])
        if left:
            self._recovery.tell("I11", "end", f"left after {REST_S:.0f} s: {left[:SAID_MAX]}")

    def _leftovers(self) -> list[str]:
        """Objects of ours that belong to no running allocation."""
        return self._history.leftovers()

    def _pending(self) -> list[str]:
        """Delivered hints that are not acknowledged: other consumers claim those of dead ones after a while."""
        count = read_pending(self._redis)
        return [f"{count} hints"] if count else []

    def _gather(self) -> None:
        entries = list(self._log.entries())
        writers = writers_of(entries, self._history.versions)
        for version in self._history.versions:
            version.writer = writers.get(version.number, "")
        client: Any = redis.Redis(port=self._stage.redis.port, socket_timeout=10.0)
        texts = [
            *gather_texts.redis_says(client),
            *gather_texts.logs_say([path for path in self._stage.logs() if path.parent == self._stage.folder]),
            *gather_texts.metrics_say(self._stage.processes),
        ]
        consumers, sizes = list(gather_texts.consumers(client)), list(gather_texts.stream_sizes(client))
        logs = [*gather_logs.stored_logs(client), *self._told_logs()]
        client.close()
        self.evidence = AuditEvidence(
            versions=self._history.versions,
            streams=read_streams(self._redis),
            appended=self._firehose.heard,
            requests=requests_of(entries),
            containers=read_containers(self._stage.nodes.records),
            pending_hints=read_pending(self._redis),
            end_at=self._clock.now(),
            last_fault_at=self._recovery.last_fault_at,
            canaries=gather_texts.CANARIES,
            spoken=texts,
            consumers=consumers,
            measures=[*self._measures, *sizes],
            restarts=self._restarts,
            logs=logs,
            printed=gather_logs.printed_on(self._stage.nodes.records, self._history.versions, self._nemesis.lost_at),
            store_losses=store_losses(self._recovery.suffered),
            answers=with_uids(self._load.answers, lambda id_: self._history.by_id.get(id_, "")),
        )

    def _told_logs(self) -> list[StoredLog]:
        """The logs of all remaining allocations, from the api's pages."""
        there = [id_ for id_ in self._load.launches if not self._is_gone(id_)]
        try:
            return list(gather_logs.told_logs(self._stage.urls[0], there))
        except httpx2.HTTPError as error:
            self._recovery.tell("API", "logs", f"cannot be read: {error!r}"[:CHARS_MAX])
            return []

    def _is_gone(self, id_: str) -> bool:
        version = self._history.last(id_)
        return version is None or version.is_deletion

    def _outcome(self, took_s: float) -> Outcome:
        at = {version.number: version.at for version in self._history.versions}
        suffered, violations = self._recovery.suffered, self._recovery.violations
        blamed = [table.blame(at.get(each.version, -1.0), suffered) for each in violations]
        answers = self._load.answers
        return Outcome(
            seed=self._options.seed,
            minutes=self._options.minutes,
            suffered=self._recovery.suffered,
            violations=[str(each) for each in self._recovery.violations],
            subjects=[each.subject for each in self._recovery.violations],
            at=blamed,
            launches=len(self._load.launches),
            lost=sum(1 for each in self._recovery.violations if each.invariant == "I1"),
            doubled=sum(1 for each in self._recovery.violations if each.invariant in ("I2", "I3", "I4")),
            answers=len(answers),
            unanswered=sum(1 for answer in answers if not answer.status),
            rest_s=self._rest_s,
            writes_at_rest=self._writes_at_rest,
            bystanders_s=self._bystanders,
            versions=len(self.evidence.versions),
            starts=len(self.evidence.containers),
            took_s=took_s,
            logs=len(self.evidence.logs or ()),
            logs_judged=sum(1 for _ in judged(self.evidence)),
            lines=sum(passage.count for log in self.evidence.logs or () for passage in log.passages),
            holes=sum(map(holes_of, self.evidence.logs or ())),
            share=self._pace.mean,
            share_lowest=self._pace.lowest,
            asked_of_next=self._mixed.asked,
            of_both=self._mixed.both,
            skipped=[] if self._stage.faketime else ["clock faults: Debian's faketime is not here"],
            unknown=sorted(need.value for need in lacking(self.evidence)),
        )


def store_losses(suffered: Sequence[InjectedFault]) -> list[tuple[float, float]]:
    """Allocations that ended in one of these spans, of which Redis may have lost something or could not be written:
    everything before an emptying, otherwise what was written shortly before and while it was down."""
    return [
        (0.0 if each.kind in faults.EMPTYING else each.began_at - READ_S, each.ended_at + READ_S)
        for each in suffered
        if each.kind.startswith("redis")
    ]


def keep(evidence: AuditEvidence, outcome: Outcome, folder: Path) -> None:
    """Write the evidence and the findings as files, beside the history and the machines' own records."""
    named = {"answers": evidence.answers, "starts": evidence.containers, "requests": evidence.requests}
    named |= {"appended": evidence.appended, "logs": evidence.logs, "printed": evidence.printed}
    for name, items in named.items():
        with (folder / f"{name}.jsonl").open("wb") as file:
            for item in items or ():
                file.write(msgspec.json.encode(item) + b"\n")
    (folder / "outcome.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    (folder / "streams.json").write_bytes(msgspec.json.encode(evidence.streams))
