"""The options of a launch, and the launch body that they make.

Owns the syntax of the options; the API defines and checks their meaning. This module refuses only what the API cannot
check: files that cannot be read, options of another form, variables that are not set.
"""

import argparse
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.cli import upload
from slipway.cli.upload import file_of
from slipway.cli.verb import whole_number
from slipway.crd.expansion import literal
from slipway.errors import InvalidError
from slipway.model.numbers import number_in
from slipway.sdk import contexts

Json = dict[str, Any]
_ID_DIGITS = 10
GPU = "nvidia.com/gpu"
NAME_LENGTH = 6
NAME_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
"""Letters of generated names: no vowels, so that no words result, and no similar letters, as names are read aloud."""


def add_options(parser: argparse.ArgumentParser, *, with_ranks: bool) -> None:
    """Add the options of a launch."""
    ask = parser.add_argument_group("resources (of each rank)")
    add_resources(ask)
    types = ask.add_mutually_exclusive_group()
    types.add_argument("--gpu-type", metavar="FLAVOR", help="type of the GPUs: a flavor of the pool")
    types.add_argument(
        "--flavor",
        metavar="FLAVOR",
        action="append",
        default=[],
        help="a flavor that it accepts, the best first (repeat)",
    )
    ask.add_argument("--arch", choices=("amd64", "arm64"), help="processor architecture of its nodes")
    if with_ranks:
        ask.add_argument(
            "--ranks", metavar="N", type=whole_number, help="number of ranks; they start together or not at all"
        )
        ask.add_argument(
            "--min-available",
            metavar="N",
            type=whole_number,
            help="number of ranks that it needs to start (default: all)",
        )
    what = parser.add_argument_group("what it runs")
    what.add_argument("--image", metavar="I", help="container image")
    what.add_argument(
        "--setup",
        metavar="SCRIPT",
        help="script that each rank runs first, once per attempt, such as 'pip install -r requirements.txt'",
    )
    add_variables(what)
    what.add_argument(
        "--secret",
        metavar="NAME[=SECRET/KEY]",
        action="append",
        default=[],
        help="variable with the value of a key of a Secret of the workspace; without =SECRET/KEY, with its value in "
        "your shell, which is never shown again (repeat)",
    )
    what.add_argument(
        "--file", metavar="PATH[:NAME]", action="append", default=[], help="send a small file with the launch (repeat)"
    )
    upload.add_options(what)
    what.add_argument(
        "--port",
        metavar="[NAME=]PORT[/SCHEME]",
        action="append",
        default=[],
        help="port that it serves: http (the default), https or tcp (repeat)",
    )
    what.add_argument(
        "--service",
        metavar="NAME:PORT",
        help="put its first rank behind this Service of the workspace; several launches may share a Service",
    )
    _add_surroundings(what)
    what.add_argument("--template", metavar="NAME", help="template of the workspace; the other options override it")
    _add_where(parser)
    _add_limits(parser)


