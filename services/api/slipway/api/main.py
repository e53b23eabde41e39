"""The composition root of the api: settings -> clients -> application."""

import asyncio
import math
import socket
from functools import partial
from pathlib import Path

from slipway.api.app import create_app, create_task_app
from slipway.api.auth import ended_sessions
from slipway.api.auth.session import BrowserSessions
from slipway.api.auth.token_auth import BACKOFF_S, LOOK_S, TokenAuth
from slipway.api.deps import ApiDeps, connect
from slipway.api.http.audit import ANYWHERE, AuditDestination, AuditFile, AuditTrail, AuditWebhook, FileRetention
from slipway.api.loops import ANNOUNCE, AUDIT, KUBERNETES, LOGOUTS, SESSION_KEYS, TOKENS, WATCH
from slipway.api.ports import Kube, WatchingKube
from slipway.api.settings import Settings
from slipway.api.webhooks import delivery
from slipway.api.webhooks.sender import Sender
from slipway.errors import ControlPlaneError, InvalidError, InvariantError, NotFoundError, UnavailableError
from slipway.kube import client
from slipway.kube.resources import ALLOCATIONS
from slipway.kube.rest import Timeouts
from slipway.runtime import log, service, telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.http_server import AsgiApp, HttpServer
from slipway.runtime.listen import bind, parse_listen
from slipway.runtime.service import ServiceContext
from slipway.runtime.tasks import TaskGroup
from slipway.streams.factory import MetricTally, TraceWriter, open_streams, write_behind
from slipway.streams.mac_keys import GATHER_PURPOSE, keys_of
from slipway.streams.ports import Streams
from slipway.streams.producer import BestEffortWriter

NAME = "api"
PROBE_S = 5.0
PROBE_BACKOFF_S = 15.0
AUDIT_BACKOFF_S = 30.0

_log = log.get_logger(__name__)


def main() -> int:
    """Entry point of `slipway-api`."""
    return service.run(NAME, Settings, build, websockets=True, tls_dir=lambda settings: settings.tls_dir)


async def build(context: ServiceContext[Settings]) -> None:
    """Make the clients and serve; with `--once`, only check that the api could serve."""
    settings = context.settings
    timeouts = Timeouts(request_s=settings.kube_timeout_s, list_s=settings.request_timeout_s)
    kube = await context.resources.enter_async_context(
        client.connect(
            settings.kubeconfig or None,
            clock=context.clock,
            random=context.random,
            timeouts=timeouts,
            user_agent="slipway-api",
        )
    )
    accepts = settings.accept_unsigned
    macs = keys_of(settings.session_key_dir, GATHER_PURPOSE, context.clock, accepts_unsigned=accepts)
    url = settings.whole_redis_url()
    streams = open_streams(url, clock=context.clock, random=context.random, name=NAME, gather_macs=macs)
    context.resources.push_async_callback(streams.aclose)
    behind = BestEffortWriter(streams, context.clock, MetricTally())
    telemetry.set_sink(TraceWriter(behind))
    parts = compose(context, kube, streams, behind)
    if context.once:
        await check(parts)


