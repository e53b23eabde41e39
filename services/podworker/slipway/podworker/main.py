"""The composition root of the pod worker: settings -> clients -> the consumer of hints and the poll."""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import msgspec

from slipway.errors import TransientError
from slipway.kube import client
from slipway.kube.extender import ExtenderClient
from slipway.pods.podspec import TaskOptions
from slipway.podworker.binding import BindCalls, ExtenderBinding
from slipway.podworker.concurrency import PriorityLimiter
from slipway.podworker.created_objects import CreatedObjects
from slipway.podworker.launch import AttemptLauncher
from slipway.podworker.loops import HINT, POLL, Watch, unwatched
from slipway.podworker.poll import Poller
from slipway.podworker.pools import Pools
from slipway.podworker.ports import Kube, Pinger
from slipway.podworker.service_sharing import ServiceSharing
from slipway.podworker.settings import Settings
from slipway.podworker.teardown import AttemptRemover
from slipway.podworker.worker import Worker
from slipway.runtime import log, retry, service, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.health import ProcessHealth
from slipway.runtime.service import ServiceContext
from slipway.runtime.tasks import TaskGroup
from slipway.streams.consumer import ConsumerSettings, WorkConsumer
from slipway.streams.factory import MetricTally, TraceWriter, open_streams, write_behind
from slipway.streams.ports import Streams, WorkHint
from slipway.streams.producer import BestEffortWriter

NAME = "podworker"
BACKOFF_MAX_S = 10.0
READS_MAX = 64
"""The number of connections for reads. The writes have their own connections, `worker_calls` of them."""

_log = log.get_logger(__name__)


def main() -> int:
    """Entry point of `slipway-podworker`."""
    return service.run(NAME, Settings, build)


async def build(context: ServiceContext[Settings]) -> None:
    """Make the clients and start working; with `--once`, make one pass."""
    settings = context.settings
    kube = await context.resources.enter_async_context(
        client.connect(
            settings.kubeconfig or None,
            clock=context.clock,
            random=context.random,
            pool_size=settings.worker_calls + READS_MAX,
        )
    )
    streams = open_streams(settings.whole_redis_url(), clock=context.clock, random=context.random, name=NAME)
    context.resources.push_async_callback(streams.aclose)
    behind = BestEffortWriter(streams, context.clock, MetricTally())
    telemetry.set_sink(TraceWriter(behind))
    if context.once:
        worker = make_worker(kube, settings, context.clock, context.random, extenders=_extenders(context))
        poller = make_poller(kube, worker, settings, context.clock, context.random, None)
        consumer = make_consumer(streams, worker, settings, context.clock, may_retry=False)
        await _run_once(poller, consumer if settings.redis_url else None)
        await behind.flush()
        return
    context.tasks.create_task(write_behind(behind, context), name="write-behind")
    compose(context, kube, streams)


def compose(context: ServiceContext[Settings], kube: Kube, streams: Streams) -> None:
    """Start the loops on these clients: real clients in a process, models in the simulation."""
    settings, health = context.settings, context.health
    limiter = PriorityLimiter(settings.worker_calls, context.clock)

    def watch(hint: WorkHint, *, part: bool = False) -> AbstractContextManager[object]:
        return health.watch(HINT.of(hint.allocation), since=limiter.stalled_since, part=part)

    worker = make_worker(kube, settings, context.clock, context.random, extenders=_extenders(context), limiter=limiter)
    pinger = streams.health if settings.redis_url else None
    poller = make_poller(kube, worker, settings, context.clock, context.random, pinger, watch=partial(watch, part=True))
    context.loop(POLL, poller.step, min_interval_s=0.1, max_backoff_s=BACKOFF_MAX_S, required=not settings.redis_url)
    if settings.redis_url:
        consumer = make_consumer(
            streams,
            worker,
            settings,
            context.clock,
            troubled=poller.end_rest,
            health=health,
            watch=watch,
        )
        context.tasks.create_task(_consume(consumer, poller, context), name="consumer")


def _extenders(context: ServiceContext[Settings]) -> ExtenderClient:
    client_ = ExtenderClient()
    context.resources.push_async_callback(client_.aclose)
    return client_


def make_worker(
    kube: Kube,
    settings: Settings,
    clock: Clock,
    random: Random,
    *,
    extenders: BindCalls | None = None,
    limiter: PriorityLimiter | None = None,
) -> Worker:
    """Return a worker on these clients; `limiter` limits its concurrent writes."""
    limiter, pools, created = limiter or PriorityLimiter(settings.worker_calls), Pools(kube, clock), CreatedObjects()
    sharing = ServiceSharing(kube)
    retry_policy = msgspec.structs.replace(retry.KUBE_WRITE, name="podworker_hint", total_s=settings.worker_patience_s)
    options = TaskOptions(
        api_url=settings.task_api_url,
        token_audience=settings.task_audience,
        context_image=settings.context_image,
        context_python=settings.context_python,
    )
    return Worker(
        kube=kube,
        launcher=AttemptLauncher(
            kube,
            limiter,
            clock,
            options,
            ExtenderBinding(kube, pools, extenders or ExtenderClient()),
            created=created,
            sharing=sharing,
        ),
        remover=AttemptRemover(kube, limiter, clock, created, sharing),
        pools=pools,
        clock=clock,
        random=random,
        retry_policy=retry_policy,
        stuck_after_s=settings.worker_stuck_after_s,
    )


def make_poller(
    kube: Kube,
    worker: Worker,
    settings: Settings,
    clock: Clock,
    random: Random,
    pinger: Pinger | None,
    *,
    watch: Watch = unwatched,
) -> Poller:
    """Return the poller that gives its work to this worker."""
    return Poller(
        kube=kube,
        worker=worker,
        limiter=PriorityLimiter(settings.worker_hints),
        clock=clock,
        random=random,
        pinger=pinger,
        interval_s=settings.worker_poll_s,
        watch=watch,
    )


def make_consumer(
    streams: Streams,
    worker: Worker,
    settings: Settings,
    clock: Clock,
    *,
    may_retry: bool = True,
    troubled: Callable[[], object] = lambda: None,
    health: ProcessHealth | None = None,
    watch: Watch = unwatched,
) -> WorkConsumer:
    """Return the consumer that gives the hints of the stream to a worker. `troubled`, `health`: see WorkConsumer."""

    async def handle(hint: WorkHint) -> None:
        with watch(hint):
            await worker.handle(hint, may_retry=may_retry)

    return WorkConsumer(
        streams.work_queue(settings.worker_identity or f"{socket.gethostname()}-{os.getpid()}"),
        handle,
        clock,
        settings=ConsumerSettings(concurrency=settings.worker_hints),
        tally=MetricTally(),
        troubled=troubled,
        health=health,
    )


async def _consume(consumer: WorkConsumer, poller: Poller, context: ServiceContext[Settings]) -> None:
    """Consume until the process is to stop, then finish the hints that were already claimed."""
    ended = asyncio.Event()
    async with TaskGroup() as tasks:
        tasks.create_task(consumer.run(ended))
        await context.stop.wait()
        ended.set()
        poller.end_rest()


async def _run_once(poller: Poller, consumer: WorkConsumer | None) -> None:
    """Make one pass over the LISTs; then acknowledge the hints for the same work, which is done by then."""
    failures = await poller.run_once()
    _log.info("pass completed", failures=len(failures), first=str(failures[0]) if failures else "")
    if consumer is not None:
        try:
            await consumer.drain_once()
        except TransientError as error:
            _log.warning("the work stream cannot be reached", error=str(error))


if __name__ == "__main__":
    raise SystemExit(main())
