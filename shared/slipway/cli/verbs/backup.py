"""`slipway backup` and `slipway restore`: writes all the objects that Slipway needs to one file, and restores them.

Owns the arguments and the printed tables. The work needs a client of Kubernetes, which only these verbs import.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.cli import main, table
from slipway.cli.cluster_addresses import find_addresses
from slipway.cli.verb import CliSession, CliVerb
from slipway.errors import InvalidError

if TYPE_CHECKING:
    from slipway.ops.backup.command import BackupTarget

SHOWN_MAX = 20
WIDTH = 80


def configure_backup(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `backup`."""
    parser.description = (
        "Writes allocations, jobs, queues, pools, templates, workspaces, usage, uploaded files, claims of "
        "Idempotency-Keys, and "
        "the Secrets with webhooks and tokens into one file. Slipway may keep running."
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="gzip when it ends in .gz; mode 0600")
    _common(parser)
    parser.add_argument(
        "--secret", action="append", default=[], metavar="NAME", help="also back up this Secret of --namespace"
    )
    parser.add_argument(
        "--without-secrets", action="store_true", help="leave out webhooks and tokens, because they contain keys"
    )


def configure_restore(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `restore`."""
    parser.description = (
        "Creates the objects of the backup that the cluster does not have. Existing objects stay, with two exceptions: "
        "the ledger of a pool continues at the epoch of the backup, and a namespace gets its label. Install the "
        "definitions and stop the services first."
    )
    parser.add_argument("-f", "--file", required=True, metavar="FILE", help="file that `slipway backup` wrote")
    _common(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", metavar="FILE", default="", help="default: $KUBECONFIG, a running `slipway up`")
    parser.add_argument(
        "--namespace",
        metavar="NAME",
        default=os.environ.get("SLIPWAY_NAMESPACE", "slipway-system"),
        help="namespace of the services (slipway-system)",
    )


def backup(arguments: argparse.Namespace, session: CliSession) -> int:
    """Write a backup."""
    from slipway.ops.backup.command import run_backup

    path = Path(arguments.output)
    try:
        counts = run_backup(
            _place(arguments), path, with_secrets=not arguments.without_secrets, secrets=tuple(arguments.secret)
        )
    except OSError as error:
        raise InvalidError(f"{path} cannot be written: {error.strerror}") from error
    rows = [[kind, str(count)] for kind, count in counts.items()]
    session.terminal.line(table.render(["KIND", "OBJECTS"], rows, width=WIDTH))
    session.terminal.note(f"{sum(counts.values())} objects, {path.stat().st_size} bytes in {path}")
    if not arguments.without_secrets:
        session.terminal.note("it may hold keys of webhooks and hashes of tokens: protect it as you protect those")
    return main.OK


def restore(arguments: argparse.Namespace, session: CliSession) -> int:
    """Restore a backup; return 1 when one of its objects could not be restored."""
    from slipway.ops.backup.command import run_restore
    from slipway.ops.backup.restore import RestoreOutcome

    path = Path(arguments.file)
    try:
        header, outcomes = run_restore(_place(arguments), path, is_dry=arguments.dry_run)
    except OSError as error:
        raise InvalidError(f"{path} cannot be read: {error.strerror}") from error
    terminal = session.terminal
    counts: dict[tuple[str, str], int] = {}
    for each in outcomes:
        counts[each.kind, each.done.value] = counts.get((each.kind, each.done.value), 0) + 1
    rows = [[kind, done, str(count)] for (kind, done), count in counts.items()]
    terminal.line(table.render(["KIND", "WHAT", "OBJECTS"], rows, width=WIDTH))
    told = [each for each in outcomes if each.done is not RestoreOutcome.RESTORED or each.why]
    for each in told[:SHOWN_MAX]:
        where = f"{each.namespace}/{each.name}" if each.namespace else each.name
        terminal.line(f"{each.done.value}: {each.kind} {where}{': ' + each.why if each.why else ''}")
    if len(told) > SHOWN_MAX:
        terminal.line(f"and {len(told) - SHOWN_MAX} more")
    what = "would be restored" if arguments.dry_run else "restored"
    done = sum(each.done is RestoreOutcome.RESTORED for each in outcomes)
    terminal.note(f"{done} of {len(outcomes)} objects {what}; the backup is of {header.created_at}")
    return main.FAILED if any(each.done is RestoreOutcome.FAILED for each in outcomes) else main.OK


def _place(arguments: argparse.Namespace) -> "BackupTarget":
    from slipway.ops.backup.command import BackupTarget

    return BackupTarget(kubeconfig=find_addresses(arguments.kubeconfig).kubeconfig, namespace=arguments.namespace)


VERBS = {"backup": CliVerb(configure_backup, backup), "restore": CliVerb(configure_restore, restore)}
