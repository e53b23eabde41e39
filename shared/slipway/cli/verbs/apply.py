"""`slipway apply -f`: launch what a file says: a launch body, or an Allocation manifest as kubectl takes it.

A manifest is launched through the API like everything else: its metadata gives name, workspace and labels, its spec
the rest. Applying the same file again launches nothing: the key is made from the file's own words.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, cast

from slipway.cli import main
from slipway.cli.verb import Session, Verb
from slipway.cli.verbs.run import add_launch_modes, launch_and_follow
from slipway.errors import InvalidError

Json = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("-f", "--filename", metavar="FILE", required=True, help="YAML or JSON; - reads standard input")
    parser.add_argument("--follow", action="store_true", help="stay with it to its end (one document only)")
    add_launch_modes(parser)


def execute(arguments: argparse.Namespace, session: Session) -> int:
    """Launch each document."""
    bodies = [body_of(document) for document in documents(read(arguments.filename))]
    arguments.detach = not arguments.follow or len(bodies) > 1
    given, code = arguments.key, main.OK
    for body in bodies:
        # A document with a name of its own is meant once, however often it is applied.
        arguments.key = given or (f"apply-{_digest(body)}" if body.get("name") else "")
        code = max(code, launch_and_follow(session, body, arguments))
    return code


def read(name: str) -> str:
    """The file, or standard input."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise _bad(f"{name} can not be read: {exc}") from exc


def documents(text: str) -> list[Json]:
    """The documents of a YAML or JSON text."""
    import yaml

    try:
        found: list[Any] = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as exc:
        raise _bad(f"neither YAML nor JSON: {exc}") from exc
    if not found:
        raise _bad("there is nothing in it")
    if not all(isinstance(each, dict) for each in found):
        raise _bad("every document must be an object")
    return cast("list[Json]", found)


def body_of(document: Json) -> Json:
    """The launch body of a document."""
    if "apiVersion" not in document:
        return document
    if document.get("kind") != "Allocation" or not str(document["apiVersion"]).startswith("slipway.dev/"):
        what = f"{document.get('apiVersion')} {document.get('kind')}"
        raise _bad(f"{what} is not launched here; use kubectl apply, or write a slipway.dev/v1alpha1 Allocation")
    metadata = cast("Json", document.get("metadata") or {})
    body = dict(cast("Json", document.get("spec") or {}))
    for theirs, ours in (("name", "name"), ("namespace", "workspace"), ("labels", "labels")):
        if metadata.get(theirs):
            body[ours] = metadata[theirs]
    return body


def _digest(body: Json) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _bad(detail: str) -> InvalidError:
    return InvalidError(f"--filename: {detail}")


VERBS = {"apply": Verb(configure, execute)}
