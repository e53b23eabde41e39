"""Prints a request as the command of another tool (`--as`): curl, kubectl, or a Python program. It sends no change.

Owns the text that is printed instead of the request, and the errors for requests that a tool cannot make. A token is
never printed: curl reads it from `$SLIPWAY_API_TOKEN`, and the Python client finds it as the command does. The printed
text can be run unchanged.
"""

import argparse
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from slipway.cli.batch import parts_of
from slipway.cli.http import Query, shell_variable
from slipway.cli.output import Options, yaml_text
from slipway.cli.verb import CliSession
from slipway.errors import InvalidError, PermanentError
from slipway.sdk.credentials import ENV_TOKEN

Json = dict[str, Any]

TOOLS = ("curl", "kubectl", "python")
_UPPER = re.compile(r"(?<=[a-z0-9])[A-Z]")
_NOT_OF_A_MANIFEST = ("requestHash", "signals", "desired", "queuePosition", "secretVariables")
_OBJECT_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")
_RESOURCE = "allocations.slipway.dev"


def add_option(parser: Options) -> None:
    """Add the option `--as`."""
    parser.add_argument(
        "--as",
        dest="as_tool",
        choices=TOOLS,
        help="print the request as a command of this tool, and do nothing else (kubectl: a launch is a manifest)",
    )


def asked(arguments: argparse.Namespace) -> str:
    """Return the named tool; empty when none was named, or the verb has no such option."""
    return str(getattr(arguments, "as_tool", "") or "")


# --- what the verbs print ---------------------------------------------------------------------------------------------


def show_launch(session: CliSession, arguments: argparse.Namespace, body: Json, key: str) -> None:
    """Print a launch. Raises InvalidError for a launch that kubectl cannot make."""
    match asked(arguments):
        case "curl":
            _curl(session, "POST", "/allocations", body=body, headers={"Idempotency-Key": key})
        case "kubectl":
            _manifest(session, body)
        case _:
            fields = {_snake(name): value for name, value in body.items() if name != "kind"}
            if odd := [name for name in fields if not name.isidentifier()]:
                raise PermanentError(f"the launch has a field {odd[0][:80]!r}, which the Python client cannot pass")
            lines = [f"    {name}={_literal(name, value)}," for name, value in fields.items()]
            call = ["run = client.launch(", f"    {body['kind']!r},", *lines, f"    key={key!r},", ")", "print(run.id)"]
            _python(session, call, with_os="secretValues" in body)


def show_get(session: CliSession, arguments: argparse.Namespace) -> None:
    """Print the read of one allocation."""
    match asked(arguments):
        case "curl":
            _curl(session, "GET", f"/allocations/{arguments.id}")
        case "kubectl":
            form = "-o yaml" if arguments.output == "yaml" else "-o json"
            (place,) = _places(session, [arguments.id])
            session.terminal.line(f"kubectl get {_RESOURCE} {place} {form}")
        case _:
            _python(session, [f"print(client.get({arguments.id!r}))"])


def show_list(session: CliSession, arguments: argparse.Namespace, query: Query) -> None:
    """Print a list with these filters, as the API names them. Raises InvalidError for a filter that kubectl lacks."""
    given = {name: value for name, value in query.items() if value}
    match asked(arguments):
        case "curl":
            _curl(session, "GET", "/allocations", query=given)
        case "kubectl":
            session.terminal.line(_kubectl_list(given))
        case _:
            filters = ", ".join(f"{_snake(name)}={value!r}" for name, value in given.items())
            _python(session, [f"for each in client.list({filters}):", "    print(each.id, each.phase)"])


