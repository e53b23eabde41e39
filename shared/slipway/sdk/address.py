"""Where the API is: named, in the environment, where one is logged in, the stack of this machine, or the default.

Owns the order of those five, and which token goes where: the one in the environment to whatever is called, one of a
context to its own server only, one of a stack of this machine to that stack only. Reads the files of local stacks and
the contexts; opens no connection.
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
    """A server, and how it was found (for error messages)."""

    scheme: str
    host: str
    port: int
    prefix: str
    origin: str
    credential: "Credential | None" = None
    """what opens it; None: nothing is sent"""

    @property
    def url(self) -> str:
        """The address as it is written."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def find(named: str = "") -> ServerAddress:
    """The server to talk to.

    Raises:
        InvalidError: what was named is not an address.
    """
    return find_with_place(named)[0]


def find_with_place(named: str = "") -> tuple[ServerAddress, str]:
    """The server to talk to, and the place of its token in words; `find` says what is raised."""
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
    """The user as the API is told where it asks for no token: `SLIPWAY_USER`, the setting, else the login name."""
    from slipway.sdk import preferences

    return preferences.user().value


def _with_local_token(found: ServerAddress) -> ServerAddress:
    """The address with the token of the stack of this account that runs there, if one does."""
    if found.scheme != "http" or found.host not in LOCAL_HOSTS:
        return found
    from slipway.local.layout import token_at
    from slipway.sdk import credentials

    token = token_at(found.port)
    if not token:
        return found
    # By its number: a name could lead to another loopback address, where another account may listen.
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
    """The API of the stack that runs in the default folder; empty when none does."""
    from slipway.local.layout import Layout, default_folder, is_alive

    state = Layout(default_folder()).read_state()
    return state.api if state is not None and any(is_alive(member) for member in state.members) else ""


def parse(text: str, origin: str) -> ServerAddress:
    """`text` as an address; a bare `host:port` is http."""
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
