"""`slipway ssh`, `ssh-config` and `ssh-proxy`: OpenSSH's client, connected to a rank through a command in the rank.

Owns the script that starts an SSH server in the rank for one connection, and the options for ssh. No port is opened:
the bytes of SSH are sent through the session of `slipway exec`. scp, sftp, rsync and editors over ssh therefore work.
"""

import argparse
import asyncio
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Mapping

from slipway.cli import main, rank_session, ssh_keys
from slipway.cli.attach import write_out
from slipway.cli.ssh_keys import SshKeys
from slipway.cli.verb import OWN_COMMAND, CliSession, CliVerb, allocation_id, command_line
from slipway.cli.verbs.rank_exec import add_place, pass_input_on
from slipway.errors import InvalidError, PermanentError
from slipway.model.exec_channels import STDOUT, CommandEnd
from slipway.sdk import commands
from slipway.sdk.commands import RankCommand

_NO_SERVER, _NO_NAME, _NO_FOLDER = 45, 46, 47
_FAILED = 255
"""The exit code of ssh when the connection fails."""
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
_PIECES_MAX = 16
"""The account name is read from at most this number of pieces of a rank's output."""
_SERVE = f"""umask 077
sshd=$(command -v sshd)
for each in /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd; do
  [ -n "$sshd" ] || {{ [ -x "$each" ] && sshd=$each; }}
done
[ -n "$sshd" ] || exit {_NO_SERVER}
user=$(id -un 2>/dev/null) || exit {_NO_NAME}
d=${{TMPDIR:-/tmp}}/slipway-ssh.$$
mkdir -m 700 -- "$d" || exit {_NO_FOLDER}
trap 'rm -rf -- "$d"' EXIT
trap 'exit 1' HUP INT TERM
part() {{ while IFS= read -r line && [ "$line" != . ]; do printf '%s\\n' "$line"; done > "$1"; }}
part "$d/host"
part "$d/keys"
cat > "$d/config" <<END
HostKey "$d/host"
AuthorizedKeysFile "$d/keys"
AllowUsers $user
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
PrintMotd no
PrintLastLog no
LogLevel ERROR
Subsystem sftp internal-sftp
END
cp -- "$d/config" "$d/plain"
{{
  printf SetEnv
  env | while IFS= read -r each; do
    case $each in HOME=*|USER=*|LOGNAME=*|SHELL=*|PWD=*|OLDPWD=*|SHLVL=*|TERM=*|_=*|*[\\"\\\\]*) continue ;; esac
    case ${{each%%=*}} in "$each"|''|[0-9]*|*[!A-Za-z0-9_]*) continue ;; esac
    printf ' "%s"' "$each"
  done
  echo
}} >> "$d/config"
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd 2>/dev/null
"$sshd" -t -f "$d/config" 2>/dev/null || cp -- "$d/plain" "$d/config"
"$sshd" -i -e -f "$d/config"
"""
"""Serves one connection on the standard input.

The first two parts of the input are the host key and the user's key. Each part ends with a line that contains only a
dot. They are not passed as arguments, because the audit logs of Kubernetes contain arguments. `SetEnv` sets the
container's variables in the session, because sshd does not pass them on. `SetEnv` is left out when an older sshd does
not know it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ssh`."""
    parser.usage = "slipway ssh ID [options] [-- COMMAND...]"
    parser.description = (
        "Open an SSH session in a running rank, without an open port: the image needs OpenSSH's server\n"
        "(sshd), which is started for this connection and ends with it. Without one,\n"
        "slipway exec works as well."
    )
    parser.add_argument("id", metavar="ID", type=allocation_id)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    add_place(parser)
    for letter, meta, text in (
        ("-L", "[ADDRESS:]PORT:HOST:PORT", "forward a port of this machine to one that the rank reaches"),
        ("-R", "[ADDRESS:]PORT:HOST:PORT", "forward a port of the rank to one that this machine reaches"),
        ("-D", "[ADDRESS:]PORT", "serve a SOCKS proxy on this machine"),
    ):
        parser.add_argument(letter, dest=f"forward_{letter[1]}", action="append", default=[], metavar=meta, help=text)


