"""Short forms of a launch that set several fields of a pod: `volumes`, `checkpoints`, `privileges`, `architecture`.
Pure.

Owns the pod template fields that each short form sets. It also maps an error of the template checks back to the short
form that the client wrote. Whether a pool allows a privilege is decided by `slipway.crd.podsecurity`.

Invariants: a short form replaces the value of the template at the same path or field, and nothing else. Each claim is
one volume of the pod, however often it is mounted.
"""

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from slipway.api.schemas import LaunchBody
from slipway.crd.fielderrors import pointer
from slipway.crd.meta import ANNOTATION_CHECKPOINTS
from slipway.crd.podsecurity import HOST_PRIVILEGES, ROOT
from slipway.crd.roleresources import MAIN_CONTAINER, containers_of, main_container, object_of, objects_of
from slipway.crd.v1alpha1 import AllocationSpec
from slipway.crd.validate import is_mount_path
from slipway.errors import FieldError

Json = dict[str, Any]

_CLAIM = re.compile(r"(?P<claim>[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)(:(?P<mode>ro|rw))?")
_CHECKPOINTS = re.compile(
    r"(?P<claim>[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)(/(?P<folder>[A-Za-z0-9_][-A-Za-z0-9._/]*))?"
)
_CHECKPOINTS_PATH = "/checkpoints"
_OWN_FOLDER = "$(SLIPWAY_ALLOCATION_ID)"
"""The default folder of the checkpoints: it is the same in all attempts of an allocation."""
_READ_ONLY = "ro"
ARCHITECTURE_LABEL = "kubernetes.io/arch"
"""The label that every kubelet sets on its node."""
_TEMPLATE = re.compile(r"(?:/ranks/(?P<rank>\d+))?/template/spec(?P<field>/.+)")
_MOUNT = re.compile(r"/containers/(?P<container>\d+)/volumeMounts/(?P<mount>\d+)(/.*)?")
_ADDED = re.compile(r"/containers/(?P<container>\d+)/securityContext/capabilities/add/(?P<place>\d+)")
_USER_AT = "/securityContext/runAsUser"


def errors_of(body: LaunchBody, run_as_defaults: Collection[str]) -> list[FieldError]:
    """Return the errors of the short forms themselves, and their contradictions to other fields of the launch."""
    errors: list[FieldError] = []
    for path, claim in body.volumes.items():
        at = f"/volumes{pointer(path)}"
        if not is_mount_path(path):
            errors.append(
                FieldError(at, f"{path[:80]!r} is not a path for a volume; write an absolute path, such as /data")
            )
        if not _CLAIM.fullmatch(claim):
            detail = f"{claim[:80]!r} is not a volume claim; write CLAIM, or CLAIM:ro to mount it read-only"
            errors.append(FieldError(at, detail))
    errors += [*_checkpoint_errors(body), *_architecture_errors(body)]
    if ROOT not in body.privileges:
        return errors
    at = f"/privileges/{body.privileges.index(ROOT)}"
    if body.run_as.user is not None and "user" not in run_as_defaults:
        errors.append(FieldError(at, f"runAs sets the user {body.run_as.user}: leave one of them out"))
    for where, template in _templates(body):
        user = object_of(object_of(template.get("spec")).get("securityContext")).get("runAsUser")
        if user not in (None, 0):
            errors.append(FieldError(at, f"{where}.spec.securityContext.runAsUser differs: leave one of them out"))
    return errors


