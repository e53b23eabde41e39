"""Checks the address of a webhook: it must be in the public internet, or in a network that the operator allows.

Owns the check of a URL and of each address that its name resolves to. The sender connects to the address that was
checked, never to the name: a name may resolve to another address a moment later (DNS rebinding).

Source: OWASP, "Server-Side Request Forgery Prevention".
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import msgspec

from slipway.api.http.networks import IP, METADATA, Network, inner, is_within
from slipway.errors import InvalidError, PermanentError, UnavailableError

URL_CHARS_MAX = 2048
_UNICAST = ipaddress.ip_network("2000::/3")
_LOOKUPS_MAX = 32
_PORTS = {"http": 80, "https": 443}


class ForbiddenTargetError(PermanentError):
    """The receiver's address is not one that webhooks may be sent to."""


class WebhookTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a URL. `path` contains the query too."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_target(url: str) -> WebhookTarget:
    """Parse the URL of a webhook. Raises InvalidError, whose message says what is wrong."""
    if not url or len(url) > URL_CHARS_MAX or not url.isascii() or any(char <= " " for char in url):
        raise InvalidError(f"must be an absolute URL of at most {URL_CHARS_MAX} printable ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidError("is not a URL") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidError("must begin with https:// or http:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidError("must not contain a user and password; receivers check the signature instead")
    if parts.fragment:
        raise InvalidError("must have no fragment: a fragment is never sent")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookTarget(scheme=parts.scheme, host=parts.hostname, port=port or _PORTS[parts.scheme], path=path)


def check_address(address: IP, allowed: Sequence[Network]) -> None:
    """Check that an address is in the public internet or in an allowed network.

    Raises:
        ForbiddenTargetError: it is in neither.
    """
    if is_within(address, allowed):
        return
    if not _is_public(inner(address)) or is_within(inner(address), METADATA):
        raise ForbiddenTargetError(
            f"{inner(address)} is not an address of the public internet; an operator can allow its network with "
            "SLIPWAY_WEBHOOK_NETWORKS"
        )


def check_literal(target: WebhookTarget, allowed: Sequence[Network]) -> None:
    """Check a literal address or localhost, without a resolver, when a webhook is created or changed.

    A host name is accepted here. Raises ForbiddenTargetError.
    """
    if target.host == "localhost" or target.host.endswith(".localhost"):
        check_address(ipaddress.ip_address("127.0.0.1"), allowed)
    try:
        address = ipaddress.ip_address(target.host)
    except ValueError:
        return
    check_address(address, allowed)


class Resolver:
    """Resolves names on threads of its own; each name is looked up only once at a time.

    So a lookup that hangs does not delay others.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="resolve")
        self._asked: dict[str, asyncio.Future[tuple[IP, ...]]] = {}

    def close(self) -> None:
        """Stop the threads without waiting for lookups."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def resolve(self, target: WebhookTarget, allowed: Sequence[Network]) -> list[str]:
        """Resolve the name; return the addresses to connect to, the best first. Each of them is checked.

        Raises:
            ForbiddenTargetError: one of them is not allowed.
            UnavailableError: the name does not resolve (now).
        """
        asked = self._asked.get(target.host)
        if asked is None:
            loop = asyncio.get_running_loop()
            asked = self._asked[target.host] = loop.run_in_executor(self._threads, _look_up, target.host)
            asked.add_done_callback(lambda _: self._asked.pop(target.host, None))
        addresses = await asyncio.shield(asked)
        if not addresses:
            raise UnavailableError(f"the name {target.host} does not resolve")
        for address in addresses:
            check_address(address, allowed)
        return list(dict.fromkeys(map(str, addresses)))


def _look_up(host: str) -> tuple[IP, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found)


def _is_public(address: IP) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        return address.is_global and address in _UNICAST
    return address.is_global and not address.is_multicast and not address.is_reserved
