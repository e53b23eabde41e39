"""Where one is logged in: servers by name, with what opens each, in a file that only its owner reads.

Owns the file `contexts.json` in `$SLIPWAY_CONFIG_DIR`, else `$XDG_CONFIG_HOME/slipway`, else `~/.config/slipway`.
Invariants: its mode is 0600 and that of its folder 0700, before a token is in it; it is replaced as a whole.
"""

import contextlib
import json
import os
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from slipway.errors import DeniedError, InvalidError
from slipway.runtime import private_files
from slipway.runtime.clock import SystemClock
from slipway.sdk import sign_on
from slipway.sdk.credentials import AHEAD_S, Credential, Kubernetes, ends_at, fixed, of_file, of_kubernetes
from slipway.sdk.sign_on import Oidc

FILE = "contexts.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}")
Json = dict[str, Any]


class CliContext(NamedTuple):
    """One server, and one way to open it."""

    server: str
    token: str = ""
    token_file: str = ""
    kubernetes: Kubernetes | None = None
    oidc: Oidc | None = None

    @property
    def credential(self) -> Credential | None:
        """What opens it; None where nothing is needed."""
        if self.oidc is not None:
            server, kept = self.server, self.oidc
            return Credential(lambda: renewed_token(server, kept))
        if self.kubernetes is not None:
            return of_kubernetes(self.kubernetes)
        if self.token_file:
            return of_file(Path(self.token_file))
        return fixed(self.token) if self.token else None

    @property
    def way(self) -> str:
        """How it is opened, in words."""
        if self.oidc is not None:
            return f"sign-on at {self.oidc.issuer}"
        if self.kubernetes is not None:
            return f"kubernetes {self.kubernetes.account}".strip()
        return f"file {self.token_file}" if self.token_file else "token" if self.token else "none"


class CliContexts(NamedTuple):
    """What the file holds; `current` may be empty. `settings` are what `slipway config` has set."""

    current: str
    all: dict[str, CliContext]
    settings: Mapping[str, str] = MappingProxyType({})


def folder() -> Path:
    """Where the file is."""
    named = os.environ.get("SLIPWAY_CONFIG_DIR", "")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "slipway"


def read() -> CliContexts:
    """The file; nothing where there is none.

    Raises:
        InvalidError: it cannot be read. DeniedError: another account has written it.
    """
    path = folder() / FILE
    try:
        with path.open(encoding="utf-8") as file:
            _check_owner(path, os.fstat(file.fileno()).st_uid)
            told: Json = json.load(file)
        found = {name: _context(each) for name, each in cast("Json", told["contexts"]).items()}
        settings = {name: str(value) for name, value in cast("Json", told.get("settings") or {}).items()}
        return CliContexts(str(told.get("current") or ""), found, settings)
    except FileNotFoundError:
        return CliContexts("", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidError(f"{path} cannot be read ({error}); remove it and log in again") from error


def write(contexts: CliContexts) -> None:
    """Replace the file. Raises DeniedError when its folder is another account's, which could replace it."""
    where = folder()
    private_files.make_folder(where)
    body: Json = {"current": contexts.current, "contexts": {name: _json(each) for name, each in contexts.all.items()}}
    body |= {"settings": dict(contexts.settings)} if contexts.settings else {}
    private_files.write(where / FILE, json.dumps(body, indent=1).encode() + b"\n")


def renewed_token(server: str, oidc: Oidc) -> str:
    """The token of a sign-on; one that ends soon is renewed, and the new one kept in the place of the old.

    One command at a time renews: a refresh token may be good only once. Raises DeniedError when it has ended."""
    if _lasts(oidc):
        return oidc.id_token
    with _alone():
        contexts = read()
        names = [name for name, each in contexts.all.items() if each.server == server and _is_same(each.oidc, oidc)]
        kept = contexts.all[names[0]].oidc if names else None
        if kept is not None and _lasts(kept):
            return kept.id_token
        fresh = sign_on.renewed(kept or oidc)
        if names:
            found = contexts.all[names[0]]._replace(oidc=fresh)
            write(contexts._replace(all={**contexts.all, names[0]: found}))
        return fresh.id_token


def current() -> CliContext | None:
    """Where one is logged in and commands go; None: nowhere."""
    contexts = read()
    return contexts.all.get(contexts.current)


def of_server(url: str) -> CliContext | None:
    """The context that opens this very server: its token is for no other. The current one counts first."""
    contexts = read()
    ordered = sorted(contexts.all.items(), key=lambda item: item[0] != contexts.current)
    return next((each for _, each in ordered if each.server == url), None)


def check_name(name: str) -> str:
    """The name. Raises InvalidError when it can be none."""
    if _NAME.fullmatch(name) is None:
        raise InvalidError(f"{name!r} is not a valid name of a context: use letters, digits and . _ @ : -")
    return name


def _check_owner(path: Path, uid: int) -> None:
    """It names the server that tokens, secret values and files are sent to. What root has written counts for all, and
    root, which sudo makes of its caller, may read what the caller has written."""
    own = private_files.own_uid()
    if own not in (None, 0) and uid not in (own, 0):
        raise DeniedError(f"{path} was written by another account (uid {uid}); remove it and log in again")


def _lasts(oidc: Oidc) -> bool:
    return bool(oidc.id_token) and ends_at(oidc.id_token) - AHEAD_S > SystemClock().now()


def _is_same(kept: Oidc | None, oidc: Oidc) -> bool:
    return kept is not None and (kept.issuer, kept.client) == (oidc.issuer, oidc.client)


@contextlib.contextmanager
def _alone() -> Generator[None]:
    """While no other command of this account does the same. Without such locks, as on Windows, they may meet."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    where = folder()
    private_files.make_folder(where)
    handle = os.open(where / f"{FILE}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _context(told: Json) -> CliContext:
    kubernetes, oidc = told.get("kubernetes"), told.get("oidc")
    return CliContext(
        server=str(told["server"]),
        token=str(told.get("token") or ""),
        token_file=str(told.get("tokenFile") or ""),
        kubernetes=Kubernetes(**kubernetes) if isinstance(kubernetes, dict) else None,
        oidc=Oidc(**oidc) if isinstance(oidc, dict) else None,
    )


def _json(context: CliContext) -> Json:
    way: Json = {}
    if context.oidc is not None:
        way = {"oidc": context.oidc._asdict()}
    elif context.kubernetes is not None:
        way = {"kubernetes": context.kubernetes._asdict()}
    elif context.token_file:
        way = {"tokenFile": context.token_file}
    elif context.token:
        way = {"token": context.token}
    return {"server": context.server, **way}
