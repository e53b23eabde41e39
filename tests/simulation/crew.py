"""The processes that play: as many trees at once as asked for, and the stream of what they found.

Owns forking the trunks, the pipes on which outcomes come, and that nothing is left when the caller goes. Must not know
what is played, nor judge it.
"""

import os
import selectors
import signal
import struct
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NoReturn

import msgspec

from tests.simulation.fork import Point, grow
from tests.simulation.run import Outcome, run

_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 16


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """What one trunk plays: the undisturbed run itself (no points), or the points that leave it."""

    scenario: str
    seed: int
    replicas: int = 1
    points: tuple[Point, ...] = ()


def play(branches: Iterable[Branch], jobs: int, *, traced: bool = False) -> Iterator[Outcome]:
    """Every outcome, as it comes. Whatever ends the iteration ends every process."""
    waiting = deque(branches)
    with selectors.DefaultSelector() as selector:
        trunks: dict[int, _Trunk] = {}
        try:
            while waiting or trunks:
                while waiting and len(trunks) < jobs:
                    trunk = _Trunk(waiting.popleft(), traced=traced)
                    trunks[trunk.inlet] = trunk
                    selector.register(trunk.inlet, selectors.EVENT_READ)
                for ready, _ in selector.select():
                    trunk = trunks[ready.fd]
                    yield from trunk.receive()
                    if trunk.is_over:
                        # Before it is closed: a trunk that was forked since holds this pipe too, so that epoll would
                        # tell of it on and on.
                        selector.unregister(ready.fd)
                        trunk.close()
                        del trunks[ready.fd]
        finally:
            for trunk in trunks.values():
                trunk.kill()


class _Trunk:
    """One tree of processes, seen from the outside."""

    def __init__(self, branch: Branch, *, traced: bool) -> None:
        self.is_over = False
        self._branch = branch
        self._held = b""
        self.inlet, outlet = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.inlet)
            _be_trunk(branch, outlet, traced=traced)
        # Here and there, so that it is done whoever is first.
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(self._pid, self._pid)
        os.close(outlet)

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
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self.close()

    def close(self) -> None:
        """Nothing more is read."""
        os.close(self.inlet)

    def _end(self) -> Iterator[Outcome]:
        self.is_over = True
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if code:
            of = self._branch
            why = f"RUN the trunk of {len(of.points)} points ended with {code}"
            yield Outcome(scenario=of.scenario, seed=of.seed, replicas=of.replicas, violations=[why])


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
