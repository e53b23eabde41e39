"""`slipway get`, `describe`, `explain`, `timeline`, `trace`: several views of one allocation."""

import argparse
from typing import Any, cast

from slipway.cli import equivalents, labels, main, output, table, waterfall
from slipway.cli.gpu_use import read_gpu_use
from slipway.cli.terminal import STATE_COLOURS
from slipway.cli.verb import CliSession, CliVerb, allocation_id
from slipway.cli.verbs.streams import all_events, event_text
from slipway.crd.meta import API_GROUP
from slipway.model.times import format_duration

Json = dict[str, Any]
AWAITED_SHOWN_MAX = 4
BAR = 40


def configure_get(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `get`."""
    parser.add_argument("id", metavar="ID", type=allocation_id)
    equivalents.add_option(parser)
    output.add_options(parser, "json", "yaml", "name")


def get(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the allocation as the API returns it."""
    if equivalents.asked(arguments):
        equivalents.show_get(session, arguments)
        return main.OK
    answer = session.api.call("GET", f"/allocations/{arguments.id}")
    if arguments.quiet or arguments.output == "name":
        session.terminal.line(str(answer.json()["id"]))
    else:
        output.write(session.terminal, arguments.output, answer)
    return main.OK


def configure_view(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the other verbs."""
    parser.add_argument("id", metavar="ID", type=allocation_id)
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "yaml"), default="table", help="format of the output"
    )


def describe(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print all facts about one allocation, for people."""
    answer = session.api.call("GET", f"/allocations/{arguments.id}")
    if arguments.output != "table":
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    view = cast("Json", answer.json())
    terminal, moment = session.terminal, table.now()
    facts = _facts(view, session, moment)
    if not labels.has_ended(view):
        why = cast("Json", session.api.get(f"/allocations/{view['id']}/explain"))
        if view["phase"] == "Terminating":
            facts.append(("Stopping", str(why["message"])))
        if view["phase"] == "Running" and labels.gpus_of(view):
            facts.append(("GPU use", read_gpu_use(session.api, id=str(view["id"])).text(str(view["id"]))))
        facts += [("Deadline", deadline_text(each)) for each in cast("list[Json]", why.get("deadlines") or [])]
    colour = STATE_COLOURS.get(labels.state_of(view), "")
    terminal.line(
        table.pairs(
            facts,
            width=terminal.text_width,
            paint=lambda name, line: terminal.paint(line, colour, to_err=False) if name == "State" else line,
        )
    )
    pods = cast("list[Json]", session.api.get(f"/allocations/{view['id']}/pods")["items"])
    if pods:
        head = ["RANK", "STATE", "NODE", "IP", "EXIT", "POD"]
        rows = [_pod_row(view, pod) for pod in sorted(pods, key=lambda pod: (pod["attempt"], pod["rank"]))]
        terminal.line("\n" + table.render(head, rows))
    elif labels.ranks_of(view):
        terminal.line("\n" + table.render(["RANK", "STATE", "NODE", "EXIT", "REASON"], _rank_rows(view)))
    events = output.items_of(all_events(session, str(view["id"])))
    terminal.line("\nEvents (UTC)")
    for event in events:
        terminal.line(table.wrapped(f"  {event_text(event)}", terminal.text_width))
    return main.OK


def _facts(view: Json, session: CliSession, moment: Any) -> list[tuple[str, str]]:
    spec = cast("Json", view["spec"])
    command, image = _program(spec)
    state = labels.state_of(view)
    ended = labels.has_ended(view)
    return [
        ("ID", str(view["id"])),
        ("Kind", str(view["kind"])),
        ("State", state + (f" (attempt {view['attempt']})" if view["attempt"] > 1 else "")),
        ("Why", labels.waits_for(view) or labels.blocked_by(view) or (labels.summary_of(view) if ended else "")),
        ("Queue", f"{view['queue']} in pool {view['pool']}, priority {view['priority']}"),
        ("After", _awaited(view)),
        ("Workspace", str(view["workspace"])),
        ("User", str(view.get("user") or "")),
        ("Ranks", f"{labels.running_of(view)}{'' if ended else ' running'}"),
        ("GPU type", _flavor(view)),
        ("Image", image),
        ("Setup", str(spec.get("setup") or "").strip()),
        ("Command", command),
        ("Created", f"{view['createdAt']} ({table.age(str(view['createdAt']), moment)} ago)"),
        ("Started", str(view.get("startedAt") or "")),
        ("Ended", str(view.get("endedAt") or "")),
        ("Preempted", _preempted(view)),
        ("Page", "" if ended or not spec.get("ports") else f"{session.api.server.url}{view['links']['proxy']}"),
        ("Service", "" if ended else str(cast("Json", view["links"]).get("service") or "")),
        ("Logs", str(cast("Json", view["links"]).get("outsideLogs") or "")),
        *((str(link["title"]), str(link["url"])) for link in cast("list[Json]", view["links"].get("outside") or [])),
        ("Labels", _labels(view)),
    ]


def _flavor(view: Json) -> str:
    """Return the flavor of the GPUs that the allocation has or had last; empty when its pool has no flavors."""
    admission = cast("Json", view.get("status") or {}).get("admission")
    return str(cast("Json", admission or {}).get("flavor") or "")


def _labels(view: Json) -> str:
    """Return the user's labels; the labels that Slipway sets are shown by `get`."""
    given = cast("Json", view.get("labels") or {})
    return ", ".join(f"{name}={value}" for name, value in given.items() if not name.startswith(f"{API_GROUP}/"))


def _awaited(view: Json) -> str:
    """Return how the awaited allocations must end, and how they ended."""
    awaited = cast("list[Json]", cast("Json", view.get("spec") or {}).get("after") or [])
    known = cast("list[Json]", cast("Json", view.get("status") or {}).get("dependencies") or [])
    records = {str(each["allocation"]): each for each in known}
    shown: list[str] = []
    for each in awaited[:AWAITED_SHOWN_MAX]:
        record = records.get(str(each["allocation"]), {})
        gone = "deleted" if record.get("recordedAt") else "not yet"
        shown.append(f"{each['allocation']} {each['when']} ({each.get('result') or record.get('result') or gone})")
    more = len(awaited) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _preempted(view: Json) -> str:
    """Return how often the allocation was preempted recently, and for which allocation last."""
    told = cast("list[Json]", cast("Json", view.get("status") or {}).get("preemptions") or [])
    if not told:
        return ""
    times = "once" if len(told) == 1 else f"{len(told)} times"
    return f"{times}, last for {told[-1]['by']} at {told[-1]['at']}"


def _program(spec: Json) -> tuple[str, str]:
    """Return (command, image) of the main container."""
    import shlex

    pod = cast("Json", cast("Json", spec.get("template") or {}).get("spec") or {})
    containers = cast("list[Json]", pod.get("containers") or [{}])
    main_one = next((each for each in containers if each.get("name") == "main"), containers[0])
    # In a pod template `$$` is an escaped `$`.
    words_ = [str(word).replace("$$", "$") for word in (*main_one.get("command", []), *main_one.get("args", []))]
    return table.cut(shlex.join(words_), 100), str(main_one.get("image", ""))


def _pod_row(view: Json, pod: Json) -> list[str]:
    code = pod.get("exitCode")
    return [
        str(pod["rank"]),
        str(pod.get("reason") or pod.get("state") or pod["phase"]),
        str(pod.get("node") or "-"),
        str(pod.get("ip") or "-"),
        "" if code is None else str(code),
        str(pod["name"]),
    ]


def _rank_rows(view: Json) -> list[list[str]]:
    return [
        [
            str(number),
            str(rank.get("phase", "")),
            str(rank.get("node", "-")),
            str(rank.get("exitCode", "")),
            str(rank.get("reason", "")),
        ]
        for number, rank in enumerate(labels.ranks_of(view))
    ]


def explain(arguments: argparse.Namespace, session: CliSession) -> int:
    """Explain the state of the allocation."""
    answer = session.api.call("GET", f"/allocations/{arguments.id}/explain", query={"foresee": "true"})
    if arguments.output != "table":
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    terminal = session.terminal
    terminal.line(explain_text(cast("Json", answer.json()), width=terminal.text_width))
    return main.OK


def explain_text(why: Json, *, width: int = 0) -> str:
    """Return an explanation for people, its sentences wrapped at `width` columns (0: one line each, for programs)."""
    code = f"{why['code']}: " if why.get("code") else ""
    lines = [f"{why['id']}  {why.get('result') or why['phase']}", f"  {code}{why['message']}"]
    if why.get("position"):
        lines.append(f"  position {why['position']} in queue {why['queue']} of pool {why['pool']}")
    if why.get("fairShare"):
        lines.append(f"  {why['fairShare']}")
    ahead = cast("list[str]", why.get("jobsAhead") or [])
    if ahead:
        lines.append(f"  ahead: {', '.join(ahead)}")
    lines += [f"  {line}" for line in _holders_text(why)]
    foreseen = cast("Json", why.get("foreseen") or {})
    lines += [f"  {line}" for line in forecast_text(foreseen)]
    for change in cast("list[Json]", [] if foreseen.get("helps") else why.get("change") or []):
        until = f" (until {change['until']})" if change.get("until") else ""
        lines.append(f"  what helps: {change['detail']}{until}")
    for each in cast("list[Json]", why.get("deadlines") or []):
        lines += [f"  {deadline_text(each)}", f"    {each['detail']}"]
    return "\n".join(table.wrapped(line, width) for line in lines)


def _holders_text(why: Json) -> list[str]:
    """Return the allocations that hold the missing resources, the largest first."""
    lines: list[str] = []
    for each in cast("list[Json]", why.get("holders") or []):
        gpus = {0: "", 1: ": 1 GPU"}.get(int(each["slots"]), f": {each['slots']} GPUs")
        lines.append(f"held by {each['id']} of {each['user']}{gpus} since {each['since']}")
    more = why.get("othersHolding") or 0
    if more:
        lines.append(f"held by {more} {'others' if more > 1 else 'other'}{' too' if lines else ''}")
    return lines


def forecast_text(foreseen: Json) -> list[str]:
    """Return the planner's forecast for a waiting allocation: the GPUs ahead, what helps, the start."""
    if not foreseen:
        return []
    lines = [f"GPUs ahead: {foreseen['aheadSlots']}"] if foreseen.get("aheadSlots") else []
    helps = cast("list[str]", foreseen.get("helps") or [])
    lines += [f"smallest change: {' and '.join(helps)}"] if helps else []
    bounds = cast("Json", foreseen["estimatedStart"])
    lines += _likely_text(bounds)
    if bounds.get("latest"):
        lines.append(f"estimated start: by {bounds['latest']} at the latest")
    elif bounds.get("earliest"):
        lines.append("estimated start: unknown, since something that it waits for has no run limit")
    return lines


def _likely_text(bounds: Json) -> list[str]:
    """Return when the allocation is likely to start, or why that is unknown."""
    likely = cast("Json", bounds.get("likely") or {})
    if not likely:
        return [f"likely start: unknown, {bounds['likelyUnknown']}"] if bounds.get("likelyUnknown") else []
    first, last = (_moment_text(str(likely.get(name) or "")) for name in ("earliest", "latest"))
    return [f"likely start: between {first} and {last}" if last else f"likely start: {first} or later"]


def _moment_text(at: str) -> str:
    """Return `14:05 UTC` for today, `2026-12-01 14:05 UTC` for another day; empty for an empty text."""
    if not at:
        return ""
    moment = table.moment_of(at)
    form = "%H:%M UTC" if moment.date() == table.now().date() else "%Y-%m-%d %H:%M UTC"
    return moment.strftime(form)


def deadline_text(deadline: Json) -> str:
    """Return the text about a limit that will end the allocation, and when."""
    name, at = str(deadline["name"]), str(deadline.get("at") or "")
    if not at:
        return f"{name}: no end expected"
    left_s = round((table.moment_of(at) - table.now()).total_seconds())
    ahead = f"in {format_duration(float(left_s))}" if left_s > 0 else "now"
    return f"{name}: ends at {table.clock_time(at)[:8]} UTC, {ahead}"


def timeline(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print how long the allocation was in each phase."""
    answer = session.api.call("GET", f"/allocations/{arguments.id}/timeline")
    if arguments.output != "table":
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    session.terminal.line(timeline_text(cast("Json", answer.json())))
    return main.OK


def timeline_text(body: Json) -> str:
    """Return one bar per span of a phase."""
    spans = cast("list[Json]", body["spans"])
    longest = max((float(span["seconds"]) for span in spans), default=0.0)
    rows: list[list[str]] = []
    for span in spans:
        seconds = float(span["seconds"])
        bar = "█" * max(1, round(BAR * seconds / longest)) if longest else ""
        open_end = "…" if not span.get("to") else ""
        start = table.clock_time(str(span["from"]))
        rows.append([start, str(span["attempt"]), str(span["phase"]), format_duration(seconds), bar + open_end])
    text = table.render(["FROM (UTC)", "ATTEMPT", "PHASE", "TIME", ""], rows)
    return f"{text}\ntotal {format_duration(float(body['totalSeconds']))}"


def trace(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the trace of the allocation as a waterfall."""
    answer = session.api.call("GET", f"/allocations/{arguments.id}/trace")
    if arguments.output != "table":
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    text = waterfall.render(waterfall.spans_of(answer.json()), width=session.terminal.width)
    session.terminal.line(text or "no spans yet; they are stored only while Redis is available")
    return main.OK


VERBS = {
    "get": CliVerb(configure_get, get),
    "describe": CliVerb(configure_view, describe),
    "explain": CliVerb(configure_view, explain),
    "timeline": CliVerb(configure_view, timeline),
    "trace": CliVerb(configure_view, trace),
}
