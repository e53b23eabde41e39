"""The pod spec of a role, and the parts that differ between its ranks.

Owns the merge of the user's pod template with the role, the pool and our own rules, and the environment of a rank.
Pure, except that it reads the texts of our programs once.

Invariants: never a nodeName; restartPolicy Never; no service links; no account token; no value of the user overrides a
`SLIPWAY_*` variable. All other fields of the user's template stay unchanged.

Our Python files: a pod gets a folder of them, to run beside or instead of the user's program, as
`python -I <folder> <name>` (see `crd/kinds.py`). They are read from the installed package and never imported.
Invariant: every replica of one version produces the same bytes, so that the hash of an attempt's objects is the same.

A pod that kube-scheduler binds has a scheduling gate that delays it, and a node affinity that allows only one node. The
pod worker removes the gate.

Source: Kubernetes, "Pod Scheduling Readiness": while a pod has a gate, its node affinity may be narrowed, term by term.

The setup of a rank is a script that runs in its main container before its program. Promises: the setup runs once in
each pod, so once in each attempt of a rank. Its output is in the same log. The program starts only if the setup ended
with 0, and does not inherit variables that the setup sets. A rank whose setup failed has the exit code of the setup. A
SIGTERM during the setup ends the setup.

The script is the first process of the container. The kernel applies no default signal actions to it, so it has a trap.

The start order of the roles of a gang: a rank waits for other roles in an init container. All pods of the gang are
placed, released and bound together. So a waiting rank has its node already and pulls its images during the wait, and
the gang is never split. The API decides from the pods whether the rank may start (`GET .../ranks/{rank}/start`); its
program is `slipway.inside.start`.

Invariant: the container requests no more than the main container, so that the pod's requests are those that were
planned.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from slipway.crd.expansion import literal
from slipway.crd.homes import claim_name
from slipway.crd.kinds import (
    ENV_POD_IP,
    ENV_POD_UID,
    ENV_PROXY_PREFIX,
    HOME_PATH,
    LIBRARY_PATH,
    RESERVED_ENV_PREFIX,
    SERVICE_KINDS,
)
from slipway.crd.meta import API_GROUP, RawObject
from slipway.crd.resolve import template_of
from slipway.crd.roleresources import (
    SHM_PATH,
    WAITING_CONTAINER,
    containers_of,
    main_container,
    mounts_at,
    object_of,
    objects_of,
    size_of,
)
from slipway.crd.v1alpha1 import AllocationSpec, ResourcePoolSpec, RoleSpec
from slipway.errors import InvalidError
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Kind
from slipway.model.resources import format_quantity
from slipway.pods import context, devices, files, identity, rendezvous
from slipway.pods.context import PROGRAM_PATH, PROGRAM_VOLUME, PYTHON, resources_beside
from slipway.pods.files import ContextBundle

LIBRARY_VOLUME = "slipway-lib"
_KEY_PREFIX = "99__"
"""No file of a user has a key with this prefix."""
_MAIN = "__main__.py"
_BY_KIND: Mapping[Kind, tuple[str, ...]] = {
    Kind.SHELL: (_MAIN, "client.py", "home.py", "terminal.py", "sessions.py", "sockets.py"),
    Kind.NOTEBOOK: (_MAIN, "client.py", "home.py", "service_reporter.py", "signals.py"),
    Kind.TENSORBOARD: (_MAIN, "client.py", "home.py", "service_reporter.py", "signals.py"),
}


def entries_of(kind: Kind) -> dict[str, str]:
    """Return {key: text} for the ConfigMap; empty for a kind that needs no files of ours."""
    return {_KEY_PREFIX + name: _text(name) for name in _BY_KIND.get(kind, ())}


def volume_of(kind: Kind, configmap: str) -> list[dict[str, Any]]:
    """Return the volume for the pod; an empty list when the kind needs no files of ours."""
    if kind not in _BY_KIND:
        return []
    items = [{"key": _KEY_PREFIX + name, "path": _path(name)} for name in _BY_KIND[kind]]
    return [{"name": LIBRARY_VOLUME, "configMap": {"name": configmap, "items": items}}]


def mount_of(kind: Kind) -> list[dict[str, Any]]:
    """Return the mount for the main container; an empty list when the kind needs no files of ours."""
    return [{"name": LIBRARY_VOLUME, "mountPath": LIBRARY_PATH, "readOnly": True}] if kind in _BY_KIND else []


def _path(name: str) -> str:
    """Return the path of a file in the folder: in a package, except the file that starts it."""
    return name if name == _MAIN else f"slipway/inside/{name}"


@cache
def _text(name: str) -> str:
    return resources.files("slipway.inside").joinpath(name).read_text("utf-8")


LAUNCH_GATE = f"{API_GROUP}/launch"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pinned(affinity: Mapping[str, Any], node: str) -> RawObject:
    """Return the affinity narrowed to this node; terms are alternatives, so each of them gets the condition.

    A term without conditions matches no node, and the API server refuses to change that, so it stays unchanged.
    """
    node_affinity = dict(object_of(affinity.get("nodeAffinity")))
    terms = [
        {**term, "matchFields": [*objects_of(term.get("matchFields")), _here(node)]} if _can_match(term) else dict(term)
        for term in _terms(affinity)
    ]
    node_affinity[_REQUIRED] = {"nodeSelectorTerms": terms or [{"matchFields": [_here(node)]}]}
    return {**affinity, "nodeAffinity": node_affinity}


def is_pinned(affinity: Mapping[str, Any], node: str) -> bool:
    """Whether the affinity allows this node only."""
    terms = [term for term in _terms(affinity) if _can_match(term)]
    return bool(terms) and all(_here(node) in objects_of(term.get("matchFields")) for term in terms)


def _terms(affinity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    required = object_of(object_of(affinity.get("nodeAffinity")).get(_REQUIRED))
    return objects_of(required.get("nodeSelectorTerms"))


def _can_match(term: Mapping[str, Any]) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _here(node: str) -> RawObject:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


SETUP_FAILED = "setup failed"
"""Start of the termination message of a rank whose setup failed. The watcher reads it."""
TERMINATION_LOG = "/dev/termination-log"
SHELL = "/bin/sh"
_SCRIPT = f"""slipway_setup=$1; slipway_said=$2; shift 2
slipway_home=${{HOME:-/}}
[ -w "$slipway_home" ] || [ ! -w {HOME_PATH} ] || slipway_home={HOME_PATH}
slipway_child=
trap '[ -z "$slipway_child" ] || {{ kill -TERM "$slipway_child"; wait "$slipway_child"; }}; exit 143' TERM
HOME=$slipway_home "$(command -v bash || echo sh)" -e -c "$slipway_setup" setup &
slipway_child=$!
wait "$slipway_child"
slipway_code=$?
trap - TERM
if [ "$slipway_code" -ne 0 ]; then
  echo "slipway: {SETUP_FAILED} with exit code $slipway_code" >&2
  ( echo "{SETUP_FAILED}" > "$slipway_said" ) 2>/dev/null
  exit "$slipway_code"
