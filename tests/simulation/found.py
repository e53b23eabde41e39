"""Every failure ever found: the lines that replay them, stored in a file beside this one and always played by the
tests.

Owns the file's form: one line each, as the failure was printed; a `#` begins a remark.
"""

import shlex
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tests.support.faults import Fault

KEPT = Path(__file__).with_name("found.txt")
KEPT_MAX = 300
"""The most new lines of a sweep: one with more failures has one cause or two, and these show it."""


class RunArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a run."""

    scenario: str
    seed: int
    replicas: int = 1
    faults: tuple[Fault, ...] = ()


def parse(text: str) -> RunArguments:
    """Parse a replay line. Raises ValueError or KeyError for any other text."""
    words = iter(shlex.split(text))
    options: dict[str, list[str]] = {}
    for word in words:
        options.setdefault(word.removeprefix("--"), []).append(next(words, ""))
    return RunArguments(
        scenario=options["scenario"][0],
        seed=int(options["seed"][0]),
        replicas=int(options.get("replicas", ["1"])[0]),
        faults=tuple(map(Fault.parse, options.get("crash", []))),
    )


def lines(path: Path = KEPT) -> list[str]:
    """Every stored line."""
    if not path.exists():
        return []
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def keep(replays: Iterable[str], path: Path = KEPT) -> int:
    """Add the lines that are not stored yet, and return their number."""
    before = lines(path)
    fresh = [line for line in dict.fromkeys(replays) if line not in before][: max(0, KEPT_MAX - len(before))]
    if fresh:
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in fresh)
    return len(fresh)