def _add_where(parser: argparse.ArgumentParser) -> None:
    """Add the options about where and when a launch runs."""
    where = parser.add_argument_group("where and when")
    where.add_argument("--name", metavar="N", help="name of the allocation (default: generated)")
    where.add_argument("-n", "--workspace", metavar="W", help="(default: what `slipway config` shows)")
    where.add_argument("--pool", metavar="P")
    where.add_argument("--queue", metavar="Q")
    where.add_argument("--job", metavar="J", help="job that groups it with other allocations")
    where.add_argument(
        "--topology",
        metavar="KEY[=required|preferred]",
        help="place all ranks on nodes with one value of this node label, such as a rack; =preferred: on as few "
        "values as possible (default: required)",
    )
    where.add_argument("--priority", metavar="0..1000", type=whole_number, help="higher goes first (default: 50)")
    where.add_argument("--preemptible", action="store_true", help="may be preempted for other work")
    where.add_argument("--hold", action="store_true", help="do not start before `slipway resume`")
    where.add_argument(
        "--after",
        metavar="ID[:ok|end|failed]",
        action="append",
        default=[],
        help="start when this allocation has ended well (ok, the default), in any way, or failed; job/NAME: all "
        "allocations of a job (repeat)",
    )
    where.add_argument("--label", metavar="NAME=VALUE", action="append", default=[], help="(repeat)")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options about limits and about failures."""
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-runtime", metavar="2h", help="end it after this time")
    limits.add_argument("--idle-timeout", metavar="30m", help="end it after this time without use")
    limits.add_argument("--pending-timeout", metavar="1h", help="end it when it has not started within this time")
    limits.add_argument(
        "--max-restarts", "--retry", metavar="N", type=whole_number, help="restart it at most N times when it fails"
    )
    limits.add_argument(
        "--restart",
        choices=("gang", "rank"),
        help="what --max-restarts restarts: gang, all ranks (the default), or rank, only the failed rank",
    )
    limits.add_argument(
        "--on-exit",
        metavar="CODES=ACTION",
        action="append",
        default=[],
        help="what to do at these exit codes, such as 2,64-78=fail: fail, retry, ignore, or notCounted (repeat; the "
        "first match decides)",
    )


def _add_surroundings(what: argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the options about the user, the privileges and the volumes of a launch."""
    what.add_argument("--shm-size", metavar="SIZE", help="size of /dev/shm, such as 8Gi; it uses memory of the rank")
    what.add_argument("--service-account", metavar="NAME", help="run as this service account of the workspace")
    what.add_argument(
        "--run-as", metavar="UID[:GROUP]", default="", help="run as this user and primary group, by number: 1000:1000"
    )
    what.add_argument(
        "--privilege",
        metavar="NAME",
        action="append",
        default=[],
        help="root, hostIPC, hostNetwork or a capability such as IPC_LOCK; the pool must allow it (repeat)",
    )
    what.add_argument(
        "--volume",
        metavar="CLAIM:PATH[:ro]",
        action="append",
        default=[],
        help="mount a volume claim of the workspace at this path; :ro: read-only (repeat)",
    )
    what.add_argument(
        "--home",
        action="store_true",
        help="mount your home volume as HOME; all your launches share it, and the first one creates it",
    )
    what.add_argument(
        "--checkpoints",
        metavar="CLAIM[/FOLDER]",
        help="store SLIPWAY_CHECKPOINT_DIR on this volume claim, so that it survives restarts and preemptions; all "
        "launches with the same FOLDER share it",
    )


