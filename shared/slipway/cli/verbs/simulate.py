"""`slipway simulate`: the scheduler's planner over a scenario. The verb itself is the scheduler's."""

import argparse

from slipway.cli.verb import Session, Verb


def configure(parser: argparse.ArgumentParser) -> None:
    """Only for completion: the words go to the scheduler's own parser."""
    parser.add_argument("file", metavar="FILE")


def execute(arguments: argparse.Namespace, session: Session) -> int:
    """Run it."""
    from slipway.scheduler.simulate.command import main

    words: list[str] = arguments.words
    return main(words)


VERBS = {"simulate": Verb(configure, execute, raw=True)}
