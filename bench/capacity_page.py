"""The capacity tables of docs/operating.md, from the figures in `bench/results/capacity.json`.

`python -m bench.capacity_page` writes them between their marks; `--check` fails when they differ. Only a thousand is
measured. All other figures in the tables are multiples of it, as the page says.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from bench.runner import RESULTS, Row

PAGE = Path(__file__).parents[1] / "docs" / "operating.md"
BEGIN, END = "<!-- capacity begin -->\n", "<!-- capacity end -->\n"
SERVICES = ("api", "scheduler", "podworker", "watcher")
SIZES = ((100, 1_000), (1_000, 10_000), (10_000, 50_000))
"""(live, ended and kept)"""


def tables(rows: Mapping[str, Row]) -> str:
    """Return both tables and the source of the figures."""

    def of(name: str) -> float:
        return rows[f"CAP-{name}"].ours

    lines = [
        "| a thousand single-rank allocations take | live | ended and kept |",
        "| --- | --- | --- |",
        f"| objects (etcd) | {_mb(of('live-objects'))} | {_mb(of('ended-objects'))} |",
        f"| Redis | {_mb(of('live-redis'))} | {_mb(of('ended-redis'))} |",
    ]
    for name in SERVICES:
        live, ended = of(f"live-rss-{name}"), max(0.0, of(f"ended-rss-{name}"))
        lines.append(f"| memory of {name}, {of(f'rss-{name}'):.0f} MiB without | +{live:.0f} MiB | +{ended:.0f} MiB |")
    launch_s = sum(of(f"cpu-{name}") for name in SERVICES)
    parts = ", ".join(f"{name} {of(f'cpu-{name}'):.1f}" for name in SERVICES)
    lines += [
        "",
        f"A thousand launches cost the four services {launch_s:.1f} CPU seconds ({parts}) and "
        f"{of('calls'):,.0f} calls of the Kubernetes API; their kills and ends {of('cpu-ends'):.1f} CPU seconds more. "
        f"At rest beside a thousand ended ones they took {of('cpu-idle') * 100:.1f} % of one core together.",
        "",
        "| for so many live, and ended and kept | etcd | Redis | memory of a watcher | CPU of all, at so many/s |",
        "| --- | --- | --- | --- | --- |",
    ]
    ended_rss = max(0.0, of("ended-rss-watcher"))
    whole_s = (launch_s + of("cpu-ends")) / 1_000
    for live, ended in SIZES:
        thousands = (live / 1_000, ended / 1_000)
        objects = of("live-objects") * thousands[0] + of("ended-objects") * thousands[1]
        redis = of("live-redis") * thousands[0] + of("ended-redis") * thousands[1]
        memory = of("rss-watcher") + of("live-rss-watcher") * thousands[0] + ended_rss * thousands[1]
        rate = live / 100
        lines.append(
            f"| {live:,} and {ended:,} | {_mb(objects)} | {_mb(redis)} | {memory:,.0f} MiB | "
            f"{whole_s * rate:.2f} cores at {rate:g}/s |"
        )
    one = rows["CAP-live-objects"]
    said = one.note.partition("beside it: ")[2]
    lines += [
        "",
        f"Measured: a thousand, by `{one.command}`, commit {one.commit}, {one.machine}"
        f"{f', beside {said}' if said else ''}. The last table is these figures times a "
        "number, not measured. Resident memory falls little when work ends, and the next work uses it again: what "
        "ended work takes of it is what a second and a third thousand added after the first had ended.",
    ]
    return "\n".join(lines) + "\n"


def whole(page: str, rows: Mapping[str, Row]) -> str:
    """Return the page with its tables."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + tables(rows) + END + rest.partition(END)[2]


def stored() -> dict[str, Row]:
    """Return the figures of the last run."""
    found = msgspec.json.decode((RESULTS / "capacity.json").read_bytes(), type=list[Row])
    return {row.id: row for row in found}


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:.1f} MB"


def main() -> int:
    """Write the page; with `--check` return 1 when the page is out of date."""
    page = PAGE.read_text("utf-8")
    fresh = whole(page, stored())
    if "--check" in sys.argv:
        return int(fresh != page)
    PAGE.write_text(fresh, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
