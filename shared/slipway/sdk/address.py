"""The address of the API: given, from the environment, from the current context, a local stack, or the default.

Owns the order of those five sources, and which token each server receives. The token of the environment is sent to
every server. The token of a context is sent to the server of that context only. The token of a local stack is sent to
that stack only. Reads the files of local stacks and the contexts; opens no connection.
"""

import os
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from slipway.errors import InvalidError

if TYPE_CHECKING:
    from slipway.sdk.credentials import Credential

ENV_SERVER = "SLIPWAY_SERVER"
DEFAULT_SERVER = "http://127.0.0.1:8080"
LOCAL_HOSTS = ("127.0.0.1", "localhost")


class ServerAddress(NamedTuple):
    """A server, and how its address was found (for error messages)."""

    scheme: str
    host: str
    port: int
    prefix: str
    origin: str
    credential: "Credential | None" = None
    """the source of the token; None: no token is sent"""

    @property
    def url(self) -> str:
        """The address as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def find(named: str = "") -> ServerAddress:
    """Return the server to call.

    Raises:
        InvalidError: `named` is not an address.
    """
    return find_with_place(named)[0]


def find_with_place(named: str = "") -> tuple[ServerAddress, str]:
    """Return the server to call, and where its token comes from, in words. Raises what `find` raises."""
    from slipway.sdk import contexts, credentials

    found = _find(named)
    token = os.environ.get(credentials.ENV_TOKEN, "")
    if token:
        return found._replace(credential=credentials.fixed(token)), f"${credentials.ENV_TOKEN}"
    context = contexts.of_server(found.url)
    if context is not None and context.way != "none":
        return found._replace(credential=context.credential), f"your login ({context.way})"
    local = _with_local_token(found)
    return local, "none is sent" if local.credential is None else "the stack of this machine"


def own_name() -> str:
    """Return the user name sent to an API without authentication: `SLIPWAY_USER`, the setting, or the login name."""
    from slipway.sdk.contexts import preferred_user

    return preferred_user().value


def _with_local_token(found: ServerAddress) -> ServerAddress:
    """Return the address with the token of this account's local stack, when that stack listens at this port."""
    if found.scheme != "http" or found.host not in LOCAL_HOSTS:
        return found
    from slipway.local.layout import token_at
    from slipway.sdk import credentials

    token = token_at(found.port)
    if not token:
        return found
    # The IP address replaces the name: a name could resolve to another loopback address, where another account may
    # listen.
    return found._replace(host=LOCAL_HOSTS[0], credential=credentials.fixed(token))


def _find(named: str) -> ServerAddress:
    if named:
        return parse(named, "--server")
    from_environment = os.environ.get(ENV_SERVER, "")
    if from_environment:
        return parse(from_environment, f"${ENV_SERVER}")
    from slipway.sdk import contexts

    context = contexts.current()
    if context is not None:
        return parse(context.server, "the context that you are logged in at")
    local = running_stack()
    return parse(local, "the local stack") if local else parse(DEFAULT_SERVER, "the default")


def running_stack() -> str:
    """Return the address of the API of the stack in the default folder; empty when no stack runs there."""
    from slipway.local.layout import Layout, default_folder, is_alive

    state = Layout(default_folder()).read_state()
    return state.api if state is not None and any(is_alive(member) for member in state.members) else ""


def parse(text: str, origin: str) -> ServerAddress:
    """Parse `text` as an address; a bare `host:port` is http. Raises InvalidError."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad(text, origin) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _bad(text, origin)
    return ServerAddress(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        prefix=parts.path.rstrip("/"),
        origin=origin,
    )


def _bad(text: str, origin: str) -> InvalidError:
    detail = f"{text!r} is not an address; write for example http://127.0.0.1:8080"
    return InvalidError(f"{origin}: {detail}")