fi
exec "$@"
"""
"""The script uses only POSIX features, because some images have no bash. It chooses HOME as `slipway.inside.home` does
for our programs."""
_RUN = 'exec "$(command -v bash || echo sh)" -e -c "$0"'


def with_setup(container: RawObject, setup: str) -> RawObject:
    """Return the container with `setup` before its program. It has a command: the caller has checked that."""
    said = str(container.get("terminationMessagePath") or TERMINATION_LOG)
    program: list[Any] = [*(container.get("command") or ()), *(container.get("args") or ())]
    # Kubernetes expands $(NAME) in the words of the program, as before; the text of the setup is never expanded.
    front = [SHELL, "-c", literal(_SCRIPT), "slipway", literal(setup), said]
    return {**container, "command": front, "args": program}


def command_of(run: str) -> list[str]:
    """Return the command that runs a script in bash, or in sh when the image has no bash. The script ends at the first
    command that fails."""
    return [SHELL, "-c", _RUN, run]


PROGRAM_KEY = "99__start.py"
"""Key in the ConfigMap; no file of a user gets this key."""
START_PROGRAM = resources.files("slipway.inside").joinpath("start.py").read_text(encoding="utf-8")
ITEM: RawObject = {"key": PROGRAM_KEY, "path": "start.py"}


def init_container(main: RawObject, *, image: str, python: str) -> RawObject:
    """Return the container that waits for other roles; it runs as the user of the main container.

    When `image` is empty, the image of the main container is used, which then must contain Python.
    """
    made: RawObject = {
        "name": WAITING_CONTAINER,
        "image": image or main.get("image"),
        "command": [python or PYTHON, f"{PROGRAM_PATH}/start.py"],
        "resources": resources_beside(object_of(main.get("resources"))),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": PROGRAM_VOLUME, "mountPath": PROGRAM_PATH, "readOnly": True}],
    }
    if main.get("securityContext"):
        made["securityContext"] = main["securityContext"]
    if not image and main.get("imagePullPolicy"):
        made["imagePullPolicy"] = main["imagePullPolicy"]
    return {field: value for field, value in made.items() if value not in ({}, None)}


SCHEDULER_NAME = "slipway"
KUBE_SCHEDULER = "default-scheduler"
TOKEN_PATH = "/run/slipway/token"  # noqa: S105 - a directory
_TOKEN_VOLUME = "slipway-token"  # noqa: S105 - a volume
_TOKEN_LIFE_S = 3600
_SHM_VOLUME = "slipway-shm"

EnvVar = dict[str, Any]


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the system for every container of a rank; they belong to no single allocation."""

    api_url: str = ""
    """URL of the API for ranks; empty: ranks do not get it"""
    token_audience: str = ""
    """audience of the projected account token; empty: ranks get no token"""
    context_image: str = ""
    """image of the container that unpacks uploaded files; empty: the image of the rank"""
    context_python: str = ""
    """the Python program in that image; empty: `python3`"""


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of the attempt. `position` is its index among the launched ranks; an elastic gang may launch only
    some."""

    rank: int
    position: int
    world_size: int
    pod: str
    node: str
    role: str = ""
    devices: tuple[int, ...] = ()
    gpus: int = 0
    """whole GPUs that the rank requests"""


class AttemptNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names that all ranks of an attempt share; `service` is empty for a single rank."""

    allocation: AllocationId
    namespace: str
    attempt: int
    bundle: str
    service: str
    first_pod: str

    @property
    def master_address(self) -> str:
        """The address of the first rank."""
        return f"{self.first_pod}.{self.service}.{self.namespace}.svc" if self.service else "127.0.0.1"


