"""`slipway run`: runs a command on one or many ranks and follows it to its end. `slipway follow` attaches again."""

import argparse
import fcntl
import os
import stat
import sys
import termios
from collections.abc import Callable, Sequence
from typing import cast

from slipway.cli import dry_run, equivalents, http, labels, launch, main, output, replicas, upload
from slipway.cli.follow import AllocationFollower, wait_until
from slipway.cli.http import new_key
from slipway.cli.replicas import (
    REQUEST_MAX,
    Array,
    array_of,
    command_for_the_rest,
    common_of,
    differences_of,
    job_of,
    written,
)
from slipway.cli.verb import CliSession, CliVerb, allocation_id, command_line, whole_number
from slipway.errors import AlreadyExistsError, ControlPlaneError, DeadlineError, InvalidError

EXAMPLES = """examples:
  slipway run -- python train.py
  slipway run --ranks 4 --gpus 1 --file train.py -- python train.py --epochs 3
  slipway run --ranks 4 --gpus 8 --file train.py -- torchrun train.py
  slipway run --secret HF_TOKEN=hub/token -- python train.py
  HF_TOKEN=... slipway run --secret HF_TOKEN -- python train.py
  slipway run --array 0-99%10 --gpus 1 -- sh -c 'python sweep.py --seed $ARRAY_INDEX'
  slipway run --replicas 3 --service llm:8000 --ranks 2 --gpus 8 -- ./serve.sh
  slipway run --detach --after prep-4kq7zp -- python train.py
  slipway run --detach -q -- sleep 60

It follows the launch to its end. With --detach it prints the id and returns; `slipway follow ID` comes back to it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.usage = "slipway run [options] -- COMMAND..."
    parser.epilog = EXAMPLES
    launch.add_options(parser, with_ranks=True)
    parser.add_argument(
        "--array",
        metavar="LIST[%N]",
        help="launch it once per index, such as 0-99 or 1,3,7-9, with ARRAY_INDEX set; %%10: ten at a time",
    )
    parser.add_argument(
        "--replicas",
        metavar="N",
        type=whole_number,
        help="launch it N times behind one Service, each with REPLICA_INDEX set; needs --service",
    )
    add_launch_modes(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="command of each rank")


FOLLOW_HELP = "follow it to its end (the default): print its output and how it ended, and exit with its code"


def add_launch_modes(parser: argparse.ArgumentParser, follow: str = FOLLOW_HELP) -> None:
    """Add the options for after the launch; `follow` is the help of `--follow`, empty when it is not possible."""
    modes = parser.add_argument_group("after the launch")
    one_of = modes.add_mutually_exclusive_group()
    if follow:
        one_of.add_argument("--follow", action="store_true", help=follow)
    one_of.add_argument("-d", "--detach", action="store_true", help="print its id and return")
    one_of.add_argument("--wait", action="store_true", help="return when it runs")
    modes.add_argument("--dry-run", action="store_true", help="only show what would be launched")
    modes.add_argument("--key", default="", help="Idempotency-Key: the same key launches once")
    equivalents.add_option(modes)
    output.add_options(modes, "table", "json", "yaml")


def command_of(arguments: argparse.Namespace) -> list[str]:
    """Return the words after `--`."""
    words: list[str] = arguments.command
    return words[1:] if words[:1] == ["--"] else words


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Launch the command, then wait or follow as requested."""
    command = command_of(arguments)
    if not command and not arguments.template and not arguments.image:
        detail = "no command; write it after --, such as: slipway run -- python train.py"
        raise InvalidError(f"command: {detail}")
    body = launch.body_of("training", arguments, command)
    launch.into_workspace(body)
    if _has_input():
        session.terminal.note(
            "warning: the standard input does not reach the ranks: ship a file with --file PATH, or write to a running "
            "rank with `slipway exec -i`"
        )
    if arguments.replicas is not None:
        return _launch_replicas(session, body, arguments)
    if arguments.array:
        return _launch_array(session, body, arguments)
    upload.add_files(session, body, arguments)
    return launch_and_follow(session, body, arguments)


