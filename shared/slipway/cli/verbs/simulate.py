"""`slipway simulate`: the scheduler's planner over a scenario. The verb itself is the scheduler's.

With `--live` it is the API that is asked, about the cluster as it stands.
"""

import argparse

from slipway.cli.verb import CliSession, CliVerb


def configure(parser: argparse.ArgumentParser) -> None:
    """Only for completion: the words go to the scheduler's own parser."""
    parser.add_argument("file", metavar="FILE")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Run it."""
    words: list[str] = arguments.words
    if "--live" in words:
        from slipway.cli import verb
        from slipway.cli.verbs.whatif import LIVE

        return verb.execute("simulate", LIVE, words)
    from slipway.scheduler.simulate.command import main

    return main(words)


VERBS = {"simulate": CliVerb(configure, execute, raw=True)}
