"""`slipway simulate`: runs the scheduler's planner over a scenario. The scheduler's code implements the verb.

With `--live` the verb asks the API about the current cluster.
"""

import argparse

from slipway.cli.verb import CliSession, CliVerb


def configure(parser: argparse.ArgumentParser) -> None:
    """Add an argument for completion only: the scheduler's own parser parses the words."""
    parser.add_argument("file", metavar="FILE")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Run the simulation."""
    words: list[str] = arguments.words
    if "--live" in words:
        from slipway.cli import verb
        from slipway.cli.verbs.whatif import LIVE

        return verb.execute("simulate", LIVE, words)
    from slipway.scheduler.simulate.command import main

    return main(words)


VERBS = {"simulate": CliVerb(configure, execute, raw=True)}
