"""`slipway ps`, `queue`, `pool`, `nodes`: lists."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from slipway.cli import equivalents, labels, main, output, table
from slipway.cli.follow import AWAY_S
from slipway.cli.http import ApiResponse
from slipway.cli.table import one_line
from slipway.cli.verb import CliSession, CliVerb, optional_name, refuse_names
from slipway.errors import ExpiredError, InvalidError, NotFoundError, TransientError
from slipway.model.times import format_duration

Json = dict[str, Any]
WATCH_S = 1.0
RECENT_S = 3600.0
"""Seconds after its end during which `ps` shows an allocation; `-a` shows all."""


class ListTable(NamedTuple):
    """The table form of a list: its head, and the row of an item."""

    head: tuple[str, ...]
    row: Callable[[Json], list[str]]


def configure_ps(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ps`."""
    parser.add_argument("-a", "--all", action="store_true", help="also allocations that ended long ago")
    parser.add_argument("-w", "--watch", action="store_true", help="keep the list up to date")
    parser.add_argument("-n", "--workspace", help="only of this workspace")
    parser.add_argument("--queue", help="only of this queue")
    parser.add_argument("--owner", help="only of this user")
    parser.add_argument("--phase", help="only in this phase")
    parser.add_argument("--kind", help="only of this kind")
    parser.add_argument("-l", "--selector", help="only with these labels, such as team=vision")
    parser.add_argument("--job", help="only of this job")
    parser.add_argument(
        "--search", metavar="WORDS", help="only with all of these words in the id, the name or the user"
    )
    parser.add_argument(
        "--sort",
        metavar="FIELDS",
        help="sort by these fields, such as name, or --sort=-priority,name (default: the newest last)",
    )
    equivalents.add_option(parser)
    output.add_options(parser)


def ps(arguments: argparse.Namespace, session: CliSession) -> int:
    """List the waiting and running allocations."""
    query = {
        "workspace": arguments.workspace,
        "queue": arguments.queue,
        "user": arguments.owner,
        "phase": arguments.phase,
        "kind": arguments.kind,
        "labelSelector": arguments.selector,
        "job": arguments.job,
        "search": arguments.search,
        "sort": arguments.sort,
    }
    if equivalents.asked(arguments):
        equivalents.show_list(session, arguments, query)
        return main.OK
    if arguments.watch:
        return _watch(arguments, session, query)
    answer = output.listed(session.api, "/allocations", query)
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    views = _chosen(output.items_of(answer), arguments)
    if arguments.quiet or arguments.output == "name":
        for view in views:
            session.terminal.line(str(view["id"]))
        return main.OK
    if not views and any(query.values()):
        asked = {name: value for name, value in query.items() if name != "sort"}
        session.terminal.note(labels.none_of(asked) or "nothing is listed")
        return main.OK
    if not views:
        session.terminal.note("nothing waits and nothing runs; launch something with: slipway run -- python --version")
        return main.OK
    session.terminal.line(_ps_table(views, session, wide=arguments.output == "wide"))
    return main.OK


def _chosen(views: list[Json], arguments: argparse.Namespace) -> list[Json]:
    """Return the allocations to show, the newest last."""
    moment = table.now()

    def is_recent(view: Json) -> bool:
        ended = view.get("endedAt")
        return not ended or (moment - table.moment_of(str(ended))).total_seconds() < RECENT_S

    chosen = [view for view in views if arguments.all or not labels.has_ended(view) or is_recent(view)]
    if arguments.sort:
        return chosen
    return sorted(chosen, key=lambda view: (str(view["createdAt"]), str(view["id"])))


def _ps_table(views: list[Json], session: CliSession, *, wide: bool) -> str:
    moment = table.now()
    head = ["ID", "KIND", "STATE", "RANKS", "QUEUE", "AGE", "NOTE"]
    more = ["USER", "PRIO", "ATTEMPT", "WORKSPACE"] if wide else []
    rows = [
        [
            str(view["id"]),
            str(view["kind"]),
            labels.state_of(view),
            labels.running_of(view),
            str(view["queue"]),
            table.age(str(view["createdAt"]), moment),
            *([str(view["user"]), str(view["priority"]), str(view["attempt"]), str(view["workspace"])] if wide else []),
            labels.note_of(view),
        ]
        for view in views
    ]
    return _colourful([*head[:-1], *more, head[-1]], rows, session, cut=not wide)


