"""`slipway version`."""

import argparse

from slipway.cli import main
from slipway.cli.verb import CliSession, CliVerb
from slipway.installed import installed_version


def configure(parser: argparse.ArgumentParser) -> None:
    """It takes no arguments of its own."""


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print it."""
    session.terminal.line(f"slipway {own_version()}")
    return main.OK


def own_version() -> str:
    """The version that is installed."""
    return installed_version() or "(not installed)"


VERBS = {"version": CliVerb(configure, execute)}
