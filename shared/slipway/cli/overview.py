"""The cluster on one page of text: nodes, queues and one user's work, with as many rows as fit. Pure.

Owns the order of the rows and which rows are left out. Nodes that are not ready come first, then the fullest nodes.
Queues with the most waiting work come first, and the newest work comes first. Each table counts the rows that it leaves
out. Reads the JSON of the REST API; knows no terminal.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from slipway.cli import labels, table
from slipway.cli.gpu_use import GpuUse
from slipway.cli.table import cut
from slipway.model.times import format_duration

Json = dict[str, Any]
Paint = Callable[[str, str], str]

EVERYBODY = "*"
NODE_COLUMNS, ID_COLUMNS, QUEUE_COLUMNS = 24, 32, 24


class ClusterOverview(NamedTuple):
    """The answers of the API at one moment. `has_more`: the user has more work than `work` contains."""

    nodes: list[Json]
    queues: list[Json]
    work: list[Json]
    user: str
    has_more: bool = False
    use: GpuUse = GpuUse({})


class _Section(NamedTuple):
    """One table; `left_out` returns the line about the rows that are not shown."""

    head: tuple[str, ...]
    rows: list[list[str]]
    left_out: Callable[[int], str]
    empty: str


def page(
    look: ClusterOverview, moment: datetime, *, width: int = 0, height: int = 0, paint: Paint | None = None
) -> list[str]:
    """Return at most `height` lines, each cut at `width` columns (0: no limit). `paint(head, cell)` colours a cell.

    A height below 14 lines is treated as 14: the headings, and one row of each table.
    """
    sections = [_nodes(look.nodes, width), _queues(look.queues, width), _work(look, moment, width)]
    rooms = [len(section.rows) for section in sections]
    if height:
        fixed = 1 + 2 * len(sections)
        rooms = _shares([max(1, len(section.rows)) for section in sections], max(2 * len(sections), height - fixed))
    lines = [cut(_totals(look), width) if width else _totals(look)]
    for section, room in zip(sections, rooms, strict=True):
        lines += ["", *_lines(section, room, width, paint)]
    return lines


def _lines(section: _Section, room: int, width: int, paint: Paint | None) -> list[str]:
    if not section.rows:
        return [section.head[0], section.empty]
    is_whole = len(section.rows) <= room
    shown = section.rows if is_whole else section.rows[: room - 1]
    lines = table.render(section.head, shown, width=width, paint=paint).splitlines()
    return lines if is_whole else [*lines, section.left_out(len(shown))]


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Return the number of rows of each table: all its rows, or an equal part of the space that the others leave."""
    shares = [0] * len(wanted)
    for at in sorted(range(len(wanted)), key=lambda each: wanted[each]):
        left = sum(share == 0 for share in shares)
        shares[at] = min(wanted[at], max(1, room // left))
        room -= shares[at]
    return shares


def _totals(look: ClusterOverview) -> str:
    whole, used = (sum(int(node[name]) for node in look.nodes) for name in ("gpus", "gpusUsed"))
    waiting = sum(int(queue["pending"]) for queue in look.queues)
    running = sum(int(queue["live"]) for queue in look.queues)
    idle = sum(int(row["gpus"]) for row in look.use.rows.values() if row["isIdle"])
    held = f" ({idle} of them idle)" if idle else ""
    return f"{used} of {whole} GPUs used{held}, {_count(len(look.nodes), 'node')}, {running} running, {waiting} waiting"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _short(text: str, columns: int, width: int) -> str:
    return cut(text, columns) if width else text


def _nodes(nodes: list[Json], width: int) -> _Section:
    def place(node: Json) -> tuple[bool, int, str]:
        return (labels.node_state(node) == "Ready", -int(node["gpusUsed"]), str(node["name"]))

    ordered = sorted(nodes, key=place)
    rows = [
        [
            _short(str(each["name"]), NODE_COLUMNS, width),
            labels.node_state(each),
            f"{each['gpusUsed']}/{each['gpus']}",
            f"{each['used'].get('cpu', '0')}/{each['allocatable'].get('cpu', '0')}",
            str(len(each["ranks"])),
            _work_of(each),
        ]
        for each in ordered
    ]

    def left_out(shown: int) -> str:
        rest = ordered[shown:]
        used, whole = (sum(int(each[name]) for each in rest) for name in ("gpusUsed", "gpus"))
        return f"… {len(rest)} more, with {used} of {whole} GPUs used"

    return _Section(("NODE", "STATE", "GPUS", "CPU", "RANKS", "WORK (GPUS)"), rows, left_out, "there are no nodes")


def _work_of(node: Json) -> str:
    """Return the allocations on the node with their GPUs, the largest first."""
    gpus: dict[str, int] = {}
    for rank in node["ranks"]:
        gpus[str(rank["id"])] = gpus.get(str(rank["id"]), 0) + int(rank["gpus"])
    ordered = sorted(gpus.items(), key=lambda item: (-item[1], item[0]))
    return " ".join(f"{id_} ({count})" if count else id_ for id_, count in ordered)


def _queues(queues: list[Json], width: int) -> _Section:
    ordered = sorted(queues, key=lambda each: (-int(each["pending"]), -int(each["slotsInUse"]), str(each["name"])))
    rows = [
        [
            _short(str(each["name"]), QUEUE_COLUMNS, width),
            str(each["slotsInUse"]),
            _owned(each),
            str(each["live"]),
            str(each["pending"]),
            str(each["pool"]),
        ]
        for each in ordered
    ]

    def left_out(shown: int) -> str:
        rest = ordered[shown:]
        return f"… {len(rest)} more, in which {sum(int(each['pending']) for each in rest)} wait"

    head = ("QUEUE", "GPUS USED", "GPUS OWNED", "RUNNING", "WAITING", "POOL")
    return _Section(head, rows, left_out, "there are no queues")


def _owned(queue: Json) -> str:
    """Return the nominal quota of GPUs; a dash if the queue has none."""
    nominal: Json = queue["spec"].get("nominal") or {}
    return str(nominal.get(labels.GPU, "-"))


def _note(look: ClusterOverview, view: Json) -> str:
    is_idle = look.use.rows.get(str(view["id"]), {}).get("isIdle", False)
    return f"GPUs idle for {format_duration(look.use.idle_s)}" if is_idle else labels.note_of(view)


def _work(look: ClusterOverview, moment: datetime, width: int) -> _Section:
    is_all = look.user == EVERYBODY
    rows = [
        [
            _short(str(each["id"]), ID_COLUMNS, width),
            *([_short(str(each["user"]), QUEUE_COLUMNS, width)] if is_all else []),
            labels.state_of(each),
            labels.running_of(each),
            f"{labels.gpus_of(each):g}",
            *([look.use.percent(str(each["id"]))] if look.use.rows else []),
            table.age(str(each["createdAt"]), moment),
            _note(look, each),
        ]
        for each in look.work
    ]

    def left_out(shown: int) -> str:
        return f"… {'more than ' if look.has_more else ''}{len(rows) - shown} more"

    title = "WORK OF ALL USERS" if is_all else _short(f"WORK OF {look.user}", ID_COLUMNS, width)
    head = (
        title,
        *(["USER"] if is_all else []),
        "STATE",
        "RANKS",
        "GPUS",
        *(["USE"] if look.use.rows else []),
        "AGE",
        "NOTE",
    )
    return _Section(head, rows, left_out, "nothing runs or waits")
