"""`slipway doctor`: diagnoses the installation and suggests fixes. Changes nothing.

Owns the checks of this machine and the checks over HTTP, and the layout of the findings. Exit codes: 0 no check failed,
1 a check failed, 2 usage. Checks that need a client of Kubernetes or Redis are in `slipway.ops.doctor`, which only this
verb imports.
"""

import argparse
import http.client
import json
import os
import platform
import shutil
import textwrap
import urllib.request
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from slipway.cli import main, table
from slipway.cli.cluster_addresses import find_addresses, has_cluster
from slipway.cli.verb import CliSession, CliVerb
from slipway.cli.verbs.version import own_version
from slipway.errors import ControlPlaneError, NotFoundError
from slipway.local.layout import Layout, default_folder, is_alive
from slipway.ops.doctor.finding import Finding, FindingState, failed, is_well, ok, skipped, warning

if TYPE_CHECKING:
    from slipway.cli.terminal import Terminal
    from slipway.ops.doctor.command import ApiCondition

Json = dict[str, Any]
PROBE_S = 3.0
WIDTH = 80
MARKS = {FindingState.OK: "ok", FindingState.WARNING: "!!", FindingState.FAILED: "NO", FindingState.SKIPPED: "--"}
PAINT = {"ok": "green", "NO": "red", "!!": "yellow", "--": ""}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    parser.description = (
        "Looks at the cluster with your kubeconfig, at the API over HTTP, and at Redis through the API or at "
        "$SLIPWAY_REDIS_URL. Each problem is shown with a fix. Nothing is changed."
    )
    parser.add_argument("--kubeconfig", metavar="FILE", default="", help="default: $KUBECONFIG, a running `slipway up`")
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default=os.environ.get("SLIPWAY_NAMESPACE", "slipway-system"),
        help="namespace of the services (slipway-system)",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="format of the output")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the findings; return 1 when a check failed."""
    from slipway.ops.doctor.command import DoctorTarget, diagnose

    found = find_addresses(arguments.kubeconfig)
    findings = [*_machine(), *_stack()]
    inside = _api(session, findings)
    place = DoctorTarget(
        kubeconfig=found.kubeconfig if has_cluster(found) else None,
        redis_url=found.redis_url,
        namespace=arguments.namespace,
        inside=inside,
        is_local=found.is_local,
    )
    findings += diagnose(place)
    if arguments.output == "json":
        counts = {state.value: sum(each.state is state for each in findings) for state in FindingState}
        rows = [{"check": e.check, "state": e.state.value, "found": e.found, "mend": e.mend} for e in findings]
        session.terminal.raw(json.dumps({"ok": is_well(findings), "counts": counts, "findings": rows}, indent=2) + "\n")
    else:
        _page(session.terminal, findings)
    return main.OK if is_well(findings) else main.FAILED


def _page(terminal: "Terminal", findings: Sequence[Finding]) -> None:
    rows = [[MARKS[each.state], each.check, each.found] for each in findings]

    def paint(name: str, cell: str) -> str:
        return cell if name else terminal.paint(cell, PAINT.get(cell.strip(), ""), to_err=False)

    terminal.line(table.render(["", "CHECK", "FOUND"], rows, width=WIDTH, paint=paint))
    for each in findings:
        if each.mend:
            terminal.line("")
            said = f"{MARKS[each.state]} {each.check}: {each.found}"
            terminal.line("\n".join(textwrap.wrap(said, WIDTH, subsequent_indent="   ", break_long_words=False)))
            # A command is for copying, so it is never wrapped.
            terminal.line(f"   fix: {each.mend}")
    counts = {state: sum(each.state is state for each in findings) for state in FindingState}
    told = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    terminal.line(f"\n{len(findings)} checks: {told}.")


def _machine() -> Iterator[Finding]:
    yield ok("slipway", own_version())
    yield ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for program in ("kubectl", "helm"):
        where = shutil.which(program)
        yield ok(program, where) if where else skipped(program, "not on PATH")


def _stack() -> Iterator[Finding]:
    state = Layout(default_folder()).read_state()
    if state is None:
        yield skipped("local stack", "none")
        return
    for member in state.members:
        lives = is_alive(member)
        ready = not member.url or member.name == "cluster" or _answers(f"{member.url}/readyz")
        found = f"pid {member.pid} {member.url}".strip() if lives else "not running"
        check = f"local {member.name}"
        if lives and ready:
            yield ok(check, found)
        else:
            mend = f"slipway down; slipway up   (its log: {member.log})"
            yield failed(check, found + ("" if ready else ", not ready"), mend)


def _api(session: CliSession, findings: list[Finding]) -> "ApiCondition | None":
    """Check what the api shows to every user, and, for an administrator, its internal state."""
    from slipway.ops.doctor.command import api_condition_of

    server = session.api.server
    try:
        me: Json = session.api.get("/me")
        findings.append(ok("API", f"{server.url} ({server.origin})"))
        names = ", ".join(me["workspaces"])
        label = "kubectl label namespace NAME slipway.dev/workspace=true"
        findings.append(ok("your workspaces", names) if names else failed("your workspaces", "none", label))
    except ControlPlaneError as error:
        said, _, advice = str(error).partition("\n")
        findings.append(failed("API", said, advice or f"curl {server.url}/readyz; slipway context ls"))
        return None
    try:
        return api_condition_of(session.api.get("/condition"))
    except NotFoundError:
        mend = "helm upgrade slipway ./helm --namespace slipway-system --reset-then-reuse-values"
        findings.append(warning("inside of the API", "the api is older than this command and does not report it", mend))
    except ControlPlaneError as error:
        findings.append(skipped("inside of the API", str(error).partition("\n")[0], "log in as an administrator"))
    return None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PROBE_S) as answer:  # noqa: S310 - an address of our own state file
            return answer.status == 200
    except (OSError, http.client.HTTPException):  # the port may be another program's by now
        return False


VERBS = {"doctor": CliVerb(configure, execute)}
