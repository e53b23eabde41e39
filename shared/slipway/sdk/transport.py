"""The HTTP layer of the SDK: the common use of httpx2 by both clients, and its errors as errors of our tree.

Owns the addresses, the headers, the TLS context and the timeouts. It is imported with the first client and not with the
package, because importing httpx2 takes long. Like the command, it ignores the proxy settings of the environment.
"""

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx2
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from slipway.errors import ControlPlaneError, DeadlineError, InvalidError, UnavailableError
from slipway.model.exec_channels import MESSAGE_BYTES_MAX, PROTOCOL
from slipway.sdk import address, commands, contexts, credentials, refusals
from slipway.sdk.address import ServerAddress
from slipway.sdk.retries import LOOK, UNKNOWN
from slipway.sdk.sse import SILENCE_S

CONNECT_S = 5.0
CALL_S = 35.0
"""Seconds that a call may take, all its tries included."""
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class ClientSettings(NamedTuple):
    """The server that a client calls, its user, and the timeout of a call."""

    server: ServerAddress
    user: str
    timeout_s: float


def settings_of(server: str, token: str, context: str, user: str, timeout_s: float) -> ClientSettings:
    """Return the settings in the command's order: the arguments, the environment, the contexts, the local stack.

    Raises:
        InvalidError: an invalid address, or an unknown context.
    """
    if context and server:
        raise InvalidError("server, context: name one of them; a context has its server")
    if timeout_s <= 0:
        raise InvalidError(f"timeout_s: must be above 0, not {timeout_s:g}")
    if context:
        known = contexts.read().all
        if context not in known:
            names = ", ".join(known) or "none; `slipway login URL` makes one"
            raise InvalidError(f"context: there is no context {context!r}; there are: {names}")
        chosen = known[context]
        found = address.parse(chosen.server, f"the context {context}")._replace(credential=chosen.credential)
    else:
        found = address.find(server)
    if token:
        found = found._replace(credential=credentials.fixed(token))
    return ClientSettings(found, user or address.own_name(), timeout_s)


def base_url(server: ServerAddress) -> str:
    """Return the address without its path; each request adds the path."""
    return server._replace(prefix="").url


def headers_of(settings: ClientSettings, token: str, extra: Mapping[str, str], *, has_body: bool) -> dict[str, str]:
    """Return the headers of one request."""
    headers = {"Accept": "application/json", "User-Agent": "slipway-sdk"}
    if settings.user:
        headers["X-Slipway-User"] = settings.user
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if has_body:
        headers["Content-Type"] = "application/json"
    return {**headers, **extra}


def verify_of(server: ServerAddress) -> ssl.SSLContext:
    """Return a TLS context with the CAs of the system (`SSL_CERT_FILE`); the CAs are loaded only for https."""
    if server.scheme == "https":
        return ssl.create_default_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def socket_url(server: ServerAddress, path: str) -> str:
    """Return the address of a WebSocket."""
    return f"{base_url(server)}{server.prefix}{path}".replace("http", "ws", 1)


def socket_options(settings: ClientSettings, token: str) -> dict[str, Any]:
    """Return the options of a WebSocket that runs a command in a rank, for both clients.

    The server answers pings only as fast as the command reads its input, so a missing answer is no sign of a lost
    connection.
    """
    headers = {"X-Slipway-User": settings.user} if settings.user else {}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return {
        "subprotocols": [Subprotocol(PROTOCOL)],
        "additional_headers": headers,
        "user_agent_header": "slipway-sdk",
        "compression": None,
        "proxy": None,
        "open_timeout": CONNECT_S,
        "ping_timeout": None,
        "max_size": MESSAGE_BYTES_MAX,
        "ssl": verify_of(settings.server) if settings.server.scheme == "https" else None,
    }


def open_socket(url: str, options: Mapping[str, Any]) -> Any:
    """Return a WebSocket without asyncio, for a `with`: `reconnect` of websockets.sync, which lacks complete types."""
    from websockets.sync import client

    library: Any = client

    class NoRedirects(library.reconnect):
        """Treats a redirect as a refusal: the input of a command is sent to the configured server only."""

        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    return NoRedirects(url, **options)


def refused_socket(error: Exception, server: ServerAddress) -> ControlPlaneError:
    """Return our error for a WebSocket that could not be opened, or was lost."""
    if isinstance(error, InvalidStatus):
        answer = error.response
        return refusals.error_of(answer.status_code, dict(answer.headers.raw_items()), bytes(answer.body or b""))
    if isinstance(error, ConnectionClosed):
        return commands.lost()
    return UnavailableError(f"no connection to {server.url}: {error or type(error).__name__}")


def timeout_of(left_s: float) -> httpx2.Timeout:
    """Return the timeouts of one try of a call."""
    return httpx2.Timeout(max(left_s, 0.001), connect=min(CONNECT_S, max(left_s, 0.001)))


def stream_timeout(silence_s: float = SILENCE_S) -> httpx2.Timeout:
    """Return the timeouts of one connection of a stream."""
    return httpx2.Timeout(CONNECT_S, read=silence_s)


def translated(error: httpx2.HTTPError, server: ServerAddress) -> tuple[ControlPlaneError, bool]:
    """Return our error, and whether the request may have reached the server."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        why = str(error) or "no connection"
        hint = f"start one here with `slipway up`, or name another: Client('URL') or ${address.ENV_SERVER}"
        told: ControlPlaneError = UnavailableError(f"no Slipway answers at {server.url} ({server.origin}): {why}")
        told.next_step = hint
        told.add_note(f"next step: {hint}")
    elif isinstance(error, httpx2.TimeoutException):
        told = DeadlineError(f"{server.url} did not answer in time{_outcome(error)}")
    else:
        told = UnavailableError(
            f"the connection to {server.url} was lost: {error or type(error).__name__}{_outcome(error)}"
        )
    return told, not isinstance(error, _UNSENT)


def _outcome(error: httpx2.HTTPError) -> str:
    """Return what to say of the effect of a request that got no answer; nothing for one that only reads."""
    is_read = isinstance(error, _UNSENT) or error.request.method == "GET"
    return "" if is_read else f"; {UNKNOWN}: {LOOK}"
