"""The composition root of the scheduler: settings -> clients -> one candidate per pool."""

import os
import socket

from slipway.kube import client
from slipway.kube.extender import ExtenderClient
from slipway.kube.ports import KubeApi
from slipway.runtime import log, service, telemetry
from slipway.runtime.service import ServiceContext, ServiceStop
from slipway.scheduler.leader import PoolScheduler, Scheduler
from slipway.scheduler.loops import DISCOVER, POOL
from slipway.scheduler.settings import Settings
from slipway.scheduler.standby import SchedulerDeps
from slipway.streams.factory import MetricTally, TraceWriter, open_streams, write_behind
from slipway.streams.mac_keys import FEED_PURPOSE, keys_of
from slipway.streams.ports import Streams
from slipway.streams.producer import BestEffortWriter

NAME = "scheduler"
DISCOVER_S = 2.0
BACKOFF_MAX_S = 10.0

_log = log.get_logger(__name__)


def main() -> int:
    """Entry point of `slipway-scheduler`."""
    return service.run(NAME, Settings, build)


async def build(context: ServiceContext[Settings]) -> None:
    """Create the clients and start competing; with `--once`, tick every pool until nothing changes."""
    settings = context.settings
    kube = await context.resources.enter_async_context(
        client.connect(settings.kubeconfig or None, clock=context.clock, random=context.random)
    )
    macs = keys_of(settings.feed_key_dir, FEED_PURPOSE, context.clock, accepts_unsigned=settings.accept_unsigned)
    url = settings.whole_redis_url()
    streams = open_streams(url, clock=context.clock, random=context.random, name=NAME, feed_macs=macs)
    context.resources.push_async_callback(streams.aclose)
    behind = BestEffortWriter(streams, context.clock, MetricTally())
    telemetry.set_sink(TraceWriter(behind))
    if context.once:
        await _run_once(make_scheduler(context, kube, streams), behind)
        return
    context.tasks.create_task(write_behind(behind, context))
    compose(context, kube, streams)


def make_scheduler(context: ServiceContext[Settings], kube: KubeApi, streams: Streams) -> Scheduler:
    """Return a scheduler on these clients."""
    extenders = ExtenderClient()
    context.resources.push_async_callback(extenders.aclose)
    deps = SchedulerDeps(
        kube=kube,
        streams=streams,
        clock=context.clock,
        random=context.random,
        health=context.health,
        settings=context.settings,
        identity=context.settings.identity or f"{socket.gethostname()}-{os.getpid()}",
        extenders=extenders,
    )
    return Scheduler(deps)


def compose(context: ServiceContext[Settings], kube: KubeApi, streams: Streams) -> None:
    """Start competing for every pool, on these clients: real clients in a process, models in the simulation."""
    scheduler = make_scheduler(context, kube, streams)
    context.health.add_check("warm", scheduler.not_ready)
    context.tasks.create_task(_stop_with(scheduler, context.stop))

    async def discover() -> float:
        for candidate, stop in await scheduler.discover():
            _compete(context, candidate, stop)
        return DISCOVER_S

    context.loop(DISCOVER, discover, min_interval_s=DISCOVER_S, max_backoff_s=BACKOFF_MAX_S, required=True)


async def _run_once(scheduler: Scheduler, behind: BestEffortWriter) -> None:
    for candidate, _ in await scheduler.discover():
        if not await candidate.run_once():
            _log.info("idle: not leader", pool=candidate.pool)
            print("idle: not leader")  # noqa: T201 - what a caller of --once reads
    await behind.flush()


def _compete(context: ServiceContext[Settings], candidate: PoolScheduler, stop: ServiceStop) -> None:
    """Run one candidate in the shared loop: after an error of a leadership it is logged and, after a backoff,
    retried."""
    running = service.loop(
        POOL.of(candidate.pool),
        lambda: candidate.compete(stop),
        clock=context.clock,
        random=context.random,
        health=context.health,
        stop=stop,
        min_interval_s=0.0,
        max_backoff_s=BACKOFF_MAX_S,
    )
    context.tasks.create_task(running, name=f"pool:{candidate.pool}")


async def _stop_with(scheduler: Scheduler, stop: ServiceStop) -> None:
    await stop.wait()
    scheduler.stop()


if __name__ == "__main__":
    raise SystemExit(main())
