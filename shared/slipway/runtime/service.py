"""The service runner: start, signals, drain, exit codes, and the one loop runner for all periodic work.

This module owns the process. A service's `main.py` passes its name, its settings and `build`, which makes the clients
and starts the loops. Nothing else in the product catches every exception, handles signals or ends the process.

Promises: settings are checked before anything starts (exit 2). The first SIGTERM or SIGINT stops claiming and drains
within `drain_timeout_s`; the second ends the process at once. SIGUSR1 logs the stack of every task, and of the thread
if the event loop hangs. An InvariantError ends the process with 70, so that it is started again. A failure is exit 1.
`--once` makes one pass and exits 0, or 1 when the API server cannot be reached.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar, cast

from slipway.errors import ControlPlaneError, InvalidError, InvariantError, TransientError
from slipway.installed import installed_version
from slipway.runtime import log, memory, settings, telemetry
from slipway.runtime.clock import Clock, DisciplinedClock, Random, SystemRandom
from slipway.runtime.connections import ListenerLimits
from slipway.runtime.health import HealthApp, ProcessHealth, log_stacks
from slipway.runtime.http_server import AsgiApp, HttpServer, Receive, Scope, Send
from slipway.runtime.listen import Certificate, ListenAddress, bind_all, parse_listen
from slipway.runtime.liveness import Loop
from slipway.runtime.tasks import TaskGroup

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_SETTINGS = 2
EXIT_INVARIANT = 70

CERTIFICATE = Loop(name="certificate", bound_s=120.0, moves="each check of the files of the certificate")
LOOPS = (CERTIFICATE,)
"""The loops of every service with a certificate."""
CERTIFICATE_S = 10.0
"""The seconds between two checks of the files of a certificate."""
_BACKOFF_FIRST_S = 0.1

_log = log.get_logger(__name__)

SettingsT = TypeVar("SettingsT", bound=settings.CommonSettings)
Step = Callable[[], Awaitable[float | None]]


class ServiceStop:
    """A flag that is set once, when the process has to end. Loops check it between steps."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._pauses: dict[asyncio.Timeout, None] = {}

    def set(self) -> None:
        self._event.set()
        while self._pauses:
            limit, _ = self._pauses.popitem()
            limit.reschedule(0.0)

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    async def pause(self, seconds: float, clock: Clock) -> None:
        """Sleep, at most until the flag is set. This needs no task of its own, because every idle loop waits here."""
        if self.is_set():
            return
        limit = asyncio.timeout(None)
        self._pauses[limit] = None
        try:
            async with limit:
                await clock.sleep(seconds)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._pauses.pop(limit, None)


@dataclass(kw_only=True)
class ServiceContext(Generic[SettingsT]):
    """The values that `build` uses to compose a service."""

    service: str
    settings: SettingsT
    once: bool
    clock: Clock
    random: Random
    health: ProcessHealth
    stop: ServiceStop
    tasks: TaskGroup
    """Tasks of the service. The drain waits for them, and one that fails ends the process."""
    resources: contextlib.AsyncExitStack
    """Clients to close after every task has ended."""
    address: ListenAddress
    """The address that the HTTP server listens on; port 0 with `--once`."""
    metrics_token: str = ""
    """The token that `/metrics` requires; empty when it requires none."""
    limits: ListenerLimits = field(init=False)
    """The limits of each listener."""
    probes: HealthApp = field(init=False)
    """`/livez`, `/readyz` and `/metrics`."""
    app: AsgiApp = field(init=False)

    def __post_init__(self) -> None:
        self.app = self.probes = HealthApp(self.health, self.metrics_token)
        self.limits = ListenerLimits(
            connections=self.settings.connections_max,
            connections_per_address=self.settings.connections_per_address_max,
        )

    def serve(self, app: AsgiApp) -> None:
        """Answer HTTP with `app` from now on. `app` has to route `/livez`, `/readyz` and `/metrics` to `probes`."""
        self.app = app

    def loop(
        self, what: Loop, step: Step, *, min_interval_s: float, max_backoff_s: float, required: bool = False
    ) -> None:
        """Start `loop` as a task of this service."""
        running = loop(
            what,
            step,
            clock=self.clock,
            random=self.random,
            health=self.health,
            stop=self.stop,
            min_interval_s=min_interval_s,
            max_backoff_s=max_backoff_s,
            required=required,
        )
        self.tasks.create_task(running, name=f"loop:{what.name}")


