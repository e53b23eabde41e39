"""WebSockets to the API: where one is, and how one is opened. Imports its library only when it is used."""

from typing import TYPE_CHECKING

from slipway.sdk.address import ServerAddress

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

CONNECT_S = 15.0
"""The deadline that a caller sets for `connect`."""


def url_of(server: ServerAddress, path: str) -> str:
    """The address of `path` (with its slash) at the server."""
    scheme = "wss" if server.scheme == "https" else "ws"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{server.port}{server.prefix}{path}"


async def connect(server: ServerAddress, url: str, protocol: str) -> "ClientConnection":
    """A connection that speaks the subprotocol; without a deadline of its own. Raises the library's errors."""
    from websockets.asyncio.client import connect as open_socket
    from websockets.typing import Subprotocol

    credential = server.credential
    return await open_socket(
        url,
        additional_headers={"Authorization": f"Bearer {credential.token()}"} if credential is not None else None,
        subprotocols=[Subprotocol(protocol)],
        compression=None,
        proxy=None,
        open_timeout=None,
        close_timeout=1.0,
        max_size=None,
    )