def show_kill(session: CliSession, arguments: argparse.Namespace, ids: Sequence[str], values: Json) -> None:
    """Print a kill of one or many allocations. Raises InvalidError for values that kubectl cannot send."""
    match asked(arguments):
        case "kubectl":
            if values:
                raise InvalidError(
                    f"--{next(iter(values))}: kubectl has no such option; leave it out, or use --as curl"
                )
            _kubectl_patch(session, ids, {"desired": "Stopped"})
        case "curl" if len(ids) == 1:
            _curl(session, "POST", f"/allocations/{ids[0]}/kill", body=values or None)
        case "curl":
            for part in parts_of(ids):
                _curl(session, "POST", "/allocations/batch", body={"verb": "kill", **values, "ids": part})
        case _:
            more = "".join(f", {name}={value!r}" for name, value in values.items())
            call = [f"print(client.kill({ids[0]!r}{more}).phase)"] if len(ids) == 1 else []
            for part in parts_of(ids) if len(ids) > 1 else ():
                call += [f"for item in client.batch('kill', ids={part!r}{more}).items:"]
                call += ["    print(item.id, item.outcome)"]
            _python(session, call)


def show_batch(
    session: CliSession,
    arguments: argparse.Namespace,
    verb: str,
    ids: Sequence[str],
    values: Json,
    *,
    spec: Json | None,
) -> None:
    """Print a verb for one or many allocations as a batch; `spec` is the patch for kubectl, None when it is impossible.

    Raises:
        InvalidError: kubectl cannot do it.
    """
    match asked(arguments):
        case "kubectl":
            _kubectl_patch(session, ids, spec)
        case "curl":
            for part in parts_of(ids):
                _curl(session, "POST", "/allocations/batch", body={"verb": verb, **values, "ids": part})
        case _:
            more = "".join(f", {_snake(name)}={value!r}" for name, value in values.items())
            call: list[str] = []
            for part in parts_of(ids):
                call += [f"for item in client.batch({verb!r}, ids={part!r}{more}).items:"]
                call += ["    print(item.id, item.outcome)"]
            _python(session, call)


def show_signal(session: CliSession, arguments: argparse.Namespace, verb: str, ids: Sequence[str], reason: str) -> None:
    """Print `preempt` or `terminate` of each allocation. Raises InvalidError for kubectl: it cannot ask ranks."""
    match asked(arguments):
        case "kubectl":
            _kubectl_patch(session, ids, None)
        case "curl":
            for id_ in ids:
                _curl(session, "POST", f"/allocations/{id_}/{verb}", body={"reason": reason} if reason else None)
        case _:
            more = f", reason={reason!r}" if reason else ""
            _python(session, [f"print(client.{verb}({id_!r}{more}).phase)" for id_ in ids])


def show_move(session: CliSession, arguments: argparse.Namespace, ids: Sequence[str], beside: Json) -> None:
    """Print a move of one or many. Raises InvalidError for kubectl, and for Python with `--no-interrupt`."""
    if len(ids) == 1 and asked(arguments) == "curl":
        _curl(session, "POST", f"/allocations/{ids[0]}/move", body=beside)
        return
    if "interrupt" in beside and asked(arguments) == "python":
        raise InvalidError("--no-interrupt: the Python client has no such option; leave it out, or use --as curl")
    values = {name: value for name, value in beside.items() if name != "interrupt"}
    show_batch(session, arguments, "move", ids, values, spec=None)


def show_forget(session: CliSession, arguments: argparse.Namespace, ids: Sequence[str]) -> None:
    """Print `forget` of each allocation. Raises InvalidError for the other tools, which cannot do it."""
    if asked(arguments) != "curl":
        raise InvalidError(f"--as {asked(arguments)}: only the API can do this; use --as curl")
    for id_ in ids:
        _curl(session, "POST", f"/allocations/{id_}/forget")


def show_change(session: CliSession, arguments: argparse.Namespace, id_: str, body: Json, spec: Json | None) -> None:
    """Print a change of fields of one allocation; `spec` as in `show_batch`. Raises what `show_batch` raises."""
    match asked(arguments):
        case "kubectl":
            _kubectl_patch(session, [id_], spec)
        case "curl":
            _curl(session, "PATCH", f"/allocations/{id_}", body=body)
        case _:
            fields = ", ".join(f"{_snake(name)}={value!r}" for name, value in body.items())
            _python(session, [f"print(client.change({id_!r}, {fields}).id)"])


# --- the tools --------------------------------------------------------------------------------------------------------


