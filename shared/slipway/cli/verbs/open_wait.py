"""`slipway open`, `slipway wait` and `slipway port-forward`: access to running allocations."""

import argparse
import math
import time
from typing import Any

from slipway.cli import labels, main, output
from slipway.cli.follow import wait_until
from slipway.cli.verb import CliSession, CliVerb, allocation_id, command_line, optional_name, whole_number
from slipway.errors import InvalidError, NotFoundError, PermanentError
from slipway.model.numbers import number_in
from slipway.model.times import parse_duration
from slipway.runtime.tasks import TaskGroup
from slipway.sdk import contexts

Json = dict[str, Any]


def configure_open(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `open`."""
    parser.add_argument("id", metavar="ID", nargs="?", type=allocation_id, help="(default: the page of the API itself)")
    parser.add_argument("--port", metavar="P", type=whole_number, help="open this port instead of the first")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def open_page(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the address of the page, and open it in a browser."""
    shows = not arguments.no_browser and session.terminal.out.isatty()
    if not arguments.id:
        if arguments.port:
            raise InvalidError("--port: name the allocation that has the port")
        session.terminal.line(f"{session.api.server.url}/")
        open_or_print(session, shows=shows)
        return main.OK
    view: Json = session.api.get(f"/allocations/{arguments.id}")
    port = f"{arguments.port}/" if arguments.port else ""
    session.terminal.line(f"{page_of(session, view)}{port}")
    if labels.has_ended(view):
        session.terminal.note(f"{labels.summary_of(view)}: there is nothing to open")
        return main.FAILED
    open_or_print(session, view, port, shows=shows)
    return main.OK


def page_of(session: CliSession, view: Json) -> str:
    """Return the address of the allocation's page."""
    return f"{session.api.server.url}{view['links']['proxy']}"


def browse(session: CliSession, view: Json) -> None:
    """Open the allocation's page in a browser, when there is a browser."""
    open_or_print(session, view, shows=True)


def login_link(session: CliSession, view: Json | None = None, below: str = "") -> str:
    """Return a link that logs a browser in, once, and leads to the page.

    Without authentication, return the page's own address.

    Raises:
        ControlPlaneError: the API returns no link.
    """
    path = f"{view['links']['proxy']}{below}" if view is not None else "/"
    if session.api.server.credential is None:
        return f"{session.api.server.url}{path}"
    allocation = str(view["id"]) if view is not None else ""
    link = str(session.api.post("/login-links", {"allocation": allocation, "path": path})["url"])
    # A desktop chooses the program by the scheme of the link, so only http and https are safe.
    if not link.startswith(("http://", "https://")):
        raise PermanentError(f"the server names no address of a page: {link[:200]!r}")
    return link


def open_or_print(session: CliSession, view: Json | None = None, below: str = "", *, shows: bool) -> None:
    """Open the page in a browser, or print how to open it."""
    has_token = session.api.server.credential is not None
    try:
        link = login_link(session, view, below)
    except PermanentError as error:
        session.terminal.note(str(error))
        if view is not None:
            session.terminal.note(f"{command_line('port-forward', view['id'], 'PORT')} forwards a port to the workload")
        return
    if shows and _opened(link):
        return
    if shows:
        session.terminal.note("no browser here; open the address yourself")
    if has_token:
        session.terminal.note(f"open it in a browser, once, within five minutes: {link}")


def _opened(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def configure_wait(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `wait`."""
    parser.usage = "slipway wait [options] ID..., or: slipway wait [options] --job J"
    parser.add_argument("ids", nargs="*", metavar="ID", type=allocation_id)
    parser.add_argument(
        "--job", metavar="J", default="", type=optional_name, help="wait for all current allocations of this job"
    )
    parser.add_argument("-n", "--workspace", metavar="W", default="", help="workspace of the job (default: yours)")
    parser.add_argument(
        "--for",
        dest="goal",
        choices=("ready", "running", "terminated"),
        default="terminated",
        help="state to wait for (default: terminated)",
    )
    parser.add_argument("--timeout", metavar="5m", default="", help="give up after this time, with exit code 124")


def wait(arguments: argparse.Namespace, session: CliSession) -> int:
    """Wait for all; 0 when each reached the goal, 1 when one ended otherwise, 124 after the timeout."""
    timeout_s = math.inf
    if arguments.timeout:
        try:
            timeout_s = parse_duration(arguments.timeout)
        except ValueError as exc:
            raise InvalidError(f"--timeout: {exc}") from exc
    until = time.monotonic() + timeout_s
    codes = {_wait_for(session, id_, arguments, until) for id_ in _awaited(arguments, session)}
    return next((code for code in (main.TIMED_OUT, main.FAILED) if code in codes), main.OK)


def _awaited(arguments: argparse.Namespace, session: CliSession) -> list[str]:
    """Return the complete ids to wait for, read first: a wrong last id must not be found only hours later."""
    if bool(arguments.ids) == bool(arguments.job):
        raise InvalidError("wait: give at least one ID, or --job J, not both")
    if arguments.ids:
        return [str(session.api.get(f"/allocations/{id_}")["id"]) for id_ in arguments.ids]
    workspace = contexts.preferred_workspace(arguments.workspace).value
    query = {"job": arguments.job, "workspace": workspace, "fields": "id"}
    found = [str(view["id"]) for view in output.items_of(output.listed(session.api, "/allocations", query))]
    if not found:
        raise NotFoundError(
            f"no allocation is in job {arguments.job} of workspace {workspace}; {command_line('job', 'ls')} lists the "
            "jobs"
        )
    return found


def _wait_for(session: CliSession, id_: str, arguments: argparse.Namespace, until: float) -> int:
    """Wait for one allocation; return its exit code. `until` is in monotonic seconds."""
    left_s = max(0.0, until - time.monotonic())
    view = wait_until(session, id_, arguments.goal, None if left_s == math.inf else left_s)
    if view is None:
        session.terminal.note(
            f"{id_} is not {arguments.goal} after {arguments.timeout}; {command_line('explain', id_)} says why"
        )
        return main.TIMED_OUT
    session.terminal.line(f"{id_} {labels.state_of(view)}")
    if not labels.has_ended(view):
        return main.OK
    return main.OK if arguments.goal != "ready" and labels.has_succeeded(view) else main.FAILED


def configure_forward(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `port-forward`."""
    parser.add_argument("id", metavar="ID", type=allocation_id)
    parser.add_argument(
        "ports",
        metavar="[LOCAL:]PORT",
        nargs="+",
        help="a port that it declares, and the local port (default: the same; 0: any)",
    )


def forward(arguments: argparse.Namespace, session: CliSession) -> int:
    """Forward ports of this machine to ports of a workload, until Ctrl-C."""
    import asyncio

    pairs = [_pair(text) for text in arguments.ports]
    view: Json = session.api.get(f"/allocations/{arguments.id}")
    if labels.has_ended(view):
        session.terminal.note(f"{labels.summary_of(view)}: there is nothing to reach")
        return main.FAILED
    ports: list[Json] = view["spec"].get("ports") or []
    declared = {int(port["port"]) for port in ports}
    for _, remote in pairs:
        if remote not in declared:
            known = ", ".join(str(port) for port in sorted(declared)) or "none"
            raise InvalidError(f"port {remote} is not declared by {view['id']}; it declares {known}")
    try:
        asyncio.run(_forward(session, view, pairs))
    except KeyboardInterrupt:
        session.terminal.note("")
    return main.OK


async def _forward(session: CliSession, view: Json, pairs: list[tuple[int, int]]) -> None:

    from slipway.cli.tunnel import HOST, Tunnel

    async with TaskGroup() as tasks:
        for local, remote in pairs:
            path = f"{view['links']['proxy']}{remote}/"
            tunnel = Tunnel(session.api.server, path, session.terminal.note)

            def ready(port: int, remote: int = remote) -> None:
                session.terminal.line(f"{HOST}:{port} is forwarded to port {remote} of {view['id']}")

            tasks.create_task(tunnel.run(local, ready))


def _pair(text: str) -> tuple[int, int]:
    """Parse `[LOCAL:]PORT`; return the local port and the remote port."""
    local, colon, remote = text.rpartition(":")
    there = number_in(remote)
    here = number_in(local) if colon else there
    if here is None or there is None or max(here, there) >= 65536:
        raise InvalidError(f"{text[:64]!r} is no port; write PORT or LOCAL:PORT, such as 5432 or 15432:5432")
    return here, there


VERBS = {
    "open": CliVerb(configure_open, open_page),
    "wait": CliVerb(configure_wait, wait),
    "port-forward": CliVerb(configure_forward, forward),
}
