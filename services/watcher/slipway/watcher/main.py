"""The composition root of the watcher: settings -> clients -> one Watcher."""

import os
import socket

from slipway.kube import client
from slipway.kube.ports import KubeApi
from slipway.runtime import service, telemetry
from slipway.runtime.service import Context
from slipway.streams.opening import MetricTally, TraceWriter, open_streams, write_behind
from slipway.streams.ports import Streams
from slipway.streams.producer import BestEffort
from slipway.watcher.settings import Settings
from slipway.watcher.watcher import Parts, Watcher

NAME = "watcher"


def main() -> int:
    """Entry point of `slipway-watcher`."""
    return service.run(NAME, Settings, build)


async def build(context: Context[Settings]) -> None:
    """Make the clients and start; with `--once`, one pass over one LIST."""
    settings = context.settings
    kube = await context.resources.enter_async_context(
        client.connect(settings.kubeconfig or None, clock=context.clock, random=context.random)
    )
    streams = open_streams(settings.redis_url, clock=context.clock, random=context.random, name=NAME)
    context.resources.push_async_callback(streams.aclose)
    behind = BestEffort(streams, context.clock, MetricTally())
    telemetry.set_sink(TraceWriter(behind))
    if context.once:
        await make_watcher(context, kube, streams, behind).run_once()
        await behind.flush()
        return
    compose(context, kube, streams, behind)


def make_watcher(context: Context[Settings], kube: KubeApi, streams: Streams, behind: BestEffort) -> Watcher:
    """A watcher on these clients."""
    return Watcher(
        Parts(
            kube=kube,
            streams=streams,
            behind=behind,
            clock=context.clock,
            random=context.random,
            health=context.health,
            settings=context.settings,
            identity=context.settings.identity or f"{socket.gethostname()}-{os.getpid()}",
        )
    )


def compose(context: Context[Settings], kube: KubeApi, streams: Streams, behind: BestEffort) -> None:
    """Start watching on these clients: real ones in a process, models in the simulation."""
    watcher = make_watcher(context, kube, streams, behind)
    context.health.add_check("view", watcher.why_not_ready)
    context.tasks.create_task(write_behind(behind, context.stop), name="write-behind")
    context.tasks.create_task(watcher.run(context.stop), name="watcher")


if __name__ == "__main__":
    raise SystemExit(main())
