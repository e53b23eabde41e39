"""`slipway token`: creates and revokes API tokens in the place that stores their hashes: a folder, or a Secret.

Owns no state: the API never writes the hashes. kubectl changes a Secret with the permissions of the caller, and only
hashes are sent to it. `create` prints the token itself once; it is stored nowhere.
"""

import argparse
import base64
import json
import os
import secrets
import shlex
from pathlib import Path
from typing import Any

import msgspec

from slipway.cli import main, output, table
from slipway.cli.verb import CliSession, CliVerb, object_name, refuse_names
from slipway.errors import InvalidError, NotFoundError
from slipway.model import apitokens
from slipway.model.apitokens import EVERYWHERE, Role, TokenRecord
from slipway.model.times import format_time, parse_duration
from slipway.runtime.clock import SystemClock
from slipway.sdk import credentials

Json = dict[str, Any]
DAY_S = 86_400
DAYS_DEFAULT, DAYS_MAX = 90, 365
NAMESPACE = "slipway-system"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("word", nargs="?", choices=("ls", "create", "revoke"), default="ls")
    parser.add_argument("ids", nargs="*", metavar="ID", type=object_name, help="of revoke: the tokens")
    # Not --user, which every verb has for the caller's own name.
    parser.add_argument("--for", dest="owner", default="", metavar="USER", help="of create: user of the token")
    parser.add_argument(
        "--role", action="append", default=[], metavar="[WORKSPACE=]ROLE",
        help="of create: viewer, editor or admin in the workspace; without WORKSPACE=, or with *=: in all (repeat)",
    )  # fmt: skip
    parser.add_argument(
        "--expires",
        default=f"{DAYS_DEFAULT}d",
        metavar="TIME",
        help="lifetime of the token, such as 12h or 90d (default)",
    )
    parser.add_argument("--description", default="", help="of create: purpose of the token")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--dir", default="", metavar="FOLDER", help="folder of the hashes: SLIPWAY_TOKEN_DIR of the api")
    where.add_argument(
        "--secret", default="", metavar="[NS/]NAME", help=f"Secret of the hashes (default NS: {NAMESPACE})"
    )
    parser.add_argument(
        "--apply", action="store_true", help="with --secret: change the Secret, instead of printing the command"
    )
    output.add_options(parser, "table", "json", "yaml", "name")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Create, list or revoke tokens."""
    if arguments.apply and not arguments.secret:
        raise InvalidError("--apply needs --secret: with --dir the change is always made")
    if arguments.word != "revoke":
        refuse_names(f"token {arguments.word}", arguments.ids)
    match arguments.word:
        case "create":
            return _create(arguments, session)
        case "revoke":
            return _revoke(arguments, session)
        case _:
            return _list(arguments, session)


def _create(arguments: argparse.Namespace, session: CliSession) -> int:
    if not arguments.owner or not arguments.role:
        raise InvalidError("token create: name its user (--for USER) and its role (--role WORKSPACE=editor)")
    if not (arguments.dir or arguments.secret):
        raise InvalidError("token create: name the place of its hash: --dir FOLDER, or --secret NAME")
    now = SystemClock().now()
    try:
        token, record = apitokens.make(
            secrets.token_bytes(apitokens.ID_BYTES),
            secrets.token_bytes(apitokens.SECRET_BYTES),
            user=arguments.owner,
            roles=dict(map(_role, arguments.role)),
            created_at=format_time(now, "seconds"),
            expires_at=format_time(now + _life_s(arguments.expires), "seconds"),
            description=arguments.description,
        )
    except ValueError as error:
        raise InvalidError(f"token create: {error}") from error
    name, raw = apitokens.file_of(record.id), apitokens.encode(record)
    if arguments.dir:
        _write(Path(arguments.dir), name, raw)
    else:
        _patch(arguments, session, {name: base64.b64encode(raw).decode()})
    if output.is_for_machines(arguments):
        session.terminal.line(json.dumps({"token": token, **_shown(record)}))
        return main.OK
    session.terminal.line(token)
    session.terminal.note(
        f"token {record.id} of {record.user} is valid until {record.expires_at}; it is not shown again"
    )
    return main.OK


def _revoke(arguments: argparse.Namespace, session: CliSession) -> int:
    if not arguments.ids:
        raise InvalidError("token revoke: name the tokens; `slipway token ls` lists them")
    for id_ in arguments.ids:
        if not apitokens.is_id(id_):
            raise InvalidError(
                f"{id_!r} is not the id of a token: 16 hexadecimal digits, the part between the underscores"
            )
    if arguments.dir:
        for id_ in arguments.ids:
            try:
                (Path(arguments.dir) / apitokens.file_of(id_)).unlink()
            except FileNotFoundError as error:
                raise NotFoundError(f"there is no token {id_} in {arguments.dir}") from error
            session.terminal.line(f"{id_} is revoked")
        return main.OK
    if not arguments.secret:
        raise InvalidError("token revoke: name the place of its hash: --dir FOLDER, or --secret NAME")
    _patch(arguments, session, dict.fromkeys(map(apitokens.file_of, arguments.ids)))
    if arguments.apply:
        for id_ in arguments.ids:
            session.terminal.line(f"{id_} is revoked as soon as the pods see the changed Secret (about a minute)")
    return main.OK


def _list(arguments: argparse.Namespace, session: CliSession) -> int:
    items = _items(arguments, session)
    if output.is_for_machines(arguments):
        session.terminal.line(json.dumps({"items": items}))
        return main.OK
    if arguments.quiet or arguments.output == "name":
        for each in items:
            session.terminal.line(str(each["id"]))
        return main.OK
    rows = [
        [
            each["id"],
            each["user"],
            ", ".join(f"{place}={role}" for place, role in sorted(each["roles"].items())),
            each["expiresAt"] + (" (over)" if each["expired"] else ""),
            each["description"],
        ]
        for each in items
    ]
    head = ["ID", "USER", "ROLES", "UNTIL", "FOR"]
    session.terminal.line(table.render(head, rows, width=session.terminal.width))
    return main.OK


def _items(arguments: argparse.Namespace, session: CliSession) -> list[Json]:
    """Return the tokens of the named folder or Secret, else those that the API uses."""
    if arguments.dir:
        folder = Path(arguments.dir)
        try:
            files = {path.name: path.read_bytes() for path in folder.glob(f"*{apitokens.SUFFIX}")}
        except OSError as error:
            raise InvalidError(f"--dir: {folder} cannot be read: {error.strerror}") from error
    elif arguments.secret:
        namespace, name = _place(arguments.secret)
        words = ["get", "secret", name, "--namespace", namespace, "--output", "json"]
        data: dict[str, str] = json.loads(credentials.kubectl(words)).get("data") or {}
        files = {key: base64.b64decode(value) for key, value in data.items() if key.endswith(apitokens.SUFFIX)}
    else:
        return list(session.api.get("/tokens")["items"])
    records, wrong = apitokens.read(files)
    for each in wrong:
        session.terminal.note(each)
    return [_shown(record) for record in records.values()]


def _shown(record: TokenRecord) -> Json:
    """Return a token's record without its hash."""
    told: Json = msgspec.to_builtins(record)
    del told["hash"]
    return {"description": "", **told, "expired": record.has_expired(SystemClock().now())}