def applied(template: Mapping[str, Any], body: LaunchBody) -> Json:
    """Return the pod template with the short forms of the launch applied to its pod and its main container."""
    containers = [dict(container) for container in containers_of(template)] or [{"name": MAIN_CONTAINER}]
    main = main_container({**template, "spec": {"containers": containers}})
    spec = {**object_of(template.get("spec")), "containers": containers}
    found = _CHECKPOINTS.fullmatch(body.checkpoints)
    volumes = {**body.volumes, **({_CHECKPOINTS_PATH: found["claim"]} if found else {})}
    if volumes:
        containers[main]["volumeMounts"], spec["volumes"] = _mounted(containers[main], spec, volumes)
    if body.architecture:
        spec["nodeSelector"] = {**object_of(spec.get("nodeSelector")), ARCHITECTURE_LABEL: body.architecture}
    for switch in HOST_PRIVILEGES:
        if switch in body.privileges:
            spec[switch] = True
    if ROOT in body.privileges:
        spec["securityContext"] = {**object_of(spec.get("securityContext")), "runAsUser": 0}
    if added := _capabilities(body):
        context = object_of(containers[main].get("securityContext"))
        capabilities = object_of(context.get("capabilities"))
        own = _listed(capabilities.get("add"))
        every = [*own, *(name for name in added if name not in own)]
        containers[main]["securityContext"] = {**context, "capabilities": {**capabilities, "add": every}}
    if found is None:
        return {**template, "spec": spec}
    metadata = object_of(template.get("metadata"))
    folder = f"{_CHECKPOINTS_PATH}/{found['folder'] or _OWN_FOLDER}"
    annotations = {**object_of(metadata.get("annotations")), ANNOTATION_CHECKPOINTS: folder}
    return {**template, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def is_used(body: LaunchBody) -> bool:
    """Whether the launch uses one of the short forms."""
    return bool(body.volumes or body.privileges or body.checkpoints or body.architecture)


def as_written(error: FieldError, body: LaunchBody, spec: AllocationSpec) -> FieldError | None:
    """Return the error with its pointer moved from the generated `spec` to the short form that the client wrote.

    None when the refused field does not come from a short form.
    """
    at = _pointer_of(error.pointer, body, spec)
    # A privilege is a name in a list, not a boolean like the field of the pod, so "must be false" is removed.
    return FieldError(at, error.detail.removeprefix("must be false: ")) if at else None


def _pointer_of(at: str, body: LaunchBody, spec: AllocationSpec) -> str:
    found = _TEMPLATE.fullmatch(at)
    if found is None or not is_used(body):
        return ""
    template = (spec.ranks[int(found["rank"])].template if found["rank"] else spec.template) or {}
    field = found["field"]
    if mount := _MOUNT.fullmatch(field):
        mounts = objects_of(containers_of(template)[int(mount["container"])].get("volumeMounts"))
        path = str(mounts[int(mount["mount"])].get("mountPath"))
        if path == _CHECKPOINTS_PATH and body.checkpoints:
            return "/checkpoints"
        return f"/volumes{pointer(path)}" if path in body.volumes else ""
    privilege = field.removeprefix("/")
    if field == _USER_AT:
        privilege = ROOT
    elif added := _ADDED.fullmatch(field):
        context = object_of(containers_of(template)[int(added["container"])].get("securityContext"))
        privilege = str(object_of(context.get("capabilities"))["add"][int(added["place"])])
    return f"/privileges/{body.privileges.index(privilege)}" if privilege in body.privileges else ""


def _checkpoint_errors(body: LaunchBody) -> list[FieldError]:
    found = _CHECKPOINTS.fullmatch(body.checkpoints)
    if not body.checkpoints:
        return []
    if found is None or posixpath.normpath(found["folder"] or "a") != (found["folder"] or "a"):
        detail = (
            f"{body.checkpoints[:80]!r} is not a place for checkpoints; write CLAIM or CLAIM/FOLDER, such as work/llm"
        )
        return [FieldError("/checkpoints", detail)]
    if _CHECKPOINTS_PATH in body.volumes:
        return [FieldError("/checkpoints", f"volumes mounts another claim at {_CHECKPOINTS_PATH}: use another path")]
    return []


def _architecture_errors(body: LaunchBody) -> list[FieldError]:
    """Return an error for each node selector with another architecture: no node would match both."""
    selectors = [
        (f"{where}.spec.nodeSelector", object_of(object_of(template.get("spec")).get("nodeSelector")))
        for where, template in _templates(body)
    ]
    selectors += [(f"ranks[{index}].nodeSelector", role.node_selector) for index, role in enumerate(body.ranks)]
    return [
        FieldError("/architecture", f"{where} sets {said[:63]!r} too: leave one of them out")
        for where, selector in selectors
        if body.architecture and (said := str(selector.get(ARCHITECTURE_LABEL, body.architecture))) != body.architecture
    ]


def _mounted(main: Json, spec: Json, wanted: Mapping[str, str]) -> tuple[list[Any], list[Any]]:
    """Return (mounts of the main container, volumes of the pod) with the `wanted` {path: claim} added."""
    others = [item for item in _listed(main.get("volumeMounts")) if str(object_of(item).get("mountPath")) not in wanted]
    volumes = _listed(spec.get("volumes"))
    taken = {str(object_of(volume).get("name")) for volume in volumes}
    claims: dict[str, list[tuple[str, bool]]] = {}
    for path, text in wanted.items():
        claim, _, mode = text.partition(":")
        claims.setdefault(claim, []).append((path, mode == _READ_ONLY))
    free = (name for number in range(len(claims) + len(taken)) if (name := f"volume-{number}") not in taken)
    mounts: list[Json] = []
    for claim, places in claims.items():
        name = next(free)
        # A claim with only read-only mounts is attached read-only, because a ReadOnlyMany claim allows nothing else.
        is_read_only = all(is_read for _, is_read in places)
        source: Json = {"claimName": claim, **({"readOnly": True} if is_read_only else {})}
        volumes.append({"name": name, "persistentVolumeClaim": source})
        mounts += [{"name": name, "mountPath": path, **({"readOnly": True} if ro else {})} for path, ro in places]
    return [*others, *mounts], volumes


def _listed(value: Any) -> list[Any]:
    """Return a copy of a list of a template. Any other value becomes a list that the template checks refuse."""
    if value is None:
        return []
    return [*cast("list[Any]", value)] if isinstance(value, list) else [str(value)]


def _capabilities(body: LaunchBody) -> Sequence[str]:
    return [name for name in body.privileges if name != ROOT and name not in HOST_PRIVILEGES]


def _templates(body: LaunchBody) -> list[tuple[str, Mapping[str, Any]]]:
    own = [(f"ranks[{index}].template", object_of(role.template)) for index, role in enumerate(body.ranks)]
    return [("template", body.template), *own]
