"""`slipway events` and `slipway logs`: the transitions and the output of allocations; `-f` follows them."""

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

from slipway.cli import labels, main, output, table
from slipway.cli.background import events_of, lines_of
from slipway.cli.follow import is_event, line_text
from slipway.cli.http import ApiResponse
from slipway.cli.table import one_line
from slipway.cli.verb import CliSession, CliVerb, allocation_id, whole_number
from slipway.errors import InvalidError, NotFoundError

Json = dict[str, Any]

PAGE_EVENTS = 500
"""The most events in one answer of the api."""


def configure_events(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `events`."""
    parser.add_argument("id", metavar="ID", nargs="?", type=allocation_id, help="(default: all allocations, with -f)")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until it has ended")
    parser.add_argument("--after", metavar="CURSOR", default="", help="only events after this entry id")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="format of the output")


def events(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the transitions of one allocation, or follow those of all."""
    try:
        return _events(arguments, session)
    except KeyboardInterrupt:
        return main.DETACHED


def _events(arguments: argparse.Namespace, session: CliSession) -> int:
    if arguments.id and not arguments.follow:
        answer = all_events(session, arguments.id, arguments.after)
        if arguments.output == "json":
            output.write(session.terminal, "json", answer)
            return main.OK
        for event in output.items_of(answer):
            session.terminal.line(event_text(event))
        return main.OK
    if arguments.id:
        entries = events_of(session.api, arguments.id, after=arguments.after)
    else:
        entries = session.api.stream("/events", after=arguments.after, is_over=lambda: False)
    for entry in entries:
        if arguments.output == "json":
            session.terminal.line(_compact(entry.data))
        else:
            session.terminal.line(event_text(entry.data, with_id=not arguments.id))
    return main.OK


def all_events(session: CliSession, id_: str, after: str = "") -> ApiResponse:
    """Return the events of all pages; a single page unchanged."""
    items: list[Json] = []
    while True:
        answer = session.api.call("GET", f"/allocations/{id_}/events", query={"after": after})
        page = cast("Json", answer.json())
        following = str(page.get("metadata", {}).get("continue") or "")
        is_last = len(page["items"]) < PAGE_EVENTS or following in ("", after)
        if is_last and not items:
            return answer
        items += page["items"]
        if is_last:
            return answer._replace(body=json.dumps({**page, "items": items}).encode())
        after = following


def event_text(event: Json, *, with_id: bool = False) -> str:
    """Format one event as a line."""
    data = cast("Json", event.get("data") or {})
    kind = str(event.get("type", "")).rpartition(".")[2]
    whose = f"{event.get('subject', '')}  " if with_id else ""
    known = ("seq", "attempt", "phase", "reason", "uid", "createdMs")
    shown = {name: _short(value) for name, value in data.items() if name not in known and value != ""}
    by = f"for {shown.pop('by')} " if "by" in shown else ""
    extra = " ".join(f"{name}={value}" for name, value in shown.items())
    reason = (f"{data['reason']} " if data.get("reason") else "") + by
    text = (
        f"{table.clock_time(str(event.get('time', '')))}  {whose}{data.get('seq', ''):>3}  {kind:<11}  "
        f"{data.get('phase', ''):<11}  {reason}{extra}"
    )
    return one_line(text.rstrip())


def _short(value: Any) -> str:
    """Format a value of an event's data: `node-0:2,node-1:2` for an object."""
    match value:
        case dict():
            return ",".join(f"{name}:{_short(each)}" for name, each in cast("Json", value).items())
        case list():
            return ",".join(_short(each) for each in cast("list[Any]", value))
        case _:
            return str(value)


PAGE_LINES = 10_000
"""The most lines in one answer of the api."""
_LINE_FILTERS = ("rank", "attempt", "container", "stream", "head", "tail", "since", "until", "search")


def configure_logs(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `logs`."""
    parser.add_argument("id", metavar="ID", type=allocation_id)
    parser.add_argument("-f", "--follow", action="store_true", help="follow until it has ended")
    parser.add_argument("--rank", metavar="N", help="only of these ranks: 3, or 0,2, or 4-7")
    parser.add_argument("--attempt", metavar="N", type=whole_number, help="only of this attempt")
    parser.add_argument(
        "--container", metavar="NAME", help="of this init container or sidecar, instead of the main container"
    )
    parser.add_argument("--head", metavar="N", type=whole_number, help="only the first lines")
    parser.add_argument("--tail", metavar="N", type=whole_number, help="only the last lines")
    parser.add_argument("--since", metavar="10m", default="", help="only lines of the last 10m, or since this time")
    parser.add_argument("--until", metavar="1m", default="", help="only lines up to 1m ago, or up to this time")
    parser.add_argument("--search", metavar="TEXT", default="", help="only lines with this text, ignoring case")
    parser.add_argument("-e", "--regex", metavar="RE", default="", help="only lines that match this regular expression")
    parser.add_argument(
        "--stream", choices=("stdout", "event"), help="only the output of ranks, or only the events of their pods"
    )
    parser.add_argument("-r", "--reverse", action="store_true", help="newest first")
    parser.add_argument("-t", "--timestamps", action="store_true", help="show the time of each line")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="format of the output")


def logs(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the output of the ranks."""
    try:
        return _logs(arguments, session)
    except KeyboardInterrupt:
        return main.DETACHED


def _logs(arguments: argparse.Namespace, session: CliSession) -> int:
    view = _viewed(session, arguments.id)
    query = {name: getattr(arguments, name) for name in _LINE_FILTERS}
    if arguments.search and arguments.regex:
        raise InvalidError("logs: --search and --regex: leave one of them out")
    if arguments.follow and (arguments.reverse or arguments.head is not None):
        raise InvalidError("logs: --follow shows lines in their order, without an end: leave out --reverse and --head")
    if arguments.regex:
        query |= {"search": arguments.regex, "regex": "true"}
    if arguments.reverse:
        query["order"] = "desc"
    lines: Iterable[Json]
    if arguments.follow:
        lines = (cast("Json", entry.data) for entry in lines_of(session.api, str(view["id"]), query))
    else:
        lines = _all_lines(session, f"/allocations/{view['id']}/logs", query)
        if arguments.output == "json":
            session.terminal.raw(json.dumps({"items": list(lines)}) + "\n")
            return main.OK
    if view.keys() == {"id"}:
        lines, prefix = _peeked(lines)
    else:
        prefix = labels.rank_count(view) > 1
    prefix = prefix and not str(arguments.rank or "").isdigit()
    is_whole = True
    for line in lines:
        is_whole = is_whole and not line.get("missing")
        if arguments.output == "json":
            session.terminal.line(_compact(line))
            continue
        time = f"{table.clock_time(str(line.get('time', '')))} " if arguments.timestamps else ""
        show = session.terminal.line if is_event(line) else session.terminal.passed_on
        show(time + line_text(session, line, prefix=prefix))
    outside = cast("Json", view.get("links") or {}).get("outsideLogs")
    if outside and not is_whole:
        session.terminal.note(f"some lines are missing here; the cluster stores logs of its own: {outside}")
    return main.OK


def _viewed(session: CliSession, id_: str) -> Json:
    """Return the allocation; only its id when it was deleted and its log is archived."""
    try:
        return cast("Json", session.api.get(f"/allocations/{id_}"))
    except NotFoundError as error:
        try:
            session.api.call("GET", f"/allocations/{id_}/logs", query={"head": 0, "follow": "false"})
        except NotFoundError:
            raise error from None
        return {"id": id_}


def _peeked(lines: Iterable[Json]) -> tuple[Iterable[Json], bool]:
    """Return the same lines, and whether the first page of them comes from several ranks."""
    rest = iter(lines)
    first = list(itertools.islice(rest, PAGE_LINES))
    return itertools.chain(first, rest), len({line.get("rank") for line in first}) > 1


def _all_lines(session: CliSession, path: str, query: Json) -> Iterator[Json]:
    """Yield all pages of lines, or one page when the number of lines is given."""
    is_one_page = query.get("head") is not None or query.get("tail") is not None
    if query.get("order") and not is_one_page:
        newest = output.items_of(session.api.call("GET", path, query=query))
        # No page follows the newest lines, so that a longer log is read from its beginning.
        is_all = len(newest) < PAGE_LINES
        yield from newest if is_all else reversed([*_all_lines(session, path, {**query, "order": ""})])
        return
    cursor = ""
    while True:
        answer = session.api.call("GET", path, query={**query, "after": cursor})
        items = output.items_of(answer)
        yield from items
        following = str(answer.json().get("metadata", {}).get("continue", ""))
        if is_one_page or len(items) < PAGE_LINES or following in ("", cursor):
            return
        cursor = following


def _compact(value: Any) -> str:
    """Format a value as one line of JSON."""
    return json.dumps(value, separators=(",", ":"))


VERBS = {"events": CliVerb(configure_events, events), "logs": CliVerb(configure_logs, logs)}