def role_base(
    spec: AllocationSpec,
    role: RoleSpec,
    pool: ResourcePoolSpec,
    *,
    bundle: ContextBundle,
    bundle_name: str,
    options: TaskOptions,
    user: str = "",
    values_name: str = "",
) -> RawObject:
    """Return the common part of the ranks of the resolved `role`, as {metadata: {labels, annotations}, spec}.

    `user` launched the allocation; `values_name` is the Secret with its secret values.

    Raises:
        InvalidError: the template has no container.
    """
    template = template_of(spec, role)
    metadata = object_of(template.get("metadata"))
    pod = {name: value for name, value in object_of(template.get("spec")).items() if name != "nodeName"}
    main = main_container(template)
    containers = [dict(item) for item in containers_of(template)]
    if not containers:
        raise InvalidError(f"role {role.name} has no container")
    made = _main(containers[main], spec, role, bundle, options, values_name=values_name)
    containers[main] = _with_identity(made, pod, user, is_kept=spec.home)
    pod["containers"] = containers
    shared = size_of(spec.shm_size, role, template, pool)
    if shared:
        for group in ("initContainers", "containers"):
            pod[group] = [_with_shared_memory(container) for container in pod.get(group) or ()]
    if prepares := _preparing(spec, role, containers[main], options):
        pod["initContainers"] = [*prepares, *(pod.get("initContainers") or ())]
    for group in ("initContainers", "containers"):
        pod[group] = [_with_mounts(container, bundle, options) for container in pod.get(group) or ()]
    pod |= {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "nodeSelector": {**pool.node_selector, **(pod.get("nodeSelector") or {}), **role.node_selector},
        "tolerations": [msgspec.to_builtins(item) for item in role.tolerations],
        "volumes": [*(pod.get("volumes") or ()), *_volumes(containers[main], bundle, bundle_name, options)],
    }
    if programs := [*([context.ITEM] if spec.context else []), *([ITEM] if role.depends_on else [])]:
        pod["volumes"].append(context.program_volume(bundle_name, programs))
    pod["volumes"] += volume_of(spec.kind, bundle_name)
    pod["volumes"] += identity.volume_of(containers[main], claim_name(user) if spec.home else "")
    if shared:
        backed = {"medium": "Memory", "sizeLimit": format_quantity(shared)}
        pod["volumes"].append({"name": _SHM_VOLUME, "emptyDir": backed})
    if role.affinity:
        pod["affinity"] = role.affinity
    if role.topology_spread_constraints:
        pod["topologySpreadConstraints"] = role.topology_spread_constraints
    if pool.binding == "delegate":
        pod["schedulingGates"] = [{"name": LAUNCH_GATE}]
        pod["schedulerName"] = pool.scheduler_name or KUBE_SCHEDULER
    else:
        pod["schedulerName"] = SCHEDULER_NAME
    pod = {name: value for name, value in pod.items() if value not in ({}, [])}
    return {
        "metadata": {
            "labels": _foreign(object_of(metadata.get("labels"))),
            "annotations": _foreign(object_of(metadata.get("annotations"))),
        },
        "spec": pod,
    }


