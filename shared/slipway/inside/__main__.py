"""`python -m slipway.inside VERB`: the calls of a rank to Slipway, and the programs that a pod starts by name.

The same file starts the folder that is delivered to a pod: `python -I /run/slipway/lib terminal`. There the other verbs
exist only if their files were delivered too. Standard library only.
"""

import sys


def main() -> int:
    """Run the verb in the first argument."""
    if sys.argv[1:2] == ["terminal"]:
        from slipway.inside import terminal

        return terminal.main()
    if sys.argv[1:2] in (["notebook"], ["tensorboard"]):
        from slipway.inside import service_reporter

        return service_reporter.main(sys.argv[1:])
    try:
        from slipway.inside import command
    except ImportError:
        sys.stderr.write("usage: python -m slipway.inside terminal|notebook|tensorboard ...\n")
        return 2
    return command.main()


if __name__ == "__main__":
    raise SystemExit(main())
