"""The containers of one pod: started in order, probed, found again after a restart of the node's process, restarted.

Owns the processes and their states. Knows neither the API server nor the reason why the pod ends.

Invariants: each restart count is used for one start only; a container that was reported as started, but whose marker
file is missing, is lost and is not started again; after `close` no container runs.

Readiness probes (HTTP, TCP, a command) check whether a container can serve, and call back when the result changes.
Invariants: every probe has a timeout; when a probe ends or is cancelled, its command no longer runs.
"""

import asyncio
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from slipway.crd.roleresources import JsonMap, object_of, objects_of
from slipway.local.node import shim
from slipway.local.node.containers import RunningContainer, RunningState, Terminated, WaitingState, exited
from slipway.local.node.disk import PodDisk
from slipway.local.node.environment import CONFIG_ERROR, NotConfiguredError, PodPlace
from slipway.local.node.logs import ContainerLog, log_end, termination_message
from slipway.local.node.names import PeerNames, RendezvousPorts
from slipway.local.node.podview import NodePod
from slipway.local.node.preparation import Fetched, NotStartedError, PeersUnknownError, located, program_of
from slipway.local.node.shim import Program, Shim, signal_group
from slipway.model.numbers import number_in
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup

_STATUS_LINE_BYTES_MAX = 4096
ExecProgram = Callable[[Sequence[str]], Program | None]
"""Returns a command as a program in a container, or None when it cannot run there. Raises: NotStartedError."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A readiness probe, with the defaults of Kubernetes."""

    host: str
    port: int = 0
    path: str = ""
    headers: dict[str, str] = {}
    command: list[str] = []
    initial_delay_s: float = 0.0
    period_s: float = 10.0
    timeout_s: float = 1.0
    successes: int = 1
    failures: int = 3

    @property
    def is_http(self) -> bool:
        return bool(self.path)


def probe_of(container: JsonMap, pod_ip: str) -> Probe | None:
    """Return the container's readiness probe, or None when it has none of a supported kind."""
    spec = object_of(container.get("readinessProbe"))
    http, tcp, command = (object_of(spec.get(kind)) for kind in ("httpGet", "tcpSocket", "exec"))
    target = http or tcp
    words = [str(word) for word in command.get("command") or ()]
    if not target and not words:
        return None
    return Probe(
        host=str(target.get("host") or pod_ip),
        port=_port(target.get("port"), container) if target else 0,
        path=str(http.get("path") or "/") if http else "",
        headers={str(each.get("name")): str(each.get("value")) for each in objects_of(http.get("httpHeaders"))},
        command=words,
        initial_delay_s=float(spec.get("initialDelaySeconds") or 0),
        period_s=float(spec.get("periodSeconds") or 10),
        timeout_s=float(spec.get("timeoutSeconds") or 1),
        successes=int(spec.get("successThreshold") or 1),
        failures=int(spec.get("failureThreshold") or 3),
    )


async def watch_readiness(
    probe: Probe, exec_program: ExecProgram, clock: Clock, tell: Callable[[bool], object]
) -> None:
    """Run the probe until cancelled. `tell` is called with each change of readiness; the container starts not ready."""
    await clock.sleep(probe.initial_delay_s)
    is_ready, streak = False, 0
    while True:
        is_good = await _ask(probe, exec_program)
        streak = streak + 1 if is_good is not is_ready else 0
        if streak >= (probe.successes if is_good else probe.failures):
            is_ready, streak = is_good, 0
            tell(is_ready)
        await clock.sleep(probe.period_s)


async def _ask(probe: Probe, exec_program: ExecProgram) -> bool:
    try:
        async with asyncio.timeout(probe.timeout_s):
            if probe.command:
                program = exec_program(probe.command)
                return program is not None and await _runs(program)
            return await _answers(probe)
    except (OSError, TimeoutError, ValueError, OverflowError, NotStartedError):  # OverflowError: no such port
        return False