def _colourful(head: list[str], rows: list[list[str]], session: CliSession, *, cut: bool = True) -> str:
    terminal = session.terminal
    return table.render(
        head,
        rows,
        width=terminal.width if cut and terminal.out.isatty() else 0,
        paint=lambda name, cell: terminal.state(cell) if name == "STATE" else cell,
    )


def _watch(arguments: argparse.Namespace, session: CliSession, query: Json) -> int:
    """Redraw a table on a terminal; elsewhere print a line for each change."""
    terminal = session.terminal
    seen: dict[str, tuple[str, ...]] = {}
    shown = ""
    away_since: float | None = None
    is_begun = False
    while True:
        try:
            views = _chosen(output.items_of(output.listed(session.api, "/allocations", query)), arguments)
        except (TransientError, ExpiredError) as error:
            # The server may be restarting; a list whose pages are too old is read anew.
            if not is_begun:
                raise
            if away_since is None:
                away_since = time.monotonic()
                terminal.note(f"retrying: {str(error).partition(chr(10))[0]}")
                shown = ""
            if time.monotonic() - away_since >= AWAY_S:
                raise
            time.sleep(WATCH_S)
            continue
        away_since, is_begun = None, True
        if terminal.out.isatty():
            text = _ps_table(views, session, wide=arguments.output == "wide")
            if text != shown:
                terminal.redraw(text)
                shown = text
        for view in [] if terminal.out.isatty() else views:
            row = (str(view["id"]), labels.state_of(view), labels.running_of(view), labels.note_of(view))
            if seen.get(row[0]) != row:
                seen[row[0]] = row
                terminal.line(one_line("  ".join(row).rstrip()))
        time.sleep(WATCH_S)


