"""docs/coming-from/commands.md: each command of Slipway there is one that the real parser takes."""

import re
import shlex
from pathlib import Path

import pytest

from slipway.cli import main
from slipway.cli.verb import parser_of

PAGE = Path(__file__).parents[3] / "docs" / "coming-from" / "commands.md"
COLUMNS = ("to", "SkyPilot", "dstack", "Determined AI", "Slipway")
FEWEST = 10


def rows() -> list[dict[str, str]]:
    """The rows of the table, by the names of its columns."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(cells[0]) == COLUMNS
    return [dict(zip(COLUMNS, row, strict=True)) for row in cells[1:] if not row[0].startswith("---")]


COMMANDS = [command for row in rows() for command in re.findall(r"`(slipway [^`]+)`", row["Slipway"])]


@pytest.mark.parametrize("text", COMMANDS)
def test_the_command_is_one(text: str) -> None:
    """The verb exists, and takes these options and words; what follows `--` is the user's own."""
    _, name, *words = shlex.split(text)
    name = main.ALIASES.get(name, name)
    verb = main.load(name)
    if verb.raw:
        return
    own = words[: words.index("--")] if verb.takes_command and "--" in words else words
    parser_of(name, verb).parse_args(own)


@pytest.mark.parametrize("system", COLUMNS[1:-1])
def test_each_system_has_its_ten(system: str) -> None:
    """And each of them leads to a command of Slipway."""
    known = [row for row in rows() if row[system]]
    assert len(known) >= FEWEST
    assert all("`slipway " in row["Slipway"] for row in known)
