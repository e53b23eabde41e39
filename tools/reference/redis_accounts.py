"""The page about Redis accounts: the permissions of each account, and the commands that create them on any server."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from slipway.streams import keys
from slipway.streams.accounts import ACCOUNTS, ONE_FOR_ALL, Account, pattern
from tools.reference.markdown import code, table

TOP = f"""# Accounts on Redis

An account for each service, which may send the commands that its code sends, for the keys that it sends them for, and
nothing else. Tests compare the table with what a real server sees of each service, and try everything else. The
chart's Valkey and `slipway up` have these accounts. On a Redis of your own, an administrator makes them; then each
service is given its own (`externalRedis.accounts` of the chart; `SLIPWAY_REDIS_USER` and `SLIPWAY_REDIS_PASSWORD`
elsewhere). The rules need Redis 7.0 or a Valkey, for their selectors. They are the same on a Redis Cluster (on each of
its nodes) and behind Sentinels (on the master and its replicas; the Sentinels themselves are asked without an account).

One login for all services works too: `{ONE_FOR_ALL}`. A service that is taken over can then do to what is Slipway's
whatever it likes.
"""
MAKE = """## Making them

Put a password of its own in the place of each `PASSWORD`. The names are free. `ACL SAVE`, or the `user` lines of the
configuration, keep them over a restart.
"""
NOTES = """## What they do not stop

- A service runs scripts (`EVAL`), because a server forgets scripts when it restarts. What a script does is held to the
  same rules. How long it runs is not: a service that is taken over can keep the server busy.
- Within its keys a service reaches those of every allocation. What is in Redis decides about nothing: a launch, an end
  and a right rest on Kubernetes. A forged event or log line misleads those who read it.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([TOP, *map(_section, ACCOUNTS), MAKE, *map(_command, ACCOUNTS), NOTES])


def _section(account: Account) -> str:
    granted = account.commands()
    rows = [
        [code(pattern(family)), ", ".join(code(_typed(command)) for command in sorted(granted[family]))]
        for family in keys.TABLE
        if family in granted
    ]
    title = f"## slipway-{account.name}\n\nFor {account.purpose}."
    if account.server:
        title += f" It may also ask for {' and '.join(code(_typed(each)) for each in account.server)}."
    return "\n".join([title, "", table(["keys", "commands"], rows), ""])


def _typed(command: str) -> str:
    return command.replace("|", " ").upper()


def _command(account: Account) -> str:
    rules = " ".join(shlex.quote(each) for each in account.arguments())
    return f"```\nredis-cli ACL SETUSER slipway-{account.name} on '>PASSWORD' {rules}\n```\n"


def chart_file() -> str:
    """Return the accounts in the form that the chart's Valkey reads: a name and its rules per line."""
    return "".join(f"{account.name} {account.rules()}\n" for account in ACCOUNTS)


def main(arguments: Sequence[str]) -> int:
    """Write the file of the chart."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tools.reference.redis_accounts FILE\n")
        return 2
    path = Path(arguments[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(chart_file(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