def _curl(
    session: CliSession,
    method: str,
    path: str,
    *,
    query: Query | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    session.terminal.line(session.api.as_curl(method, path, query=query, body=body, headers=headers))
    if session.api.server.credential is not None and ENV_TOKEN not in os.environ:
        session.terminal.note(f"it reads your token from ${ENV_TOKEN}, which is not set here")


def _python(session: CliSession, call: Sequence[str], *, with_os: bool = False) -> None:
    server = session.api.server
    user = f", user={session.user!r}" if session.user and server.credential is None else ""
    lines = [
        *(["import os", ""] if with_os else []),
        "from slipway.sdk import Client",
        "",
        f"# The token is that of ${ENV_TOKEN}, else of your login on this machine.",
        f"client = Client({server.url!r}{user})",
        *call,
    ]
    session.terminal.line("\n".join(lines))


def _manifest(session: CliSession, body: Json) -> None:
    """Print the Allocation that the API would create for a launch, including the values of templates and defaults."""
    if body.get("secretValues"):
        names = ", ".join(body["secretValues"])
        detail = f"the value of {names} can only be sent to the API; put it in a Secret and write NAME=SECRET/KEY"
        raise InvalidError(f"--secret: {detail}, or use --as curl")
    answer: Json = session.api.post("/allocations", body, query={"dryRun": "true"})
    spec = {name: value for name, value in cast("Json", answer["spec"]).items() if name not in _NOT_OF_A_MANIFEST}
    metadata: Json = {"name": answer["name"], "namespace": answer["workspace"]}
    metadata |= {"labels": body["labels"]} if body.get("labels") else {}
    manifest = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "metadata": metadata, "spec": spec}
    session.terminal.raw(f"---\n# kubectl apply -f FILE\n{yaml_text(manifest)}")


def _kubectl_patch(session: CliSession, ids: Sequence[str], spec: Json | None) -> None:
    if spec is None:
        raise InvalidError("--as: kubectl cannot do this as the API does; use --as curl or --as python")
    patch = shlex.quote(json.dumps({"spec": spec}, separators=(",", ":")))
    for place in _places(session, ids):
        session.terminal.line(f"kubectl patch {_RESOURCE} {place} --type merge -p {patch}")


def _kubectl_list(given: Mapping[str, Any]) -> str:
    words = ["kubectl", "get", _RESOURCE]
    words += ["-n", str(given["workspace"])] if "workspace" in given else ["--all-namespaces"]
    fields: list[str] = []
    for name, value in given.items():
        match name:
            case "workspace":
                pass
            case "labelSelector":
                words += ["-l", str(value)]
            case "queue":
                fields.append(f"spec.queue={value}")
            case "phase" if "," not in str(value):
                fields.append(f"status.phase={value}")
            case _:
                option = {"user": "owner"}.get(name, name)
                raise InvalidError(f"--{option}: kubectl cannot filter by it; leave it out, or use --as curl")
    words += ["--field-selector", ",".join(fields)] if fields else []
    return shlex.join(words)


def _places(session: CliSession, ids: Sequence[str]) -> list[str]:
    """Return name and namespace of each allocation, as options of kubectl; the API is asked for them.

    Raises:
        PermanentError: a name is invalid in Kubernetes; a shell or kubectl could read it as something else.
    """
    views: list[Json] = [session.api.get(f"/allocations/{id_}") for id_ in ids]
    for name in [str(view[field]) for view in views for field in ("name", "workspace")]:
        if not _OBJECT_NAME.fullmatch(name):
            raise PermanentError(f"the server names an object {name[:80]!r}, which is not a valid Kubernetes name")
    return [f"{view['name']} -n {view['workspace']}" for view in views]


def _snake(name: str) -> str:
    return _UPPER.sub(lambda found: "_" + found[0].lower(), name)


def _literal(name: str, value: Any) -> str:
    """Return a value of a launch as Python source; for secret values, only the variables that contain them."""
    if name != "secret_values":
        return repr(value)
    pairs = [f"{each!r}: os.environ[{shell_variable(each)!r}]" for each in cast("Json", value)]
    return "{" + ", ".join(pairs) + "}"
