"""Who may use a local stack: the account that started it, by one token that is made with the stack's folder.

Owns that token, its record for the API, and the names under which a browser reaches the stack. Files are written, no
socket is opened.

A workload listens on a loopback address too. Its programs of ours, and JupyterLab, answer the proxy of the API only, by
a token that both are given (`ENV_WORKLOAD_TOKEN`).

The token is the administrator's at the API server, at the REST API and for `/metrics`. It stands in files of mode 0600
only. In the REST API it may speak for any user by name (`--user`), as everybody could on a machine of one's own.

A browser keeps cookies by host name, not by port: a cookie of 127.0.0.1 goes to every other program that listens there,
also to that of another account. So the stack has a host name of its own, which nobody can guess, below `.localhost`,
which browsers resolve to the loopback themselves; and a second one, below which each workload has its own origin.
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


class Names(NamedTuple):
    """Host names for browsers: of the API and its pages, and the domain of the origins of workloads."""

    host: str
    workloads: str


def make_token(layout: Layout, now: float) -> str:
    """The token of the folder, made with its record when one of the two is missing."""
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
    """The token by which workloads know the proxy; another one than what opens the stack, since they all have it."""
    token = secrets.token_urlsafe(32)
    private_files.write(layout.workload_token, token.encode())
    return token


def make_session_key(layout: Layout) -> None:
    """The key that seals the cookies of browsers, made once: they stay logged in over a restart."""
    path = layout.session_keys / "1.key"
    if not path.exists():
        private_files.write(path, base64.urlsafe_b64encode(secrets.token_bytes(32)))


def make_names(layout: Layout) -> Names:
    """The host names of the folder, made once: bookmarks outlive a restart."""
    path: Path = layout.names
    try:
        label = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        label = ""
    if re.fullmatch(r"[0-9a-f]{16}", label) is None:
        label = secrets.token_hex(_NAME_BYTES)
        private_files.write(path, label.encode())
    return Names(f"slipway-{label}.localhost", f"workloads-{label}.localhost")


def _user() -> str:
    try:
        return _UNFIT.sub("", getpass.getuser())[:128] or _FALLBACK_USER
    except (KeyError, OSError):
        return _FALLBACK_USER
