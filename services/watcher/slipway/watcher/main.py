"""The composition root of the watcher: settings -> clients -> one Watcher."""

import os
import socket
from functools import partial

from slipway.errors import TransientError
from slipway.kube import client
from slipway.kube.ports import KubeApi
from slipway.logarchive.archive import LogArchive
from slipway.logarchive.objects import open_archive
from slipway.runtime import service, telemetry
from slipway.runtime.service import ServiceContext
from slipway.streams import keys
from slipway.streams.factory import MetricTally, TraceWriter, open_streams, write_behind
from slipway.streams.mac_keys import FEED_PURPOSE, keys_of
from slipway.streams.ports import Streams, WorkStream
from slipway.streams.producer import BestEffortWriter
from slipway.watcher.loops import LAG
from slipway.watcher.settings import Settings
from slipway.watcher.watcher import Watcher, WatcherDeps

NAME = "watcher"
LAG_S = 5.0
"""The time between two measurements of the work queue."""


def main() -> int:
    """Entry point of `slipway-watcher`."""
    return service.run(NAME, Settings, build)


async def build(context: ServiceContext[Settings]) -> None:
    """Create the clients and start; with `--once`, make one pass over one LIST."""
    settings = context.settings
    kube = await context.resources.enter_async_context(
        client.connect(settings.kubeconfig or None, clock=context.clock, random=context.random)
    )
    macs = keys_of(settings.feed_key_dir, FEED_PURPOSE, context.clock)
    url = settings.whole_redis_url()
    streams = open_streams(url, clock=context.clock, random=context.random, name=NAME, feed_macs=macs)
    context.resources.push_async_callback(streams.aclose)
    behind = BestEffortWriter(streams, context.clock, MetricTally())
    telemetry.set_sink(TraceWriter(behind))
    archive = LogArchive(open_archive(settings.log_archive_url)) if settings.log_archive_url else None
    if context.once:
        await make_watcher(context, kube, streams, behind).run_once()
        await behind.flush()
        return
    compose(context, kube, streams, behind, archive)
    if settings.redis_url:
        follow_lag(context, streams)


def follow_lag(context: ServiceContext[Settings], streams: Streams) -> None:
    """Measure the work queue every few seconds."""
    context.loop(LAG, partial(measure, streams.work_queue("lag")), min_interval_s=LAG_S, max_backoff_s=LAG_S)


async def measure(queue: WorkStream) -> None:
    """Set the gauges of the waiting hints and of those in work. The watcher does it, because there may be no pod
    worker.

    Raises:
        TransientError: Redis cannot be reached; the gauges are removed.
    """
    gauges = (telemetry.STREAM_LAG, telemetry.STREAM_IN_WORK)
    try:
        standing = await queue.standing()
    except TransientError:
        for gauge in gauges:
            gauge.drop(("work", keys.WORK_GROUP))
        raise
    for gauge, count in zip(gauges, standing, strict=True):
        gauge.labels(stream="work", group=keys.WORK_GROUP).set(count)


def make_watcher(
    context: ServiceContext[Settings],
    kube: KubeApi,
    streams: Streams,
    behind: BestEffortWriter,
    archive: LogArchive | None = None,
) -> Watcher:
    """Return a watcher on these clients."""
    return Watcher(
        WatcherDeps(
            kube=kube,
            streams=streams,
            behind=behind,
            clock=context.clock,
            random=context.random,
            health=context.health,
            settings=context.settings,
            identity=context.settings.identity or f"{socket.gethostname()}-{os.getpid()}",
            log_archive=archive,
        )
    )


def compose(
    context: ServiceContext[Settings],
    kube: KubeApi,
    streams: Streams,
    behind: BestEffortWriter,
    archive: LogArchive | None = None,
) -> None:
    """Start a watcher on these clients: real clients in a process, models in the simulation."""
    watcher = make_watcher(context, kube, streams, behind, archive)
    context.health.add_check("view", watcher.why_not_ready)
    context.tasks.create_task(write_behind(behind, context), name="write-behind")
    context.tasks.create_task(watcher.run(context.stop), name="watcher")


if __name__ == "__main__":
    raise SystemExit(main())
