"""Completes an allocation's spec with the defaults of its kind and its pool, and checks the result.

Every POST, dry run and object that a user applied goes through `resolve`: api, scheduler and podworker call the same
pure function and get the same spec, errors and hash. An admission contains the hash, so that the pod worker detects a
change of the pool's defaults between admission and launch.

Invariants: resolving a resolved spec changes nothing; the hash does not depend on fields that may change while the
allocation waits.
"""

import posixpath
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from slipway.crd import podrules, podsecurity, podtemplate, roleresources, validate
from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.hashing import spec_hash
from slipway.crd.kinds import HOME_PATH, PREEMPTION_GRACE, SERVICE_KINDS, defaults_of
from slipway.crd.roleresources import MAIN_CONTAINER, containers_of, main_container, object_of, objects_of, overlaid
from slipway.crd.roleresources import role_requests as role_requests
from slipway.crd.v1alpha1 import (
    Allocation,
    AllocationSpec,
    KindDefaults,
    PortSpec,
    ResourcePool,
    ResourcePoolSpec,
    RoleSpec,
    TolerationSpec,
)
from slipway.crd.workspacepods import ReleasedSecrets
from slipway.errors import FieldError
from slipway.model import ids
from slipway.model.lifecycle import Kind
from slipway.model.resources import GPU_MILLI, GPU_NAMES
from slipway.model.times import stored_duration

SERVICE_PORT_NAME = "http"
RUN_AS_FIELDS = ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")
"""The fields of a securityContext that `runAs` sets."""