async def _answers(probe: Probe) -> bool:
    reader, writer = await asyncio.open_connection(probe.host, probe.port)
    try:
        if not probe.is_http:
            return True
        headers = {"Host": f"{probe.host}:{probe.port}", "User-Agent": "kube-probe/slipway", "Connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in (headers | probe.headers).items())
        writer.write(f"GET {probe.path} HTTP/1.1\r\n{head}\r\n".encode())
        await writer.drain()
        line = (await reader.readline())[:_STATUS_LINE_BYTES_MAX].split()
        return len(line) > 1 and line[1].isdigit() and 200 <= int(line[1]) < 400
    finally:
        writer.close()


async def _runs(program: Program) -> bool:
    process = await asyncio.create_subprocess_exec(
        *program.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(program.env),
        cwd=program.cwd,
        start_new_session=True,
    )
    try:
        return await process.wait() == 0
    finally:
        if process.returncode is None:
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()


def _port(value: object, container: JsonMap) -> int:
    """Return a port given by number or by a name in the container's ports; 0 when the name is unknown."""
    if isinstance(value, int):
        return value
    if (number := number_in(str(value))) is not None:
        return number
    ports = objects_of(container.get("ports"))
    return next((int(port.get("containerPort") or 0) for port in ports if port.get("name") == value), 0)


PEERS_WAIT_S = 20.0
PEERS_POLL_S = 0.02
CONFIG_WAIT_MIN_S = 0.25
CONFIG_WAIT_MAX_S = 2.0
FAILED = "Failed"
"""Reason of an Event: a container could not be created or started."""
START_ERROR = "StartError"
FALLBACK = "FallbackToLogsOnError"
START_ERROR_CODE = 128
RESTART_MIN_S = 0.5
RESTART_MAX_S = 30.0

_log = log.get_logger(__name__)


class PodContainers:
    """All containers of a pod."""

    def __init__(
        self,
        pod: NodePod,
        disk: PodDisk,
        place: PodPlace,
        peers: PeerNames,
        *,
        ports: RendezvousPorts,
        clock: Clock,
        on_change: Callable[[], object],
    ) -> None:
        self._pod = pod
        self._disk = disk
        self._place = place
        self._peers = peers
        self._ports = ports
        self._clock = clock
        self._on_change = on_change
        self._logs: dict[str, ContainerLog] = {}
        self.is_closed = False
        self._again: Callable[[], Awaitable[Fetched]] | None = None
        self._warn: Callable[[str, str], Awaitable[None]] | None = None
        reason = "PodInitializing" if pod.init_containers else "ContainerCreating"
        self.containers = [
            *(
                RunningContainer(spec=spec, is_init=True, state=WaitingState(reason=reason))
                for spec in pod.init_containers
            ),
            *(RunningContainer(spec=spec, state=WaitingState(reason=reason)) for spec in pod.containers),
        ]

    @property
    def is_running(self) -> bool:
        return any(each.process is not None and each.process.is_running for each in self.containers)

    @property
    def is_over(self) -> bool:
        """Whether every container except sidecars has ended."""
        return all(each.ended is not None for each in self.containers if not each.is_sidecar)

    def log_of(self, container: str) -> ContainerLog | None:
        return self._logs.get(container)

    def wait_all(self, waiting: WaitingState) -> None:
        """Set the waiting state of all containers that wait, because none of them can start."""
        for each in self.containers:
            if isinstance(each.state, WaitingState):
                each.state = waiting
        self._on_change()

    async def run(
        self,
        bundles: Fetched,
        *,
        again: Callable[[], Awaitable[Fetched]] | None = None,
        warn: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        """Run init containers in order, then the others. Return when all of them except sidecars have ended.

        `again` fetches ConfigMaps and Secrets again for a container that lacks one. `warn` is called with (reason,
        message) when something prevents a container's start. Cancellation leaves the processes running.
        """
        self._again, self._warn = again, warn
        async with TaskGroup() as tasks:
            sidecars: list[asyncio.Task[None]] = []
            for each in self.containers:
                if each.is_sidecar:
                    sidecars.append(tasks.create_task(self._keep(each, bundles)))
                elif each.is_init:
                    self._on_change()
                    await self._keep(each, bundles)
                    if each.ended is None or each.ended.exit_code:
                        break
            else:
                mains = [each for each in self.containers if not each.is_init]
                await asyncio.gather(*(self._keep(each, bundles) for each in mains))
            for task in sidecars:
                task.cancel()

    def exec_program(self, container: str, command: Sequence[str]) -> tuple[Program, Shim] | None:
        """Return the command as a program for that container, and the container's own program.

        None when the container does not run.

        Raises:
            NotStartedError: the command's file does not exist or is not executable.
        """
        found = next((each for each in self.containers if each.name == container and each.is_running), None)
        if found is None or found.process is None:
            return None
        program = self._exec_program(found, command)
        return None if program is None else (program, found.process)

    def _exec_program(self, container: RunningContainer, command: Sequence[str]) -> Program | None:
        """Return a command as a program next to the container's own, or None when that one is not stored.

        Raises:
            NotStartedError: the command's file does not exist or is not executable.
        """
        own = shim.kept_program(self._disk.instance(container.name, container.restarts))
        if own is None:
            return None
        root = self._disk.mount(container.spec)
        words = [root.rewrite(word) for word in command]
        return Program(argv=located(words, own), env=own.env, cwd=own.cwd)

    def signal(self, how: signal.Signals) -> None:
        """Send a signal to every process group."""
        for each in self.containers:
            if each.process is not None:
                each.process.signal(how)

    async def ended(self) -> None:
        """Wait until no process runs any more."""
        running = [each.process for each in self.containers if each.process is not None]
        await asyncio.gather(*(process.ended() for process in running))

    def close(self) -> None:
        """Record the end of every container whose state is still running, and close all logs."""
        for each in self.containers:
            if each.process is not None and each.is_running:
                self._logs[each.name].close()
                each.state = self._ended_state(each, each.process)
        for writer in self._logs.values():
            writer.close()
        self.is_closed = True

    # --- one container ------------------------------------------------------------------------------------------

    async def _keep(self, container: RunningContainer, bundles: Fetched) -> None:
        """Run a container, and restart it as its pod's restart policy requires."""
        container.restarts = max(0, self._disk.starts(container.name) - 1)
        pause_s = RESTART_MIN_S
        while True:
            ended = await self._once(container, bundles)
            if not self._is_restarted(container, ended):
                self._set(container, ended)
                return
            container.last = ended
            meta = self._pod.metadata
            whose = f"{meta.name}_{meta.namespace}({meta.uid})"
            message = f"back-off {pause_s:g}s restarting failed container={container.name} pod={whose}"
            self._set(container, WaitingState(reason="CrashLoopBackOff", message=message))
            await self._clock.sleep(pause_s)
            pause_s = min(RESTART_MAX_S, pause_s * 2)
            container.restarts += 1

    async def _once(self, container: RunningContainer, bundles: Fetched) -> Terminated:
        """Do one run of a container, started now or by an earlier node process. Return its end."""
        process = self._found(container)
        if isinstance(process, Terminated):
            return process
        try:
            probe = probe_of(container.spec, self._place.pod_ip)
            if process is None:
                process = self._started(container, await self._program(container, bundles))
        except (NotStartedError, OSError, ValueError, TypeError) as error:
            # ValueError: a text cannot be an argument or a path. TypeError: a field has a wrong type.
            return self._not_started(str(error))
        container.process = process
        container.is_ready = probe is None
        self._set(container, RunningState(started_at=process.started_at, pid=process.pid))
        async with TaskGroup() as tasks:
            asking = None
            if probe is not None:
                asking = tasks.create_task(
                    watch_readiness(
                        probe,
                        lambda command: self._exec_program(container, command),
                        self._clock,
                        lambda ready: self._told(container, ready),
                    )
                )
            await process.ended()
            if asking is not None:
                asking.cancel()
        self._logs[container.name].close()
        return self._ended_state(container, process)

    def _found(self, container: RunningContainer) -> Shim | Terminated | None:
        """Return the process, or its end, that an earlier node process left of this start; None for a new start."""
        folder = self._disk.instance(container.name, container.restarts)
        if not folder.exists():
            state = self._pod.reported(container.name)
            if container.restarts == 0 and ("running" in state or "terminated" in state):
                return exited(None, started_at=self._clock.now(), finished_at=self._clock.now())
            return None
        writer = self._writer(container)
        found = shim.find(folder, self._clock, writer.feed)
        if isinstance(found, Shim):
            _log.info("container found again", container=container.name, pid=found.pid)
            return found
        writer.close()
        ended = exited(found.code, started_at=shim.started_at(folder), finished_at=found.at)
        return self._with_message(ended, container)

    async def _program(self, container: RunningContainer, bundles: Fetched) -> Program:
        """Return the container's program. Waits up to `PEERS_WAIT_S` for the addresses of peers.

        Waits without limit for the ConfigMaps and Secrets that the spec refers to, as a kubelet does.
        """
        until = self._clock.monotonic() + PEERS_WAIT_S
        pause_s = CONFIG_WAIT_MIN_S
        while True:
            is_patient = self._clock.monotonic() < until
            try:
                return program_of(
                    self._ports.with_gang_port(container.spec, self._pod),
                    self._pod,
                    self._place,
                    bundles,
                    disk=self._disk,
                    peers=self._peers,
                    is_patient=is_patient,
                )
            except PeersUnknownError as error:
                self._set(container, WaitingState(reason="ContainerCreating", message=str(error)))
                await self._clock.sleep(PEERS_POLL_S)
            except NotConfiguredError as error:
                self._set(container, WaitingState(reason=CONFIG_ERROR, message=str(error)))
                if self._warn is not None:
                    await self._warn(FAILED, f"Error: {error}")
                await self._clock.sleep(pause_s)
                pause_s = min(CONFIG_WAIT_MAX_S, pause_s * 2)
                bundles = await self._again() if self._again is not None else bundles

    def _started(self, container: RunningContainer, program: Program) -> Shim:
        folder = self._disk.instance(container.name, container.restarts)
        self._disk.message(container.name).unlink(missing_ok=True)
        return shim.start(folder, program, self._clock, self._writer(container).feed)

    def _not_started(self, message: str) -> Terminated:
        now = self._clock.now()
        return Terminated(exit_code=START_ERROR_CODE, finished_at=now, reason=START_ERROR, message=message)

    def _ended_state(self, container: RunningContainer, process: Shim) -> Terminated:
        end = process.exit or shim.ProcessExit(code=shim.KILLED_CODE, at=self._clock.now())
        state = exited(end.code, started_at=process.started_at, finished_at=end.at, pid=process.pid)
        return self._with_message(state, container)

    def _with_message(self, state: Terminated, container: RunningContainer) -> Terminated:
        """Return the state with its message: the container's termination message.

        Without one, the last log lines of a failed container are the message if its spec requests that.
        """
        message = state.message or termination_message(self._disk.message(container.name))
        if not message and state.exit_code and container.spec.get("terminationMessagePolicy") == FALLBACK:
            message = log_end(self._disk.logs(container.name, container.restarts))
        return msgspec.structs.replace(state, message=message) if message else state

    def _is_restarted(self, container: RunningContainer, ended: Terminated) -> bool:
        policy = "Always" if container.is_sidecar else self._pod.restart_policy
        if container.is_init and not container.is_sidecar and policy == "Always":
            policy = "OnFailure"
        return policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)

    def _writer(self, container: RunningContainer) -> ContainerLog:
        old = self._logs.get(container.name)
        if old is not None:
            old.close()
        writer = ContainerLog(self._disk.logs(container.name, container.restarts), self._clock)
        self._logs[container.name] = writer
        return writer

    def _told(self, container: RunningContainer, is_ready: bool) -> None:
        container.is_ready = is_ready
        self._on_change()

    def _set(self, container: RunningContainer, state: WaitingState | RunningState | Terminated) -> None:
        if container.state != state:
            container.state = state
            self._on_change()
