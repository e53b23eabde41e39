"""The locks in `requirements/`: their packages, and `python -m tools.release.lockfile`, which checks them offline.

Owns the rules for a lock: every package has one version and hashes, and comes from the package index. Every shipped
package has an allowed licence. Knows no release. Reads the licences from the packages that are installed here.

An offline check cannot find a version that was withdrawn ("yanked") later: `make lock` asks the index for that.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tools.release import licences

FOLDER = Path(__file__).parents[2] / "requirements"
SHIPPED = "runtime.txt"
"""the lock of what users install; the other locks are for development"""
_PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[\w,.-]+\])?==([^\s;]+)\s*(?:;\s*(.*))?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)")


class LockedPackage(msgspec.Struct, frozen=True, kw_only=True):
    """One package of a lock."""

    name: str
    """the normalized name"""
    version: str
    hashes: tuple[str, ...]
    """sha256, in hexadecimal, of each file of that version that may be installed"""
    marker: str = ""
    """the environment marker of the platforms that install it; empty: all platforms"""


def read(text: str) -> list[LockedPackage]:
    """Return the packages of a lock.

    Raises:
        ValueError: a line is not a pinned package with hashes.
    """
    found, wrong = _parsed(text)
    if wrong:
        raise ValueError("; ".join(wrong))
    return found


def problems(name: str, text: str, *, is_shipped: bool = False) -> list[str]:
    """Return the problems of a lock, one sentence each; for a shipped lock, the licences are checked too."""
    found, wrong = _parsed(text)
    # Two versions for two platforms have different markers.
    places = [(each.name, each.marker) for each in found]
    wrong += [f"{each[0]} is named twice" for each in sorted(set(places)) if places.count(each) > 1]
    if is_shipped:
        wrong += [problem for each in found if (problem := _licence_problem(each))]
    return [f"{name}: {each}" for each in wrong]


def _parsed(text: str) -> tuple[list[LockedPackage], list[str]]:
    found: list[LockedPackage] = []
    wrong: list[str] = []
    for line in _lines(text):
        hashes = tuple(_HASH.findall(line))
        requirement = _HASH.sub("", line).strip()
        pinned = _PINNED.match(requirement)
        if requirement.startswith("-"):
            wrong.append(f"{requirement} sets an option: only packages of the index may be named")
        elif pinned is None or " @ " in requirement or "://" in requirement:
            wrong.append(f"{requirement} is not one version of a package of the index (NAME==VERSION)")
        elif "*" in pinned[2]:
            wrong.append(f"{requirement} is not one version")
        elif not hashes:
            wrong.append(f"{requirement} has no sha256 hash: run `make lock`")
        else:
            marker = pinned[3] or ""
            found.append(
                LockedPackage(name=canonicalize_name(pinned[1]), version=pinned[2], hashes=hashes, marker=marker)
            )
    return found, wrong


def _lines(text: str) -> Iterator[str]:
    """Yield the requirements, each on one line, without comments."""
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.splitlines():
        kept = re.sub(r"(^|\s)#.*$", "", line).strip()
        if kept:
            yield kept


def _licence_problem(package: LockedPackage) -> str:
    """Return the problem of a licence, or an empty text. A table has the licences of packages for other platforms."""
    try:
        there = metadata.distribution(package.name)
    except metadata.PackageNotFoundError:
        if package.marker and not Marker(package.marker).evaluate():
            known = licences.ELSEWHERE.get(package.name)
            return "" if known else f"{package.name} is not for this platform: name its licence in ELSEWHERE"
        return f"{package.name} is not installed here: run `make check`, which installs the lock"
    if there.version != package.version:
        return f"{package.name} {there.version} is installed, {package.version} is locked: run `make check`"
    return licences.problem(package.name, licences.of(there))


def main(arguments: Sequence[str]) -> int:
    """Return 0 when every lock follows the rules; 1 with a line per problem on standard error."""
    if arguments:
        sys.stderr.write("usage: python -m tools.release.lockfile\n")
        return 2
    found = [
        problem
        for path in sorted(FOLDER.glob("*.txt"))
        for problem in problems(
            f"requirements/{path.name}", path.read_text(encoding="utf-8"), is_shipped=path.name == SHIPPED
        )
    ]
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
