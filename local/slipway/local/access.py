"""Access to a local stack: the account that started the stack uses it with one token, made with the stack's folder.

Owns that token, its record for the API, and the names under which a browser reaches the stack. This module writes files
and opens no socket.

A workload listens on a loopback address too. Our own programs in a workload, and JupyterLab, answer only the proxy of
the API. The proxy and these programs share a token (`ENV_WORKLOAD_TOKEN`).

The stack's token has administrator rights at the API server, at the REST API and for `/metrics`. Only files of mode
0600 contain it. In the REST API its bearer may act as any user by name (`--user`), because the machine belongs to one
person.

A browser stores cookies by host name, not by port. It would send a cookie of 127.0.0.1 to every other program that
listens there, even to a program of another account. So the stack has its own host name below `.localhost`, which cannot
be guessed. Browsers resolve `.localhost` to the loopback address themselves. Below a second host name each workload has
its own origin.
"""

import base64
import getpass
import re
import secrets
from pathlib import Path
from typing import NamedTuple

from slipway.local.layout import Layout
from slipway.model import apitokens
from slipway.model.apitokens import EVERYWHERE, Role
from slipway.model.times import format_time
from slipway.runtime import private_files

ENV_WORKLOAD_TOKEN = "SLIPWAY_WORKLOAD_TOKEN"  # noqa: S105 - the name of a variable
LIFE_S = 10 * 365 * 86_400.0
_NAME_BYTES = 8
_FALLBACK_USER = "local"
_UNFIT = re.compile(r"[^\x21-\x7e]")


class BrowserHosts(NamedTuple):
    """Host names for browsers: the host of the API and its pages, and the domain of the workloads' origins."""

    host: str
    workloads: str


def make_token(layout: Layout, now: float) -> str:
    """Return the folder's token. Creates the token and its record when one of the two is missing."""
    try:
        token = layout.token.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    id_ = apitokens.id_of(token)
    if id_ and (layout.tokens / apitokens.file_of(id_)).exists():
        return token
    token, record = apitokens.make(
        secrets.token_bytes(apitokens.ID_BYTES),
        secrets.token_bytes(apitokens.SECRET_BYTES),
        user=_user(),
        roles={EVERYWHERE: Role.ADMIN},
        names_users=True,
        created_at=format_time(now),
        expires_at=format_time(now + LIFE_S),
        description="the account that started this stack",
    )
    private_files.write(layout.tokens / apitokens.file_of(record.id), apitokens.encode(record))
    private_files.write(layout.token, token.encode())
    return token


def make_workload_token(layout: Layout) -> str:
    """Create the token by which workloads recognize the proxy.

    It differs from the stack's token, because every workload receives it.
    """
    token = secrets.token_urlsafe(32)
    private_files.write(layout.workload_token, token.encode())
    return token


def make_session_key(layout: Layout) -> None:
    """Create the key that seals browser cookies, if it is missing, so that browsers stay logged in over a restart."""
    path = layout.session_keys / "1.key"
    if not path.exists():
        private_files.write(path, base64.urlsafe_b64encode(secrets.token_bytes(32)))


def make_browser_hosts(layout: Layout) -> BrowserHosts:
    """Return the folder's host names. They are created once, so that bookmarks work after a restart."""
    path: Path = layout.names
    try:
        label = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        label = ""
    if re.fullmatch(r"[0-9a-f]{16}", label) is None:
        label = secrets.token_hex(_NAME_BYTES)
        private_files.write(path, label.encode())
    return BrowserHosts(f"slipway-{label}.localhost", f"workloads-{label}.localhost")


def _user() -> str:
    try:
        return _UNFIT.sub("", getpass.getuser())[:128] or _FALLBACK_USER
    except (KeyError, OSError):
        return _FALLBACK_USER