def compose(
    context: ServiceContext[Settings], kube: WatchingKube, streams: Streams, behind: BestEffortWriter
) -> ApiDeps:
    """Start the application and its background loops with these clients; with `--once`, start nothing.

    Return the dependencies of the application.
    """
    settings = context.settings
    broken = asyncio.get_running_loop().create_future()
    parts = connect(
        settings=settings,
        clock=context.clock,
        random=context.random,
        stop=context.stop,
        kube=kube,
        streams=streams,
        behind=behind,
        on_broken=lambda error: None if broken.done() else broken.set_exception(error),
    )
    context.resources.push_async_callback(parts.sender.aclose)
    context.resources.push_async_callback(parts.forwarder.aclose)
    if parts.issuer is not None:
        context.resources.push_async_callback(parts.issuer.aclose)
    if parts.prometheus is not None:
        context.resources.push_async_callback(parts.prometheus.aclose)
    if context.once:
        return parts
    app = create_app(parts, context.probes)
    context.serve(app)
    destination = audit_destination(settings, context.clock)
    if destination is not None:
        context.resources.push_async_callback(destination.aclose)
        app.state.audit_trail = follow_audit(context, destination)
    if parts.tokens is not None:
        follow_tokens(context, parts.tokens)
    if settings.auth != "none":
        follow_logins(context, parts.sessions)
    elif not settings.proxy_domain:
        _log.warning(
            "pages of workloads are served in the origin of the api: a script of any workload can do everything "
            "that the api can, in the browser that opens the page",
            how="set SLIPWAY_PROXY_DOMAIN, such as apps.localhost, or SLIPWAY_AUTH",
        )
    if settings.health_listen:
        context.tasks.create_task(_serve_health(context), name="http-health")
    if settings.task_listen:
        context.tasks.create_task(_serve_tasks(context, parts), name="http-tasks")
    context.tasks.create_task(write_behind(behind, context), name="write-behind")
    context.tasks.create_task(_announce(context, parts), name="announce")
    context.tasks.create_task(_fail_with(broken, parts), name="broken")
    answers = ApiServerAnswers(kube, context.clock, settings.namespace)
    delivery.start(context, parts, answered_since=answers.since)
    for kept in (parts.nodes, parts.seen):
        watch = WATCH.of(kept.plural)
        watching = context.health.supervise(watch, partial(kept.run, context.stop), since=answers.since)
        context.tasks.create_task(watching, name=watch.name)
    context.loop(KUBERNETES, answers.look, min_interval_s=PROBE_S, max_backoff_s=PROBE_BACKOFF_S, required=True)
    return parts


class ApiServerAnswers:
    """Probes every few seconds whether the API server answers.

    Readiness depends on it. It also excuses a silent watch: while the API server does not answer, the silence is no
    fault of this process.
    """

    def __init__(self, kube: Kube, clock: Clock, namespace: str) -> None:
        """`namespace` is Slipway's own: it contains no allocations, so that a probe costs the API server little."""
        self._kube = kube
        self._namespace = namespace
        self._clock = clock
        self._since = math.inf

    def since(self) -> float:
        """Return the monotonic time of the first answer since the last failed probe; `inf` when the last one failed."""
        return self._since

    async def look(self) -> None:
        """Probe once. Raises the error of the LIST when it fails."""
        try:
            with telemetry.suppressed():
                await self._kube.list(ALLOCATIONS, namespace=self._namespace, limit=1)
        except ControlPlaneError:
            self._since = math.inf
            raise
        self._since = min(self._since, self._clock.monotonic())


def follow_tokens(context: ServiceContext[Settings], tokens: TokenAuth) -> None:
    """Read the folder of tokens every few seconds."""
    context.loop(TOKENS, tokens.look, min_interval_s=LOOK_S, max_backoff_s=BACKOFF_S, required=True)


def follow_logins(context: ServiceContext[Settings], sessions: BrowserSessions) -> None:
    """Read the keys that seal cookies, and the logouts at other replicas, every few seconds."""
    if sessions.keys.is_shared:
        # Programs need no cookie, so a failure to read these keys does not make the process unready.
        look = sessions.keys.look
        context.loop(SESSION_KEYS, look, min_interval_s=LOOK_S, max_backoff_s=BACKOFF_S)
    else:
        _log.info(
            "browsers must log in again after a restart of this process",
            how="set SLIPWAY_SESSION_KEY_DIR for several replicas",
        )
    interval_s, backoff_s = ended_sessions.LOOK_S, ended_sessions.BACKOFF_S
    context.loop(LOGOUTS, sessions.ended.look, min_interval_s=interval_s, max_backoff_s=backoff_s)


