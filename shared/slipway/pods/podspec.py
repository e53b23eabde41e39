"""The pod spec of a role, and the parts that differ between its ranks.

Owns the merge of the user's pod template with the role, the pool and our own rules, and the environment of a rank.
Pure; uses only the object names that the caller passes.

Invariants: never a nodeName; restartPolicy Never; no service links; no account token; no value of the user overrides a
`SLIPWAY_*` variable. All other fields of the user's template stay unchanged.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from slipway.crd.homes import claim_name
from slipway.crd.kinds import ENV_POD_IP, ENV_POD_UID, ENV_PROXY_PREFIX, RESERVED_ENV_PREFIX, SERVICE_KINDS
from slipway.crd.meta import API_GROUP, RawObject
from slipway.crd.resolve import template_of
from slipway.crd.roleresources import containers_of, main_container, object_of
from slipway.crd.sharedmemory import SHM_PATH, mounts_at, size_of
from slipway.crd.v1alpha1 import AllocationSpec, ResourcePoolSpec, RoleSpec
from slipway.errors import InvalidError
from slipway.model.ids import AllocationId
from slipway.model.quantity import format_quantity
from slipway.pods import context, devices, files, identity, library, rendezvous, startorder
from slipway.pods.files import ContextBundle
from slipway.pods.pin import LAUNCH_GATE
from slipway.pods.setup import with_setup

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
    if programs := [*([context.ITEM] if spec.context else []), *([startorder.ITEM] if role.depends_on else [])]:
        pod["volumes"].append(context.program_volume(bundle_name, programs))
    pod["volumes"] += library.volume_of(spec.kind, bundle_name)
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
        prepares.append(startorder.init_container(main, image=options.context_image, python=options.context_python))
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
    mounts += library.mount_of(spec.kind)
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
