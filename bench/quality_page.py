"""The tables of docs/scheduling-quality.md, from `quality.json` and `estimates.json` in `bench/results`.

`python -m bench.quality_page` writes them between their marks; `--check` fails when they differ. A figure is the mean
over the seeds with its 95 % confidence interval (Student's t). Ratios are computed per seed.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.estimates import CASES
from bench.quality import FIGURES, POLICIES
from bench.runner import RESULTS, Row

PAGE = Path(__file__).parents[1] / "docs" / "scheduling-quality.md"
BEGIN, END = "<!-- quality begin -->\n", "<!-- quality end -->\n"
ESTIMATES_BEGIN, ESTIMATES_END = "<!-- estimates begin -->\n", "<!-- estimates end -->\n"
BESIDE = "easy"
"""the policy that the others are compared with"""
COMPARED = ("waitMean", "waitP95", "waitP99", "slowdownMean", "slowdownP95")
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""the 97.5 % quantile for 1 to 30 degrees of freedom; NIST/SEMATECH e-Handbook, table 1.3.6.7.2"""
_T_BEYOND = 1.96


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return (mean, half of the 95 % confidence interval of the mean)."""
    mean = statistics.mean(samples)
    if len(samples) < 2:
        return mean, math.inf
    freedom = len(samples) - 1
    times = _T_975[freedom - 1] if freedom <= len(_T_975) else _T_BEYOND
    return mean, times * statistics.stdev(samples) / math.sqrt(len(samples))


def tables(rows: Mapping[str, Row]) -> str:
    """Return all tables, and the source of the figures."""
    names = list(FIGURES)
    heads = {
        "waitMean": "mean wait (h)",
        "waitP95": "95 % wait (h)",
        "waitP99": "99 % wait (h)",
        "slowdownMean": "mean slowdown",
        "slowdownP95": "95 % slowdown",
        "fairnessUsers": "fairness",
        "utilisation": "utilisation",
        "gpuHoursLost": "GPU-hours lost",
    }
    lines = [
        f"| policy | {' | '.join(heads[name] for name in names)} |",
        f"| --- |{' --- |' * len(names)}",
    ]
    for policy in POLICIES:
        cells = [_figure(name, rows[_id(policy, name)].samples) for name in names]
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Beside `{BESIDE}`, seed by seed (1 is equal, below 1 is better; **bold**: the interval does not contain 1):",
        "",
        f"| policy | {' | '.join(heads[name].removesuffix(' (h)') for name in COMPARED)} |",
        f"| --- |{' --- |' * len(COMPARED)}",
    ]
    for policy in POLICIES:
        if policy != BESIDE:
            cells = [_ratio(rows, policy, name) for name in COMPARED]
            lines.append(f"| {policy} | {' | '.join(cells)} |")
    lines += ["", "| policy | what it is | command |", "| --- | --- | --- |"]
    for policy, (what, _) in POLICIES.items():
        lines.append(f"| {policy} | {what} | `{rows[_id(policy, names[0])].command}` |")
    one = rows[_id(BESIDE, names[0])]
    lines += [
        "",
        f"{one.runs} seeds; measured on {one.date}, commit {one.commit}. The figures do not depend on the machine.",
    ]
    return "\n".join(lines) + "\n"


def estimates(rows: Mapping[str, Row]) -> str:
    """Return the table of estimated starts."""
    lines = [
        "| work | starts in the likely bounds | in the bounds by run limits | likely bounds are apart (median) |",
        "| --- | --- | --- | --- |",
    ]
    measured = [name for name in CASES if f"ESTIMATE-{name}-within" in rows]
    for name in measured:
        within, possible, width = (rows[f"ESTIMATE-{name}-{figure}"] for figure in ("within", "possible", "width"))
        shown = f"{possible.ours:.0f} %" if name == "limits" else "there are none"
        what = CASES[name].what
        lines.append(f"| {what} | {within.ours:.0f} % ({within.note}) | {shown} | {width.ours:.1f} h |")
    lines += ["", "| work | command | measured on | commit |", "| --- | --- | --- | --- |"]
    for name in measured:
        one = rows[f"ESTIMATE-{name}-within"]
        lines.append(f"| {CASES[name].what} | `{one.command}` | {one.date} | {one.commit} |")
    return "\n".join(lines) + "\n"


def _id(policy: str, name: str) -> str:
    return f"QUALITY-{policy}-{name}"


def _figure(name: str, samples: Sequence[float]) -> str:
    mean, half = interval([each / 3600 for each in samples] if name.startswith("wait") else samples)
    digits = 3 if name in ("fairnessUsers", "utilisation") else 2 if mean < 10 else 1 if mean < 100 else 0
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def _ratio(rows: Mapping[str, Row], policy: str, name: str) -> str:
    """Return the geometric mean of the seeds' ratios, with its interval."""
    pairs = zip(rows[_id(policy, name)].samples, rows[_id(BESIDE, name)].samples, strict=True)
    mean, half = interval([math.log(ours / theirs) for ours, theirs in pairs])
    low, high = math.exp(mean - half), math.exp(mean + half)
    text = f"{math.exp(mean):.2f} ({low:.2f} to {high:.2f})"
    return text if low <= 1 <= high else f"**{text}**"


def whole(page: str, rows: Mapping[str, Row]) -> str:
    """Return the page with its tables."""
    for begin, text, end in (
        (BEGIN, tables(rows), END),
        (ESTIMATES_BEGIN, estimates(rows), ESTIMATES_END),
    ):
        before, _, rest = page.partition(begin)
        page = before + begin + text + end + rest.partition(end)[2]
    return page


def stored() -> dict[str, Row]:
    """Return the figures of the last runs."""
    decode = msgspec.json.Decoder(list[Row]).decode
    names = ("quality.json", "estimates.json")
    return {row.id: row for name in names for row in decode((RESULTS / name).read_bytes())}


def main() -> int:
    """Run the command; return 1 when `--check` finds that the page is out of date."""
    page = PAGE.read_text("utf-8")
    wanted = whole(page, stored())
    if "--check" in sys.argv[1:]:
        return int(wanted != page)
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