Json = Mapping[str, Any]


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A completed spec and its errors. With errors, `spec` is as complete as possible.

    Without errors: `ranks` is not empty; each role has `min_available`, and resources as {requests, limits}; each
    template (the role's own, else that of the spec) has a main container with an image; `min_available` is set.
    """

    spec: AllocationSpec
    errors: tuple[FieldError, ...] = ()
    """pointers are relative to the spec, except `/name`"""
    warnings: tuple[str, ...] = ()
    spec_hash: str = ""


def resolve(
    allocation: Allocation,
    pool: ResourcePool,
    *,
    accounts: Collection[str] | None = None,
    secrets: ReleasedSecrets | None = None,
    audiences: Collection[str] | None = None,
) -> Resolved:
    """Return the complete spec of `allocation` in `pool`, with its errors.

    `accounts` are the service accounts that its workspace allows besides `default`; None: they are not known here, and
    every name is accepted. The api and the pod worker know them. `secrets` are the Secrets that pod templates may name;
    None: the workspace allows every Secret, or the caller does not know them. `audiences` are the allowed audiences of
    projected tokens; None: all are allowed, or the caller does not know them. The api knows them.
    """
    spec = allocation.spec
    findings = Findings()
    if not ids.is_name(allocation.metadata.name):
        findings.refuse(
            "/name",
            f"{allocation.metadata.name!r} cannot name an allocation; use at most {ids.NAME_LENGTH_MAX} lower case "
            "letters, digits and hyphens, a letter first",
        )
    validate.check_spec(spec, findings, slots_per_pod_max=pool.spec.max_slots_per_pod)
    complete = _complete(spec, pool, findings, accounts)
    for at, template in _templates_of(complete):
        podrules.check_secrets(object_of(template.get("spec")), f"{at}/spec", secrets, findings)
        podrules.check_audiences(object_of(template.get("spec")), f"{at}/spec", audiences, findings)
    return Resolved(spec=complete, errors=findings.errors, warnings=findings.warnings, spec_hash=spec_hash(complete))


def template_of(spec: AllocationSpec, role: RoleSpec) -> Json:
    """Return the pod template of a role: its own, else that of the allocation."""
    return role.template or spec.template


def _templates_of(spec: AllocationSpec) -> Iterator[tuple[str, Json]]:
    """Yield (JSON pointer, template) of all templates that ranks use."""
    if not spec.ranks or not all(role.template for role in spec.ranks):
        yield "/template", spec.template
    for index, role in enumerate(spec.ranks):
        if role.template:
            yield pointer("ranks", index, "template"), role.template


def grace_max_s(pool: ResourcePoolSpec) -> int:
    """Return the longest time that a pod may take to end, in whole seconds."""
    return min(int(stored_duration(pool.termination_grace_max or "24h")), podtemplate.GRACE_MAX_S)


def _complete(
    spec: AllocationSpec, pool: ResourcePool, findings: Findings, accounts: Collection[str] | None
) -> AllocationSpec:
    defaults = defaults_of(spec.kind, pool.spec.defaults)
    ports = spec.ports or _ports(defaults)
    roles = spec.ranks or [RoleSpec()]
    template = dict(spec.template)
    if not all(role.template for role in roles):
        template = _template(spec.template, spec.kind, defaults, pool, findings, "/template", accounts=accounts)
    roleresources.check_shared_memory(spec.shm_size, "/shmSize", findings)
    completed: list[RoleSpec] = []
    for index, role in enumerate(roles):
        own = role.template
        if own:
            at = pointer("ranks", index, "template")
            own = _template(own, spec.kind, defaults, pool, findings, at, accounts=accounts)
        if spec.context:
            at = pointer("ranks", index, "template") if own else "/template"
            _check_work(own or template, at, findings)
        if spec.home:
            _check_home(spec, own or template, findings)
        if spec.setup:
            _check_setup(spec.setup, own or template, findings)
        completed.append(_role(role, own or template, defaults, pool.spec, has_own=bool(role.template), gang=spec))
        podrules.check({"tolerations": msgspec.to_builtins(role.tolerations)}, pointer("ranks", index), pool, findings)
        roleresources.check_role(spec.shm_size, completed[-1], own or template, "/shmSize", findings)
        _check_devices(completed[-1], pointer("ranks", index, "resources", GPU_MILLI), findings)
    needed = sum(role.min_available or 0 for role in completed)
    return msgspec.structs.replace(
        spec,
        ranks=completed,
        min_available=max(1, needed, spec.min_available or 0),
        template=template,
        env={**defaults.env, **spec.env},
        ports=ports,
        preemption_grace=spec.preemption_grace or PREEMPTION_GRACE,
    )


def _check_devices(role: RoleSpec, at: str, findings: Findings) -> None:
    """Refuse a rank that requests both whole GPUs and a part of one."""
    asked = object_of(role.resources.get("requests"))
    if any(str(asked.get(name, "0")) != "0" for name in GPU_NAMES) and str(asked.get(GPU_MILLI, "0")) != "0":
        findings.refuse(at, "requests a part of one GPU, but whole GPUs are requested too: leave one of them out")


def _check_work(template: Json, at: str, findings: Findings) -> None:
    """Refuse a working directory with a mounted volume: the context is unpacked into it."""
    containers = containers_of(template)
    if not containers:
        return
    main = main_container(template)
    here = f"{at}/spec/containers/{main}"
    folder = posixpath.normpath(str(containers[main].get("workingDir") or "."))
    if folder == "/":
        findings.refuse(f"{here}/workingDir", "context is unpacked into it: choose a folder below /, or leave it out")
    for index, mount in enumerate(objects_of(containers[main].get("volumeMounts"))):
        if posixpath.normpath(str(mount.get("mountPath") or "")) == folder:
            detail = f"context is unpacked into {folder}: mount the volume elsewhere, or leave context out"
            findings.refuse(f"{here}/volumeMounts/{index}/mountPath", detail)


def _check_home(spec: AllocationSpec, template: Json, findings: Findings) -> None:
    """Refuse another HOME variable or mount when the persistent home volume is HOME."""
    containers = containers_of(template)
    if not containers:
        return
    main = containers[main_container(template)]
    names = {*spec.env, *spec.secret_variables, *(str(item.get("name")) for item in objects_of(main.get("env")))}
    if "HOME" in names:
        findings.refuse("/home", "env sets HOME too: leave one of them out")
    paths = [posixpath.normpath(str(mount.get("mountPath") or "")) for mount in objects_of(main.get("volumeMounts"))]
    if HOME_PATH in paths:
        findings.refuse("/home", f"another volume is mounted at {HOME_PATH}: mount it elsewhere, or leave home out")


def _check_setup(setup: str, template: Json, findings: Findings) -> None:
    """Refuse a setup without a command: the program that the image starts by default is not known."""
    containers = containers_of(template)
    if not setup.strip():
        findings.refuse("/setup", "has no command; write one, or leave it out")
    elif "\0" in setup:
        findings.refuse("/setup", "must not contain a NUL character")
    elif containers and not containers[main_container(template)].get("command"):
        detail = (
            "runs before the command, but there is no command: Slipway cannot start the image's own program after it"
        )
        findings.refuse("/setup", f"{detail}. Set command, or do the setup in the image")


def _ports(defaults: KindDefaults) -> list[PortSpec]:
    return [PortSpec(name=SERVICE_PORT_NAME, port=defaults.port)] if defaults.port else []


def _role(
    role: RoleSpec,
    template: Json,
    defaults: KindDefaults,
    pool: ResourcePoolSpec,
    *,
    has_own: bool,
    gang: AllocationSpec,
) -> RoleSpec:
    containers = containers_of(template)
    of_template: Json = object_of(containers[main_container(template)].get("resources")) if containers else {}
    # A resource in the request replaces the default of that resource; the other defaults are kept.
    base = of_template or defaults.resources
    minimum = role.min_available
    if minimum is None:
        minimum = role.count if gang.min_available is None else 0
    return msgspec.structs.replace(
        role,
        min_available=minimum,
        resources=overlaid(base, role.resources),
        tolerations=_tolerations(role, template, pool),
        template=dict(template) if has_own else None,
    )


def _tolerations(role: RoleSpec, template: Json, pool: ResourcePoolSpec) -> list[TolerationSpec]:
    """Return the tolerations of role, template and pool, without duplicates."""
    result = list(role.tolerations)
    for item in objects_of(object_of(template.get("spec")).get("tolerations")):
        try:
            result.append(msgspec.convert(item, TolerationSpec))
        except msgspec.ValidationError:
            continue  # `_check_tolerations` has added the error
    result.extend(pool.tolerations)
    return [item for index, item in enumerate(result) if item not in result[:index]]


def _template(
    template: Json,
    kind: Kind,
    defaults: KindDefaults,
    pool: ResourcePool,
    findings: Findings,
    at: str,
    *,
    accounts: Collection[str] | None,
) -> dict[str, Any]:
    """Complete and check the template at pointer `at`: main container, image, command, security context."""
    rules = pool.spec
    podtemplate.check_template(
        template,
        at,
        findings,
        privileged=rules.privileged_templates,
        annotations=rules.template_annotations,
        grace_max_s=grace_max_s(rules),
        accounts=accounts,
        grants=rules.allowed_privileges,
    )
    spec = object_of(template.get("spec"))
    _check_tolerations(spec, f"{at}/spec/tolerations", findings)
    containers = [dict(container) for container in objects_of(spec.get("containers"))]
    is_named = bool(containers)
    if not containers:
        containers = [{"name": MAIN_CONTAINER}]
    main = main_container({**template, "spec": {"containers": containers}})
    containers[main] = _main(containers[main], kind, defaults)
    for group, items in (("containers", containers), ("initContainers", objects_of(spec.get("initContainers")))):
        for index, container in enumerate(items):
            if not container.get("image"):
                is_short = group == "containers" and index == main and not is_named
                here = "/image" if is_short else f"{at}/spec/{group}/{index}/image"
                findings.refuse(here, _missing_image(kind))
    if kind not in SERVICE_KINDS and not containers[main].get("command") and not containers[main].get("args"):
        _check_entrypoint(kind, at, main if is_named else None, findings, given=_given_image(template, main))
    complete: dict[str, Any] = {
        **spec,
        "containers": containers,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
    }
    if grace_max_s(rules) < podtemplate.GRACE_DEFAULT_S:
        complete.setdefault("terminationGracePeriodSeconds", grace_max_s(rules))
    said = object_of(spec.get("securityContext"))
    complete = podsecurity.running_as(complete, rules.run_as, is_limited=bool(rules.allowed_groups))
    if not rules.privileged_templates:
        complete = podsecurity.secured(complete)
    is_default = not _given_image(template, main)
    why = {f"{at}/spec/containers/{main}/image": _default_image(kind)} if is_default else {}
    why |= {f"{at}/spec/securityContext/{field}": _DEFAULT_RUN_AS for field in RUN_AS_FIELDS if said.get(field) is None}
    podrules.check(complete, f"{at}/spec", pool, findings, why=why)
    return {**template, "spec": complete}


def _given_image(template: Json, main: int) -> bool:
    containers = containers_of(template)
    return bool(containers) and bool(containers[main].get("image"))


def _check_entrypoint(kind: Kind, at: str, main: int | None, findings: Findings, *, given: bool) -> None:
    """Refuse a default image without a command. An image that the user chooses may have its own entrypoint."""
    if given:
        return
    here = "/command" if main is None else f"{at}/spec/containers/{main}/command"
    findings.refuse(
        here,
        f'no command: a {kind} needs one, such as ["python", "train.py"]; set command, or an image whose entrypoint '
        "does the work",
    )


def _missing_image(kind: Kind) -> str:
    return (
        f"no image: set image (in a resource: template.spec.containers[].image), or defaults.{kind}.image of the pool"
    )


_DEFAULT_RUN_AS = ". The launch does not set it: set runAs, or have an administrator set runAs of the pool"


def _default_image(kind: Kind) -> str:
    return f". No image was set: this is the default of kind {kind}, or defaults.{kind}.image of the pool"


def _main(container: Json, kind: Kind, defaults: KindDefaults) -> dict[str, Any]:
    """Return the main container with the defaults of the kind; its own program is never mixed with the default one.

    The default program of a service kind runs in any image; that of another kind belongs to its default image.
    """
    result = dict(container)
    has_program = bool(result.get("command") or result.get("args"))
    if not has_program and (kind in SERVICE_KINDS or not result.get("image")):
        for field, program in (("command", defaults.command), ("args", defaults.args)):
            if program:
                result[field] = list(program)
    if not result.get("image") and defaults.image:
        result["image"] = defaults.image
    return result


def _check_tolerations(spec: Json, at: str, findings: Findings) -> None:
    for index, item in enumerate(objects_of(spec.get("tolerations"))):
        try:
            msgspec.convert(item, TolerationSpec)
        except msgspec.ValidationError as exc:
            findings.refuse(f"{at}/{index}", str(exc))
