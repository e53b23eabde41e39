"""The lists of CONTRIBUTING.md, section "How to add", read from the page.

Owns how a list is written: a heading, and steps that each begin with the path of one file. A part of a path in
`<brackets>` stands for a name that the reader chooses.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
SECTION = "## How to add\n"
_STEP = re.compile(r"^(\d+)\. (?:`([^`]+)`)?(: only if )?", re.MULTILINE)
_FREE = re.compile(r"<[^<>]+>")


class ListStep(msgspec.Struct, frozen=True):
    """One step: its number on the page, the file that it begins with (empty when it names none), and whether only some
    cases need it."""

    number: int
    path: str
    is_optional: bool

    def is_about(self, path: str) -> bool:
        """Whether an edit of this file is an edit of this step."""
        parts = [re.escape(part) for part in _FREE.split(self.path)]
        return re.fullmatch(".+".join(parts), path) is not None

    def fixed_part(self) -> str:
        """The file; where the reader chooses a name, the folder above the first such name."""
        head, free, _ = self.path.partition("<")
        return head.rpartition("/")[0] if free else head


class Checklist(msgspec.Struct, frozen=True):
    """One list: its heading in small letters, and its steps."""

    title: str
    steps: tuple[ListStep, ...]

    def is_followed_by(self, paths: Sequence[str]) -> bool:
        """Whether edits of these files are the steps in their order; optional steps may be missing."""
        left = list(paths)
        for step in self.steps:
            if left and step.is_about(left[0]):
                left.pop(0)
            elif not step.is_optional:
                return False
        return not left


def lists_of(text: str) -> Sequence[Checklist]:
    """The lists of a page in their order."""
    section = text.partition(SECTION)[2].partition("\n## ")[0]
    found: list[Checklist] = []
    for part in section.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        steps = tuple(ListStep(int(match[1]), match[2] or "", bool(match[3])) for match in _STEP.finditer(body))
        found.append(Checklist(title[:1].lower() + title[1:], steps))
    return found


LISTS = {each.title: each for each in lists_of(PAGE.read_text("utf-8"))}
