"""Changes after the launch: `slipway kill`, `rm`, `terminate`, `preempt`, `pause`, `hold`, `resume`, `forget`,
`priority`, `limit`, `update`."""

import argparse
import os
from collections.abc import Callable
from typing import Any, cast

from slipway.cli import batch, equivalents, labels, launch, main, selection
from slipway.cli.follow import wait_until
from slipway.cli.verb import CliSession, CliVerb, allocation_id, checked_id, command_line
from slipway.errors import InvalidError
from slipway.model.numbers import number_in

Json = dict[str, Any]
CONFLICT = 409


def configure_forget(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `forget`."""
    parser.add_argument("ids", nargs="+", metavar="ID", type=allocation_id)
    equivalents.add_option(parser)


def configure_kill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kill`."""
    selection.add_options(parser)
    parser.add_argument("--wait", action="store_true", help="return when it has ended")
    parser.add_argument(
        "--grace", metavar="5s", default="", help="maximum time for its ranks to end (a second kill gives no time)"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="kill its ranks at once; ranks on nodes that do not answer are given up as lost",
    )
    equivalents.add_option(parser)


def kill(arguments: argparse.Namespace, session: CliSession) -> int:
    """End the allocations."""
    asked: Json = {"force": True} if arguments.force else {}
    asked |= {"grace": arguments.grace} if arguments.grace else {}
    arguments.ids = _chosen(arguments, session, "kill", _is_live)
    if equivalents.asked(arguments):
        if arguments.ids:
            equivalents.show_kill(session, arguments, arguments.ids, asked)
        return main.OK
    if len(arguments.ids) != 1:
        code = batch.send(session, "kill", arguments.ids, asked, done=_ended_or_ending, done_to_all="are being ended")
        return code or _await_ends(arguments, session)
    (id_,) = arguments.ids
    before: Json = session.api.get(f"/allocations/{id_}")
    session.api.post(f"/allocations/{before['id']}/kill", asked or None)
    session.terminal.line(f"{before['id']}{_ended_or_ending(before)}")
    return _await_ends(arguments, session)


def _chosen(
    arguments: argparse.Namespace, session: CliSession, what: str, is_wanted: Callable[[Json], bool]
) -> list[str]:
    """Return the selected ids. With `--as` no confirmation is needed, because a printed request changes nothing."""
    if equivalents.asked(arguments):
        arguments.yes = True
    return selection.ids_of(arguments, session, what, is_wanted)


def _printed(
    session: CliSession, arguments: argparse.Namespace, verb: str, ids: list[str], values: Json, *, spec: Json | None
) -> int:
    """Print the request as another tool's command (`--as`); without ids, print nothing."""
    if ids:
        equivalents.show_batch(session, arguments, verb, ids, values, spec=spec)
    return main.OK


def _configure_hold(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `hold`, `pause` and `resume`."""
    selection.add_options(parser)
    equivalents.add_option(parser)


def _ended_or_ending(before: Json) -> str:
    """Return the text about a kill of an allocation in this state: a view, or an item of a batch."""
    return f" had ended: {labels.state_of(before)}" if labels.has_ended(before) else " is being ended"


def _is_live(view: Json) -> bool:
    return not labels.has_ended(view)


def _await_ends(arguments: argparse.Namespace, session: CliSession) -> int:
    """With `--wait`, wait for each end and print how the allocation ended."""
    for id_ in arguments.ids if arguments.wait else ():
        view = wait_until(session, id_, "terminated", None)
        if view is not None:
            session.terminal.line(labels.summary_of(view))
    return main.OK


def configure_remove(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `rm`."""
    selection.add_options(parser)
    parser.add_argument(
        "-f", "--force", action="store_true", help="also allocations that have not ended: they are ended first"
    )
    equivalents.add_option(parser)


def remove(arguments: argparse.Namespace, session: CliSession) -> int:
    """Delete ended allocations with their logs."""

    def is_wanted(view: Json) -> bool:
        return (arguments.force or labels.has_ended(view)) and not view.get("deleting")

    def done(item: Json) -> str:
        return f" is being removed{'' if labels.has_ended(item) else '; it is ended first'}"

    def refused(item: Json) -> str:
        if arguments.force or item["outcome"] != "refused" or labels.has_ended(item):
            return ""
        if item["problem"]["status"] != CONFLICT:
            return ""
        return f" is {item['phase']}: not removed. End it with `{command_line('kill', item['id'])}`, or add --force"

    ids = _chosen(arguments, session, "remove", is_wanted)
    asked = {"force": True} if arguments.force else {}
    if equivalents.asked(arguments):
        # `kubectl delete` would end a running allocation, which this verb does not.
        return _printed(session, arguments, "delete", ids, asked, spec=None)
    return batch.send(
        session,
        "delete",
        ids,
        asked,
        done=done,
        done_to_all="are being removed",
        refused=refused,
        # A listed allocation may be deleted by now, also by this request when its first answer was lost.
        may_be_gone=selection.is_by_filter(arguments),
    )


def configure_preempt(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `preempt`."""
    parser.add_argument("ids", nargs="+", metavar="ID", type=allocation_id)
    parser.add_argument("--reason", default="", help="reason that its ranks receive")
    equivalents.add_option(parser)


def preempt(arguments: argparse.Namespace, session: CliSession) -> int:
    """Ask the ranks to save their work and end."""
    if equivalents.asked(arguments):
        equivalents.show_signal(session, arguments, "preempt", arguments.ids, arguments.reason)
        return main.OK
    for id_ in arguments.ids:
        session.api.post(f"/allocations/{id_}/preempt", {"reason": arguments.reason} if arguments.reason else None)
        session.terminal.line(f"{id_} was asked to save its work and end")
    return main.OK


def configure_terminate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `terminate`."""
    configure_preempt(parser)
    parser.add_argument("--wait", action="store_true", help="return when it has ended")


def terminate(arguments: argparse.Namespace, session: CliSession) -> int:
    """End the allocations; those that can save their work may do so first."""
    if equivalents.asked(arguments):
        equivalents.show_signal(session, arguments, "terminate", arguments.ids, arguments.reason)
        return main.OK
    body = {"reason": arguments.reason} if arguments.reason else None
    for id_ in arguments.ids:
        view: Json = session.api.post(f"/allocations/{id_}/terminate", body)
        if labels.has_ended(view):
            said = f" had ended: {labels.state_of(view)}"
        elif view.get("desired") == "Stopped":
            said = " is being ended"
        else:
            said = " was asked to save its work and end"
        session.terminal.line(f"{view['id']}{said}")
    return _await_ends(arguments, session)


def pause(arguments: argparse.Namespace, session: CliSession) -> int:
    """Stop the allocations so that they can continue later."""

    def said(item: Json) -> str:
        waits = item["phase"] == labels.PENDING
        return f" {'is held' if waits else 'was asked to save its work; then it is held'} until `slipway resume`"

    ids = _chosen(arguments, session, "pause", _is_live)
    if equivalents.asked(arguments):
        # kubectl cannot do this, because the API also asks a running allocation to save its work.
        return _printed(session, arguments, "hold", ids, {}, spec=None)
    done_to_all = "are held, or were asked to save their work and are held then, until `slipway resume`"
    return _do(session, "hold", ids, said, done_to_all)


def hold(arguments: argparse.Namespace, session: CliSession) -> int:
    """Keep the allocations from starting."""
    ids = _chosen(arguments, session, "hold", _is_live)
    if equivalents.asked(arguments):
        return _printed(session, arguments, "hold", ids, {}, spec=None)
    return _do(session, "hold", ids, lambda _: " is held", "are held")


def resume(arguments: argparse.Namespace, session: CliSession) -> int:
    """Let held allocations start."""
    ids = _chosen(arguments, session, "resume", lambda view: bool(view.get("hold")) and _is_live(view))
    if equivalents.asked(arguments):
        return _printed(session, arguments, "resume", ids, {}, spec={"hold": False})
    return _do(session, "resume", ids, lambda _: " may start", "may start")


def _do(session: CliSession, call: str, ids: list[str], said: Callable[[Json], str], said_of_all: str) -> int:
    """Apply a verb without values: one call for one allocation, a batch for several."""
    if len(ids) != 1:
        return batch.send(session, call, ids, done=said, done_to_all=said_of_all)
    view: Json = session.api.post(f"/allocations/{ids[0]}/{call}")
    session.terminal.line(f"{view['id']}{said(view)}")
    return main.OK


def forget(arguments: argparse.Namespace, session: CliSession) -> int:
    """Give up the ranks on machines that are off."""
    if equivalents.asked(arguments):
        equivalents.show_forget(session, arguments, arguments.ids)
        return main.OK
    for id_ in arguments.ids:
        view: Json = session.api.post(f"/allocations/{id_}/forget")
        signals = cast("Json", cast("Json", view["spec"]).get("signals") or {})
        nodes = ", ".join(cast("list[str]", signals.get("lostNodes") or []))
        session.terminal.line(f"{view['id']} has lost its ranks on {nodes}")
    return main.OK


def configure_limit(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `limit`."""
    parser.add_argument("id", metavar="ID", type=allocation_id)
    parser.add_argument("--max-runtime", metavar="2h", help="end it after this time, counted from its start")
    parser.add_argument("--idle-timeout", metavar="30m", help="end it after this time without use")
    parser.add_argument("--pending-timeout", metavar="1h", help="end it when it has not started within this time")
    equivalents.add_option(parser)


def limit(arguments: argparse.Namespace, session: CliSession) -> int:
    """Change the time limits of an allocation, also while it runs."""
    given = {
        "maxRuntime": arguments.max_runtime,
        "idleTimeout": arguments.idle_timeout,
        "pendingTimeout": arguments.pending_timeout,
    }
    asked = {name: value for name, value in given.items() if value}
    if not asked:
        raise InvalidError("nothing to change: give --max-runtime, --idle-timeout or --pending-timeout")
    if equivalents.asked(arguments):
        equivalents.show_change(session, arguments, arguments.id, asked, asked)
        return main.OK
    view: Json = session.api.patch(f"/allocations/{arguments.id}", asked)
    session.terminal.line(f"{view['id']} has {', '.join(f'{name} {value}' for name, value in asked.items())}")
    return main.OK


def configure_update(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `update`."""
    parser.add_argument("id", metavar="ID", type=allocation_id)
    parser.add_argument("--image", metavar="I", help="new container image")
    equivalents.add_option(parser)
    launch.add_resources(parser)
    launch.add_variables(parser)
    parser.add_argument("--unset-env", metavar="NAME", action="append", default=[], help="remove a variable (repeat)")
    parser.add_argument(
        "--command", nargs=argparse.REMAINDER, default=[], metavar="WORD", help="new command: all words that follow"
    )


def update(arguments: argparse.Namespace, session: CliSession) -> int:
    """Change the workload of a held allocation, before it is admitted."""
    variables: Json = launch.variables_of(arguments, os.environ) | dict.fromkeys(arguments.unset_env)
    given: Json = {
        "image": arguments.image,
        "command": arguments.command,
        "env": variables,
        "resources": launch.resources_of(arguments),
    }
    asked = {name: value for name, value in given.items() if value}
    if not asked:
        raise InvalidError("nothing to change: give --image, --env, --unset-env, --cpus, --memory, --gpus or --command")
    if equivalents.asked(arguments):
        equivalents.show_change(session, arguments, arguments.id, asked, None)
        return main.OK
    view: Json = session.api.patch(f"/allocations/{arguments.id}", asked)
    session.terminal.line(f"{view['id']} has a new {', '.join(asked)}; `slipway resume` lets it start")
    return main.OK


def configure_priority(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `priority`."""
    parser.usage = "slipway priority [options] ID... 0..1000, or: slipway priority -l LABELS 0..1000"
    parser.add_argument("words", nargs="+", metavar="ID... 0..1000", help="the priority, last: higher goes first")
    selection.add_options(parser, with_ids=False)
    equivalents.add_option(parser)


def priority(arguments: argparse.Namespace, session: CliSession) -> int:
    """Set the priority."""
    *ids, last = cast("list[str]", arguments.words)
    arguments.ids = [checked_id(each) for each in ids]
    value = number_in(last)
    if value is None:
        raise InvalidError(f"priority: the last word is the new priority, 0 to 1000, not {last[:64]!r}")
    ids = _chosen(arguments, session, f"set priority {value} of", _is_live)
    if equivalents.asked(arguments):
        return _printed(session, arguments, "priority", ids, {"priority": value}, spec={"priority": value})
    if len(ids) != 1:
        asked = {"priority": value}
        done_to_all = f"have priority {value}"
        return batch.send(
            session, "priority", ids, asked, done=lambda _: f" has priority {value}", done_to_all=done_to_all
        )
    view: Json = session.api.patch(f"/allocations/{ids[0]}", {"priority": value})
    session.terminal.line(f"{view['id']} has priority {view['priority']}")
    return main.OK


VERBS = {
    "kill": CliVerb(configure_kill, kill),
    "rm": CliVerb(configure_remove, remove),
    "terminate": CliVerb(configure_terminate, terminate),
    "preempt": CliVerb(configure_preempt, preempt),
    "pause": CliVerb(_configure_hold, pause),
    "hold": CliVerb(_configure_hold, hold),
    "resume": CliVerb(_configure_hold, resume),
    "forget": CliVerb(configure_forget, forget),
    "limit": CliVerb(configure_limit, limit),
    "update": CliVerb(configure_update, update),
    "priority": CliVerb(configure_priority, priority),
}
