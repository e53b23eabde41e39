"""`slipway history`: ended allocations, newest first; or the state of all allocations at a past moment."""

import argparse
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from slipway.cli import labels, main, output, table
from slipway.cli.http import Query
from slipway.cli.verb import CliSession, CliVerb, whole_number
from slipway.errors import InvalidError
from slipway.model.times import format_duration, parse_duration

Json = dict[str, Any]
LIMIT = 50
_AGO = re.compile(r"-?((\d+(\.\d+)?)(ms|s|m|h|d))+")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `history`."""
    parser.add_argument(
        "--at", metavar="TIME", help="2026-01-02T03:04:05Z, or how long ago: 10m, 2h (write --at=-2h or --at 2h)"
    )
    parser.add_argument("--since", metavar="TIME", help="only allocations that ended after this time; or how long ago")
    parser.add_argument("-n", "--workspace", metavar="W", help="only of this workspace")
    parser.add_argument("--queue", help="only of this queue")
    parser.add_argument("--owner", metavar="USER", help="only of this user (not with --at)")
    parser.add_argument("--limit", type=whole_number, metavar="N", help=f"number of allocations (default {LIMIT})")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write all ended allocations as a workload trace (CSV), and next to it the mapping, for slipway simulate "
        "--trace",
    )
    output.add_options(parser, "table", "json", "yaml", "name")


def history(arguments: argparse.Namespace, session: CliSession) -> int:
    """Show the past allocations."""
    if arguments.trace:
        return _trace(arguments, session)
    return _at(arguments, session) if arguments.at else _ended(arguments, session)


def _trace(arguments: argparse.Namespace, session: CliSession) -> int:
    """Write all ended allocations to files, as a workload trace."""
    # Most commands write no trace, and need not wait for this import.
    from slipway.cli import workload_trace

    if arguments.output != "table":
        raise InvalidError("-o: not together with --trace; leave one of them out")
    for name in ("at", "limit", "quiet"):
        if getattr(arguments, name):
            raise InvalidError(f"--{name}: not together with --trace; leave one of them out")
    answer = output.listed(session.api, "/allocations", {**_wanted(arguments), "fields": workload_trace.FIELDS})
    items = output.items_of(answer)
    mapping = workload_trace.mapping_path(arguments.trace)
    for path, text in (
        (Path(arguments.trace), workload_trace.trace_text(items)),
        (mapping, workload_trace.mapping_text(arguments.trace)),
    ):
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as exc:
            raise InvalidError(f"--trace: {path} cannot be written: {exc.strerror or exc}") from exc
    session.terminal.note(f"{len(items)} allocations are in {arguments.trace}; {mapping} says what its columns mean")
    return main.OK


def _wanted(arguments: argparse.Namespace) -> Query:
    return {
        "phase": "Terminated",
        "sort": "-endedAt,name",
        "workspace": arguments.workspace,
        "queue": arguments.queue,
        "user": arguments.owner,
        "endedAfter": moment_of(arguments.since, "--since") if arguments.since else None,
    }


def _ended(arguments: argparse.Namespace, session: CliSession) -> int:
    limit = LIMIT if arguments.limit is None else arguments.limit
    if not 1 <= limit <= 500:
        raise InvalidError("--limit: from 1 to 500")
    query = {**_wanted(arguments), "limit": limit}
    answer = session.api.call("GET", "/allocations", query=query)
    items = output.items_of(answer)
    if _is_plain(arguments, session, answer, items):
        return main.OK
    if not items:
        asked = {"user": arguments.owner, "workspace": arguments.workspace, "queue": arguments.queue}
        since = f" since {arguments.since}" if arguments.since else ""
        none = labels.none_of(asked) or ("no workload" if since else "")
        session.terminal.note(
            f"{none} has ended{since} and is still stored" if none else "no ended allocation is still stored"
        )
        return main.OK
    now = table.now()
    rows = [
        [
            str(each["id"]),
            str(each["kind"]),
            labels.state_of(each),
            str(each["user"]),
            table.age(str(each["endedAt"] or ""), now),
            _ran(each),
            labels.note_of(each),
        ]
        for each in items
    ]
    session.terminal.line(table.render(["ID", "KIND", "RESULT", "USER", "ENDED", "RAN", "NOTE"], rows))
    return main.OK


def _at(arguments: argparse.Namespace, session: CliSession) -> int:
    for name in ("owner", "since", "limit"):
        if getattr(arguments, name) is not None:
            raise InvalidError(f"--{name}: has no effect with --at; leave one of them out")
    query = {"at": moment_of(arguments.at, "--at"), "workspace": arguments.workspace, "queue": arguments.queue}
    answer = session.api.call("GET", "/history", query=query)
    body = cast("Json", answer.json())
    items = cast("list[Json]", body["items"])
    if _is_plain(arguments, session, answer, items):
        return main.OK
    counts = ", ".join(f"{count} {phase}" for phase, count in cast("Json", body["counts"]).items())
    session.terminal.note(f"at {body['at']}: {counts or 'no allocations'}")
    if items:
        rows = [
            [
                *(str(each[name]) for name in ("id", "kind", "phase")),
                str(each["attempt"]),
                str(each["queue"]),
                str(each["user"]),
                str(each["since"]),
                " ".join(cast("list[str]", each["nodes"])),
            ]
            for each in items
        ]
        head = ["ID", "KIND", "PHASE", "ATTEMPT", "QUEUE", "USER", "SINCE", "NODES"]
        session.terminal.line(table.render(head, rows))
    for each in cast("list[str]", body["lossy"]):
        session.terminal.note(f"note: {each}")
    return main.OK


def _is_plain(arguments: argparse.Namespace, session: CliSession, answer: Any, items: list[Json]) -> bool:
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return True
    if arguments.quiet or arguments.output == "name":
        for each in items:
            session.terminal.line(str(each["id"]))
        return True
    return False


def _ran(view: Json) -> str:
    started, ended = view.get("startedAt"), view.get("endedAt")
    if not (started and ended):
        return "-"
    return format_duration((table.moment_of(str(ended)) - table.moment_of(str(started))).total_seconds())


def moment_of(text: str, option: str) -> str:
    """Return a time in RFC 3339, from such a time or from an age such as `2h`."""
    if _AGO.fullmatch(text):
        ago = timedelta(seconds=parse_duration(text.removeprefix("-")))
        return (table.now() - ago).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    try:
        moment = table.moment_of(text)
    except ValueError as error:
        raise InvalidError(
            f"{option}: {text!r} is not a time; write 2026-01-02T03:04:05Z, or 2h for two hours ago"
        ) from error
    if moment.tzinfo is None:
        raise InvalidError(f"{option}: add the time zone: {text}Z is UTC")
    return text


VERBS = {"history": CliVerb(configure, history)}