def _preparing(spec: AllocationSpec, role: RoleSpec, main: RawObject, options: TaskOptions) -> list[RawObject]:
    """Return our init containers, which run before those of the template: one fetches files, one waits for other
    roles."""
    prepares = [_fetching(spec.context, main, options)] if spec.context else []
    if role.depends_on:
        prepares.append(init_container(main, image=options.context_image, python=options.context_python))
    return prepares


def rank_spec(
    base: RawObject,
    names: AttemptNames,
    place: RankPlace,
    env: Sequence[EnvVar],
    *,
    main: str,
    launcher: Sequence[EnvVar],
) -> RawObject:
    """Return the spec of one rank's pod: that of its role with the rank's name and environment.

    Only container `main` gets the variables of `launcher`.
    """
    spec = dict(base)
    spec["hostname"] = place.pod
    if names.service:
        spec["subdomain"] = names.service
    for group in ("initContainers", "containers"):
        if group in spec:
            forced = devices.FORCED if place.devices else ()
            spec[group] = [
                _with_env(item, env, forced, last=launcher if item.get("name") == main else ()) for item in spec[group]
            ]
    return spec


def rank_env(
    names: AttemptNames,
    place: RankPlace,
    options: TaskOptions,
    traceparent: str,
    *,
    serves: bool = False,
    has_files: bool = False,
) -> list[EnvVar]:
    """Return our variables for each container of the rank. A rank that `serves` through the proxy also gets its pod's
    uid, and one that `has_files` their folder."""
    values = {
        "SLIPWAY_ALLOCATION_ID": str(names.allocation),
        "SLIPWAY_ATTEMPT": str(names.attempt),
        "SLIPWAY_RANK": str(place.rank),
        "SLIPWAY_ROLE": place.role,
        "SLIPWAY_API": options.api_url,
        ENV_PROXY_PREFIX: f"/proxy/{names.allocation}",
        "SLIPWAY_FILES": files.FILES_PATH if has_files else "",
        "SLIPWAY_DEVICES": ",".join(map(str, place.devices)),
        devices.VISIBLE: ",".join(map(str, place.devices)),
        "SLIPWAY_TOKEN_FILE": f"{TOKEN_PATH}/token" if options.token_audience else "",
        "TRACEPARENT": traceparent,
        **rendezvous.rank_variables(names.master_address, place.position, place.world_size, place.gpus),
    }
    told = variables(values)
    told.append({"name": ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    if serves:
        told.append({"name": ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}})
    return told


def variables(values: Mapping[str, str]) -> list[EnvVar]:
    """Return the non-empty values as the environment of a container."""
    return [{"name": name, "value": value} for name, value in values.items() if value]


def _main(
    container: RawObject,
    spec: AllocationSpec,
    role: RoleSpec,
    bundle: ContextBundle,
    options: TaskOptions,
    *,
    values_name: str,
) -> RawObject:
    made = dict(container)
    if role.resources:
        claims = object_of(container.get("resources")).get("claims")
        made["resources"] = {**role.resources, "claims": claims} if claims else role.resources
    # Secret values come first, so that other values may refer to them. They replace other values of the same name.
    secret: list[EnvVar] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": values_name, "key": name}}}
        for name in spec.secret_variables
    ]
    own = [item for item in made.get("env") or () if item.get("name") not in spec.secret_variables]
    taken = {*spec.secret_variables, *(str(item.get("name")) for item in own)}
    extra: list[EnvVar] = [{"name": name, "value": value} for name, value in spec.env.items() if name not in taken]
    made["env"] = [*secret, *own, *extra]
    ports = [*(made.get("ports") or ())]
    open_ports = {port.get("containerPort") for port in ports}
    ports += [{"name": port.name, "containerPort": port.port} for port in spec.ports if port.port not in open_ports]
    if ports:
        made["ports"] = ports
    if spec.kind in SERVICE_KINDS and spec.ports and "readinessProbe" not in made:
        made["readinessProbe"] = {"tcpSocket": {"port": spec.ports[0].port}, "periodSeconds": 1, "failureThreshold": 3}
    needs_work = bool(bundle.items) and not made.get("workingDir")
    if needs_work or (spec.context and not made.get("workingDir")):
        made["workingDir"] = files.WORK_PATH
    working_dir = str(made.get("workingDir", ""))
    mounts = files.mounts(bundle, working_dir=working_dir, needs_work=needs_work and not spec.context)
    if spec.context:
        mounts.insert(0, {"name": files.WORK_VOLUME, "mountPath": working_dir})
    mounts += mount_of(spec.kind)
    if mounts:
        made["volumeMounts"] = [*(made.get("volumeMounts") or ()), *mounts]
    return with_setup(made, spec.setup) if spec.setup else made


