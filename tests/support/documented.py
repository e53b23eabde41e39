"""Runs the console blocks of a page as they are written, and compares their output with the output that the page shows.

Owns which blocks a page has and how output is compared. A line that begins with `$ ` is a command; a line after a
command that ends with a backslash, or whose `<<EOF` has not ended, continues it; every other line is output. A block
below a line `**name**` is a file of that name. In output `...` matches anything, and `name-` with eight hexadecimal
digits matches any id of that name; the real output may have further lines.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(
    r"(?:^\*\*(?P<file>[^*\n]+)\*\*\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_ID = re.compile(r"^(.+-)[0-9a-f]{8}(\W.*)?$")
_MARK = "=== step {number} ==="


class Step(NamedTuple):
    """A command of a page with the lines that the page shows below it; `line` is its line number in the page."""

    line: int
    command: str
    shown: tuple[str, ...]


class Walkthrough(NamedTuple):
    """The steps that a page asks its reader to do: write files, {name: text}, and run commands."""

    files: Mapping[str, str]
    steps: tuple[Step, ...]


def read(page: Path) -> Walkthrough:
    """The files and the commands of a page, in order."""
    text = page.read_text("utf-8")
    files: dict[str, str] = {}
    steps: list[Step] = []
    for found in _BLOCK.finditer(text):
        if found["file"]:
            files[found["file"]] = found["text"]
        elif found["kind"] == "console":
            steps += steps_of(found["text"], text.count("\n", 0, found.start("text")) + 1)
    return Walkthrough(files, tuple(steps))


def steps_of(block: str, first: int) -> list[Step]:
    """The commands of a block whose first line is line `first` of its page."""
    found: list[Step] = []
    for number, line in enumerate(block.splitlines(), first):
        if line.startswith("$ "):
            found.append(Step(number, line[2:], ()))
        elif found and _goes_on(found[-1].command):
            found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line}")
        elif found and line.strip():
            found[-1] = found[-1]._replace(shown=(*found[-1].shown, line))
    return found


def _goes_on(command: str) -> bool:
    return command.endswith("\\") or ("<<EOF" in command and not command.endswith("\nEOF"))


def follow(
    walk: Walkthrough, folder: Path, env: Mapping[str, str], *, instead: Mapping[str, str], timeout_s: float
) -> list[str]:
    """Do all steps in one shell, in `folder`, and return what each step printed.

    `instead` is {text of the page: the text that is run instead}.

    Raises:
        AssertionError: a command failed; it names the step, with what was printed.
    """

    def here(text: str) -> str:
        for said, done in instead.items():
            text = text.replace(said, done)
        return text

    for name, text in walk.files.items():
        (folder / name).write_text(here(text))
    lines = ["set -e"]
    for number, step in enumerate(walk.steps):
        lines += [f"echo; echo '{_MARK.format(number=number)}'", here(step.command)]
    ran = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    printed = re.split(r"^=== step \d+ ===$", ran.stdout, flags=re.MULTILINE)[1:]
    if ran.returncode:
        step = walk.steps[len(printed) - 1]
        raise AssertionError(f"line {step.line}: {step.command}\nended with {ran.returncode}:\n{printed[-1]}")
    return printed


def missing(step: Step, printed: str) -> list[str]:
    """The lines that the page shows below a command and that the command did not print, in this order."""
    left = printed.splitlines()
    lacking: list[str] = []
    for shown in step.shown:
        pattern = pattern_of(shown)
        place = next((place for place, line in enumerate(left) if pattern.fullmatch(line.strip())), None)
        if place is None:
            lacking.append(shown)
        else:
            del left[: place + 1]
    return lacking


def pattern_of(shown: str) -> re.Pattern[str]:
    """The pattern of a line that the page shows: its words in order, with any space between them."""
    words: list[str] = []
    for word in shown.split():
        at = _ID.fullmatch(word)
        text = re.escape(word) if at is None else f"{re.escape(at[1])}[0-9a-f]{{8}}{re.escape(at[2] or '')}"
        words.append(text.replace(re.escape("..."), ".*"))
    return re.compile(r"\s*".join(word if word == ".*" else rf"{word}(?!\S)" for word in words))
