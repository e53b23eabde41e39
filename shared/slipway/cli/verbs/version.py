"""`slipway version`: the versions of this command and of the server."""

import argparse

from slipway.cli import main
from slipway.cli.verb import CliSession, CliVerb
from slipway.errors import ControlPlaneError
from slipway.installed import installed_version, mismatch


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--client", action="store_true", help="only of this command, without a request to the server (also --version)"
    )


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print both versions. When the server does not answer, print the reason to stderr; the exit code is still 0."""
    session.terminal.line(f"slipway {own_version()}")
    if arguments.client:
        return main.OK
    session.has_told_version = True
    try:
        session.api.get("/me")
    except ControlPlaneError as error:
        if not session.api.server_version:
            session.terminal.note(f"server unknown: {error}")
            return main.OK
    version, url = session.api.server_version, session.api.server.url
    session.terminal.line(f"server  {version or 'before 0.1.0 (it names no version)'} at {url}")
    if said := mismatch(installed_version(), version, url):
        session.terminal.note(f"{session.terminal.paint('note:', 'yellow')} {said}")
    return main.OK


def own_version() -> str:
    """Return the installed version."""
    return installed_version() or "(not installed)"


VERBS = {"version": CliVerb(configure, execute)}
