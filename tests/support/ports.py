"""Ports for servers that a test starts: two workers, or two runs on one machine, hardly ever get the same.

They lie below what the kernel gives to connections that go out, so that none takes a port between its choice and the
server's start; and, for the bus of a Redis Cluster, so does the port 10,000 above.
"""

import socket
from random import SystemRandom

FIRST, END = 11_000, 21_000
_GIVEN = set[int]()
_RANDOM = SystemRandom()
"""Not the seed of the run: every worker has that one."""


def free_port() -> int:
    """A port of the loopback on which nothing listens, and which this process was not given before."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many of them."""
    found: list[int] = []
    for port in _RANDOM.sample(range(FIRST, END), END - FIRST):
        if port not in _GIVEN and _is_free(port):
            _GIVEN.add(port)
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports between {FIRST} and {END}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
