"""The page about Redis accounts: the permissions of each account, and the commands that create them on any server."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from slipway.streams import keys
from slipway.streams.accounts import ACCOUNTS, ONE_FOR_ALL, Account, pattern
from tools.reference.markdown import code, table

TOP = f"""# Accounts on Redis

Each service has an account. The account may send only the commands that the service's code sends, and only for the
keys that the code uses. Tests compare the table with the commands that a real server receives from each service, and
try all other commands. The chart's Valkey and `slipway up` have these accounts. On your own Redis, an administrator
creates them and configures each service with its account (`externalRedis.accounts` of the chart; `SLIPWAY_REDIS_USER`
and `SLIPWAY_REDIS_PASSWORD` elsewhere). The rules need Redis 7.0 or a Valkey, because they use selectors. They are the
same on a Redis Cluster (on each of its nodes) and behind Sentinels (on the master and its replicas; services connect to
the Sentinels themselves without an account).

One login for all services also works: `{ONE_FOR_ALL}`. An attacker who controls one service can then change everything
that Slipway has in Redis.
"""
MAKE = """## Making them

Replace each `PASSWORD` by a different password. You can choose other names. To keep the accounts over a restart, use
`ACL SAVE` or the `user` lines of the configuration.
"""
NOTES = """## What the accounts do not prevent

- A service may run scripts (`EVAL`), because a server forgets scripts when it restarts. The commands of a script are
  subject to the same rules, but its run time is not limited: an attacker who controls a service can keep the server
  busy.
- Within its keys, a service can access the keys of every allocation. Data in Redis decides nothing: launches, ends and
  permissions depend on Kubernetes. A forged event or log line misleads its readers.
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
