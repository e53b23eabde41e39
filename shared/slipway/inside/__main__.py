"""`python -m slipway.inside VERB`: what a rank says to Slipway, and what a pod starts of ours, by name.

The same file begins what is delivered to a pod as a folder: `python -I /run/slipway/lib terminal`; there the other
verbs are only where their file was delivered too. Standard library only.
"""

import sys


def main() -> int:
    """Runs what the first word names."""
    if sys.argv[1:2] == ["terminal"]:
        from slipway.inside import terminal

        return terminal.main()
    if sys.argv[1:2] in (["notebook"], ["tensorboard"]):
        from slipway.inside import beside

        return beside.main(sys.argv[1:])
    try:
        from slipway.inside import command
    except ImportError:
        sys.stderr.write("usage: python -m slipway.inside terminal|notebook|tensorboard ...\n")
        return 2
    return command.main()


if __name__ == "__main__":
    raise SystemExit(main())
