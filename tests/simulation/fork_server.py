"""The processes that play runs: a given number of trees at once, and the stream of their outcomes.

Owns forking the trunks, the pipes with the outcomes, and the end of all processes when the caller ends. Must not know
the runs, nor judge them.

Trunks are forked by a fork server, which was itself forked while this process was small: the cost of every fork and
exit of a tree grows with the memory of its root, and a process that plans a sweep has much memory.
"""

import os
import selectors
import signal
import socket
import struct
import traceback
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import msgspec

from tests.simulation import pages
from tests.simulation.fork import Point, grow
from tests.simulation.run import Outcome, run

_LENGTH = struct.Struct("<I")
_ANSWER = struct.Struct("<i")
_READ_BYTES = 1 << 16


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one trunk: the undisturbed run itself (no points), or the points that leave it."""

    scenario: str
    seed: int
    replicas: int = 1
    points: tuple[Point, ...] = ()


class ForkServer:
    """The process that forks trunks, for its caller."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def start_tree(self, branch: Branch) -> tuple[int, int]:
        """Start a trunk that plays `branch`; return its process and the pipe with its outcomes."""
        inlet, outlet = os.pipe()
        pid = self._ask(branch, [outlet])
        os.close(outlet)
        return pid, inlet

    def ended(self, pid: int) -> int:
        """Wait for the end of a trunk; return its exit code, or minus the signal that ended it."""
        return self._ask(pid, [])

    def _ask(self, order: Branch | int, fds: Sequence[int]) -> int:
        encoded = msgspec.msgpack.encode(order)
        socket.send_fds(self._line, [_LENGTH.pack(len(encoded))], fds)
        self._line.sendall(encoded)
        return _ANSWER.unpack(_exactly(self._line, _ANSWER.size))[0]


@contextmanager
def fork_server_process(*, traced: bool = False) -> Generator[ForkServer]:
    """Run a fork server in this context. Create it before any large object, and after objects that all trunks share."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        here.close()
        _be_fork_server(there, traced=traced)
    there.close()
    try:
        yield ForkServer(here)
    finally:
        here.close()
        os.waitpid(pid, 0)


def play(branches: Iterable[Branch], jobs: int, forker: ForkServer) -> Iterator[Outcome]:
    """Yield every outcome as it arrives. When the iteration ends in any way, every process ends."""
    waiting = deque(branches)
    with selectors.DefaultSelector() as selector:
        trunks: dict[int, _ForkedTree] = {}
        try:
            while waiting or trunks:
                while waiting and len(trunks) < jobs:
                    trunk = _ForkedTree(waiting.popleft(), forker)
                    trunks[trunk.inlet] = trunk
                    selector.register(trunk.inlet, selectors.EVENT_READ)
                for ready, _ in selector.select():
                    trunk = trunks[ready.fd]
                    yield from trunk.receive()
                    if trunk.is_over:
                        # Unregister it before it is closed: a pipe end that another process has too would be reported
                        # for ever.
                        selector.unregister(ready.fd)
                        trunk.close()
                        del trunks[ready.fd]
        finally:
            for trunk in trunks.values():
                trunk.kill()


class _ForkedTree:
    """One tree of processes, as its caller sees it."""

    def __init__(self, branch: Branch, forker: ForkServer) -> None:
        self.is_over = False
        self._branch = branch
        self._grower = forker
        self._held = b""
        self._pid, self.inlet = forker.start_tree(branch)

    def receive(self) -> Iterator[Outcome]:
        """Yield the outcomes that have arrived; at the end one more if the tree failed."""
        read = os.read(self.inlet, _READ_BYTES)
        if not read:
            yield from self._end()
            return
        self._held += read
        while len(self._held) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._held)[0]
            if len(self._held) < end:
                return
            yield msgspec.msgpack.decode(self._held[_LENGTH.size : end], type=Outcome)
            self._held = self._held[end:]

    def kill(self) -> None:
        """Kill the tree with all its forks."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._grower.ended(self._pid)
        self.close()

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.inlet)

    def _end(self) -> Iterator[Outcome]:
        self.is_over = True
        code = self._grower.ended(self._pid)
        if code:
            of = self._branch
            why = f"RUN the trunk of {len(of.points)} points ended with {code}"
            yield Outcome(scenario=of.scenario, seed=of.seed, replicas=of.replicas, violations=[why])


def _be_fork_server(line: socket.socket, *, traced: bool) -> NoReturn:
    """In the child: fork trunks on request, until the caller is gone."""
    code = 1
    try:
        # Ctrl-C of the keyboard is for the caller.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        pages.collapse()
        while ordered := _ordered(line):
            order, outlets = ordered
            if isinstance(order, int):
                line.sendall(_ANSWER.pack(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1])))
                continue
            pid = os.fork()
            if pid == 0:
                line.close()
                _be_trunk(order, outlets[0], traced=traced)
            # Both processes set the group, so that it is set whichever runs first.
            with suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pid)
            os.close(outlets[0])
            line.sendall(_ANSWER.pack(pid))
        code = 0
    except Exception:  # noqa: BLE001 - the process ends here, and whoever asks finds the line closed
        traceback.print_exc()
    finally:
        os._exit(code)


def _ordered(line: socket.socket) -> tuple[Branch | int, list[int]] | None:
    """The next order: a trunk, with the pipe for its outcomes, or a process to wait for; None when the caller is
    gone."""
    length, outlets, _, _ = socket.recv_fds(line, _LENGTH.size, 1)
    if not length:
        return None
    order = _exactly(line, _LENGTH.unpack(length)[0])
    return msgspec.msgpack.decode(order, type=Branch | int), outlets


def _exactly(line: socket.socket, size: int) -> bytes:
    """Read that many bytes. Raises ConnectionError when the other end closes before."""
    read = b""
    while len(read) < size:
        more = line.recv(size - len(read))
        if not more:
            raise ConnectionError("the other end of the nursery is gone")
        read += more
    return read


def _be_trunk(branch: Branch, outlet: int, *, traced: bool) -> NoReturn:
    """In the child: play the branch in a process group of its own, so that the whole tree can be ended; a closed
    pipe ends it too."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

        def send(outcome: Outcome) -> None:
            said = msgspec.msgpack.encode(outcome)
            _write(outlet, _LENGTH.pack(len(said)) + said)

        if branch.points:
            grow(branch.scenario, branch.seed, branch.replicas, branch.points, send, traced=traced)
        else:
            send(run(branch.scenario, branch.seed, replicas=branch.replicas, traced=traced))
        code = 0
    except Exception:  # noqa: BLE001 - the process ends here, and its parent tells what is lost by that
        traceback.print_exc()
    finally:
        os._exit(code)


def _write(outlet: int, data: bytes) -> None:
    while data:
        data = data[os.write(outlet, data) :]
