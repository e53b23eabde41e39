"""Compares the versions of the command and of the server, and prints a note at most once a day per server.

Owns `$XDG_CACHE_HOME/slipway/versions.json` (else below `~/.cache`): the version of each server at the last check, and
the day of that check. Without the file the note is printed more often; nothing else depends on it. The file is read
before any slow import, because most commands need no check.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from slipway.cli.terminal import Terminal

SERVERS_MAX = 64


def tell(terminal: Terminal, url: str, version: str) -> None:
    """Print the note on an interactive terminal, unless this version of the server was already checked today."""
    if not version or not terminal.is_interactive:
        return
    known, today = _read(), datetime.now(UTC).strftime("%Y-%m-%d")
    if known.get(url) == [version, today]:
        return
    from slipway.installed import installed_version, mismatch

    if said := mismatch(installed_version(), version, url):
        terminal.note(f"{terminal.paint('note:', 'yellow')} {said}")
    known.pop(url, None)
    latest = [*known.items(), (url, [version, today])][-SERVERS_MAX:]
    _write(dict(latest))


def _file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "slipway" / "versions.json"


def _read() -> dict[str, Any]:
    try:
        found: Any = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the account has no home directory
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _write(known: dict[str, Any]) -> None:
    try:
        file = _file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(known), encoding="utf-8")
        part.replace(file)
    except (OSError, RuntimeError):
        return