Build = Callable[[ServiceContext[SettingsT]], Awaitable[None]]


def run(
    name: str,
    settings_type: type[SettingsT],
    build: Build[SettingsT],
    *,
    argv: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    websockets: bool = False,
    tls_dir: Callable[[SettingsT], str] = lambda _settings: "",
) -> int:
    """Run one service until it has to stop, and return the exit code.

    `build` makes clients and starts loops, then returns; it should not wait for the network. With `--once`, `build`
    does the one pass itself. `argv` and `env` default to those of the process.
    """
    options = _parser(name, settings_type).parse_args(argv)
    try:
        values = settings.load(settings_type, env)
        http_options = _HttpOptions(websockets, tls_dir(values), values.read_metrics_token())
    except InvalidError as error:
        print(f"slipway-{name}: {error}", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        return EXIT_SETTINGS
    log.setup(name, level=values.log_level, style=values.log_format, trace_ids=telemetry.current_ids)
    telemetry.setup(
        name, otlp_endpoint=values.otel_endpoint, otlp_protocol=values.otel_protocol, ratio=values.trace_ratio
    )
    telemetry.BUILD.labels(service=name, version=version()).set(1)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_main(name, values, build, options.once, http_options))
    finally:
        telemetry.shutdown()


async def loop(  # noqa: PLR0913 - keyword-only: this is the whole contract of a loop
    what: Loop,
    step: Step,
    *,
    clock: Clock,
    health: ProcessHealth,
    stop: ServiceStop,
    min_interval_s: float,
    max_backoff_s: float,
    random: Random | None = None,
    required: bool = False,
    exit_process: Callable[[int], object] = os._exit,
) -> None:
    """Call `step` until `stop` is set.

    This is the only place that survives any exception, including a CancelledError that was meant for another task. A
    cancelled loop ends, whatever error its step raises then.

    After a step, the loop waits `min_interval_s`, or longer when the step returned a longer time. After an error, the
    wait doubles each time, with jitter, up to `max_backoff_s`. A longer `retry_after_s` of the error is respected. An
    InvariantError ends the process. Each end of a step is a move of the loop. A step that takes long or waits for work
    reports this itself (`liveness.beat`, `liveness.rest`). With `required`, errors show in readiness.
    """
    chance, name = random or SystemRandom(), what.name
    failures, cancelled_before = 0, _cancel_requests()
    with health.watch(what, required=required) as pulse:
        while not stop.is_set():
            try:
                wanted_s = await step()
            except (Exception, asyncio.CancelledError) as error:  # the one boundary: errors are logged and counted
                if _cancel_requests() > cancelled_before and not _is_invariant(error):
                    # The loop was cancelled and has to end, even if its step raised another error.
                    raise asyncio.CancelledError from error
                if _is_invariant(error):
                    _log.critical("invariant broken", exc_info=error, loop=name)
                    exit_process(EXIT_INVARIANT)
                    raise
                failures += 1
                delay_s = _backoff_s(failures, error, min_interval_s, max_backoff_s, chance)
                telemetry.LOOP_ERRORS.labels(loop=name, error=type(_leaves(error)[0]).__name__).inc()
                _log.warning(
                    "loop step failed", exc_info=error, loop=name, failures=failures, retry_in_s=round(delay_s, 3)
                )
                pulse.failed(f"{type(error).__name__}: {error}", next_in_s=delay_s)
            else:
                failures = 0
                delay_s = max(min_interval_s, wanted_s or 0.0)
                telemetry.LOOP_STEPS.labels(loop=name).inc()
                pulse.progress(next_in_s=delay_s)
            await pause(delay_s, clock=clock, stop=stop)


