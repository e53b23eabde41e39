"""`python -m slipway.inside terminal`: what a pod starts of ours, by name.

The same file begins what is delivered to a pod as a folder: `python -I /run/slipway/lib terminal`. Standard library
only.
"""

import sys


def main() -> int:
    """Runs what the first word names."""
    if sys.argv[1:2] == ["terminal"]:
        from slipway.inside import terminal

        return terminal.main()
    sys.stderr.write("usage: python -m slipway.inside terminal\n")
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