def _has_input() -> bool:
    """Whether the standard input has content: a pipe with bytes in it, or a file at its beginning."""
    try:
        fd = sys.stdin.fileno()
        mode = os.fstat(fd)
        if stat.S_ISFIFO(mode.st_mode):
            return any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
        return stat.S_ISREG(mode.st_mode) and mode.st_size > 0 == os.lseek(fd, 0, os.SEEK_CUR)
    except (OSError, ValueError):
        return False  # The standard input does not exist or is closed.


def _launch_replicas(session: CliSession, body: launch.Json, arguments: argparse.Namespace) -> int:
    """Launch the requested number of replicas behind their Service."""
    if arguments.array:
        raise InvalidError("--replicas: cannot be combined with --array; leave one of them out")
    if "service" not in body:
        raise InvalidError("--replicas: replicas need a Service; add --service NAME:PORT, such as llm:8000")
    body.setdefault("name", launch.made_up_name("training"))
    body[replicas.FIELD] = arguments.replicas
    upload.add_files(session, body, arguments)
    return launch_and_follow(session, body, arguments)


def _launch_array(session: CliSession, body: launch.Json, arguments: argparse.Namespace) -> int:
    """Launch once per index, in one job, and print the ids; none is followed."""
    if arguments.wait or arguments.follow or arguments.dry_run or equivalents.asked(arguments):
        detail = "cannot be combined with --follow, --wait, --dry-run or --as; leave one of them out"
        raise InvalidError(f"--array: {detail}")
    wanted = array_of(arguments.array)
    if arguments.job and wanted.at_once:
        raise InvalidError(
            f"--array: job {arguments.job} limits how many run at once; leave %{wanted.at_once} or --job out"
        )
    body.setdefault("name", launch.made_up_name("training"))
    new_job = None if arguments.job else job_of(body, wanted)
    upload.add_files(session, body, arguments)
    if new_job is not None:
        _make_job(session, new_job)
    launches = _ArrayLaunches(session, common_of(body, wanted), wanted, arguments)
    launches.send()
    show, wait = (command_line(*words, launches.common["job"]) for words in (("job", "show"), ("wait", "--job")))
    session.terminal.note(
        f"{len(wanted.indexes)} launches in job {launches.common['job']}; see them with: {show}; "
        f"wait for their end with: {wait}"
    )
    return main.OK


def _make_job(session: CliSession, job: launch.Json) -> None:
    """Create the job of an array. Raises AlreadyExistsError, which says how to launch into an existing job."""
    try:
        session.api.post("/jobs", job)
    except AlreadyExistsError as exc:
        name = job["name"]
        detail = f"there is a job {name} already; add --job {name} to launch into it, or choose another --name"
        raise AlreadyExistsError(f"--array: {detail}") from exc


class _ArrayLaunches:
    """The launches of an array, in several requests.

    All requests have one Idempotency-Key, so no index is launched twice when a request is repeated."""

    def __init__(self, session: CliSession, common: launch.Json, wanted: Array, arguments: argparse.Namespace) -> None:
        self.common = common
        self._session = session
        self._wanted = wanted
        self._arguments = arguments
        self._key = arguments.key or new_key()
        self._launched: set[int] = set()

    def send(self) -> None:
        """Launch all; after an interrupt or a refusal, print the remaining indexes and the command for them."""
        try:
            for start in range(0, len(self._wanted.indexes), REQUEST_MAX):
                self._send_part(self._wanted.indexes[start : start + REQUEST_MAX])
        except (ControlPlaneError, KeyboardInterrupt):
            self._tell_what_is_left()
            raise

    def _send_part(self, indexes: Sequence[int]) -> None:
        """Repeat the request while each answer launches more. Raises DeadlineError when an answer launches none."""
        while left := [index for index in indexes if index not in self._launched]:
            differences = differences_of(self.common, Array(tuple(left)))
            answer = self._session.api.call(
                "POST",
                "/allocations/launches",
                body={"launch": self.common, "each": differences},
                headers={"Idempotency-Key": self._key},
            ).json()
            refused: list[launch.Json] = []
            before = len(self._launched)
            for index, item in zip(left, cast("list[launch.Json]", answer["items"]), strict=True):
                if item.get("id"):
                    self._launched.add(index)
                    self._tell(item)
                elif item["outcome"] == "refused":
                    refused.append(item)
            if refused:
                self._session.terminal.note(f"{refused[0]['name']} is refused")
                raise http.error_of_problem(refused[0]["problem"])
            if len(self._launched) == before:
                raise DeadlineError(f"the server launched none of {len(left)} within its time limit; try again later")

    def _tell(self, item: launch.Json) -> None:
        """Print a launched allocation in the requested output form."""
        if output.is_for_machines(self._arguments):
            view = self._session.api.call("GET", f"/allocations/{item['id']}")
            output.write(self._session.terminal, self._arguments.output, view)
        else:
            self._session.terminal.line(str(item["id"]))

    def _tell_what_is_left(self) -> None:
        left = [index for index in self._wanted.indexes if index not in self._launched]
        if not left:
            return
        launched = f": {written(sorted(self._launched))}" if self._launched else ""
        again = command_for_the_rest(self._session.words, self.common, left=left, key=self._key)
        count = f"{len(self._launched)} of {len(self._wanted.indexes)} are launched{launched}"
        rest = "This command launches the rest, and nothing twice:"
        self._session.terminal.note(f"{count}. Left: {written(left)}.\n{rest}\n  {again}")


