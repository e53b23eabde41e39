"""The work of `slipway audit`: connect, look once or watch for a while, judge, and serve the result as gauges.

This module owns the clients, the order of the reads, and the second look. The exit codes are those of the verb. It
writes nothing.

Promises: a violation is reported when two looks, `AGAIN_S` apart, both find it, so a state that is being corrected is
not reported. The streams are read before the objects are judged, so that no stream is ahead of its object.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, cast

import msgspec

from slipway.crd.transitions import id_of
from slipway.errors import PermanentError, TransientError
from slipway.kube import client
from slipway.kube.ports import Gets, KubeApi
from slipway.kube.resources import CRDS
from slipway.ops.audit.check import audit
from slipway.ops.audit.evidence import AuditEvidence
from slipway.ops.audit.live.collector import Flows, HistoryCollector, read_streams
from slipway.ops.audit.live.report import AuditReport, keys, report
from slipway.runtime import service, telemetry
from slipway.runtime.clock import Clock, Random, SystemClock, SystemRandom
from slipway.runtime.liveness import BOUND_MAX_S, Loop
from slipway.runtime.service import ServiceContext
from slipway.runtime.settings import CommonSettings
from slipway.runtime.tasks import TaskGroup
from slipway.streams.factory import open_streams
from slipway.streams.ports import Streams

NAME = "audit"
AGAIN_S = 2.0
CATCH_UP_S = 0.5
"""Seconds after which the watch has delivered all writes that precede the read of the streams."""
AGENT = "slipway-audit"
CRD = "allocations.slipway.dev"


class Settings(CommonSettings, kw_only=True, frozen=True):
    """The connection settings, from the same variables as the services."""


class AuditTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A system: its kubeconfig (empty: the pod's own account, or kubectl's file), and its Redis (empty: none)."""

    kubeconfig: str = ""
    redis_url: str = ""


def audit_once(place: AuditTarget, *, for_s: float) -> AuditReport:
    """Run one audit that watches for `for_s` seconds (0: only the current state).

    Raises:
        ControlPlaneError: Kubernetes cannot be read.
    """
    return asyncio.run(_look(place, for_s))


def as_json(found: AuditReport) -> str:
    """Return the report as JSON."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def serve(place: AuditTarget, *, listen: str, every_s: float, for_s: float) -> int:
    """Audit repeatedly, and serve `/metrics`, `/livez` and `/readyz`; return the exit code."""
    env = {
        **{name: value for name, value in os.environ.items() if name.startswith("SLIPWAY_LOG_")},
        "SLIPWAY_LISTEN": listen,
        "SLIPWAY_REDIS_URL": place.redis_url,
    }
    if place.kubeconfig:
        env["KUBECONFIG"] = place.kubeconfig

    async def build(context: ServiceContext[Settings]) -> None:
        kube = await context.resources.enter_async_context(
            client.connect(place.kubeconfig or None, clock=context.clock, random=context.random, user_agent=AGENT)
        )
        streams = open_streams(place.redis_url, clock=context.clock, random=context.random, name=NAME)
        context.resources.push_async_callback(streams.aclose)
        auditor = Auditor(kube, streams if place.redis_url else None, context.clock)

        async def step() -> float:
            began_s = context.clock.monotonic()
            export(await auditor.audit(for_s), took_s=context.clock.monotonic() - began_s)
            return every_s

        watched = Loop(name=NAME, bound_s=min(BOUND_MAX_S, 60.0 + 2 * for_s), moves="each audit")
        context.loop(watched, step, min_interval_s=every_s, max_backoff_s=every_s, required=True)

    return service.run(NAME, Settings, build, argv=[], env=env)


def export(found: AuditReport, *, took_s: float) -> None:
    """Set the gauges of one audit. An invariant that could not be judged has none, also if it had one before."""
    judged = {line.invariant: float(len(line.violations)) for line in found.invariants if line.looked_at is not None}
    telemetry.AUDIT_VIOLATIONS.set_all((), judged)
    telemetry.AUDIT_LAST.set(found.at)
    telemetry.AUDIT_DURATION.set(took_s)


class Auditor:
    """Audits one system. `streams` is None when there is no Redis."""

    def __init__(self, kube: KubeApi, streams: Streams | None, clock: Clock) -> None:
        self._kube = kube
        self._streams = streams
        self._clock = clock
        self._problem = ""

    async def audit(self, for_s: float) -> AuditReport:
        """Watch for `for_s` seconds, look, and look again when violations were found.

        Raises:
            ControlPlaneError: Kubernetes cannot be read.
        """
        collector = HistoryCollector(self._kube, self._clock)
        began_s = self._clock.monotonic()
        await collector.begin()
        rules = await _rules(self._kube)
        async with TaskGroup() as tasks:
            following = tasks.create_task(collector.follow())
            await self._clock.sleep(for_s)
            evidence = await self._evidence(collector, rules)
            confirmed = keys(audit(evidence))
            if confirmed:
                await self._clock.sleep(AGAIN_S)
                evidence = await self._evidence(collector, rules)
            following.cancel()
        watched_s = self._clock.monotonic() - began_s
        return report(evidence, watched_s=watched_s, problem=self._problem, confirmed=confirmed)

    async def _evidence(self, collector: HistoryCollector, rules: tuple[str, ...] | None) -> AuditEvidence:
        found = await self._flows(collector, self._streams) if self._streams is not None else None
        await self._clock.sleep(CATCH_UP_S)
        evidence = collector.evidence(
            streams=found.streams if found is not None else None,
            pending_hints=found.pending_hints if found is not None else 0,
        )
        evidence.deliveries = found.deliveries if found is not None else ()
        evidence.crd_rules = rules
        return evidence

    async def _flows(self, collector: HistoryCollector, streams: Streams) -> Flows | None:
        ends = [history[-1] for history in collector.evidence().allocations.values()]
        ids = [id_of(end.allocation) for end in ends if not end.version.is_deletion]
        try:
            self._problem = ""
            return await read_streams(streams, ids)
        except TransientError as error:
            self._problem = f"the streams cannot be read: {error}"
            return None


async def _look(place: AuditTarget, for_s: float) -> AuditReport:
    clock: Clock = SystemClock()
    random: Random = SystemRandom()
    async with AsyncExitStack() as resources:
        kube = await resources.enter_async_context(
            client.connect(place.kubeconfig or None, clock=clock, random=random, user_agent=AGENT)
        )
        streams: Streams | None = None
        if place.redis_url:
            streams = open_streams(place.redis_url, clock=clock, random=random, name=NAME)
            resources.push_async_callback(streams.aclose)
        return await Auditor(kube, streams, clock).audit(for_s)


async def _rules(kube: Gets) -> tuple[str, ...] | None:
    """Return the server's validation rules of our resource; None when they cannot be read."""
    try:
        found = await kube.get(CRDS, CRD)
    except PermanentError:
        return None
    return tuple(_rules_in(found.spec))


def _rules_in(node: Any) -> Iterator[str]:
    """Yield every rule of a schema, at any depth."""
    if isinstance(node, dict):
        fields = cast("dict[str, Any]", node)
        for rule in fields.get("x-kubernetes-validations") or ():
            yield str(rule["rule"])
        for value in fields.values():
            yield from _rules_in(value)
    elif isinstance(node, list):
        for item in cast("list[Any]", node):
            yield from _rules_in(item)