def audit_destination(settings: Settings, clock: Clock) -> AuditFile | AuditWebhook | None:
    """Return where audit events are delivered in addition to the log; None when no destination is set."""
    if settings.audit_file:
        keeps = FileRetention(
            bytes_max=settings.audit_file_bytes_max,
            files_max=settings.audit_files_max,
            days_max=settings.audit_days_max,
        )
        return AuditFile(Path(settings.audit_file), keeps, clock)
    if settings.audit_webhook_dir:
        sender = Sender(clock, timeout_s=settings.webhook_timeout_s, allowed=ANYWHERE)
        return AuditWebhook(Path(settings.audit_webhook_dir), sender)
    return None


def follow_audit(context: ServiceContext[Settings], destination: AuditDestination) -> AuditTrail:
    """Deliver audit events until the process stops, then deliver those that are still in the buffer."""
    settings = context.settings
    trail = AuditTrail(
        destination,
        context.clock,
        context.random,
        source=f"/slipway/{settings.namespace}/api/{socket.gethostname()}",
        backlog_max=settings.audit_backlog_max,
        retry_s=settings.audit_retry_s,
    )
    context.resources.push_async_callback(trail.flush)
    context.loop(AUDIT, trail.step, min_interval_s=0.0, max_backoff_s=AUDIT_BACKOFF_S)

    async def wake() -> None:
        await context.stop.wait()
        trail.wake()

    context.tasks.create_task(wake(), name="audit-stop")
    return trail


async def check(parts: ApiDeps) -> None:
    """Check that Kubernetes answers and knows our custom resources. Raises UnavailableError when it does not."""
    try:
        await parts.kube.list(ALLOCATIONS, limit=1)
    except (NotFoundError, InvalidError) as error:
        raise UnavailableError(
            "the custom resources of slipway.dev are not installed: install the chart, or run slipway up"
        ) from error
    _log.info("checked: Kubernetes answers and the custom resources are installed")


async def _serve_health(context: ServiceContext[Settings]) -> None:
    """Serve the probes on a listener of their own: a kubelet cannot reach an api that listens on a loopback address."""
    settings = context.settings
    listener = context.resources.enter_context(bind(parse_listen(settings.health_listen)))
    _log.info("serving probes", listen=settings.health_listen)
    app = context.probes
    await _server(context, app, listener).serve(context.stop.wait)


async def _serve_tasks(context: ServiceContext[Settings], parts: ApiDeps) -> None:
    """Serve the routes for tasks on a listener of their own: its callers can reach no other route."""
    settings = context.settings
    listener = context.resources.enter_context(bind(parse_listen(settings.task_listen)))
    _log.info("serving tasks", listen=settings.task_listen)
    await _server(context, create_task_app(parts), listener).serve(context.stop.wait)


def _server(context: ServiceContext[Settings], app: AsgiApp, listener: socket.socket) -> HttpServer:
    """A server without WebSockets."""
    drain_s = context.settings.drain_timeout_s
    return HttpServer(app, [listener], drain_timeout_s=drain_s, websockets=False, limits=context.limits)


async def _announce(context: ServiceContext[Settings], parts: ApiDeps) -> None:
    """Publish launches to the streams until the process stops, then publish those that are still in the buffer."""
    async with TaskGroup() as tasks:
        announcing = tasks.create_task(
            service.loop(
                ANNOUNCE,
                parts.announcer.step,
                clock=context.clock,
                random=context.random,
                health=context.health,
                stop=context.stop,
                min_interval_s=0.0,
                max_backoff_s=PROBE_BACKOFF_S,
            )
        )
        await context.stop.wait()
        announcing.cancel()
    await parts.announcer.flush()


async def _fail_with(broken: "asyncio.Future[InvariantError]", parts: ApiDeps) -> None:
    """End the process when a request has found a broken invariant."""
    stopping = asyncio.ensure_future(parts.stop.wait())
    await asyncio.wait({broken, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if broken.done():
        broken.result()


if __name__ == "__main__":
    raise SystemExit(main())
