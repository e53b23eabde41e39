"""Readiness probes: checks whether a container can serve.

Owns the schedule and the three kinds of probes (HTTP, TCP, a command). Knows no pod status: it calls back when the
result changes. Invariants: every probe has a timeout; when a probe ends or is cancelled, its command no longer runs.
"""

import asyncio
import signal
import subprocess
from collections.abc import Callable, Sequence

import msgspec

from slipway.crd.roleresources import JsonMap, object_of, objects_of
from slipway.local.node.preparation import NotStartedError
from slipway.local.node.shim import Program, signal_group
from slipway.model.numbers import number_in
from slipway.runtime.clock import Clock

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
