"""The address that a service listens on, `host:port` with IPv6 in brackets, and its certificate.

Port 0 means any free port. The certificate is a folder like a mounted TLS Secret, which is read again when its files
change. New connections use the new certificate; open connections continue.
"""

import errno
import ipaddress
import socket
import ssl
from pathlib import Path

import msgspec

from slipway.errors import InvalidError, UnavailableError

_BACKLOG = 2048
_PORT_MAX = 65535
LOCALHOST = "localhost"
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_TRIES = 16


class ListenAddress(msgspec.Struct, frozen=True):
    """A host (name, IPv4, or IPv6 without brackets; empty means every interface) and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect. A host name is accepted only when it is `localhost`, whatever it looks
        like.
        """
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or an address of the loopback interface."""
    try:
        return host == LOCALHOST or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_listen(text: str) -> ListenAddress:
    """Return the address in `127.0.0.1:8080`, `[::1]:80`, `localhost:0` or `:8080` (every interface).

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
    return ListenAddress(host, int(port))


def bind(address: ListenAddress) -> socket.socket:
    """Return a listening socket; `getsockname()` has the real port.

    Raises:
        UnavailableError: the address is in use, is not one of this machine, or needs a permission that we do not have.
    """
    try:
        return _bind(address.host, address.port)
    except OSError as error:
        raise UnavailableError(f"cannot listen on {address}: {error.strerror or error}") from error


def bind_all(address: ListenAddress) -> list[socket.socket]:
    """Return the listening sockets of an address. For `localhost` these are both loopback addresses, at the same port.

    A client that resolves `localhost` may try either address first. If we bound only one, another program could bind
    the other one and receive our clients' requests. On a machine without IPv6 there is one socket.

    Raises:
        UnavailableError: as in `bind`.
    """
    if address.host != LOCALHOST:
        return [bind(address)]
    for _ in range(_TRIES):
        first = bind(ListenAddress("127.0.0.1", address.port))
        try:
            return [first, _bind("::1", first.getsockname()[1])]
        except OSError as error:
            if error.errno in _ABSENT:
                return [first]
            first.close()
            if address.port:
                raise UnavailableError(f"cannot listen on [::1]:{address.port}: {error.strerror or error}") from error
    raise UnavailableError("cannot listen on localhost: no port is free at both loopback addresses")


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


CERTIFICATE, KEY = "tls.crt", "tls.key"


class Certificate:
    """The certificate of one folder. `context` is passed to the server and stays the same object.

    Raises:
        InvalidError: the folder has no certificate and key that fit each other.
    """

    def __init__(self, folder: str) -> None:
        self._files = (Path(folder) / CERTIFICATE, Path(folder) / KEY)
        self._seen: tuple[bytes, ...] = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.look()

    def look(self) -> bool:
        """Read the files again. Return whether there was a new certificate, which is then in use.

        Raises:
            InvalidError: the new files cannot be used; the certificate before stays in use.
        """
        try:
            found = tuple(file.read_bytes() for file in self._files)
            if found == self._seen:
                return False
            # A separate context is tried first. A context that accepts a certificate and then refuses its key would be
            # left half changed.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError) as error:
            where = self._files[0].parent
            raise InvalidError(f"{where} has no {CERTIFICATE} and {KEY} that belong together: {error}") from error
        self._seen = found
        return True
