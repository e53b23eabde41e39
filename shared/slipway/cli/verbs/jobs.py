"""`slipway job` and `slipway move`: the order of waiting allocations, and the limits of groups of allocations.

A job groups the allocations that are launched with `--job`. A refusal names the allocations that prevent the change.
"""

import argparse
from typing import Any, cast

from slipway.cli import batch, equivalents, labels, main, output, selection, table
from slipway.cli.http import ApiResponse
from slipway.cli.verb import CliSession, CliVerb, command_line, object_name, refuse_names
from slipway.cli.verbs import listing
from slipway.errors import InvalidError
from slipway.model.numbers import number_in
from slipway.model.state_words import JobState
from slipway.sdk import contexts

Json = dict[str, Any]
_WORDS = ("ls", "show", "create", "update", "update-batch", "move", "kill", "rm")
_FIELDS = {"priority": "priority", "weight": "weight", "max-slots": "maxSlots", "queue": "queue"}
"""{field in update-batch: field of the API}."""
_NUMBERS = ("priority", "weight", "maxSlots")
_USAGE = """\
slipway job ls                              list jobs, in their order
slipway job show NAME                       a job, its members and places
slipway job create NAME --max-slots 4       create it; then run --job NAME
slipway job update NAME --priority 70       set priority, weight, queue...
slipway job update-batch a.priority=70 b.max-slots=none
slipway job move NAME --ahead-of OTHER      or --behind; also an AllocationID
slipway job kill NAME                       end all its allocations
slipway job rm NAME                         remove it when no allocation uses it"""


