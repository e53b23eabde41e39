"""The values that a command uses when no option sets them: the workspace and the user, and the source of each value.

Owns the order of an option, the environment, the settings in the file of the contexts, and the default.
"""

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from slipway.errors import InvalidError
from slipway.sdk import contexts

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


def workspace(named: str | None = None) -> EffectiveValue:
    """Return the workspace for launches, jobs and templates. Raises InvalidError when the file cannot be read."""
    return _effective("workspace", named, ENV_WORKSPACE, lambda: EffectiveValue(DEFAULT_WORKSPACE, "the default"))


def user(named: str | None = None) -> EffectiveValue:
    """Return the user name for a server without authentication. Raises InvalidError when the file cannot be read."""
    return _effective("user", named, ENV_USER, _login_name)


def change(name: str, value: str | None) -> None:
    """Set a value in the file, or remove it (None).

    Raises:
        InvalidError: there is no such setting, or the value is not valid.
    """
    if name not in NAMES:
        raise InvalidError(f"{name}: there is no such setting; the settings are {' and '.join(NAMES)}")
    if value is not None:
        _check(name, value)
    known = contexts.read()
    rest = {each: known.settings[each] for each in known.settings if each != name}
    contexts.write(known._replace(settings=rest if value is None else {**rest, name: value}))


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
    kept = contexts.read().settings.get(name)
    return EffectiveValue(kept, f"`slipway config set {name}`") if kept else otherwise()


def _login_name() -> EffectiveValue:
    import getpass

    try:
        return EffectiveValue(getpass.getuser(), "your login name")
    except (KeyError, OSError):
        return EffectiveValue("", "this account has no name")