def _write(folder: Path, name: str, raw: bytes) -> None:
    """Write a file atomically."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = folder / f".{name}.new"
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        os.replace(fresh, folder / name)
    except OSError as error:
        raise InvalidError(f"--dir: {folder} cannot be written: {error.strerror}") from error


def _patch(arguments: argparse.Namespace, session: CliSession, data: dict[str, str | None]) -> None:
    """Change the Secret, or print the command. Each token has its own key, so no change overwrites another change."""
    namespace, name = _place(arguments.secret)
    patch = json.dumps({"data": data})
    words = ["patch", "secret", name, "--namespace", namespace, "--type", "merge"]
    if arguments.apply:
        credentials.kubectl([*words, "--patch-file", "/dev/stdin"], given=patch)
        return
    session.terminal.note(
        f"the change takes effect after this command: {shlex.join(['kubectl', *words, '--patch', patch])}"
    )


def _place(text: str) -> tuple[str, str]:
    namespace, slash, name = text.rpartition("/")
    return (namespace if slash else NAMESPACE), name


def _role(text: str) -> tuple[str, Role]:
    workspace, _, role = text.rpartition("=")
    try:
        return workspace or EVERYWHERE, Role(role)
    except ValueError as error:
        raise InvalidError(f"--role: {role!r} is not a role; write one of {', '.join(Role)}") from error


def _life_s(text: str) -> float:
    try:
        life_s = parse_duration(text)
    except ValueError as error:
        raise InvalidError(
            f"--expires: {text!r} is not a time; write for example 12h or 90d, at most {DAYS_MAX}d"
        ) from error
    if not 0 < life_s <= DAYS_MAX * DAY_S:
        raise InvalidError(f"--expires: must be above 0 and at most {DAYS_MAX}d")
    return life_s


VERBS = {"token": CliVerb(configure, execute)}