def connect(arguments: argparse.Namespace, session: CliSession) -> int:
    """Replace this process by ssh, whose exit code becomes the exit code of the command."""
    if arguments.words:
        raise InvalidError(f"write -- before the command: {command_line('ssh', arguments.id, '--', *arguments.words)}")
    program = shutil.which("ssh")
    if program is None:
        raise PermanentError("there is no ssh on this machine: install an OpenSSH client, or use slipway exec")
    options, alias = _options(arguments, session)
    argv = [program, *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    for letter in "LRD":
        argv += [word for value in getattr(arguments, f"forward_{letter}") for word in (f"-{letter}", value)]
    argv += [alias, *arguments.command]
    session.close()
    sys.stdout.flush()
    os.execv(program, argv)  # noqa: S606


def configure_config(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ssh-config`."""
    parser.description = (
        "Print the entry for ~/.ssh/config with which ssh, scp, rsync and editors reach a rank\n"
        "under a name of its own. For VS Code Remote: slipway ssh-config ID >> ~/.ssh/config,\n"
        "then connect to the host that it names."
    )
    parser.add_argument("id", metavar="ID", type=allocation_id)
    add_place(parser)


def show_config(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print a section of an ssh configuration."""
    options, alias = _options(arguments, session)
    session.terminal.raw(section(alias, options))
    return main.OK


def section(alias: str, options: Mapping[str, str]) -> str:
    """Return a section of an ssh configuration for one host.

    Raises:
        InvalidError: a value does not fit on its line. The rest of it would be an option of its own, and ssh runs the
            program of options such as ProxyCommand.
    """
    for name, value in {"Host": alias, **options}.items():
        if not value.isprintable():
            raise InvalidError(f"{name}: {value[:200]!r} has a character that is not allowed in ssh's configuration")
    return "\n".join([f"Host {alias}", *(f"  {name} {value}" for name, value in options.items())]) + "\n"


def configure_proxy(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ssh-proxy`."""
    parser.description = "The ProxyCommand that ssh runs: passes on the bytes of one connection."
    parser.add_argument("id", metavar="ID", type=allocation_id)
    add_place(parser)


def proxy(arguments: argparse.Namespace, session: CliSession) -> int:
    """Serve one connection; return 255, as ssh does, when it cannot be served."""
    keys = ssh_keys.keys_of(arguments.id)
    end = asyncio.run(_proxy(_command(arguments, "sh", "-c", _SERVE, stdin=True), session, keys))
    if end.code in (0, _FAILED):
        return int(end.code)
    session.terminal.note(f"error: {_why(arguments.id, end)}")
    return _FAILED


async def _proxy(wanted: RankCommand, session: CliSession, keys: SshKeys) -> CommandEnd:
    loop = asyncio.get_running_loop()
    async with rank_session.running(session.api.server, wanted, session.user) as command:
        for key in (keys.host_key, keys.identity.with_suffix(".pub")):
            await command.send(key.read_bytes() + b".\n")
        threading.Thread(target=pass_input_on, args=(command, loop), daemon=True, name="stdin").start()
        async for stream, data in command.output():
            await asyncio.to_thread(write_out, stream, data)
    if command.end is None:
        raise commands.lost()
    return command.end


def _options(arguments: argparse.Namespace, session: CliSession) -> tuple[dict[str, str], str]:
    """Return ({option: value}, name of the host) for ssh."""
    id_ = str(session.api.get(f"/allocations/{arguments.id}")["id"])
    arguments.id = id_
    keys = ssh_keys.keys_of(id_)
    own = [*OWN_COMMAND, "ssh-proxy", "--server", session.api.server.url]
    own += ["--user", session.user, "--rank", str(arguments.rank)]
    own += ["--container", arguments.container] if arguments.container else []
    return {
        "User": asyncio.run(_user_of(arguments, session)),
        "HostKeyAlias": keys.alias,
        "ProxyCommand": shlex.join([*own, id_]).replace("%", "%%"),
        "IdentityFile": _quoted(str(keys.identity)),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": _quoted(str(keys.known_hosts)),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "ServerAliveInterval": "60",
    }, f"{keys.alias}-{arguments.rank}" if arguments.rank else keys.alias


async def _user_of(arguments: argparse.Namespace, session: CliSession) -> str:
    """Return the name of the rank's account, the only one that sshd logs in. Raises PermanentError."""
    said: list[bytes] = []
    wanted = _command(arguments, "sh", "-c", f"command -v sshd >/dev/null || {_LOOK} || exit {_NO_SERVER}; id -un")
    async with rank_session.running(session.api.server, wanted, session.user) as command:
        async for stream, data in command.output():
            if stream == STDOUT and len(said) < _PIECES_MAX:
                said.append(data)
    if command.end is None:
        raise commands.lost()
    if command.end.code:
        raise PermanentError(_why(arguments.id, command.end))
    return account_of(arguments.id, b"".join(said))


def account_of(id_: str, said: bytes) -> str:
    """Return the account name in the output of a rank's `id`.

    The program is part of the image. Its output is passed to ssh and to the user's configuration, so it must be a name
    and nothing else.

    Raises:
        PermanentError: the account has no name, or `id` printed something else.
    """
    name = said.decode(errors="replace").strip()
    if not name or name.isdigit():
        raise PermanentError(_why(id_, CommandEnd(_NO_NAME, "")))
    if not _ACCOUNT.fullmatch(name):
        raise PermanentError(
            f"the program id of {id_} printed {name[:80]!r}, which is not a valid account name "
            "(letters, digits and _ . - @ +)"
        )
    return name


_LOOK = "ls /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd >/dev/null 2>&1"


def _command(arguments: argparse.Namespace, *words: str, stdin: bool = False) -> RankCommand:
    return RankCommand(arguments.id, words, rank=arguments.rank, container=arguments.container, stdin=stdin)


def _why(id_: str, end: CommandEnd) -> str:
    instead = f"{command_line('exec', id_)} works without it, and slipway cp copies files"
    if end.is_missing_program:
        return f"the image of {id_} has no sh, which is needed to start an SSH server"
    if end.code is None:
        return end.message
    reasons = {
        _NO_SERVER: f"the image of {id_} has no OpenSSH server (Debian: openssh-server)",
        _NO_NAME: f"the account that {id_} runs as has no name in its /etc/passwd, which sshd needs",
        _NO_FOLDER: f"the SSH server of {id_} found no writable folder; mount one at /tmp",
    }
    reason = reasons.get(end.code, f"the SSH server of {id_} ended with exit code {end.code}")
    return f"{reason}; {instead}"


def _quoted(path: str) -> str:
    escaped = path.replace("%", "%%")
    return f'"{escaped}"' if " " in escaped else escaped


VERBS = {
    "ssh": CliVerb(configure, connect, takes_command=True),
    "ssh-config": CliVerb(configure_config, show_config),
    "ssh-proxy": CliVerb(configure_proxy, proxy),
}
