"""The blocks of the pages that people read, and the commands in them.

Owns which pages these are, what a block is, and where a command begins and ends. Pages that are generated, and the
records of decisions, are not among them.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^(?P<room> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=room)```$", re.DOTALL | re.MULTILINE)
_EXPLANATION = re.compile(r"(?<=\S)  +\S.*$", re.MULTILINE)
_GENERATED = ("docs/reference/", "docs/adr/", "docs/performance.md", "docs/demo.md")
_PROMPT = "$ "
_ASSIGNMENT = re.compile(r"^[A-Z_]+=\S*$")
_TOOLS = ("slipway", "helm", "make", "python", ".venv/bin/slipway", ".venv/bin/python", "kubectl")
_ENDS = ("|", "&&", "||", ";", "&", ">", ">>", "<", "<<EOF", "#")


class DocumentedBlock(NamedTuple):
    """A fenced block: the page, the line of its first line, its language (empty: none), its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """The position of the block, for messages."""
        return f"{self.page}:{self.line}"


def pages() -> dict[str, str]:
    """{path from the root: text}"""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return {name: (ROOT / name).read_text("utf-8") for name in names if not name.startswith(_GENERATED)}


def blocks(*languages: str) -> list[DocumentedBlock]:
    """The blocks in these languages; without languages, all blocks."""
    return [
        DocumentedBlock(page, text.count("\n", 0, found.start("text")) + 1, found["language"], dedent(found["text"]))
        for page, text in pages().items()
        for found in _BLOCK.finditer(text)
        if not languages or found["language"] in languages
    ]


def without_explanations(block: DocumentedBlock) -> DocumentedBlock:
    """A block without a language may be a table: the text after two spaces explains the command."""
    return block if block.language else block._replace(text=_EXPLANATION.sub("", block.text))


def inline_code() -> list[tuple[str, str]]:
    """(page, text) of each piece of code within a sentence."""
    return [
        (page, found[1])
        for page, text in pages().items()
        for found in re.finditer(r"(?<!`)`([^`\n]+)`(?!`)", _BLOCK.sub("", text))
    ]


def commands(block: DocumentedBlock) -> Iterator[list[str]]:
    """The words of each command in the block that calls one of our tools; in `console` only after a prompt."""
    text = block.text.replace("\\\n", " ").replace("2>&1", "")
    for line in text.splitlines():
        if block.language == "console" and not line.startswith(_PROMPT):
            continue
        for words in _simple(line.removeprefix(_PROMPT)):
            while words and (_ASSIGNMENT.match(words[0]) or words[0] == "nice"):
                words.pop(0)
            if words and words[0] in _TOOLS:
                yield words


def _simple(line: str) -> Iterator[list[str]]:
    """The commands of a line, split at pipes, redirections and comments; explanations after two spaces are removed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[str] = []
    try:
        for word in lexer:
            if word in _ENDS:
                yield found
                found = []
            else:
                found.append(word)
    except ValueError:  # a quotation that continues in the next line: the text before it begins a whole command
        return
    yield found