def configure_job(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `job`."""
    parser.epilog = _USAGE
    parser.add_argument("word", nargs="?", choices=_WORDS, default="ls", metavar="WORD", help=", ".join(_WORDS))
    parser.add_argument(
        "names", nargs="*", metavar="NAME", type=object_name, help="update-batch: NAME.priority=70 and the like"
    )
    parser.add_argument("-n", "--workspace", metavar="W", help="(default: what `slipway config` shows; ls: all)")
    parser.add_argument(
        "--queue", metavar="Q", help="ls: only jobs with work in this queue; update: move waiting work to this queue"
    )
    parser.add_argument("--state", help=f"ls: only {', '.join(JobState)}")
    parser.add_argument("--priority", metavar="0..1000", help="higher goes first; none: no priority of its own")
    parser.add_argument("--weight", metavar="N", help="at equal priority the heavier job goes first")
    parser.add_argument("--max-slots", metavar="N", help="GPUs that its work may hold together; none: no limit")
    _configure_beside(parser)
    output.add_options(parser, "table", "json", "yaml", "name")


def configure_move(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `move`."""
    selection.add_options(parser)
    _configure_beside(parser)
    equivalents.add_option(parser)


def _configure_beside(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ahead-of", metavar="OTHER", help="a job, workspace/job, or the id of an allocation")
    parser.add_argument("--behind", metavar="OTHER", help="as --ahead-of, but behind it")
    parser.add_argument("--no-interrupt", action="store_true", help="running work continues with its old priority")


def job(arguments: argparse.Namespace, session: CliSession) -> int:
    """List, show or change jobs."""
    match arguments.word:
        case "ls":
            refuse_names("job ls", arguments.names, instead="slipway job show")
            return _ls(arguments, session)
        case "update-batch":
            return _batch(arguments, session)
        case "show":
            return _show(arguments, session)
        case "create":
            return _create(arguments, session, _name(arguments))
        case "update":
            return _update(arguments, session)
        case "move":
            return _move_job(arguments, session, _name(arguments))
        case "kill":
            killed = _call(arguments, session, "POST", "/kill").json()["killed"]
            session.terminal.line(f"job {_name(arguments)}: {len(killed)} being ended")
            return main.OK
        case _:
            _call(arguments, session, "DELETE")
            session.terminal.line(f"job {_name(arguments)} is removed")
            return main.OK


def move(arguments: argparse.Namespace, session: CliSession) -> int:
    """Move allocations ahead of or behind another one; several keep their order."""
    beside = _beside(arguments)
    does = f"move {_where(arguments)}:"
    if equivalents.asked(arguments):
        arguments.yes = True  # a printed request changes nothing, so it needs no confirmation
    ids = selection.ids_of(arguments, session, does, lambda view: view["phase"] == labels.PENDING, oldest_first=True)
    if equivalents.asked(arguments):
        if ids:
            equivalents.show_move(session, arguments, ids, beside)
        return main.OK
    if len(ids) != 1:
        # A running allocation does not move, so there is none to interrupt.
        values = {name: value for name, value in beside.items() if name != "interrupt"}
        where = _where(arguments)
        return batch.send(
            session, "move", ids, values, done=lambda _: f" is now {where}", done_to_all=f"are now {where}"
        )
    view: Json = session.api.post(f"/allocations/{ids[0]}/move", beside)
    priority = "" if view["job"] else f", with priority {view['priority']}"
    session.terminal.line(f"{view['id']} is now {_where(arguments)}{priority}")
    return main.OK


def _ls(arguments: argparse.Namespace, session: CliSession) -> int:
    query = {"workspace": arguments.workspace, "queue": arguments.queue, "state": arguments.state}
    answer = session.api.call("GET", "/jobs", query=query)
    empty = "there are no jobs; make one with: slipway job create NAME --max-slots 4"
    return listing.show(arguments, session, answer, _JOBS, empty=empty)


def _show(arguments: argparse.Namespace, session: CliSession) -> int:
    answer = _call(arguments, session, "GET")
    if output.is_for_machines(arguments):
        output.write(session.terminal, arguments.output, answer)
        return main.OK
    view = cast("Json", answer.json())
    members = cast("list[Json]", view["members"])
    if arguments.quiet or arguments.output == "name":
        for each in members:
            session.terminal.line(str(each["id"]))
        return main.OK
    waits = f"position {view['position']}, {view['jobsAhead']} ahead" if view["position"] else ""
    facts = [
        ("Job", f"{view['name']} of workspace {view['workspace']}"),
        ("State", ", ".join(part for part in (str(view["state"]), waits) if part)),
        ("Priority", "that of its members" if view["priority"] is None else str(view["priority"])),
        ("Weight", str(view["weight"])),
        ("GPUs", f"{view['slotsInUse']} in use of {'any number' if view['maxSlots'] is None else view['maxSlots']}"),
        ("Queues", ", ".join(cast("list[str]", view["queues"]))),
        ("Place", str(view["place"])),
    ]
    session.terminal.line(table.pairs(facts, width=session.terminal.text_width))
    if members:
        head = ["#", "ID", "KIND", "STATE", "GPUS", "NOTE"]
        session.terminal.line("\n" + table.render(head, [_member_row(each) for each in members]))
    return main.OK


def _member_row(item: Json) -> list[str]:
    note = f"{item['code']}: {item.get('message', '')}" if item.get("code") else ""
    state = str(item.get("result") or item["phase"])
    return [
        str(item.get("position") or "-"),
        str(item["id"]),
        str(item["kind"]),
        state,
        str(item.get("slots", 0)),
        note,
    ]


def _create(arguments: argparse.Namespace, session: CliSession, name: str) -> int:
    workspace = contexts.preferred_workspace(arguments.workspace).value
    body = {"name": name, "workspace": workspace, **_changes(arguments, without="queue")}
    view: Json = session.api.post("/jobs", body)
    session.terminal.line(
        f"job {view['name']} is created; launch into it with: {command_line('run', '--job', view['name'])} -- ..."
    )
    return main.OK


def _update(arguments: argparse.Namespace, session: CliSession) -> int:
    changes = _changes(arguments)
    if not changes:
        raise InvalidError("job update: nothing to change: give --priority, --weight, --max-slots or --queue")
    if arguments.no_interrupt:
        changes["interrupt"] = False
    _report(session, _call(arguments, session, "PATCH", body=changes).json())
    return main.OK


def _move_job(arguments: argparse.Namespace, session: CliSession, name: str) -> int:
    changed: Json = _call(arguments, session, "POST", "/move", _beside(arguments)).json()
    session.terminal.line(f"job {name} is now {_where(arguments)}")
    _report(session, changed)
    return main.OK


def _report(session: CliSession, changed: Json) -> None:
    view = cast("Json", changed["job"])
    limits = [f"priority {view['priority']}" if view["priority"] is not None else "no priority of its own"]
    limits += [f"weight {view['weight']}"]
    limits += [f"at most {view['maxSlots']} GPUs" if view["maxSlots"] is not None else "no limit of GPUs"]
    session.terminal.line(f"job {view['name']}: {', '.join(limits)}")
    for each in cast("list[str]", changed["preempted"]):
        session.terminal.line(f"  {each} was asked to save its work, and will start again")
    for each in cast("list[str]", changed["unchanged"]):
        session.terminal.line(f"  {each}")


def _batch(arguments: argparse.Namespace, session: CliSession) -> int:
    """Make many changes; a refused one is reported, and the others are made."""
    if not arguments.names:
        raise InvalidError(
            "job update-batch: nothing to change: write slipway job update-batch NAME.priority=70 OTHER.max-slots=4"
        )
    updates: dict[str, Json] = {}
    workspace = contexts.preferred_workspace(arguments.workspace).value
    for word in arguments.names:
        target, field, value = _parsed(word)
        item = updates.setdefault(target, {"job": target, "workspace": workspace})
        item[field] = value
        if arguments.no_interrupt:
            item["interrupt"] = False
    answer: Json = session.api.post("/jobs/batch", {"updates": list(updates.values())})
    for item in cast("list[Json]", answer["items"]):
        done = "changed" if item["ok"] else f"not changed: {item.get('error', '')}"
        session.terminal.line(f"job {item['subject']}: {done}")
    return main.FAILED if answer["failed"] else main.OK


def _parsed(word: str) -> tuple[str, str, Any]:
    target, equals, text = word.partition("=")
    name, dot, field = target.rpartition(".")
    if not (name and dot and equals and text) or field not in _FIELDS:
        raise InvalidError(f"{word}: write NAME.FIELD=VALUE, where FIELD is one of {', '.join(_FIELDS)}")
    return name, _FIELDS[field], _value(field, _FIELDS[field], text)


def _changes(arguments: argparse.Namespace, *, without: str = "") -> Json:
    given = {field: getattr(arguments, field.replace("-", "_")) for field in _FIELDS}
    return {
        _FIELDS[field]: _value(f"--{field}", _FIELDS[field], str(text))
        for field, text in given.items()
        if text is not None and field != without
    }


def _value(said: str, field: str, text: str) -> Any:
    if field not in _NUMBERS:
        return text
    if text == "none":
        return None
    number = number_in(text)
    if number is None:
        raise InvalidError(f"{said}: {text[:64]!r} is not a whole number")
    return number


def _beside(arguments: argparse.Namespace) -> Json:
    if bool(arguments.ahead_of) == bool(arguments.behind):
        raise InvalidError("write one of --ahead-of OTHER and --behind OTHER")
    body: Json = {"aheadOf": arguments.ahead_of} if arguments.ahead_of else {"behind": arguments.behind}
    return {**body, "interrupt": False} if arguments.no_interrupt else body


def _where(arguments: argparse.Namespace) -> str:
    return f"ahead of {arguments.ahead_of}" if arguments.ahead_of else f"behind {arguments.behind}"


def _name(arguments: argparse.Namespace) -> str:
    if len(arguments.names) != 1:
        raise InvalidError(f"job {arguments.word}: name one job: slipway job {arguments.word} NAME")
    return str(arguments.names[0])


def _call(
    arguments: argparse.Namespace, session: CliSession, method: str, rest: str = "", body: Any = None
) -> ApiResponse:
    """Call the API about the named job."""
    query = {"workspace": contexts.preferred_workspace(arguments.workspace).value}
    return session.api.call(method, f"/jobs/{_name(arguments)}{rest}", query=query, body=body)


def _job_row(item: Json) -> list[str]:
    limits = ["-" if item[name] is None else str(item[name]) for name in ("maxSlots", "priority")]
    place = [str(item["position"] or "-"), str(item["jobsAhead"] if item["position"] else "-")]
    counts = [str(item[name]) for name in ("pending", "live", "slotsInUse")]
    return [
        str(item["name"]),
        str(item["workspace"]),
        str(item["state"]),
        *place,
        *counts,
        *limits,
        str(item["weight"]),
    ]


_HEAD = ("JOB", "WORKSPACE", "STATE", "#", "AHEAD", "WAITING", "RUNNING", "GPUS", "MAX", "PRIO", "WEIGHT")
_JOBS = listing.ListTable(_HEAD, _job_row)

VERBS = {"job": CliVerb(configure_job, job), "move": CliVerb(configure_move, move)}
