"""`slipway usage`: the usage, summed or with one line per allocation."""

import argparse
from typing import Any, cast

from slipway.cli import labels, main, output, table
from slipway.cli.verb import CliSession, CliVerb
from slipway.errors import InvalidError
from slipway.model.times import format_duration

Json = dict[str, Any]
_FILTERS = ("workspace", "owner", "pool", "queue", "kind")
_FIGURES = ("ENDED", "STARTED", "GPU TIME", "RUNNING", "WAITED")
_GPU_TIME = ("GPU TIME", "OF IT RUNNING")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `usage`."""
    parser.add_argument(
        "--by",
        metavar="WHAT",
        help="user (default), queue, pool, workspace, kind, day, month, gpuType (GPU time by flavor); several with "
        "commas; with --gpu-use: day, month, gpuType, workspace, user, queue",
    )
    parser.add_argument("--raw", action="store_true", help="one line per allocation that is still stored")
    parser.add_argument(
        "--gpu-use",
        action="store_true",
        help="current GPU utilisation by allocation; with --by, --from or --to: the utilisation on those days",
    )
    parser.add_argument(
        "--from", dest="from_", metavar="DAY", help="first day (UTC), such as 2026-01-02 (default: 30 days ago)"
    )
    parser.add_argument("--to", metavar="DAY", help="last day, included (default: today)")
    parser.add_argument("-n", "--workspace", metavar="W", help="only of this workspace")
    parser.add_argument("--owner", metavar="USER", help="only of this user")
    for name in ("pool", "queue", "kind"):
        parser.add_argument(f"--{name}", help=f"only of this {name}")
    parser.add_argument("--csv", action="store_true", help="as CSV")
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml"), default="table", help="format of the output"
    )


def usage(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the usage."""
    if arguments.csv and arguments.output != "table":
        raise InvalidError("--csv and -o: leave one of them out")
    if arguments.gpu_use:
        return _gpu_use(arguments, session)
    query = {"from": arguments.from_, "to": arguments.to}
    query |= {("user" if name == "owner" else name): getattr(arguments, name) for name in _FILTERS}
    if not arguments.raw:
        query["by"] = arguments.by or "user"
    if arguments.csv:
        query["format"] = "csv"
    answer = session.api.call("GET", "/usage/raw" if arguments.raw else "/usage", query=query)
    if arguments.csv:
        session.terminal.raw(answer.body.decode())
        return main.OK
    if arguments.output != "table":
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    body = cast("Json", answer.json())
    items = cast("list[Json]", body["items"])
    if not items:
        none = labels.none_of({name: query.get(name) for name in ("user", "workspace", "pool", "queue", "kind")})
        span = f"from {body['from']} to {body['to']}"
        what, nothing = ("GPUs", "no GPU") if "gpuType" in body.get("by", ()) else ("anything", "nothing")
        session.terminal.note(f"{none} used {what} {span}" if none else f"{nothing} was used {span}")
        return main.OK
    text = (
        _raw_table(items)
        if arguments.raw
        else _table(items, cast("list[str]", body["by"]), cast("Json", body["total"]))
    )
    session.terminal.line(text)
    return main.OK


def _gpu_use(arguments: argparse.Namespace, session: CliSession) -> int:
    for name in ("raw", "csv", "pool", "queue", "kind"):
        if getattr(arguments, name):
            raise InvalidError(f"--gpu-use cannot be combined with --{name}; leave one of them out")
    query = {"workspace": arguments.workspace, "user": arguments.owner}
    is_of_days = bool(arguments.by or arguments.from_ or arguments.to)
    if is_of_days:
        query |= {"by": arguments.by or "day", "from": arguments.from_, "to": arguments.to}
    answer = session.api.call("GET", "/gpu-use/days" if is_of_days else "/gpu-use", query=query)
    if arguments.output != "table":
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    view = cast("Json", answer.json())
    items = cast("list[Json]", view["items"])
    if not view["isConfigured"]:
        raise InvalidError(
            "the api has no Prometheus with figures of the cluster's GPUs: an admin must set SLIPWAY_PROMETHEUS_URL "
            "(api.settings.prometheusUrl of the chart)"
        )
    if not items:
        none = (
            f"no GPU was held from {view['from']} to {view['to']}" if is_of_days else "no running allocation holds GPUs"
        )
        session.terminal.note(none)
        return main.OK
    if is_of_days:
        session.terminal.line(_gpu_days_table(items, cast("list[str]", view["by"]), cast("Json", view["total"])))
        return main.OK
    session.terminal.line(_gpu_use_table(items, float(view["windowSeconds"]), float(view["idleSeconds"])))
    return main.OK


def _gpu_use_table(items: list[Json], window_s: float, idle_s: float) -> str:
    """Return a table with the idle allocations first. Unknown figures are a dash."""
    window, idle = format_duration(window_s), format_duration(idle_s)
    head = ["ID", "USER", "QUEUE", "GPUS", f"MEAN {window}", f"PEAK {idle}", ""]
    moment = table.now()
    rows = [
        [
            *(str(item[name]) for name in ("id", "user", "queue", "gpus")),
            *("-" if item[name] is None else f"{item[name]:.0f} %" for name in ("percent", "peakPercent")),
            f"idle, running for {table.age(str(item['runningSince']), moment)}" if item["isIdle"] else "",
        ]
        for item in items
    ]
    return table.render(head, rows)


def _gpu_days_table(items: list[Json], by: list[str], total: Json) -> str:
    head = [*(name.upper() for name in by), "GPU TIME HELD", "GPU TIME USED", "BUSY"]

    def figures(item: Json) -> list[str]:
        times = [format_duration(round(float(item[name]))) for name in ("heldSeconds", "usedSeconds")]
        return [*times, "-" if item["percent"] is None else f"{item['percent']:.0f} %"]

    rows = [[*(str(item["by"][name]) or "-" for name in by), *figures(item)] for item in items]
    if len(rows) > 1:
        rows.append(["total", *([""] * (len(by) - 1)), *figures(total)])
    return table.render(head, rows)


def _table(items: list[Json], by: list[str], total: Json) -> str:
    # By GPU type only the GPU time is known: the totals do not have the other figures by type.
    figures, names = (_gpu_time, _GPU_TIME) if "gpuType" in by else (_figures, _FIGURES)
    rows = [[*(str(item["by"][name]) or "-" for name in by), *figures(item)] for item in items]
    if len(rows) > 1:
        rows.append(["total", *([""] * (len(by) - 1)), *figures(total)])
    return table.render([*(name.upper() for name in by), *names], rows)


def _gpu_time(item: Json) -> list[str]:
    running = cast("Json", item["slotSecondsByPhase"]).get("Running", 0.0)
    return [format_duration(float(seconds)) for seconds in (item["slotSeconds"], running)]


def _figures(item: Json) -> list[str]:
    times = [format_duration(float(item[name])) for name in ("slotSeconds", "runningSeconds", "waitedSeconds")]
    return [str(item["ended"]), str(item["admitted"]), *times]


def _raw_table(items: list[Json]) -> str:
    head = ["ID", "USER", "QUEUE", "KIND", "STATE", "GPU TIME", "RUNNING", "WAITED"]
    rows = [
        [
            *(str(item[name]) for name in ("id", "user", "queue", "kind")),
            str(item["result"] or item["phase"]),
            *(format_duration(float(item[name])) for name in ("slotSeconds", "runningSeconds", "waitedSeconds")),
        ]
        for item in items
    ]
    return table.render(head, rows)


VERBS = {"usage": CliVerb(configure, usage)}