def launch_and_follow(
    session: CliSession,
    body: launch.Json,
    arguments: argparse.Namespace,
    *,
    is_again: Callable[[CliSession, launch.Json], int | None] = lambda _session, _view: None,
) -> int:
    """Launch the body; then print the id, wait or follow.

    `is_again` examines the answer first. It returns an exit code when the allocation was launched before and is not to
    be followed, else None.
    """
    terminal = session.terminal
    follows = bool(getattr(arguments, "follow", False))
    if follows and (arguments.quiet or arguments.dry_run or arguments.as_tool or output.is_for_machines(arguments)):
        raise InvalidError("--follow: cannot be combined with -q, -o, --dry-run or --as; leave one of them out")
    if equivalents.asked(arguments) and replicas.FIELD not in body:
        equivalents.show_launch(session, arguments, body, arguments.key or new_key())
        return main.OK
    if arguments.dry_run:
        answer = session.api.call("POST", "/allocations", body=body, query={"dryRun": "true"})
        output.write(terminal, "yaml" if arguments.output == "table" else arguments.output, answer)
        dry_run.tell(terminal, answer.json())
        if replicas.FIELD in body:
            terminal.note(f"this is the first of {body[replicas.FIELD]} replicas")
        return main.OK
    if replicas.FIELD in body:
        return replicas.launch_all(session, body, arguments)
    view = session.api.launch(body, key=arguments.key)
    for warning in cast("list[str]", view.get("warnings") or []):
        terminal.note(f"{terminal.paint('warning:', 'yellow')} {warning}")
    id_ = str(view["id"])
    over = is_again(session, view)
    if over is not None and not output.is_for_machines(arguments):
        if not follows:
            terminal.line(id_)
        return over if follows else main.OK
    if output.is_for_machines(arguments):
        output.write(terminal, arguments.output, session.api.call("GET", f"/allocations/{id_}"))
    elif arguments.quiet or arguments.detach or arguments.wait:
        terminal.line(id_)
    else:
        terminal.note(f"{id_}: launched")
    if arguments.wait:
        reached = wait_until(session, id_, "running", None)
        is_up = reached is not None and (reached["phase"] == "Running" or reached.get("result") == "Succeeded")
        return main.OK if is_up else main.FAILED
    if arguments.detach or arguments.quiet or output.is_for_machines(arguments):
        if arguments.detach and not arguments.quiet and terminal.is_interactive:
            terminal.note(f"follow it with: {command_line('follow', id_)}")
        return main.OK
    return AllocationFollower(session, view, with_logs=True).run()


def configure_follow(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `follow`."""
    parser.add_argument("id", metavar="ID", type=allocation_id)


def follow(arguments: argparse.Namespace, session: CliSession) -> int:
    """Show progress, all output and the result as `run` does, also after the end; return the result's exit code."""
    view = cast("launch.Json", session.api.get(f"/allocations/{arguments.id}"))
    if view["kind"] == "shell" and not labels.has_ended(view):
        into = command_line("shell", "open", view["id"])
        session.terminal.note(f"{view['id']} is a shell; for a terminal in it: {into}")
    return AllocationFollower(session, view, with_logs=True).run()


VERBS = {"run": CliVerb(configure, execute), "follow": CliVerb(configure_follow, follow)}
