"""Checks whether an address belongs to this machine: the proxy never connects to one, whatever a pod's status claims.

The check sends nothing: the kernel binds a socket only to an address of its own machine.
"""

import ipaddress
import socket

from slipway.api.networks import IP

_OF_NO_MACHINE = (ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("2001:db8::1"))
"""Addresses that no machine has: they are reserved for documentation. Source: RFC 5737, RFC 3849."""


def is_own(address: IP) -> bool:
    """Whether this machine has the address.

    True for multicast addresses too. Always False where the kernel binds sockets to any address (`ip_nonlocal_bind`),
    because a bind then proves nothing.
    """
    none = next(each for each in _OF_NO_MACHINE if each.version == address.version)
    return _can_bind(address) and not _can_bind(none)


def _can_bind(address: IP) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.bind((str(address), 0))
    except OSError:
        return False
    return True