async def guarded(name: str, work: Awaitable[None]) -> bool:
    """Wait for `work`. A failure is logged and counted and does not end the sibling tasks. Return whether it
    succeeded.
    """
    try:
        await work
    except Exception as error:  # noqa: BLE001 - see the module's docstring
        telemetry.LOOP_ERRORS.labels(loop=name, error=type(_leaves(error)[0]).__name__).inc()
        _log.error("task failed", exc_info=error, loop=name)
        return False
    return True


async def pause(seconds: float, *, clock: Clock, stop: ServiceStop) -> None:
    """Sleep, at most until `stop` is set."""
    if seconds <= 0 or stop.is_set():
        await clock.sleep(0)
        return
    await stop.pause(seconds, clock)


def version() -> str:
    """The installed version of Slipway."""
    return installed_version() or "0+unknown"


class _HttpOptions(NamedTuple):
    """Options of the HTTP server: whether it accepts WebSockets, the folder of its certificate (empty: plain HTTP), and
    the token that `/metrics` requires."""

    websockets: bool
    tls_dir: str
    metrics_token: str


async def _main(name: str, values: SettingsT, build: Build[SettingsT], once: bool, http_options: _HttpOptions) -> int:
    """Run the whole life of the process inside the event loop, and return the exit code."""
    try:
        async with contextlib.AsyncExitStack() as resources:
            await _serve(name, values, build, resources, once=once, http_options=http_options)
    except (ControlPlaneError, BaseExceptionGroup) as error:
        return _failed(error)
    except TimeoutError:
        _log.error("drain timed out", drain_timeout_s=values.drain_timeout_s)
        return EXIT_FAILED
    _log.info("stopped")
    return EXIT_OK


async def _serve(
    name: str,
    values: SettingsT,
    build: Build[SettingsT],
    resources: contextlib.AsyncExitStack,
    *,
    once: bool,
    http_options: _HttpOptions,
) -> None:
    """Build, wait for the stop, drain. Raises TimeoutError when the drain takes too long."""
    clock = DisciplinedClock()
    health, stop = ProcessHealth(clock), ServiceStop()
    listeners = [] if once else bind_all(parse_listen(values.listen))
    for listener in listeners:
        resources.enter_context(listener)

    async with asyncio.timeout(None) as drain:

        def begin_drain() -> None:
            stop.set()
            health.drain()
            if drain.when() is None:
                drain.reschedule(asyncio.get_running_loop().time() + values.drain_timeout_s)

        # The handlers stay until the last task is done, so that a second signal still ends a hanging drain.
        with _signals(begin_drain):
            async with TaskGroup() as tasks:
                context = ServiceContext(
                    service=name,
                    settings=values,
                    once=once,
                    clock=clock,
                    random=SystemRandom(),
                    health=health,
                    stop=stop,
                    tasks=tasks,
                    resources=resources,
                    address=_address(listeners),
                    metrics_token=http_options.metrics_token,
                )
                if listeners:
                    certificate = Certificate(http_options.tls_dir) if http_options.tls_dir else None
                    tasks.create_task(_http(context, listeners, http_options.websockets, certificate), name="http")
                    if certificate is not None:
                        follow_certificate(context, certificate)
                listen = str(context.address) if listeners else ""
                _log.info("started", version=version(), once=once, listen=listen, settings=repr(values))
                await build(context)
                memory.settle_process()
                if not once:
                    await stop.wait()
                begin_drain()


class RenewedFiles(Protocol):
    """A certificate whose files may be replaced. `look` returns True when it has loaded a new one."""

    def look(self) -> bool: ...


def follow_certificate(context: ServiceContext[SettingsT], certificate: RenewedFiles) -> None:
    """Check for a renewed certificate at intervals, so that a renewal needs no restart."""

    async def look() -> None:
        if certificate.look():
            _log.info("certificate renewed")

    context.loop(CERTIFICATE, look, min_interval_s=CERTIFICATE_S, max_backoff_s=CERTIFICATE_S)


