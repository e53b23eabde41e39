"""`slipway doctor`: is everything there and answering?

Owns the list of checks. Changes nothing.
"""

import argparse
import platform
import shutil
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from slipway.cli import main, table
from slipway.cli.verb import Session, Verb
from slipway.cli.verbs.version import own_version
from slipway.errors import ControlPlaneError
from slipway.local.layout import Layout, default_folder, is_alive

Json = dict[str, Any]
PROBE_S = 3.0


class Check(NamedTuple):
    """One finding; `advice` says what to do when it is not ok."""

    name: str
    is_ok: bool
    found: str
    advice: str = ""
    is_needed: bool = True


def configure(parser: argparse.ArgumentParser) -> None:
    """It takes no arguments of its own."""


def execute(arguments: argparse.Namespace, session: Session) -> int:
    """Print the findings; 1 when something that is needed is missing."""
    checks = [*_machine(), *_stack(), *_server(session)]
    terminal = session.terminal
    rows = [
        ["ok" if check.is_ok else "--" if not check.is_needed else "NO", check.name, check.found] for check in checks
    ]
    paint = {"ok": "green", "NO": "red", "--": "yellow"}
    terminal.line(
        table.render(
            ["", "CHECK", "FOUND"],
            rows,
            paint=lambda name, cell: (
                terminal.paint(cell, paint.get(cell.strip(), ""), to_err=False) if not name else cell
            ),
        )
    )
    for check in checks:
        if not check.is_ok and check.advice:
            terminal.note(f"{check.name}: {check.advice}")
    return main.OK if all(check.is_ok or not check.is_needed for check in checks) else main.FAILED


def _machine() -> Iterator[Check]:
    yield Check("slipway", True, own_version())
    yield Check("python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for program in ("kubectl", "helm"):
        where = shutil.which(program)
        yield Check(program, where is not None, where or "not on PATH", "", is_needed=False)


def _stack() -> Iterator[Check]:
    state = Layout(default_folder()).read_state()
    if state is None:
        yield Check("local stack", False, "none", "start one with `slipway up`", is_needed=False)
        return
    for member in state.members:
        lives = is_alive(member)
        ready = not member.url or member.name == "cluster" or _answers(f"{member.url}/readyz")
        found = f"pid {member.pid} {member.url}".strip() if lives else "not running"
        advice = "" if lives and ready else f"see {member.log}, or start again: slipway down; slipway up"
        yield Check(f"local {member.name}", lives and ready, found + ("" if ready else ", not ready"), advice)


def _server(session: Session) -> Iterator[Check]:
    try:
        me: Json = session.api.get("/me")
        yield Check("API", True, f"{session.api.server.url} ({session.api.server.origin})")
        yield Check("workspaces", bool(me["workspaces"]), ", ".join(me["workspaces"]) or "none", "label a namespace")
        nodes: list[Json] = session.api.get("/nodes")["items"]
        yield Check("nodes", bool(nodes), str(len(nodes)), "the pool has no nodes: nothing can start")
        dead: list[Json] = session.api.get("/dead")["items"]
        yield Check("dead letters", not dead, str(len(dead)), "see `slipway dead ls`", is_needed=False)
    except ControlPlaneError as error:
        yield Check("API", False, str(error).partition("\n")[0], str(error).partition("\n")[2])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PROBE_S) as answer:  # noqa: S310 - an address of our own state file
            return answer.status == 200
    except OSError:
        return False


VERBS = {"doctor": Verb(configure, execute)}
