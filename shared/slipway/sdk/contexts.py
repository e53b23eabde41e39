"""The login contexts, and the values that a command uses when no option sets them.

Contexts are servers by name, each with its credential, in a file that only its owner can read: the file `contexts.json`
in `$SLIPWAY_CONFIG_DIR`, else `$XDG_CONFIG_HOME/slipway`, else `~/.config/slipway`. Invariants: the file has mode 0600
and its folder 0700 before a token is written to it. The file is always replaced as a whole.

The workspace and the user of a command come from an option, the environment, the settings in the file of the contexts,
or the default, in this order; the source of each is known.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Generator, Mapping
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
    """One server, and one way to log in to it."""

    server: str
    token: str = ""
    token_file: str = ""
    kubernetes: Kubernetes | None = None
    oidc: Oidc | None = None

    @property
    def credential(self) -> Credential | None:
        """The source of the token; None when the server needs no token."""
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
        """How the token is obtained, in words."""
        if self.oidc is not None:
            return f"sign-on at {self.oidc.issuer}"
        if self.kubernetes is not None:
            return f"kubernetes {self.kubernetes.account}".strip()
        return f"file {self.token_file}" if self.token_file else "token" if self.token else "none"


class CliContexts(NamedTuple):
    """The content of the file; `current` may be empty. `settings` are the values that `slipway config` has set."""

    current: str
    all: dict[str, CliContext]
    settings: Mapping[str, str] = MappingProxyType({})


def folder() -> Path:
    """Return the folder of the file."""
    named = os.environ.get("SLIPWAY_CONFIG_DIR", "")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "slipway"


def read() -> CliContexts:
    """Read the file; without a file, return empty contexts.

    Raises:
        InvalidError: the file cannot be read. DeniedError: another account has written it.
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
    """Replace the file. Raises DeniedError when another account owns the folder, and so could replace the file."""
    where = folder()
    private_files.make_folder(where)
    body: Json = {"current": contexts.current, "contexts": {name: _json(each) for name, each in contexts.all.items()}}
    body |= {"settings": dict(contexts.settings)} if contexts.settings else {}
    private_files.write(where / FILE, json.dumps(body, indent=1).encode() + b"\n")


def renewed_token(server: str, oidc: Oidc) -> str:
    """Return the token of a sign-on; a token that ends soon is renewed and replaced in the file.

    Only one command at a time renews, because a refresh token may be valid only once. Raises DeniedError when the
    sign-on has ended."""
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
    """Return the context that commands use; None when the user is not logged in."""
    contexts = read()
    return contexts.all.get(contexts.current)


def of_server(url: str) -> CliContext | None:
    """Return the context of exactly this server, the current context first; None when there is none.

    A context's token is sent to no other server.
    """
    contexts = read()
    ordered = sorted(contexts.all.items(), key=lambda item: item[0] != contexts.current)
    return next((each for _, each in ordered if each.server == url), None)


def check_name(name: str) -> str:
    """Return the valid name. Raises InvalidError for an invalid one."""
    if _NAME.fullmatch(name) is None:
        raise InvalidError(f"{name!r} is not a valid name of a context: use letters, digits and . _ @ : -")
    return name


def _check_owner(path: Path, uid: int) -> None:
    """Refuse a file of another account.

    The file names the server that receives tokens, secret values and files. Every account accepts a file that root has
    written. Root also accepts a file of another account: sudo turns its caller into root."""
    own = private_files.own_uid()
    if own not in (None, 0) and uid not in (own, 0):
        raise DeniedError(f"{path} was written by another account (uid {uid}); remove it and log in again")


def _lasts(oidc: Oidc) -> bool:
    return bool(oidc.id_token) and ends_at(oidc.id_token) - AHEAD_S > SystemClock().now()


def _is_same(kept: Oidc | None, oidc: Oidc) -> bool:
    return kept is not None and (kept.issuer, kept.client) == (oidc.issuer, oidc.client)


@contextlib.contextmanager
def _alone() -> Generator[None]:
    """Hold the lock of this account's commands. Without such locks, as on Windows, commands may overlap."""
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


ENV_USER = "SLIPWAY_USER"
ENV_WORKSPACE = "SLIPWAY_WORKSPACE"
DEFAULT_WORKSPACE = "default"
NAMES = ("user", "workspace")
"""The settings that the file may contain."""
_WORKSPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
USER_MAX = 253


class EffectiveValue(NamedTuple):
    """A value, and its source in words."""

    value: str
    origin: str


def preferred_workspace(named: str | None = None) -> EffectiveValue:
    """Return the workspace for launches, jobs and templates. Raises InvalidError when the file cannot be read."""
    return _effective("workspace", named, ENV_WORKSPACE, lambda: EffectiveValue(DEFAULT_WORKSPACE, "the default"))


def preferred_user(named: str | None = None) -> EffectiveValue:
    """Return the user name for a server without authentication. Raises InvalidError when the file cannot be read."""
    return _effective("user", named, ENV_USER, _login_name)


def change_preferences(name: str, value: str | None) -> None:
    """Set a value in the file, or remove it (None).

    Raises:
        InvalidError: there is no such setting, or the value is not valid.
    """
    if name not in NAMES:
        raise InvalidError(f"{name}: there is no such setting; the settings are {' and '.join(NAMES)}")
    if value is not None:
        _check(name, value)
    known = read()
    rest = {each: known.settings[each] for each in known.settings if each != name}
    write(known._replace(settings=rest if value is None else {**rest, name: value}))


def _check(name: str, value: str) -> None:
    if name == "workspace" and _WORKSPACE.fullmatch(value) is None:
        raise InvalidError(
            f"workspace: {value[:64]!r} is not a valid workspace name: write lower-case letters, digits and -"
        )
    if not value or len(value) > USER_MAX or not value.isprintable() or not value.isascii():
        raise InvalidError(f"{name}: must be 1 to {USER_MAX} printable ASCII characters")


def _effective(name: str, named: str | None, variable: str, otherwise: Callable[[], EffectiveValue]) -> EffectiveValue:
    if named:
        return EffectiveValue(named, f"--{name}")
    if os.environ.get(variable):
        return EffectiveValue(os.environ[variable], f"${variable}")
    kept = read().settings.get(name)
    return EffectiveValue(kept, f"`slipway config set {name}`") if kept else otherwise()


def _login_name() -> EffectiveValue:
    import getpass

    try:
        return EffectiveValue(getpass.getuser(), "your login name")
    except (KeyError, OSError):
        return EffectiveValue("", "this account has no name")
