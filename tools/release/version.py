"""`python -m tools.release.version`: writes the version of pyproject.toml into the files that must contain it.

Owns the list of these files: the chart's Chart.yaml, and the default in the Dockerfile. All other code reads the
version.
"""

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES: Mapping[str, str] = {
    "helm/Chart.yaml": r"^((?:version|appVersion): )(\S+)$",
    "image/Dockerfile": r"^(ARG VERSION=)(\S+)$",
}
"""{file: pattern with the text before a version, and the version}"""


def version() -> str:
    """Return the version of all parts."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def written(text: str, pattern: str, to: str) -> str:
    """Return the text with the version at every match of the pattern.

    Raises:
        LookupError: the pattern matches nothing.
    """
    made, count = re.subn(pattern, rf"\g<1>{to}", text, flags=re.MULTILINE)
    if not count:
        raise LookupError(f"{pattern} finds no version")
    return made


def main(arguments: Sequence[str]) -> int:
    """Write the files that have another version."""
    if arguments:
        sys.stderr.write("usage: python -m tools.release.version\n")
        return 2
    for name, pattern in PLACES.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if (made := written(text, pattern, version())) != text:
            path.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
