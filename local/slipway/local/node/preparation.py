"""Turns a container's spec into a program that can be started on this machine.

Owns the list of objects to fetch for a pod, the base environment, and the search for the program's file. Starts
nothing.

Invariants: a pod gets no variable of the node process except PATH and the token by which programs recognize the API's
proxy; the command of a container without one is never guessed.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from slipway.crd.roleresources import JsonMap, object_of, objects_of
from slipway.errors import NotFoundError, PermanentError, TransientError
from slipway.kube.ports import KubeApi
from slipway.local.access import ENV_WORKLOAD_TOKEN
from slipway.local.node.disk import PodDisk
from slipway.local.node.environment import AUDIENCE, NotConfiguredError, PodPlace, decoded, environment_of, expand
from slipway.local.node.names import PeerNames
from slipway.local.node.podview import CONFIG_MAPS, SECRETS, NodePod
from slipway.local.node.shim import Program
from slipway.local.node.tokens import tokens

ONLY_AN_IMAGE = "a local node runs commands; this pod names only an image"
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class PeersUnknownError(TransientError):
    """Peers that a container's spec names have no address yet."""


class NotStartedError(PermanentError):
    """The program cannot be started: its file does not exist or is not executable."""


class Fetched:
    """The ConfigMaps and Secrets of one pod, and its account's tokens: {(kind, name): values}."""

    def __init__(self, values: Mapping[tuple[str, str], Mapping[str, bytes]]) -> None:
        self._values = values

    def values(self, kind: str, name: str) -> Mapping[str, bytes] | None:
        return self._values.get((kind, name))


async def fetch(kube: KubeApi, pod: NodePod) -> Fetched:
    """Fetch the ConfigMaps and Secrets that the pod names, and request its tokens. Missing objects are left out.

    Raises:
        TransientError: the API server does not answer now.
    """
    names = sorted(_named(pod))

    async def get(kind: str, name: str) -> Mapping[str, bytes] | None:
        resource = CONFIG_MAPS if kind == "ConfigMap" else SECRETS
        try:
            found = await kube.get(resource, name, namespace=pod.metadata.namespace)
        except NotFoundError:
            return None
        if kind == "Secret":
            return decoded(found.data)
        return {key: text.encode() for key, text in found.data.items()} | decoded(found.binary_data)

    gotten = await asyncio.gather(*(get(kind, name) for kind, name in names))
    found = {key: values for key, values in zip(names, gotten, strict=True) if values is not None}
    for audience, token in (await tokens(kube, pod)).items():
        found[AUDIENCE, audience] = {AUDIENCE: token}
    return Fetched(found)


def program_of(
    container: JsonMap,
    pod: NodePod,
    place: PodPlace,
    bundles: Fetched,
    *,
    disk: PodDisk,
    peers: PeerNames,
    is_patient: bool = True,
) -> Program:
    """Return the program of a container, with paths and peers' names replaced by those of this machine.

    Raises:
        NotConfiguredError: the spec, or an object that it refers to, does not determine the program.
        PeersUnknownError: a peer that the spec names has no address yet, and `is_patient`.
        NotStartedError: the program's file does not exist or is not executable.
    """
    said = environment_of(container, pod, place, bundles)
    root = disk.mount(container)
    missing: set[str] = set()

    def here(text: str) -> str:
        resolved, unknown = peers.resolve(root.rewrite(text), pod)
        missing.update(unknown)
        return resolved

    env = _base_environment(pod, disk) | {name: here(value) for name, value in said.items()}
    command = [here(expand(word, said)) for word in _words(container.get("command"))]
    args = [here(expand(word, said)) for word in _words(container.get("args"))]
    if missing and is_patient:
        raise PeersUnknownError(f"waiting for {', '.join(sorted(missing))}")
    cwd = str(root.cwd)
    if not command:
        # A local node does not know an image's entry point, so it runs arguments that are a command by themselves.
        if not args or _locate(args[0], cwd, env["PATH"]) is None:
            raise NotConfiguredError(ONLY_AN_IMAGE + (f" and arguments ({args[0]} ...)" if args else ""))
        command, args = args[:1], args[1:]
    program = _locate(command[0], cwd, env["PATH"])
    if program is None:
        raise NotStartedError(_why_not(command[0], cwd))
    return Program(argv=[program, *command[1:], *args], env=env, cwd=cwd)


def located(command: Sequence[str], container_program: Program) -> list[str]:
    """Return a command with its file located by the folder and PATH of `container_program`. Raises NotStartedError."""
    program = _locate(command[0], container_program.cwd, container_program.env.get("PATH", _SYSTEM_PATH))
    if program is None:
        raise NotStartedError(_why_not(command[0], container_program.cwd))
    return [program, *command[1:]]


def _base_environment(pod: NodePod, disk: PodDisk) -> dict[str, str]:
    """Return the variables that an image would define. Python's output is not buffered, so that logs are live."""
    own = str(Path(sys.executable).parent)
    return {
        "PATH": f"{own}{os.pathsep}{os.environ.get('PATH') or _SYSTEM_PATH}",
        "HOME": str(disk.folder / "home"),
        "TMPDIR": str(disk.folder / "tmp"),
        "XDG_RUNTIME_DIR": str(disk.sockets()),
        # Jupyter ignores XDG_RUNTIME_DIR; its kernels create their sockets in this folder (see `kind_defaults`).
        "JUPYTER_RUNTIME_DIR": str(disk.sockets()),
        "HOSTNAME": pod.hostname,
        **{name: value for name, value in os.environ.items() if name == ENV_WORKLOAD_TOKEN},
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }


def _named(pod: NodePod) -> set[tuple[str, str]]:
    """Return (kind, name) of every ConfigMap and Secret in the spec."""
    found: set[tuple[str, str]] = set()

    def note(kind: str, ref: Any, label: str = "name") -> None:
        name = object_of(ref).get(label)
        if name:
            found.add((kind, str(name)))

    for container in (*pod.init_containers, *pod.containers):
        for source in objects_of(container.get("envFrom")):
            note("ConfigMap", source.get("configMapRef"))
            note("Secret", source.get("secretRef"))
        for variable in objects_of(container.get("env")):
            source = object_of(variable.get("valueFrom"))
            note("ConfigMap", source.get("configMapKeyRef"))
            note("Secret", source.get("secretKeyRef"))
    for volume in objects_of(pod.spec.get("volumes")):
        note("ConfigMap", volume.get("configMap"))
        note("Secret", volume.get("secret"), "secretName")
        for source in objects_of(object_of(volume.get("projected")).get("sources")):
            note("ConfigMap", source.get("configMap"))
            note("Secret", source.get("secret"))
    return found


def _words(value: Any) -> Sequence[str]:
    return [str(word) for word in cast("list[Any]", value)] if isinstance(value, list) else []


def _locate(program: str, cwd: str, path: str) -> str | None:
    """Return the executable file of a program's name, or None."""
    if "/" not in program:
        return shutil.which(program, path=path)
    full = os.path.normpath(Path(cwd) / program)
    return full if os.path.isfile(full) and os.access(full, os.X_OK) else None


def _why_not(program: str, cwd: str) -> str:
    full = Path(cwd) / program
    if "/" not in program:
        why = "executable file not found in $PATH"
    elif full.is_dir():
        why = "is a directory"
    elif full.exists():
        why = "permission denied"
    else:
        why = "no such file or directory"
    return f'failed to start: exec: "{program}": {why}'
