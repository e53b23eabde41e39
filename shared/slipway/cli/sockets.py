"""WebSockets to the API: their addresses, and how one is opened. The library is imported at the first use."""

from typing import TYPE_CHECKING

from slipway.sdk.address import ServerAddress

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

CONNECT_S = 15.0
"""The deadline that a caller sets for `connect`."""
PONG_S = 20.0
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""The most bytes of one message, which is kept in memory. Our server sends at most half a mebibyte."""


def url_of(server: ServerAddress, path: str) -> str:
    """Return the address of `path` (with its slash) at the server."""
    scheme = "wss" if server.scheme == "https" else "ws"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{server.port}{server.prefix}{path}"


async def connect(
    server: ServerAddress, url: str, protocol: str, *, user: str = "", answers_pings: bool = True
) -> "ClientConnection":
    """Open a connection with the subprotocol, without an own deadline. Raises the library's errors.

    `user` is sent to servers without authentication. With `answers_pings` False, a missing pong does not close the
    connection: the other side reads only as fast as a command or a workload takes the bytes.
    """
    from websockets.asyncio.client import connect as open_socket
    from websockets.typing import Subprotocol

    class NoRedirects(open_socket):
        """Refuses redirects: a workload may send one, but the user's input must be sent to the server only."""

        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    credential = server.credential
    headers = {"X-Slipway-User": user} if user else {}
    if credential is not None:
        headers["Authorization"] = f"Bearer {credential.token()}"
    return await NoRedirects(
        url,
        additional_headers=headers,
        subprotocols=[Subprotocol(protocol)],
        compression=None,
        proxy=None,
        open_timeout=None,
        close_timeout=1.0,
        ping_timeout=PONG_S if answers_pings else None,
        max_size=MESSAGE_BYTES_MAX,
    )
