"""`slipway login`, `logout`, `whoami` and `context`: the server that commands call, and the user's identity."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from slipway.cli import main, table
from slipway.cli.http import Api
from slipway.cli.verb import CliSession, CliVerb, refuse_names
from slipway.errors import ControlPlaneError, InvalidError, NotFoundError, UnavailableError
from slipway.sdk import address, contexts, sign_on
from slipway.sdk.contexts import CliContext, CliContexts
from slipway.sdk.credentials import AUDIENCE, Kubernetes, checked

Json = dict[str, Any]
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def configure_login(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("url", nargs="?", default="", metavar="URL", help="the server (default: as for every verb)")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--token", metavar="TOKEN", help="the token; - reads it from the standard input")
    way.add_argument("--token-file", metavar="FILE", help="a file with the token; every command reads it again")
    way.add_argument("--kubernetes", action="store_true", help="a Kubernetes token, requested from kubectl when needed")
    way.add_argument("--sso", action="store_true", help="sign in at the server's issuer with a browser of this machine")
    way.add_argument("--device", action="store_true", help="as --sso, with a code that you type on any machine")
    parser.add_argument("--no-browser", action="store_true", help="of --sso: only print the address")
    parser.add_argument(
        "--account", default="", metavar="NS/NAME", help="of --kubernetes: log in as this service account"
    )
    parser.add_argument(
        "--kube-context", default="", metavar="NAME", help="of --kubernetes: use this context of kubectl"
    )
    parser.add_argument(
        "--audience", default=AUDIENCE, metavar="NAME", help=f"of --account: audience of the token (default {AUDIENCE})"
    )
    parser.add_argument("--name", default="", help="name of the context (default: the server's host)")


def login(arguments: argparse.Namespace, session: CliSession) -> int:
    """Try the given credential, print the user, and store the context."""
    if arguments.url and arguments.server:
        raise InvalidError("login: name the server once, either as URL or with --server")
    server = address.find(arguments.url or arguments.server)
    context = _signed_on(arguments, session, server.url) or _context(arguments, server.url)
    name = contexts.check_name(arguments.name or server.host)
    opened = server if context.way == "none" else server._replace(credential=context.credential)
    api = Api(opened, user=address.own_name())
    try:
        me = api.get("/me")
    finally:
        api.close()
    if server.scheme == "http" and server.host not in LOOPBACK and context.way != "none":
        session.terminal.note(f"{server.url} is not HTTPS: the token can be read on the network")
    known = contexts.read()
    contexts.write(known._replace(current=name, all={**known.all, name: context}))
    session.terminal.line(f"logged in at {server.url} as {me['user']} (context {name})")
    _tell(session, me)
    return main.OK


def configure_logout(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("name", nargs="?", default="", help="the context to remove (default: the current one)")


def logout(arguments: argparse.Namespace, session: CliSession) -> int:
    """Delete a login; a sign-on is also ended at its issuer."""
    known = contexts.read()
    name = arguments.name or known.current
    if name not in known.all:
        what = f"there is no context {name!r}" if name else "no context is in use"
        raise NotFoundError(f"{what}; `slipway context ls` lists them")
    kept = known.all[name]
    rest = {other: each for other, each in known.all.items() if other != name}
    contexts.write(known._replace(current="" if known.current == name else known.current, all=rest))
    session.terminal.line(f"logged out of {kept.server} (context {name})")
    if kept.oidc is not None:
        try:
            sign_on.ended(kept.oidc)
        except ControlPlaneError as error:
            session.terminal.note(
                f"the issuer was not notified; its refresh token stays valid until it expires: {error}"
            )
    return main.OK


def configure_whoami(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")


def whoami(arguments: argparse.Namespace, session: CliSession) -> int:
    """Print the user as the server knows it, the user's roles, and when the login ends."""
    me: Json = session.api.get("/me")
    if arguments.output == "json":
        session.terminal.line(json.dumps(me))
        return main.OK
    session.terminal.line(f"{me['user']} at {session.api.server.url}")
    _tell(session, me)
    context = contexts.of_server(session.api.server.url)
    if context is not None and context.oidc is not None and context.oidc.refresh_token:
        session.terminal.line(f"renewed automatically: {context.way}")
    return main.OK


