"""The report of a bad run: where the evidence is, and its important lines.

The machine of a check is gone when its output is read, so the output must contain these lines. Owns the choice of
lines, and keeps them few. Reads logs; must not judge.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

LAST = 12
"""the most lines about one subject, and of one log"""
SUBJECTS_MAX = 5
CHARS_MAX = 400
_LEVELS = ('"level":"error"', '"level":"critical"')
_TRACEBACK = "Traceback (most recent call last)"
"""at the beginning of a line: an uncaught error"""
_STORIES = (
    "outcome.json", "history.jsonl", "answers.jsonl", "containers.jsonl", "starts.jsonl", "requests.jsonl",
    "appended.jsonl", "streams.json", "logs.jsonl", "printed.jsonl",
)  # fmt: skip


def lines(folder: Path, logs: Sequence[Path], subjects: Iterable[str]) -> Iterator[str]:
    """The paths of the evidence, then for each subject the last log lines, then for each log the most important
    ones."""
    found = {path: _read(path) for path in sorted(logs)}
    yield f"the evidence is in {folder}: {', '.join(name for name in _STORIES if (folder / name).exists())}"
    yield f"logs: {' '.join(str(path.relative_to(folder)) for path in found)}"
    for subject in list(dict.fromkeys(each for each in subjects if each))[:SUBJECTS_MAX]:
        told = sorted((line, path.name) for path, log in found.items() for line in log if subject in line)
        if told:
            yield f"--- {subject}, the last {min(LAST, len(told))} of {len(told)} lines about it"
            yield from (f"{name}: {line[:CHARS_MAX]}" for line, name in told[-LAST:])
    for path, log in found.items():
        weighty = [number for number, line in enumerate(log) if _is_weighty(line)]
        shown = _around(log, weighty) if weighty else log[-2:]
        yield f"--- {path.relative_to(folder)}, {len(log)} lines, {len(weighty)} of them errors"
        yield from (line[:CHARS_MAX] for line in shown)


def _around(log: Sequence[str], places: Sequence[int]) -> Sequence[str]:
    """The lines from the last match on, or around as many matches as fit."""
    if log[places[-1]].startswith(_TRACEBACK):
        return log[places[-1] :][:LAST]
    return [log[place] for place in places[-LAST:]]


def _is_weighty(line: str) -> bool:
    return line.startswith(_TRACEBACK) or any(word in line for word in _LEVELS)


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
