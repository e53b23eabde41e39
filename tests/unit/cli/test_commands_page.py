"""The pages on other systems: the real parser accepts each command of Slipway in their tables."""

import re
import shlex
from pathlib import Path

import pytest

from slipway.cli import main
from slipway.cli.verb import parser_of

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "coming-from" / "commands.md"
PAGES = sorted([*DOCS.glob("coming-from/*.md"), *DOCS.glob("tutorials/from-*.md")])
VERBS_OF = {
    "jobset.md": "kubectl",
    "kubernetes.md": "kubectl",
    "leaderworkerset.md": "kubectl",
    "mpijob.md": "kubectl",
    "ray.md": "kubectl",
    "volcano.md": "vcctl",
    "commands.md": "sky",
}
"""{page: the command of the other system whose verbs it compares with ours}"""
COLUMNS = ("to", "SkyPilot", "dstack", "Determined AI", "Slipway")
FEWEST = 10


def rows() -> list[dict[str, str]]:
    """The rows of the table, by the names of its columns."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(cells[0]) == COLUMNS
    return [dict(zip(COLUMNS, row, strict=True)) for row in cells[1:] if not row[0].startswith("---")]


def commands_of(page: Path) -> list[str]:
    """The commands of Slipway in the tables of a page."""
    tables = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [command for line in tables for command in re.findall(r"`(slipway [^`]+)`", line)]


COMMANDS = [
    pytest.param(text, id=f"{page.stem}: {text}") for page in PAGES for text in dict.fromkeys(commands_of(page))
]


@pytest.mark.parametrize("page", VERBS_OF)
def test_a_page_has_a_table_of_verbs(page: str) -> None:
    """Each page has a table of the other system's verbs, each beside commands of Slipway."""
    lines = (PAGE.parent / page).read_text("utf-8").splitlines()
    verbs = [line for line in lines if line.startswith("| ") and f"`{VERBS_OF[page]} " in line and "`slipway " in line]
    assert len(verbs) >= 5


@pytest.mark.parametrize("text", COMMANDS)
def test_the_command_is_one(text: str) -> None:
    """The verb exists and accepts these options and arguments; the words after `--` belong to the user."""
    _, name, *words = shlex.split(text)
    name = main.ALIASES.get(name, name)
    verb = main.load(name)
    if verb.raw or not words:
        # A word alone names the verb.
        return
    own = words[: words.index("--")] if verb.takes_command and "--" in words else words
    parser_of(name, verb).parse_args(own)


@pytest.mark.parametrize("system", COLUMNS[1:-1])
def test_each_system_has_its_ten(system: str) -> None:
    """Each system has at least ten verbs in its table, each with a command of Slipway."""
    known = [row for row in rows() if row[system]]
    assert len(known) >= FEWEST
    assert all("`slipway " in row["Slipway"] for row in known)
