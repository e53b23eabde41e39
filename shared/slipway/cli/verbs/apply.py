"""`slipway apply -f`: launches the documents of a file: launch bodies, or Allocation manifests as for kubectl.

A manifest is launched through the API like every launch. Its metadata provides name, workspace and labels; its spec
provides the other fields. Applying the same file again launches nothing, because the key is computed from the content
of the file.
"""

import argparse
import hashlib
import json
from typing import Any, cast

from slipway.cli import labels, main, replicas, yamlfile
from slipway.cli.verb import CliSession, CliVerb, command_line
from slipway.cli.verbs.run import add_launch_modes, launch_and_follow
from slipway.errors import FieldError, InvalidError

Json = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("-f", "--filename", metavar="FILE", required=True, help="YAML or JSON; - reads standard input")
    add_launch_modes(parser, "follow it to its end (one document only); without it, as with --detach")


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Launch each document of the file."""
    bodies = bodies_of(arguments.filename)
    arguments.detach = not arguments.follow or len(bodies) > 1
    given, code = arguments.key, main.OK
    for number, body in enumerate(bodies, 1):
        # A document with a name is launched once, however often it is applied.
        arguments.key = given or (f"apply-{_digest(body)}" if body.get("name") else "")
        try:
            code = max(code, launch_and_follow(session, body, arguments, is_again=_was_launched))
        except InvalidError as exc:
            raise located(exc, arguments.filename, number, len(bodies)) from exc
    return code


def _was_launched(session: CliSession, view: Json) -> int | None:
    """Print a note and return the exit code when the allocation had ended before; else return None."""
    if not labels.has_ended(view):
        return None
    name, result = view["name"], view.get("result") or view["phase"]
    session.terminal.note(
        f"{view['id']}: not launched again: {name} has ended ({result}) at {view.get('endedAt') or 'an unknown time'}. "
        f"To launch it again, change or leave out its name; to see how it ended: {command_line('follow', name)}"
    )
    return labels.exit_code_of(view)


def bodies_of(filename: str) -> list[Json]:
    """Return the launch bodies of a file. Raises InvalidError."""
    documents = yamlfile.of_file(filename)
    bodies: list[Json] = []
    for number, document in enumerate(documents, 1):
        try:
            bodies.append(body_of(document))
        except InvalidError as exc:
            raise located(exc, filename, number, len(documents)) from exc
    return bodies


def located(error: InvalidError, filename: str, number: int, total: int) -> InvalidError:
    """Return the error with the file and the document that it is about."""
    where = filename + (f", document {number} of {total}" if total > 1 else "")
    fields = tuple(FieldError(field.pointer, f"{field.detail} ({where})") for field in error.fields)
    return InvalidError(f"{where}: {error}" if not fields else str(error), fields=fields)


def body_of(document: Json) -> Json:
    """Return the launch body of a document."""
    if "apiVersion" not in document:
        return document
    if document.get("kind") != "Allocation" or not str(document["apiVersion"]).startswith("slipway.dev/"):
        what = f"{document.get('apiVersion')} {document.get('kind')}"
        raise InvalidError(
            f"{what} is not launched here; use kubectl apply, or write a slipway.dev/v1alpha1 Allocation"
        )
    metadata, body = _part(document, "metadata"), dict(_part(document, "spec"))
    for theirs, ours in (("name", "name"), ("namespace", "workspace"), ("labels", "labels")):
        if metadata.get(theirs):
            body[ours] = metadata[theirs]
    return body


def _part(document: Json, name: str) -> Json:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidError(f"{name}: must be an object", fields=(FieldError(f"/{name}", "must be an object"),))
    return cast("Json", value)


def _digest(body: Json) -> str:
    """Return a digest of the body without the number of replicas: a higher number launches only the new ones."""
    words = {name: value for name, value in body.items() if name != replicas.FIELD}
    return hashlib.sha256(json.dumps(words, sort_keys=True, default=str).encode()).hexdigest()[:32]


VERBS = {"apply": CliVerb(configure, execute)}