async def _http(
    context: ServiceContext[SettingsT],
    listeners: Sequence[socket.socket],
    websockets: bool,
    certificate: Certificate | None,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await context.app(scope, receive, send)

    server = HttpServer(
        app,
        listeners,
        drain_timeout_s=context.settings.drain_timeout_s,
        websockets=websockets,
        tls=certificate.context if certificate is not None else None,
        limits=context.limits,
    )
    await server.serve(context.stop.wait)


@contextlib.contextmanager
def _signals(begin_drain: Callable[[], None]) -> Generator[None]:
    """Handle signals: the first SIGTERM or SIGINT starts the drain, the second ends the process at once."""
    running = asyncio.get_running_loop()
    seen: list[int] = []

    def on_signal(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            _log.warning("second signal received, ending at once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        _log.info("stopping", signal=signal.Signals(number).name)
        begin_drain()

    handled = (signal.SIGTERM, signal.SIGINT)
    for number in handled:
        running.add_signal_handler(number, on_signal, number)
    running.add_signal_handler(signal.SIGUSR1, log_stacks, "requested by SIGUSR1")
    # If the event loop hangs, only the stack of its thread is available; this handler writes it.
    with contextlib.suppress(ValueError, OSError):
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__ or sys.stderr, all_threads=True, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR1)
        for number in (*handled, signal.SIGUSR1):
            running.remove_signal_handler(number)


def _failed(error: ControlPlaneError | BaseExceptionGroup[BaseException]) -> int:
    """Log why the process ends, and return its exit code."""
    if _is_invariant(error):
        _log.critical("invariant broken", exc_info=error)
        return EXIT_INVARIANT
    causes = _leaves(error)
    if all(isinstance(cause, TransientError | InvalidError) for cause in causes):
        # Not a bug: a traceback would hide the message.
        _log.error("failed", error="; ".join(f"{type(cause).__name__}: {cause}" for cause in causes))
    else:
        _log.error("failed", exc_info=error)
    return EXIT_FAILED


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast(BaseExceptionGroup[BaseException], error)
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [error]


def _cancel_requests() -> int:
    """Return how often the running task was cancelled. A CancelledError without a request is an ordinary failure."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _is_invariant(error: BaseException) -> bool:
    return any(isinstance(leaf, InvariantError) for leaf in _leaves(error))


def _backoff_s(
    failures: int, error: BaseException, min_interval_s: float, max_backoff_s: float, random: Random
) -> float:
    ceiling_s = min(max_backoff_s, max(min_interval_s, _BACKOFF_FIRST_S) * 2.0 ** min(failures - 1, 60))
    delay_s = ceiling_s * random.uniform(0.5, 1.0)
    asked_s = (leaf.retry_after_s or 0.0 for leaf in _leaves(error) if isinstance(leaf, TransientError))
    return max((delay_s, *asked_s))


def _address(listeners: Sequence[socket.socket]) -> ListenAddress:
    if not listeners:
        return ListenAddress("", 0)
    host, port = listeners[0].getsockname()[:2]
    return ListenAddress(host, port)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _parser(name: str, settings_type: type[settings.CommonSettings]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"slipway-{name}",
        description=f"The {name} service of Slipway. Settings come from the environment.",
        epilog=_settings_text(settings_type),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--once", action="store_true", help="do what is there to do, then exit 0")
    parser.add_argument("--version", action="version", version=f"slipway-{name} {version()}")
    return parser


def _settings_text(settings_type: type[settings.CommonSettings]) -> str:
    lines = ["settings:"]
    for row in settings.describe(settings_type):
        facts = "; ".join(part for part in (row.type, row.unit, row.bounds) if part)
        default = "required" if row.default is None else f"default {row.default or 'empty'}"
        lines.append(f"  {row.variable}  ({facts}; {default})")
        lines.extend(textwrap.wrap(row.description, 100, initial_indent="      ", subsequent_indent="      "))
    return "\n".join(lines).replace("%", "%%")