def configure_context(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("word", nargs="?", choices=("ls", "use", "rm"), default="ls")
    parser.add_argument("name", nargs="?", default="", help="of use and rm: name of the context; `use -`: no context")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")


def context(arguments: argparse.Namespace, session: CliSession) -> int:
    """List, choose or delete contexts."""
    known = contexts.read()
    if arguments.word == "ls":
        refuse_names("context ls", arguments.name, instead="slipway context use")
        return _list(arguments, session, known)
    name = arguments.name
    if not name:
        raise InvalidError(f"context {arguments.word}: name a context; `slipway context ls` lists them")
    if arguments.word == "use" and name == "-":
        contexts.write(known._replace(current=""))
        session.terminal.line("no context is in use")
        return main.OK
    if name not in known.all:
        raise NotFoundError(f"there is no context {name!r}; `slipway context ls` lists them")
    if arguments.word == "use":
        contexts.write(known._replace(current=name))
        session.terminal.line(f"context {name}: {known.all[name].server}")
        return main.OK
    rest = {other: each for other, each in known.all.items() if other != name}
    contexts.write(known._replace(current="" if known.current == name else known.current, all=rest))
    session.terminal.line(f"context {name} is removed")
    return main.OK


def _signed_on(arguments: argparse.Namespace, session: CliSession, url: str) -> CliContext | None:
    """Return the context of a sign-on at the server's issuer; None when the user logs in another way."""
    is_named = arguments.sso or arguments.device
    if not is_named and (arguments.token or arguments.token_file or arguments.kubernetes or arguments.account):
        return None
    try:
        asked = sign_on.offered(url)
    except (NotFoundError, UnavailableError):
        if is_named:
            raise
        return None
    note = session.terminal.note
    if arguments.device:
        return CliContext(url, oidc=sign_on.by_device(asked, note))
    return CliContext(url, oidc=sign_on.by_browser(asked, note, _shut if arguments.no_browser else _opened))


def _shut(_: str) -> bool:
    return False


def _opened(address: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


def _context(arguments: argparse.Namespace, url: str) -> CliContext:
    if arguments.account and not arguments.kubernetes:
        raise InvalidError("--account needs --kubernetes")
    if arguments.kubernetes:
        namespace, slash, name = arguments.account.partition("/")
        if arguments.account and not (namespace and slash and name):
            raise InvalidError(f"--account: {arguments.account!r} must be NAMESPACE/NAME")
        return CliContext(url, kubernetes=Kubernetes(arguments.account, arguments.audience, arguments.kube_context))
    if arguments.token_file:
        return CliContext(url, token_file=str(Path(arguments.token_file).expanduser().absolute()))
    if arguments.token == "-":  # noqa: S105 - stands for the standard input
        return CliContext(url, token=checked(sys.stdin.read()))
    return CliContext(url, token=checked(arguments.token) if arguments.token else "")


def _tell(session: CliSession, me: Json) -> None:
    roles: dict[str, str] = me.get("roles") or {}
    if roles:
        session.terminal.line("roles: " + ", ".join(f"{role} in {place}" for place, role in sorted(roles.items())))
    session.terminal.line("workspaces: " + (", ".join(me["workspaces"]) or "no workspace that you may read"))
    if me.get("expiresAt"):
        session.terminal.line(f"until {me['expiresAt']}")


def _list(arguments: argparse.Namespace, session: CliSession, known: CliContexts) -> int:
    if arguments.output == "json":
        items = [
            {"name": name, "current": name == known.current, "server": each.server, "way": each.way}
            for name, each in sorted(known.all.items())
        ]
        session.terminal.line(json.dumps({"items": items}))
        return main.OK
    if not known.all:
        session.terminal.note("no contexts; `slipway login URL` makes one")
        return main.OK
    rows = [
        ["*" if name == known.current else "", name, each.server, each.way] for name, each in sorted(known.all.items())
    ]
    session.terminal.line(table.render(["", "NAME", "SERVER", "BY"], rows, width=session.terminal.width))
    return main.OK


VERBS = {
    "login": CliVerb(configure_login, login),
    "logout": CliVerb(configure_logout, logout),
    "whoami": CliVerb(configure_whoami, whoami),
    "context": CliVerb(configure_context, context),
}
