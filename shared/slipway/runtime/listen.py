"""Where a service listens: `host:port`, with IPv6 in brackets.

Owns the grammar of SLIPWAY_LISTEN and the socket made from it. Port 0 takes any free port.
"""

import ipaddress
import socket

import msgspec

from slipway.errors import UnavailableError

_BACKLOG = 2048
_PORT_MAX = 65535
_LOCALHOST = "localhost"


class Address(msgspec.Struct, frozen=True):
    """A host (name, IPv4, or IPv6 without brackets; empty means every interface) and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect. A name that merely looks like an address is not believed."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or an address of the loopback interface."""
    try:
        return host == _LOCALHOST or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_listen(text: str) -> Address:
    """The address in `127.0.0.1:8080`, `[::1]:80`, `localhost:0` or `:8080` (every interface).

    Raises:
        ValueError: no port, a port out of range, or IPv6 without brackets.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
        raise ValueError(f"{text!r} is not host:port with a port from 0 to {_PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, such as [::1]:8080")
    return Address(host, int(port))


def bind(address: Address) -> socket.socket:
    """A listening socket; `getsockname()` has the real port.

    Raises:
        UnavailableError: the address is in use, not ours, or may not be taken.
    """
    try:
        return socket.create_server(
            (address.host, address.port),
            family=socket.AF_INET6 if ":" in address.host else socket.AF_INET,
            backlog=_BACKLOG,
        )
    except OSError as error:
        raise UnavailableError(f"cannot listen on {address}: {error.strerror or error}") from error