def configure_named(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pool`."""
    parser.add_argument("word", nargs="?", choices=("ls", "show"), default="ls")
    parser.add_argument("name", nargs="?", type=optional_name, default="", help="show: name of the pool")
    output.add_options(parser, "table", "json", "yaml", "name")


def configure_queue(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `queue`."""
    parser.add_argument("word", nargs="?", choices=("ls", "show", "stats"), default="ls")
    parser.add_argument(
        "name", nargs="?", type=optional_name, default="", help="show: name of the queue; stats: name of its pool"
    )
    output.add_options(parser, "table", "json", "yaml", "name")


def queue(arguments: argparse.Namespace, session: CliSession) -> int:
    """List the queues, show one queue with its waiting allocations, or show statistics of the waiting times."""
    if arguments.word == "stats":
        return _queue_stats(arguments, session)
    if arguments.word == "show" or arguments.name:
        return _queue_show(arguments, session)
    return _list(arguments, session, "/queues", _QUEUES)


def _queue_show(arguments: argparse.Namespace, session: CliSession) -> int:
    answer = session.api.call("GET", f"/queues/{arguments.name or 'default'}")
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    body = cast("Json", answer.json())
    waiting = cast("list[Json]", body["waiting"])
    flavors = cast("list[Json]", body.get("flavors") or [])
    if flavors:
        # A server of an earlier version sends no flavors.
        shares = [[str(each["name"]), _gpus(each["gpusInUse"]), _gpus(each["nominal"])] for each in flavors]
        session.terminal.line(_colourful(["FLAVOR", "GPUS USED", "GPUS OWNED"], shares, session))
        session.terminal.line("")
    for line in (*_promises(body), *_fair_share(body)):
        session.terminal.line(line)
    windows = [(str(body["pool"]), each) for each in cast("list[Json]", body.get("windows") or [])]
    for line in _window_lines(windows, session)[1:]:
        session.terminal.line(line)
    if windows:
        session.terminal.line("")
    if not waiting:
        session.terminal.note("nothing waits in this queue")
        return main.OK
    moment = table.now()
    rows = [
        [
            str(each["position"]),
            str(each["id"]),
            str(each.get("user", "")),
            str(each.get("priority", "")),
            str(each.get("slots", 0)),
            table.age(str(each.get("since", "")), moment),
            f"{each.get('code', '')}: {each.get('message', '')}",
        ]
        for each in waiting
    ]
    head = ["#", "ID", "USER", "PRIO", "GPUS", "AGE", "WHY"]
    session.terminal.line(_colourful(head, rows, session))
    return main.OK


def _promises(view: Json) -> list[str]:
    """Return lines about when the queue's work is not preempted; empty for a server of an earlier version."""
    lines: list[str] = []
    if view.get("minRuntime"):
        lines.append(f"Its work may be evicted for other work only after it has run for {view['minRuntime']}.")
    for limit in cast("list[Json]", view.get("evictionLimits") or []):
        whose = f"queue {limit['of']}" if limit["of"] else f"pool {view['pool']}"
        next_at = f"; one more at {limit['nextAt']}" if limit["nextAt"] else ""
        lines.append(
            f"Evictions of {whose}: {limit['left']} of {limit['burst']} left now, "
            f"{limit['count']} per {limit['per']} over time{next_at}."
        )
    return [*lines, ""] if lines else []


def _fair_share(view: Json) -> list[str]:
    """Return the usage of the queue, its siblings and its users; empty when the pool does not count it."""
    share = cast("Json | None", view.get("fairShare"))
    if not share:
        return []
    lines = [f"Past use (half-life {share['halfLife']}), least use by weight first:"]
    lines += [
        f"  {each['name']}: {each['gpuHours']:g} GPU-h, {each['usedPercent']:g} % of all; "
        f"its weight is {each['weightPercent']:g} %"
        for each in cast("list[Json]", share["queues"])
    ]
    users = ", ".join(f"{each['user']} {each['gpuHours']:g} GPU-h" for each in cast("list[Json]", share["users"]))
    if users:
        goes = "; users with less use go first" if share["userOrder"] == "LeastUsed" else ""
        lines.append(f"Users of {view['name']}: {users}{goes}.")
    return [*lines, ""]


def _gpus(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:g}"


def _queue_stats(arguments: argparse.Namespace, session: CliSession) -> int:
    answer = session.api.call("GET", "/queue-stats", query={"pool": arguments.name})
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    body = cast("Json", answer.json())
    now = cast("list[Json]", body["queues"])
    names = ("pool", "queue", "queued", "scheduled", "running", "slotsQueued", "slotsInUse")
    rows = [[*(str(each[name]) for name in names), format_duration(float(each["oldestS"]))] for each in now]
    head = ["POOL", "QUEUE", "QUEUED", "SCHEDULED", "RUNNING", "GPUS ASKED", "GPUS USED", "OLDEST"]
    session.terminal.line(table.render(head, rows) if rows else "nothing waits and nothing runs")
    days = cast("list[Json]", body["days"])
    if days:
        rows = [
            [
                *(str(each[name]) for name in ("day", "pool", "queue", "admitted")),
                format_duration(float(each["averageQueuedSeconds"])),
            ]
            for each in days
        ]
        session.terminal.line("\n" + table.render(["DAY", "POOL", "QUEUE", "STARTED", "WAITED ON AVERAGE"], rows))
    return main.OK


def pool(arguments: argparse.Namespace, session: CliSession) -> int:
    """List the pools, or show one, with the time windows in which nodes of them are reserved."""
    answer = session.api.call("GET", "/pools")
    if arguments.word == "ls":
        refuse_names("pool ls", arguments.name, instead="slipway pool show")
        code = show(arguments, session, answer, _POOLS)
    else:
        found = _pool_named(answer, arguments.name)
        if output.is_for_machines(arguments):
            output.write(session.terminal, arguments.output, answer._replace(body=json.dumps(found).encode()))
            return main.OK
        answer = answer._replace(body=json.dumps({"items": [found]}).encode())
        code = show(arguments, session, answer, _POOLS)
    if not (output.is_for_machines(arguments) or arguments.quiet or arguments.output == "name"):
        # A server of an earlier version sends no windows.
        pools = output.items_of(answer)
        rows = [(str(each["name"]), cast("list[Json]", each.get("windows") or [])) for each in pools]
        for line in _window_lines([(name, window) for name, windows in rows for window in windows], session):
            session.terminal.line(line)
    return code


def _pool_named(answer: ApiResponse, name: str) -> Json:
    """Return the named pool of a list. Raises InvalidError without a name, NotFoundError for an unknown one."""
    pools = {str(each["name"]): each for each in output.items_of(answer)}
    if not name:
        raise InvalidError(f"pool show: name one pool: {', '.join(pools)}")
    if name not in pools:
        raise NotFoundError(f"there is no pool {name!r}{main.close_to(name, pools)}; `slipway pool` lists them")
    return pools[name]


def _window_lines(windows: list[tuple[str, Json]], session: CliSession) -> list[str]:
    """Return a table of (pool, window), and the notes about doubtful windows."""
    if not windows:
        return []
    rows = [[str(each["name"]), name, _whose(each), _how_much(each), *_when(each)] for name, each in windows]
    head = ["WINDOW", "POOL", "FOR", "NODES", "FROM", "UNTIL", "REPEATS"]
    notes = [
        f"window {each['name']}: {note}" for _, each in windows for note in cast("list[str]", each.get("notes") or [])
    ]
    return ["", _colourful(head, rows, session), *notes]


def _whose(window: Json) -> str:
    queues = cast("list[str]", window["queues"])
    return f"queue {', '.join(queues)}" if queues else "maintenance"


def _how_much(window: Json) -> str:
    matching = window["matching"]
    if window["gpus"] is not None:
        return f"{window['gpus']} GPUs of {matching} nodes"
    return f"{window['nodes']} of {matching}" if window["nodes"] is not None else str(matching)


def _when(window: Json) -> list[str]:
    start = f"{window['start']} (now)" if window["isBegun"] else str(window["start"] or "-")
    zone = f" ({window['timeZone']})" if window["every"] else ""
    return [start, str(window["end"] or "-"), f"{window['every'] or 'once'}{zone}"]


def configure_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nodes`."""
    output.add_options(parser, "table", "json", "yaml", "name")


def nodes(arguments: argparse.Namespace, session: CliSession) -> int:
    """List the nodes."""
    return _list(arguments, session, "/nodes", _NODES)


def _queue_row(item: Json) -> list[str]:
    return [str(item[name]) for name in ("name", "pool", "pending", "live", "slotsInUse")]


def _pool_row(item: Json) -> list[str]:
    whole = cast("Json", item["allocatable"])
    amounts = [labels.gpus_in(whole), *(str(whole.get(name, "0")) for name in ("cpu", "memory"))]
    return [str(item["name"]), str(item["nodes"]), *amounts, str(item["pending"]), str(item["live"])]


def _node_row(item: Json) -> list[str]:
    state = labels.node_state(item)
    used, whole = cast("Json", item["used"]), cast("Json", item["allocatable"])
    gpus = f"{labels.gpus_in(used)}/{labels.gpus_in(whole)}"
    amounts = [gpus, *(f"{used.get(name, '0')}/{whole.get(name, '0')}" for name in ("cpu", "memory"))]
    holders = sorted({str(each["id"]) for each in cast("list[Json]", item["ranks"])})
    return [str(item["name"]), state, *amounts, str(len(item["ranks"])), " ".join(holders)]


_QUEUES = ListTable(("QUEUE", "POOL", "WAITING", "RUNNING", "GPUS USED"), _queue_row)
_POOLS = ListTable(("POOL", "NODES", "GPUS", "CPU", "MEMORY", "WAITING", "RUNNING"), _pool_row)
_NODES = ListTable(("NODE", "STATE", "GPUS", "CPU", "MEMORY", "RANKS", "OF"), _node_row)


def _list(arguments: argparse.Namespace, session: CliSession, path: str, form: ListTable) -> int:
    return show(arguments, session, session.api.call("GET", path), form)


def show(
    arguments: argparse.Namespace, session: CliSession, answer: ApiResponse, form: ListTable, *, empty: str = ""
) -> int:
    """Print a list in the requested form; `empty` is printed instead of a table without rows."""
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    items = output.items_of(answer)
    if arguments.quiet or arguments.output == "name":
        for item in items:
            session.terminal.line(str(item["name"]))
        return main.OK
    if not items and empty:
        session.terminal.note(empty)
        return main.OK
    session.terminal.line(_colourful(list(form.head), [form.row(item) for item in items], session))
    return main.OK


VERBS = {
    "ps": CliVerb(configure_ps, ps),
    "queue": CliVerb(configure_queue, queue),
    "pool": CliVerb(configure_named, pool),
    "nodes": CliVerb(configure_nodes, nodes),
}
