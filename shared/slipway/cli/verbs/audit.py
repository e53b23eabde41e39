"""`slipway audit`: checks the invariants of a live system. Reads Kubernetes and Redis directly; writes nothing.

Owns the layout of a report, and the default addresses of the system. Exit codes: 0 no violation, 1 violations, 2 the
system could not be read.
"""

import argparse
from typing import TYPE_CHECKING

from slipway.cli import table
from slipway.cli.cluster_addresses import find_addresses
from slipway.cli.verb import CliSession, CliVerb
from slipway.errors import ControlPlaneError
from slipway.model.times import parse_duration

if TYPE_CHECKING:
    from slipway.ops.audit.live.command import AuditTarget
    from slipway.ops.audit.live.report import AuditReport, InvariantLine

OK, BROKEN, BLIND = 0, 1, 2
WIDTH = 80
SHOWN_MAX = 20
"""The most printed violations of one invariant; the JSON has all of them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `audit`."""
    parser.description = (
        "Reads all of Slipway's data in Kubernetes and Redis, and checks the invariants of docs/reliability.md. "
        "Needs a kubeconfig whose user may list the objects; Redis is $SLIPWAY_REDIS_URL; both are found where "
        "`slipway up` runs."
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="check the current state once (the default)")
    how.add_argument(
        "--for", dest="for_s", type=_seconds, default=0.0, metavar="TIME", help="watch for this time, then check"
    )
    parser.add_argument(
        "--every", type=_seconds, default=300.0, metavar="TIME", help="with --listen: time between two audits (5m)"
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="audit again and again, and serve /metrics and /livez there"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", default="", help="default: $KUBECONFIG, a running `slipway up`")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="format of the output")


def audit(arguments: argparse.Namespace, session: CliSession) -> int:
    """Read the system and print the violations."""
    from slipway.ops.audit.live import command

    place = _find(arguments.kubeconfig)
    if arguments.listen:
        return command.serve(place, listen=arguments.listen, every_s=arguments.every, for_s=arguments.for_s)
    try:
        found = command.audit_once(place, for_s=arguments.for_s)
    except (ControlPlaneError, OSError) as error:
        session.terminal.note(f"slipway audit: Kubernetes cannot be read: {error}")
        return BLIND
    if arguments.output == "json":
        session.terminal.raw(command.as_json(found))
    else:
        session.terminal.raw(_page(found))
    if found.violations:
        return BROKEN
    return BLIND if found.problem else OK


def _find(kubeconfig: str) -> "AuditTarget":
    from slipway.ops.audit.live.command import AuditTarget

    found = find_addresses(kubeconfig)
    return AuditTarget(kubeconfig=found.kubeconfig, redis_url=found.redis_url)


def _page(found: "AuditReport") -> str:
    rows = [(line.invariant, *_counts(line), line.promise) for line in found.invariants]
    parts = [table.render(("NAME", "LOOKED AT", "BROKEN", "PROMISE"), rows, width=WIDTH)]
    for line in found.invariants:
        for each in line.violations[:SHOWN_MAX]:
            where = f" (version {each.version})" if each.version else ""
            parts.append(f"{line.invariant} {each.subject}{where}\n  {each.message}\n  next: {each.next}")
        if len(line.violations) > SHOWN_MAX:
            parts.append(f"{line.invariant}: {len(line.violations) - SHOWN_MAX} more; -o json has all")
    parts.append(_summary(found))
    return "\n\n".join(parts) + "\n"


def _summary(found: "AuditReport") -> str:
    judged = sum(line.looked_at is not None for line in found.invariants)
    lines = [
        f"{found.violations} violations; {judged} of {len(found.invariants)} invariants judged on "
        f"{found.versions} versions, watched for {found.watched_s:.0f} s."
    ]
    if judged < len(found.invariants):
        lines.append('"-": not judged: evidence cannot be read from outside (-o json says which).')
    if not found.is_complete:
        lines.append("Some versions were missed: rules about two consecutive versions were not judged.")
    if found.problem:
        lines.append(f"Not everything could be read: {found.problem}")
    return "\n".join(lines)


def _counts(line: "InvariantLine") -> tuple[str, str]:
    return ("-", "-") if line.looked_at is None else (str(line.looked_at), str(len(line.violations)))


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


VERBS = {"audit": CliVerb(configure, audit)}