def _with_identity(main: RawObject, pod: RawObject, user: str, *, is_kept: bool) -> RawObject:
    """Return the main container with its user's name and home. They precede the user's values, which may refer to
    them."""
    taken = {str(item.get("name")) for item in main["env"]}
    made = {**main, "env": [*identity.variables(main, pod, user, taken, is_kept=is_kept), *main["env"]]}
    mounts = [*(main.get("volumeMounts") or ()), *identity.mount_of(main, pod, taken, is_kept=is_kept)]
    return {**made, "volumeMounts": mounts} if mounts else made


def _with_shared_memory(container: RawObject) -> RawObject:
    """Return the container with the `/dev/shm` that all containers of the pod share, as they do without a volume.

    A container that mounts its own volume there is not changed.
    """
    if mounts_at(container, SHM_PATH):
        return container
    shared = {"name": _SHM_VOLUME, "mountPath": SHM_PATH}
    return {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), shared]}


def _fetching(digest: str, main: RawObject, options: TaskOptions) -> RawObject:
    """Return the init container that fetches a context; it calls the API in the same way as the rank."""
    return context.init_container(
        digest,
        main,
        target=str(main["workingDir"]),
        image=options.context_image,
        python=options.context_python,
    )


def _volumes(main: RawObject, bundle: ContextBundle, bundle_name: str, options: TaskOptions) -> list[RawObject]:
    needs_work = any(mount.get("name") == files.WORK_VOLUME for mount in main.get("volumeMounts") or ())
    made = files.volumes(bundle_name, bundle, needs_work=needs_work and bool(bundle.items))
    if needs_work and not bundle.items:
        made.append(context.work_volume())
    if options.token_audience:
        token = {"audience": options.token_audience, "expirationSeconds": _TOKEN_LIFE_S, "path": "token"}
        made.append({"name": _TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}})
    return made


def _with_mounts(container: RawObject, bundle: files.ContextBundle, options: TaskOptions) -> RawObject:
    """Return the container with the files and the token mounted. Every container has their paths in its environment, so
    each gets them."""
    mounts = [*(container.get("volumeMounts") or ())]
    if bundle.items and not mounts_at(container, files.FILES_PATH):
        mounts.append(files.FOLDER)
    if options.token_audience:
        mounts.append({"name": _TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True})
    return {**container, "volumeMounts": mounts} if mounts else container


def _with_env(
    container: RawObject, env: Sequence[EnvVar], forced: Sequence[str] = (), *, last: Sequence[EnvVar] = ()
) -> RawObject:
    """Return the container with `env` before the user's variables, so that these may refer to ours.

    A variable of the user replaces ours, unless it has our prefix or is in `forced`.

    `last` are also our variables. They come after the user's, so that they may refer to them.
    """
    theirs = [
        item
        for item in container.get("env") or ()
        if not str(item.get("name")).startswith(RESERVED_ENV_PREFIX) and item.get("name") not in forced
    ]
    taken = {item.get("name") for item in theirs}
    return {
        **container,
        "env": [
            *(item for item in env if item["name"] not in taken),
            *theirs,
            *(item for item in last if item["name"] not in taken),
        ],
    }


def _foreign(words: Mapping[str, str]) -> dict[str, str]:
    """Return the labels or annotations of the user's template, without names that have our prefix."""
    return {name: value for name, value in words.items() if not name.startswith(f"{API_GROUP}/")}
