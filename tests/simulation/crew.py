"""The processes that play: as many trees at once as asked for, and the stream of what they found.

Owns forking the trunks, the pipes on which outcomes come, and that nothing is left when the caller goes. Must not know
what is played, nor judge it.

Trunks are forked by a nursery, a process that was itself forked while this one was small: every fork and every exit of
a tree costs by what its root held, and whoever plans a sweep holds much.
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
    """What one trunk plays: the undisturbed run itself (no points), or the points that leave it."""

    scenario: str
    seed: int
    replicas: int = 1
    points: tuple[Point, ...] = ()


class Nursery:
    """The process that forks trunks, as the caller sees it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def plant(self, branch: Branch) -> tuple[int, int]:
        """A trunk that plays `branch`: (its process, the pipe on which it tells)."""
        inlet, outlet = os.pipe()
        pid = self._ask(branch, [outlet])
        os.close(outlet)
        return pid, inlet

    def ended(self, pid: int) -> int:
        """Waits for the end of a trunk; its exit code, or the signal that ended it, negative."""
        return self._ask(pid, [])

    def _ask(self, order: Branch | int, fds: Sequence[int]) -> int:
        encoded = msgspec.msgpack.encode(order)
        socket.send_fds(self._line, [_LENGTH.pack(len(encoded))], fds)
        self._line.sendall(encoded)
        return _ANSWER.unpack(_exactly(self._line, _ANSWER.size))[0]


@contextmanager
def nursery(*, traced: bool = False) -> Generator[Nursery]:
    """One for as long as it is needed. Make it before anything that is large; what is to be shared, before it."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        here.close()
        _be_nursery(there, traced=traced)
    there.close()
    try:
        yield Nursery(here)
    finally:
        here.close()
        os.waitpid(pid, 0)


def play(branches: Iterable[Branch], jobs: int, grower: Nursery) -> Iterator[Outcome]:
    """Every outcome, as it comes. Whatever ends the iteration ends every process."""
    waiting = deque(branches)
    with selectors.DefaultSelector() as selector:
        trunks: dict[int, _Trunk] = {}
        try:
            while waiting or trunks:
                while waiting and len(trunks) < jobs:
                    trunk = _Trunk(waiting.popleft(), grower)
                    trunks[trunk.inlet] = trunk
                    selector.register(trunk.inlet, selectors.EVENT_READ)
                for ready, _ in selector.select():
                    trunk = trunks[ready.fd]
                    yield from trunk.receive()
                    if trunk.is_over:
                        # Before it is closed: an inlet that somebody else holds too would be told of on and on.
                        selector.unregister(ready.fd)
                        trunk.close()
                        del trunks[ready.fd]
        finally:
            for trunk in trunks.values():
                trunk.kill()


class _Trunk:
    """One tree of processes, seen from the outside."""

    def __init__(self, branch: Branch, grower: Nursery) -> None:
        self.is_over = False
        self._branch = branch
        self._grower = grower
        self._held = b""
        self._pid, self.inlet = grower.plant(branch)

    def receive(self) -> Iterator[Outcome]:
        """What has come meanwhile; at the end, that it ended badly if it did."""
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
        """With everything that it has forked."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._grower.ended(self._pid)
        self.close()

    def close(self) -> None:
        """Nothing more is read."""
        os.close(self.inlet)

    def _end(self) -> Iterator[Outcome]:
        self.is_over = True
        code = self._grower.ended(self._pid)
        if code:
            of = self._branch
            why = f"RUN the trunk of {len(of.points)} points ended with {code}"
            yield Outcome(scenario=of.scenario, seed=of.seed, replicas=of.replicas, violations=[why])


def _be_nursery(line: socket.socket, *, traced: bool) -> NoReturn:
    """In the child: forks what it is asked for, until nobody asks any more."""
    code = 1
    try:
        # The keyboard's Ctrl-C is for who asks.
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
            # Here and there, so that it is done whoever is first.
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
    """The next order: a trunk, with where its outcomes go, or to wait for one; None when nobody is there any more."""
    length, outlets, _, _ = socket.recv_fds(line, _LENGTH.size, 1)
    if not length:
        return None
    order = _exactly(line, _LENGTH.unpack(length)[0])
    return msgspec.msgpack.decode(order, type=Branch | int), outlets


def _exactly(line: socket.socket, size: int) -> bytes:
    """So many bytes. Raises ConnectionError when there will be no more."""
    read = b""
    while len(read) < size:
        more = line.recv(size - len(read))
        if not more:
            raise ConnectionError("the other end of the nursery is gone")
        read += more
    return read


def _be_trunk(branch: Branch, outlet: int, *, traced: bool) -> NoReturn:
    """In the child. A group of its own, so that the whole tree can be ended; whoever reads no more ends it too."""
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
