"""Which processes listen where on this machine, and how much memory they use: from /proc, so that no process is
missed."""

import socket
from collections.abc import Collection, Generator
from pathlib import Path
from typing import NamedTuple

_LISTEN = "0A"
_PROC = Path("/proc")


class Listener(NamedTuple):
    """An address and the process that listens at it."""

    pid: int
    host: str
    port: int
    words: tuple[str, ...]


def listeners_below(roots: Collection[int]) -> list[Listener]:
    """The listeners of the processes `roots` and of all their descendants."""
    places = dict(_listening())
    found: list[Listener] = []
    for pid, words in _processes_below(roots):
        own = {places[inode] for inode in _sockets_of(pid) if inode in places}
        found += [Listener(pid, host, port, words) for host, port in sorted(own)]
    return found


def rss_mib(pid: int, field: str = "VmRSS") -> int:
    """The memory of a process; `VmHWM` is its peak since `forget_peak`."""
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) // 1024


def forget_peak(pid: int) -> None:
    """Reset the memory peak of a process to its current use."""
    (_PROC / str(pid) / "clear_refs").write_text("5")


def _listening() -> Generator[tuple[str, tuple[str, int]]]:
    """(inode, (host, port)) of each listening socket."""
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTEN:
                raw, _, port = local.partition(":")
                # /proc writes words of four bytes in the machine's byte order.
                words = (bytes.fromhex(raw[at : at + 8])[::-1] for at in range(0, len(raw), 8))
                yield rest[5], (socket.inet_ntop(family, b"".join(words)), int(port, 16))


def _processes_below(roots: Collection[int]) -> Generator[tuple[int, tuple[str, ...]]]:
    parents: dict[int, int] = {}
    words: dict[int, tuple[str, ...]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words[pid] = tuple((folder / "cmdline").read_text().split("\0"))
        except (OSError, ValueError):  # the process has ended by now
            continue
    for pid, said in words.items():
        above = pid
        while above and above not in roots:
            above = parents.get(above, 0)
        if above:
            yield pid, said


def _sockets_of(pid: int) -> Generator[str]:
    try:
        for link in (_PROC / str(pid) / "fd").iterdir():
            target = str(link.readlink())
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return
