"""`python -m bench.page [--check]`: writes the tables of docs/performance.md from bench/results/*.json.

Owns the text between the two marks of that page; the text around it is written by hand. Reads result files only. A goal
without measurements says so. The same files produce the same bytes.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bench.runner import RESULTS, EarlierFigure, Row

PAGE = Path(__file__).parent.parent / "docs/performance.md"
BEGIN, END = "<!-- figures: written by `python -m bench.page` -->", "<!-- figures end -->"
HEAD = (
    "| id | what | ours | peer | ratio | must | moonshot | runs | command |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """One target, and the rows that show it."""

    id: str
    what: str
    starts: tuple[str, ...]
    """the prefixes of the ids of its rows"""


GOALS = (
    Goal(
        id="P1",
        what="planning alone, against kube-scheduler's whole scheduling",
        starts=("P1-W1", "P1-W2", "P1-W3", "P1-W4", "P1-W5"),
    ),
    Goal(id="P2", what="gangs end to end on a real API server, beside kube-scheduler", starts=("P2-",)),
    Goal(id="Jobs", what="small launches, beside Jobs and gang Jobs of Kubernetes", starts=("JOBS",)),
    Goal(id="P3", what="single ranks end to end, beside a bare client's writes", starts=("P3-",)),
    Goal(id="P4", what="Kueue's performance tests", starts=("P4-",)),
    Goal(id="P5", what="preemption", starts=("P5",)),
    Goal(id="P6", what="one round over 320,000 queued", starts=("P6",)),
    Goal(id="P7", what="GPUs allocated on the openb trace", starts=("P7",)),
    Goal(id="P8", what="a job without a place is told so, with the reason", starts=("P8",)),
    Goal(id="P9", what="one launch on an idle system", starts=("P9",)),
    Goal(id="P10", what="POST under load; an event after its transition", starts=("P10",)),
    Goal(id="P11", what="CPU of the services per 1,000 launches", starts=("P11",)),
    Goal(id="P12", what="starts at size", starts=("P12",)),
    Goal(id="P13", what="memory", starts=("P13", "PLAN-memory")),
    Goal(id="P14", what="growth", starts=("P14",)),
    Goal(id="Backfill", what="reservations, beside the same state without them", starts=("BACKFILL",)),
    Goal(id="policies", what="flavors, past use and windows in a tick", starts=("POLICIES",)),
    Goal(id="fair use", what="calls of one user while another one floods the api", starts=("FAIR",)),
    Goal(id="failover", what="another scheduler takes over", starts=("FAILOVER",)),
    Goal(id="output", what="what ranks print is stored, or counted where it is missing", starts=("OUT",)),
    Goal(id="first line", what="from the POST to a container's first line on a real node", starts=("FIRST",)),
    Goal(id="batch", what="many allocations changed in one request", starts=("BATCH",)),
    Goal(id="page", what="the page for people, in a real browser", starts=("PAGE",)),
    Goal(id="libraries", what="parts of our own beside the libraries that do the same", starts=("LIB",)),
    Goal(id="soak", what="memory under load", starts=("SOAK",)),
)
"""the targets, in order; a row of a result file that belongs to none of them is not on the page"""


def read(folder: Path = RESULTS) -> list[Row]:
    """Return every row of every result file, by file."""
    decode = msgspec.json.Decoder(list[Row]).decode
    return [each for path in sorted(folder.glob("*.json")) for each in decode(path.read_bytes())]


def figures(rows: Sequence[Row]) -> str:
    """Return the text between the marks."""
    parts: list[str] = []
    for goal in GOALS:
        found = [each for each in rows if each.id.startswith(goal.starts)]
        parts += [f"### {goal.id}: {goal.what}", ""]
        if found:
            parts += [HEAD, *(_line(each) for each in found), ""]
            parts += [*_measured_on(found), ""]
        else:
            parts += ["Not measured yet.", ""]
    return "\n".join(parts)


def page(before: str, rows: Sequence[Row]) -> str:
    """Return the whole page with new figures. Raises ValueError when a mark is missing."""
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has to have the lines `{BEGIN}` and `{END}`")
    return f"{head}{BEGIN}\n\n{figures(rows)}\n{END}{tail}"


def main() -> int:
    """Run the command; return 1 when `--check` finds that the page is out of date."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, say whether it is up to date")
    options = parser.parse_args()
    before = PAGE.read_text(encoding="utf-8")
    after = page(before, read())
    if options.check:
        return int(before != after)
    PAGE.write_text(after, encoding="utf-8")
    return 0


def _line(each: Row) -> str:
    peer = "" if each.peer is None else f"{each.peer:g} ({each.peer_name})"
    ratio = "" if each.ratio is None else f"{each.ratio:.4g}"
    cells = [each.id, each.work, f"{each.ours:g} {each.unit}", peer, ratio]
    cells += [_bound(each.must, each.meets_must, each), _bound(each.moonshot, each.meets_moonshot, each)]
    cells += [str(each.runs), f"`{each.command}`" if each.command else ""]
    return "| " + " | ".join(_cell(text) for text in cells) + " |"


def _bound(bound: float | None, is_met: bool | None, each: Row) -> str:
    """Return `< 12` and whether it is met; with a peer, the bound applies to the ratio."""
    if bound is None:
        return ""
    sign = "<" if each.better == "lower" else ">"
    return f"{sign} {bound:.3g} {'met' if is_met else '**missed**'}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _measured_on(rows: Iterable[Row]) -> list[str]:
    """Return one line per machine and commit of the rows, followed by their notes."""
    places: dict[str, list[str]] = {}
    for each in rows:
        place = f"{f'{each.date}, ' if each.date else ''}commit {each.commit}, {each.machine}"
        places.setdefault(place, []).append(each.id)
    lines = [
        f"Measured on {place}." if len(places) == 1 else f"{', '.join(ids)}: {place}." for place, ids in places.items()
    ]
    again = [f"{each.id} on other days: {', '.join(map(_earlier, each.before))}." for each in rows if each.before]
    notes = [f"{each.id}: {each.note}" for each in rows if each.note]
    return ["- " + line for line in (*lines, *again, *notes)]


def _earlier(day: EarlierFigure) -> str:
    ratio = "" if day.ratio is None else f", ratio {day.ratio:.4g}"
    return f"{day.date} {day.ours:g}{ratio} ({day.commit})"


if __name__ == "__main__":
    sys.exit(main())
