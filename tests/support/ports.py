"""Ports for servers that a test starts: two workers, or two runs on one machine, hardly ever get the same port.

The ports are below those that the kernel gives to outgoing connections, so that no connection takes a port between its
choice and the server's start. The same is true of the port 10,000 above, which the bus of a Redis Cluster uses.
"""

import socket
from random import SystemRandom

FIRST, END = 11_000, 21_000
BUS = 10_000
"""The distance from the port of a member of a Redis Cluster to that of its bus."""
_GIVEN = set[int]()
_RANDOM = SystemRandom()
"""Not seeded by the run: every worker has the same seed."""


def free_port() -> int:
    """Return a port of the loopback on which nothing listens, and which this process has not received before."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return `count` such ports. The ports of their buses are free too: local stacks listen on ports in that range."""
    found: list[int] = []
    for port in _RANDOM.sample(range(FIRST, END), END - FIRST):
        if port not in _GIVEN and _is_free(port) and _is_free(port + BUS):
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
