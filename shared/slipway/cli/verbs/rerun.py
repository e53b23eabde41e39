"""`slipway rerun ID`: launches the same again, with the changes of the options.

The body is the complete body of the first launch, as the API keeps it. Later changes of defaults and templates
therefore have no effect. Options are applied over it: variables and labels are added, and files with the same path are
replaced. Resources and the number of ranks are set if the launch has one role. Secret values are not kept, so the user
must give them again.
"""

import argparse
import copy
from typing import Any, cast

from slipway.cli import launch, upload
from slipway.cli.verb import CliSession, CliVerb, allocation_id
from slipway.cli.verbs.render import body_again, secret_variables
from slipway.cli.verbs.run import add_launch_modes, launch_and_follow
from slipway.crd.podsecurity import ROOT
from slipway.crd.roleresources import MAIN_CONTAINER
from slipway.errors import InvalidError

Json = dict[str, Any]

SERVICES = ("notebook", "tensorboard", "shell")
"""Kinds that run until a user ends them; the command does not wait for their end."""
EXAMPLES = """examples:
  slipway rerun train-4kq7zp
  slipway rerun train-4kq7zp --gpus 8 --env LR=0.01
  slipway rerun train-4kq7zp --image train:v2 -- python train.py --epochs 20"""
_ADDED = ("env", "labels", "secrets", "secretValues")
_OF_USER = ("runAsUser", "runAsNonRoot")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.usage = "slipway rerun ID [options] [-- COMMAND...]"
    parser.epilog = EXAMPLES
    parser.add_argument("id", metavar="ID", type=allocation_id, help="the allocation to launch again")
    launch.add_options(parser, with_ranks=True)
    add_launch_modes(parser)


def execute(arguments: argparse.Namespace, session: CliSession) -> int:
    """Launch the allocation again, then continue as `run` does."""
    view: Json = session.api.get(f"/allocations/{arguments.id}")
    changes = launch.body_of(str(view["kind"]), arguments, arguments.command)
    upload.add_files(session, changes, arguments)
    if arguments.workspace and arguments.workspace != view["workspace"] and view["spec"].get("context"):
        raise InvalidError("--workspace: its uploaded files are in another workspace; send them again with --context")
    given = {name for field in ("env", "secrets", "secretValues") for name in changes.get(field, {})}
    if missing := [name for name in secret_variables(view) if name not in given]:
        options = " ".join(f"--secret {name}" for name in missing)
        raise InvalidError(
            f"--secret: its secret values are not stored; set {', '.join(missing)} here and add {options}"
        )
    body = changed(body_again(view), changes)
    if view["kind"] in SERVICES:
        arguments.detach = True
    session.terminal.note(f"{view['id']} is launched again")
    return launch_and_follow(session, body, arguments)


def changed(body: Json, changes: Json) -> Json:
    """Return the body with the changes applied.

    Raises:
        InvalidError: a change does not apply to exactly one place in this body.
    """
    if "template" in changes:
        raise InvalidError("--template: the launch has its whole pod template already; leave the option out")
    body, changes = copy.deepcopy(body), copy.deepcopy(changes)
    for name in _ADDED:
        if name in changes:
            changes[name] = {**body.get(name, {}), **changes[name]}
    if "files" in changes:
        paths = {each["path"] for each in changes["files"]}
        changes["files"] = [*(each for each in body.get("files", []) if each["path"] not in paths), *changes["files"]]
    if "ranks" in changes:
        change = cast("Json", changes["ranks"][0])
        if {"count", "minAvailable"} & change.keys():
            # The minimum of the gang was chosen for the old number of ranks.
            body.pop("minAvailable", None)
        changes["ranks"] = [_role(body, change)]
    pod = cast("Json", body.get("template", {}).get("spec", {}))
    if "gpuType" in changes:
        body.pop("flavors", None)
    if "serviceAccount" in changes:
        pod.pop("serviceAccountName", None)
    context = cast("Json", pod.get("securityContext") or {})
    said = changes.get("runAs", {})
    is_other_user = "user" in said or ROOT in changes.get("privileges", [])
    for field in [*(_OF_USER if is_other_user else ()), *(["runAsGroup"] if "group" in said else [])]:
        context.pop(field, None)
    if "command" in changes:
        for container in cast("list[Json]", pod.get("containers", [])):
            if container.get("name") == MAIN_CONTAINER:
                container.pop("args", None)
    return {**body, **changes}


def _role(body: Json, change: Json) -> Json:
    roles = cast("list[Json]", body.get("ranks") or [])
    if len(roles) > 1:
        names = ", ".join(str(role.get("name")) for role in roles)
        words = f"it has several roles ({names}); change them in a file: slipway command config ID > FILE"
        raise InvalidError(f"--ranks, --gpus, --cpus, --memory: {words}, then slipway apply -f FILE")
    role: Json = roles[0] if roles else {"name": change["name"]}
    for name, amount in cast("Json", change.get("resources") or {}).items():
        resources = cast("Json", role.setdefault("resources", {}))
        places = [
            cast("Json", resources[key]) for key in ("requests", "limits") if isinstance(resources.get(key), dict)
        ]
        for place in [each for each in places if name in each] or places[:1] or [resources]:
            place[name] = amount
    if "count" in change:
        role["count"] = change["count"]
        role.pop("minAvailable", None)
    if "minAvailable" in change:
        role["minAvailable"] = change["minAvailable"]
    return role


VERBS = {"rerun": CliVerb(configure, execute, takes_command=True)}
