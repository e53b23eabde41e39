"""The parts of the stage that are separate processes: the fault proxy, and the machines that play the nodes.

Owns the communication with them. Both end when their input ends, so that a killed run leaves none.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from slipway.errors import UnavailableError
from slipway.local.valkey import ServerOptions, ValkeyProcess
from tests.chaos.proxy.rules import Rule
from tests.conformance.system.process import STOP_S

READY_S = 60.0
STARTS_MAX = 5
TORN_BYTES = 11


class LineProcess:
    """A child process that answers a line with a line."""

    def __init__(self, argv: Sequence[str], log: Path) -> None:
        guard = shutil.which("setpriv")
        words = [sys.executable, *argv]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [guard, "--pdeathsig", "TERM", *words] if guard else words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                start_new_session=True,
            )
        self._lock = threading.Lock()

    def send(self, line: str) -> None:
        """Send it one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def receive(self) -> str:
        """Read one line of it. Raises RuntimeError when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait(STOP_S)}")
        return line

    def request(self, line: str) -> str:
        """Send a line and return its answer; may be called from any thread."""
        with self._lock:
            self.send(line)
            return self.receive()

    def stop(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class ProxyProcess:
    """The fault proxy."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        path = folder / "proxy.json"
        path.write_bytes(msgspec.json.encode(config))
        self._child = LineProcess(["-m", "tests.chaos.proxy", str(path)], folder / "proxy.log")
        self._child.receive()

    def add(self, rule: Rule) -> int:
        """Add a rule and return its number."""
        return int(self._ask({"add": rule})["number"])

    def drop(self, number: int) -> int:
        """Drop the rule and return how often it struck."""
        return int(self._ask({"drop": number})["struck"])

    def stalled_watches(self) -> int:
        """The number of open watches on which nothing passes any more."""
        return int(self._ask({"stalled": True})["watches"])

    def stop(self) -> None:
        """End the proxy."""
        self._child.stop()

    def _ask(self, command: dict[str, Any]) -> dict[str, int]:
        answer: dict[str, int] = msgspec.json.decode(self._child.request(msgspec.json.encode(command).decode()))
        return answer


class NodesProcess:
    """Simulated nodes, `node-0` and so on; `records` has the containers that ran on them."""

    def __init__(self, kubeconfig: Path, nodes: int, folder: Path) -> None:
        self.names = [f"node-{index}" for index in range(nodes)]
        self.records = folder / "containers.jsonl"
        words = ["--kubeconfig", str(kubeconfig), "--nodes", str(nodes), "--commands", "--records", str(self.records)]
        self._child = LineProcess(["-m", "tests.conformance.kubelets", *words], folder / "nodes.log")
        while "nodes ready" not in self._child.receive():
            pass

    def lose(self, node: str) -> None:
        """Let the machine die without notifying the cluster."""
        self._child.send(f"lose {node}")

    def recover(self, node: str) -> None:
        """Bring the machine back; it knows what happened to its pods."""
        self._child.send(f"recover {node}")

    def exit(self, pod: str, code: int) -> None:
        """End the program of the pod `namespace/name`."""
        self._child.send(f"exit {pod} {code}")

    def stop(self) -> None:
        """End the nodes."""
        self._child.stop()


class RedisProcess:
    """A Redis with an append-only file."""

    def __init__(self, folder: Path, port: int) -> None:
        binary = shutil.which("redis-server")
        assert binary is not None
        self.port = port
        self.folder = folder / "redis"
        self._data = self.folder / "appendonlydir"
        self._replica = self.folder / "replica"
        self._server = ValkeyProcess(self.folder, ServerOptions(port=port, appendonly=True), binary=Path(binary))

    @property
    def pid(self) -> int:
        """The pid of the running process."""
        pid = self._server.pid
        assert pid is not None
        return pid

    async def start(self) -> None:
        """Start it with the content of its file. On a busy machine it may need longer than one start waits."""
        for _ in range(STARTS_MAX):
            with contextlib.suppress(UnavailableError):
                return await self._server.start()
        return await self._server.start()

    async def stop(self) -> None:
        """Stop it in an orderly way."""
        await self._server.stop()

    async def kill(self) -> None:
        """SIGKILL."""
        await self._server.kill()

    def forget(self) -> None:
        """Remove its stored data; it must not run."""
        shutil.rmtree(self._data, ignore_errors=True)

    def fork(self) -> None:
        """Copy its present data, as a replica that gets nothing more from now on; it may run."""
        shutil.rmtree(self._replica, ignore_errors=True)
        shutil.copytree(self._data, self._replica)

    def fail_over(self) -> None:
        """Replace its data by that of the replica; it must not run."""
        shutil.rmtree(self._data)
        self._replica.rename(self._data)

    def tear(self) -> None:
        """Cut the end off its append-only file, like a crash in the middle of a write; it must not run."""
        files = sorted(self._data.glob("*.incr.aof"))
        if files and files[-1].stat().st_size > TORN_BYTES:
            with files[-1].open("rb+") as file:
                file.truncate(files[-1].stat().st_size - TORN_BYTES)
