"""Selects the allocations for a verb: the named ones, or all that match labels and filters, after a confirmation.

Owns the options of the selection and the confirmation. Without `--owner` only the caller's own allocations are
selected. Nothing is changed before the user confirms or passes `--yes`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from slipway.cli import labels, output
from slipway.cli.table import one_line
from slipway.cli.verb import CliSession, allocation_id
from slipway.errors import InvalidError

Json = dict[str, Any]

EVERYBODY = "*"
_FILTERS = {
    "workspace": "workspace",
    "queue": "queue",
    "job": "job",
    "kind": "kind",
    "phase": "phase",
    "selector": "labelSelector",
}
"""{option: query parameter of the list request}"""


def add_options(parser: argparse.ArgumentParser, *, with_ids: bool = True) -> None:
    """Add the arguments for IDs and for filters. Without `with_ids` the verb adds `ids` itself."""
    if with_ids:
        parser.add_argument("ids", nargs="*", metavar="ID", type=allocation_id)
    many = parser.add_argument_group("many at once (your own allocations, after a confirmation)")
    many.add_argument("-l", "--selector", metavar="LABELS", help="all with these labels, such as team=vision")
    many.add_argument("--all", action="store_true", help="all allocations")
    many.add_argument("-n", "--workspace", metavar="W", help="only of this workspace")
    many.add_argument("--queue", metavar="Q", help="only of this queue")
    many.add_argument("--job", metavar="J", help="only of this job")
    many.add_argument("--kind", metavar="KIND", help="only of this kind")
    many.add_argument("--phase", metavar="PHASE", help="only in this phase, or in several: Pending,Assigned")
    many.add_argument(
        "--owner", metavar="NAME", help=f"allocations of this user, not yours; '{EVERYBODY}': of all users"
    )
    many.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def is_by_filter(arguments: argparse.Namespace) -> bool:
    """Whether filters select the allocations, instead of IDs.

    Raises:
        InvalidError: both IDs and filters are given, or neither, or a filter without `--all` or `-l`.
    """
    chosen = bool(arguments.all or arguments.selector)
    if chosen and arguments.ids:
        raise InvalidError("ids: give IDs, or -l or --all, not both")
    given = [name for name in ("workspace", "queue", "job", "phase", "owner") if getattr(arguments, name)]
    if arguments.ids and (given or arguments.kind):
        raise InvalidError(
            f"--{[*given, 'kind'][0]}: has no effect together with IDs; leave it out, or select with -l LABELS or --all"
        )
    if chosen or arguments.ids:
        return chosen
    if given:
        raise InvalidError(f"--{given[0]}: add --all, or -l LABELS, to select all that match")
    raise InvalidError("ids: give at least one ID, or select with -l LABELS or --all")


def chosen(
    arguments: argparse.Namespace, session: CliSession, does: str, is_wanted: Callable[[Json], bool]
) -> list[Json]:
    """Return the matching views after the user has confirmed; empty when none match or the user declines.

    Raises:
        InvalidError: there is no terminal for the question, and `--yes` was not given.
    """
    query: Json = {parameter: getattr(arguments, option) for option, parameter in _FILTERS.items()}
    owner = arguments.owner or str(session.api.get("/me")["user"])
    if owner != EVERYBODY:
        query["user"] = owner
    views = [view for view in output.items_of(output.listed(session.api, "/allocations", query)) if is_wanted(view)]
    if not views:
        whose = "" if owner == EVERYBODY else f" of user {owner}"
        session.terminal.note(f"nothing{whose} to {does}")
        return []
    return views if arguments.yes or _agrees(session, does, owner, views) else []


def ids_of(
    arguments: argparse.Namespace,
    session: CliSession,
    does: str,
    is_wanted: Callable[[Json], bool],
    *,
    oldest_first: bool = False,
) -> list[str]:
    """Return the named ids, or the ids that the filters select after the user has confirmed."""
    if not is_by_filter(arguments):
        return [str(id_) for id_ in arguments.ids]
    views = chosen(arguments, session, does, is_wanted)
    if oldest_first:
        views.sort(key=lambda view: (str(view.get("createdAt") or ""), str(view["id"])))
    return [str(view["id"]) for view in views]


def _agrees(session: CliSession, does: str, owner: str, views: list[Json]) -> bool:
    """Ask for the confirmation, with the number of allocations in each state."""
    states = Counter(map(labels.state_of, views))
    counted = ", ".join(f"{count} {state}" for state, count in states.most_common())
    what = "1 allocation" if len(views) == 1 else f"{len(views)} allocations"
    whose = "all users" if owner == EVERYBODY else f"user {owner}"
    question = f"{does} {what} of {whose} ({counted})?"
    if not sys.stdin.isatty():
        raise InvalidError(f"{question} there is no terminal to ask for confirmation; add --yes")
    session.terminal.err.write(f"{one_line(question)} [y/N] ")
    session.terminal.err.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    session.terminal.note("nothing was changed")
    return False
