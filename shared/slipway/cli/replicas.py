"""The replicas of a launch: one allocation each, all behind the Service that the launch names.

Owns the one request for them, which may be repeated, and the printed result. The API checks the launch.
"""

import argparse
from typing import Any, cast

from slipway.cli import equivalents, http, main, output
from slipway.cli.http import new_key
from slipway.cli.verb import CliSession, command_line
from slipway.errors import DeadlineError, FieldError, InvalidError

Json = dict[str, Any]
FIELD = "replicas"
LABEL = "slipway.dev/service"


def launch_all(session: CliSession, body: Json, arguments: argparse.Namespace) -> int:
    """Launch the replicas and print their ids; none is followed."""
    if arguments.wait or arguments.follow or equivalents.asked(arguments):
        raise InvalidError("replicas: cannot be combined with --follow, --wait or --as; leave one of them out")
    try:
        sent = _sent(session, body, arguments.key or new_key(), arguments)
    except InvalidError as error:
        # The body contains the launch as one part. The user wrote the launch only, so pointers are relative to it.
        fields = tuple(FieldError(each.pointer.removeprefix("/launch"), each.detail) for each in error.fields)
        raise InvalidError(str(error), fields=fields) from error
    name = str(cast("Json", body["service"])["name"])
    before = sum(item["outcome"] == "replayed" for item in sent)
    count = f"{len(sent)} replicas" if len(sent) > 1 else "1 replica"
    known = f" ({before} launched before)" if before else ""
    show = command_line("ps", "-l", f"{LABEL}={name}", *(["-n", str(body["workspace"])] if "workspace" in body else []))
    session.terminal.note(f"{count} behind Service {name}{known}; see them with: {show}")
    return main.OK


def _sent(session: CliSession, body: Json, key: str, arguments: argparse.Namespace) -> list[Json]:
    """Return the result of each replica; the request is repeated while each answer launches more of them.

    Raises:
        ControlPlaneError: a replica is refused; it says why. DeadlineError: an answer launched none of the rest.
    """
    told: set[str] = set()
    while True:
        headers = {"Idempotency-Key": key}
        answer = session.api.call("POST", "/allocations/launches", body={"launch": body}, headers=headers).json()
        items = cast("list[Json]", answer["items"])
        launched = [item for item in items if item.get("id")]
        new = [item for item in launched if item["id"] not in told]
        for item in new:
            _tell(session, item, arguments)
            told.add(str(item["id"]))
        refused = [item for item in items if item["outcome"] == "refused"]
        if refused:
            session.terminal.note(f"{refused[0]['name']} is refused; {len(launched)} of {len(items)} are launched")
            raise http.error_of_problem(refused[0]["problem"])
        if len(launched) == len(items):
            return items
        if not new:
            left = len(items) - len(launched)
            raise DeadlineError(
                f"the server launched none of the remaining {left} within its time limit; try again later"
            )


def _tell(session: CliSession, item: Json, arguments: argparse.Namespace) -> None:
    """Print a launched replica in the requested output form."""
    if output.is_for_machines(arguments):
        view = session.api.call("GET", f"/allocations/{item['id']}")
        output.write(session.terminal, arguments.output, view)
    else:
        session.terminal.line(str(item["id"]))