def add_resources(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the options about the resources of a rank; `resources_of` reads them."""
    parser.add_argument("--gpus", metavar="N", type=whole_number, help="number of whole GPUs")
    parser.add_argument("--cpus", metavar="N", help="CPUs, such as 2 or 500m")
    parser.add_argument("--memory", metavar="SIZE", help="memory, such as 4Gi")


def resources_of(arguments: argparse.Namespace) -> Json:
    """Return the resources that the options name."""
    named = {
        name: getattr(arguments, option) for option, name in (("cpus", "cpu"), ("memory", "memory"), ("gpus", GPU))
    }
    return {name: value for name, value in named.items() if value is not None}


def add_variables(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the options about variables; `variables_of` reads them."""
    parser.add_argument(
        "-e",
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="variable; without =VALUE, with its value in your shell (repeat)",
    )
    parser.add_argument(
        "--env-file",
        metavar="FILE",
        action="append",
        default=[],
        help="file of variables, one NAME=VALUE per line; --env overrides it (repeat)",
    )


def body_of(kind: str, arguments: argparse.Namespace, command: list[str]) -> Json:
    """Return the launch body."""
    # The API would derive the name from the key of the launch. A name that contains the kind is clearer in lists.
    body: Json = {"kind": kind} if arguments.key else {"kind": kind, "name": made_up_name(kind)}
    for option, field in _PLAIN.items():
        value = getattr(arguments, option)
        if value is not None and value is not False:
            body[field] = value
    if command:
        body["command"] = command
    variables = variables_of(arguments, os.environ)
    if variables:
        body["env"] = variables
    if arguments.secret:
        references = [item for item in arguments.secret if "=" in item]
        if references:
            body["secrets"] = _named(references, "--secret", "NAME=SECRET/KEY or NAME")
        values = _values_here([item for item in arguments.secret if "=" not in item], os.environ)
        if values:
            body["secretValues"] = values
    body |= _of_nodes(arguments) | _of_pods(arguments) | _of_course(arguments)
    if arguments.label:
        body["labels"] = _named(arguments.label, "--label", "NAME=VALUE")
    if arguments.port:
        body["ports"] = [_port(text) for text in arguments.port]
    if arguments.service:
        body["service"] = _service(arguments.service)
    if arguments.file:
        body["files"] = [_file(text) for text in arguments.file]
    role = _role(arguments)
    if role:
        body["ranks"] = [role]
    return body


def _of_nodes(arguments: argparse.Namespace) -> Json:
    """Return the fields that restrict the nodes of the ranks."""
    found: Json = {}
    if arguments.flavor:
        found["flavors"] = arguments.flavor
    if arguments.topology is not None:
        found["topology"] = _topology(arguments.topology)
    return found


def _of_pods(arguments: argparse.Namespace) -> Json:
    """Return the short fields about the pods: their user, their volumes, their privileges."""
    found: Json = {}
    if arguments.run_as:
        found["runAs"] = _run_as(arguments.run_as)
    if arguments.volume:
        found["volumes"] = dict(_volume(text) for text in arguments.volume)
    if arguments.privilege:
        found["privileges"] = arguments.privilege
    return found


def _of_course(arguments: argparse.Namespace) -> Json:
    """Return the fields about dependencies and about failures."""
    found: Json = {}
    if arguments.after:
        found["after"] = [_dependency(text) for text in arguments.after]
    if arguments.on_exit:
        found["failurePolicy"] = {"rules": [_rule(text) for text in arguments.on_exit]}
    return found


def _topology(text: str) -> dict[str, str]:
    """Parse `KEY`, or `KEY=MODE`, as `topology` of a launch; the API knows which keys are labels."""
    key, has_mode, mode = text.partition("=")
    if not key or (has_mode and mode not in _TOPOLOGY_MODES):
        raise InvalidError(
            f"--topology: {text!r} is not KEY, KEY=required or KEY=preferred, such as topology.kubernetes.io/zone"
        )
    return {"key": key, "mode": mode or _TOPOLOGY_MODES[0]}


_TOPOLOGY_MODES = ("required", "preferred")


def _rule(text: str) -> Json:
    """Parse `CODES=ACTION` as a rule of `failurePolicy`; the API knows the valid codes and actions."""
    codes, _, action = text.partition("=")
    entries = [part.strip() for part in codes.split(",")]
    if not action or not all(entries):
        raise InvalidError(f"--on-exit: {text!r} is not CODES=ACTION, such as 2,64-78=fail")
    return {"action": action, "exitCodes": [each if (code := number_in(each)) is None else code for each in entries]}


def _run_as(text: str) -> dict[str, int]:
    """Parse `1000`, `1000:2000` or `:2000` as `runAs` of a launch."""
    user, _, group = text.partition(":")
    given = {"user": user, "group": group}
    found = {field: number for field, each in given.items() if (number := number_in(each, _ID_DIGITS)) is not None}
    if not found or len(found) < sum(map(bool, given.values())):
        raise InvalidError(f"--run-as: {text[:64]!r} is not UID, UID:GROUP or :GROUP in numbers, such as 1000:1000")
    return found


def _volume(text: str) -> tuple[str, str]:
    """Parse `CLAIM:PATH`, or `CLAIM:PATH:ro`, as (path, claim) of `volumes` of a launch."""
    claim, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not claim or not path or mode not in ("", "ro", "rw"):
        raise InvalidError(f"--volume: {text!r} is not CLAIM:PATH or CLAIM:PATH:ro, such as dataset:/data:ro")
    return path, f"{claim}:{mode}" if mode else claim


_WHEN = {"ok": "succeeded", "end": "ended", "failed": "failed"}


def _dependency(text: str) -> dict[str, str]:
    """Parse `ID`, `ID:end` or `job/NAME:ok` as an item of `after` of a launch."""
    named, has_word, word = text.partition(":")
    kind, _, job = named.rpartition("/")
    if not job or kind not in ("", "job") or (has_word and word not in _WHEN):
        raise InvalidError(
            f"--after: {text!r} is not ID, ID:ok, ID:end or ID:failed, with job/NAME for the allocations of a job"
        )
    return {"job" if kind else "allocation": job, "when": _WHEN[word or "ok"]}


def into_workspace(body: Json) -> None:
    """Set the workspace of the user's settings, if the launch names none; without a setting, the API decides."""
    chosen = contexts.preferred_workspace()
    if chosen.value != contexts.DEFAULT_WORKSPACE:
        body.setdefault("workspace", chosen.value)


def made_up_name(kind: str) -> str:
    """Return a generated name such as `notebook-4kq7zp`."""
    letters = "".join(secrets.choice(NAME_LETTERS) for _ in range(NAME_LENGTH))
    return f"{'run' if kind == 'training' else kind}-{letters}"


_PLAIN = {
    "name": "name",
    "workspace": "workspace",
    "pool": "pool",
    "queue": "queue",
    "job": "job",
    "priority": "priority",
    "preemptible": "preemptible",
    "hold": "hold",
    "image": "image",
    "template": "template",
    "gpu_type": "gpuType",
    "arch": "architecture",
    "service_account": "serviceAccount",
    "setup": "setup",
    "home": "home",
    "shm_size": "shmSize",
    "checkpoints": "checkpoints",
    "max_runtime": "maxRuntime",
    "idle_timeout": "idleTimeout",
    "pending_timeout": "pendingTimeout",
    "max_restarts": "maxRestarts",
    "restart": "restart",
}


def _role(arguments: argparse.Namespace) -> Json:
    resources = resources_of(arguments)
    role: Json = {"resources": resources} if resources else {}
    if getattr(arguments, "ranks", None) is not None:
        role["count"] = arguments.ranks
    if getattr(arguments, "min_available", None) is not None:
        role["minAvailable"] = arguments.min_available
    return {"name": "worker", **role} if role else {}


def variables_of(arguments: argparse.Namespace, here: Mapping[str, str]) -> dict[str, str]:
    """Return the variables: a later `--env-file` overrides an earlier one, and `--env` overrides all files.

    The forms are `NAME=VALUE`, and `NAME` for the value in `here`. In a file, and in a value from `here`, `$` has no
    special meaning.
    """
    found: dict[str, str] = {}
    for path in arguments.env_file:
        found |= _variables_in(path, here)
    for item in arguments.env:
        name, has_value, value = item.partition("=")
        if not name:
            raise InvalidError(f"--env: {item!r} is not NAME=VALUE or NAME")
        if not has_value and name not in here:
            raise InvalidError(f"--env: {name} is not set here; set it, or write {name}=VALUE")
        found[name] = value if has_value else literal(here[name])
    return found


def _variables_in(path: str, here: Mapping[str, str]) -> dict[str, str]:
    """Parse a file of variables in the form that other tools write.

    A line that begins with `#` is a comment. A leading `export ` and one pair of quotes around a whole value are
    removed."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise InvalidError(f"--env-file: {path} cannot be read: {why}") from exc
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").lstrip()
        if not text or text.startswith("#"):
            continue
        name, has_value, value = (part.strip() for part in text.partition("="))
        if not name or " " in name:
            raise InvalidError(f"--env-file: line {number} of {path} is not NAME=VALUE or NAME")
        if not has_value and name not in here:
            raise InvalidError(
                f"--env-file: {name} on line {number} of {path} is not set here; set it, or write {name}=VALUE"
            )
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        found[name] = literal((value[1:-1] if is_quoted else value) if has_value else here[name])
    return found


def _named(items: list[str], option: str, form: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in items:
        name, has_value, value = item.partition("=")
        if not has_value or not name:
            raise InvalidError(f"{option}: {item!r} is not {form}")
        found[name] = value
    return found


def _values_here(names: list[str], here: Mapping[str, str]) -> dict[str, str]:
    """Return the values of these variables in `here`."""
    for name in names:
        if name not in here:
            raise InvalidError(f"--secret: {name or repr(name)} is not set here; set it, or write NAME=SECRET/KEY")
    return {name: here[name] for name in names}


def _port(text: str) -> Json:
    """Parse `[NAME=]PORT[/SCHEME]`: a port of the main container."""
    name, _, rest = text.rpartition("=")
    number, _, scheme = rest.partition("/")
    found = number_in(number)
    if found is None:
        raise InvalidError(f"--port: {text[:64]!r} is no port; write PORT, PORT/tcp or NAME=PORT")
    port: Json = {"name": name or f"port-{number}", "port": found}
    return port | ({"scheme": scheme} if scheme else {})


def _service(text: str) -> Json:
    """Parse `NAME:PORT` as `service` of a launch."""
    name, _, port = text.partition(":")
    found = number_in(port)
    if not name or found is None:
        raise InvalidError(f"--service: {text[:64]!r} is not NAME:PORT, such as llm:8000")
    return {"name": name, "port": found}


def _file(text: str) -> Json:
    """Return the content of `PATH`, or of `PATH:NAME`, with its own name or NAME in the working directory."""
    source, _, name = text.partition(":")
    path = Path(source)
    try:
        mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        return file_of(name or path.name, path, mode)
    except (OSError, InvalidError) as exc:
        why = (exc.strerror or exc) if isinstance(exc, OSError) else str(exc).partition("read: ")[2]
        raise InvalidError(f"--file: {source} cannot be read: {why}") from exc
