"""Builds and validates the Allocation of a launch body, and the changed fields of a held allocation. Pure.

Owns the short fields (`image`, `command`, `args`, `secrets`, `serviceAccount`, `gpuType`), the short forms that set
several fields of a pod (`volumes`, `checkpoints`, `privileges`, `architecture`), and the mapping of errors to pointers
into the client's body. Whether a pool allows a privilege is decided by `slipway.crd.podsecurity`. `slipway.crd.resolve`
has the defaults and limits, which also apply to objects that a user creates with kubectl.

Invariants: the spec is complete, so resolving it again changes nothing. A program gets `command` and `args` as they
were typed; only in a pod template do `$(NAME)` and `$$` have Kubernetes' meaning. A program without `args` gets no
arguments of a pod template, because those are for the template's own command. A short form replaces the value of the
template at the same path or field, and nothing else. Each claim is one volume of the pod, however often it is mounted.
"""

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import msgspec

from slipway.api.allocations.change_schemas import ChangeBody
from slipway.api.http.decoding import summary
from slipway.api.schemas import LaunchBody
from slipway.crd import validate
from slipway.crd.expansion import literal
from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.meta import ANNOTATION_CHECKPOINTS, API_GROUP, LABEL_SERVICE, ObjectMeta
from slipway.crd.podsecurity import HOST_PRIVILEGES, ROOT
from slipway.crd.resolve import resolve
from slipway.crd.roleresources import MAIN_CONTAINER, containers_of, main_container, object_of, objects_of, overlaid
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, ResourcePool, RoleSpec
from slipway.crd.validate import check_env_name, is_mount_path
from slipway.crd.workspacepods import WorkspacePods, no_homes
from slipway.errors import FieldError, InvalidError
from slipway.pods.podspec import command_of

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


def apply_short_forms(template: Mapping[str, Any], body: LaunchBody) -> Json:
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


_SHORT = ("image", "command", "args")
_TYPED = ("command", "args")
_SECRET_KEY = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[-._a-zA-Z0-9]{1,253}")
_SECRET_AT = re.compile(
    r"(?:/ranks/(?P<rank>\d+))?/template/spec/containers/(?P<container>\d+)/env/(?P<variable>\d+)"
    r"/valueFrom/secretKeyRef/name"
)
_ACCOUNT_AT = "/spec/serviceAccountName"
_MAIN_AT = "/template/spec/containers/0/"
_FRAME = (("/metadata/labels", "/labels"), ("/metadata/name", "/name"), ("/metadata/namespace", "/workspace"))


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A valid launch: the allocation to create, and warnings for the client."""

    allocation: Allocation
    warnings: tuple[str, ...] = ()


def draft(
    body: LaunchBody,
    name: str,
    pool: ResourcePool,
    *,
    workspace: WorkspacePods = WorkspacePods(),  # noqa: B008 - immutable
    run_as_defaults: Collection[str] = (),
    audiences: Collection[str] | None = None,
) -> Draft:
    """Build the allocation `name` of a launch body. `workspace` are the workspace's settings for pods.

    `run_as_defaults` are the fields of `runAs` that come from the workspace: a pod template may override them.
    `audiences` are the permitted audiences of projected tokens; None permits every audience.

    Raises:
        InvalidError: with pointers into the body.
    """
    errors = [*_own_errors(body, pool), *_run_as_errors(body, run_as_defaults)]
    errors += errors_of(body, run_as_defaults)
    if body.home and workspace.home is None:
        errors.append(FieldError("/home", no_homes(body.workspace)))
    if body.replicas is not None:
        errors.append(FieldError("/replicas", "several are launched by POST /allocations/launches: {launch: ...}"))
    own_template = bool(containers_of(body.template))
    spec = _spec(body)
    own = {LABEL_SERVICE: spec.service.name} if spec.service is not None else {}
    metadata = ObjectMeta(name=name, namespace=body.workspace, labels={**body.labels, **own})
    wanted = Allocation(metadata=metadata, spec=spec)
    resolved = resolve(wanted, pool, accounts=workspace.accounts, secrets=workspace.released, audiences=audiences)
    found = [
        as_written(error, body, spec)
        or FieldError(
            _secret_pointer(error.pointer, body, spec) or _launch_pointer(error.pointer, body, own_template),
            error.detail,
        )
        for error in resolved.errors
    ]
    # One short field can set a field of several templates, so an error can be found more than once.
    errors += dict.fromkeys(found)
    if errors:
        raise InvalidError(summary("the launch", tuple(errors)), fields=tuple(errors))
    complete = msgspec.structs.replace(wanted, spec=resolved.spec)
    return Draft(allocation=complete, warnings=resolved.warnings)


def changed_work(allocation: Allocation, change: ChangeBody, pool: ResourcePool) -> Json:
    """Return the fields of the spec (wire names) after a change of image, program, variables or resources.

    Raises:
        InvalidError: the changed spec is not valid; with pointers into the change.
    """
    before = allocation.spec
    short: Json = {name: value for name in _SHORT if (value := getattr(change, name)) is not msgspec.UNSET}
    short |= {name: [literal(word) for word in short[name]] for name in _TYPED if name in short}
    given: Json = {} if change.resources is msgspec.UNSET else change.resources
    errors = validate.bytes_without_unit(given, "/resources")
    roles = [
        msgspec.structs.replace(
            role,
            template=_with_main(role.template, short) if role.template else role.template,
            resources=overlaid(role.resources, given) if given else role.resources,
        )
        for role in before.ranks or [RoleSpec()]
    ]
    variables = {} if change.env is msgspec.UNSET else change.env
    for name in before.secret_variables:
        if name in variables:
            detail = f"{name} is a secret value of the launch, which cannot be changed; launch again with another value"
            errors.append(FieldError(f"/env{pointer(name)}", detail))
    spec = msgspec.structs.replace(
        before,
        template=_with_main(before.template, short),
        ranks=roles,
        env={name: value for name, value in {**before.env, **variables}.items() if value is not None},
    )
    resolved = resolve(msgspec.structs.replace(allocation, spec=spec), pool)
    errors += [FieldError(_change_pointer(error.pointer, given), error.detail) for error in resolved.errors]
    if errors:
        raise InvalidError(summary("the change", tuple(errors)), fields=tuple(errors))
    whole: Json = msgspec.to_builtins(resolved.spec)
    return {name: whole.get(name, {}) for name in ("template", "ranks", "env")}


def _change_pointer(at: str, resources: Json) -> str:
    """Return the pointer into the client's change; `resources` is its field as given: plain, or {requests, limits}."""
    role = re.fullmatch(r"/ranks/\d+(?:/template/spec/containers/\d+)?(/.+)", at)
    field = role[1] if role else at
    if not {"requests", "limits"} & resources.keys():
        field = re.sub("^/resources/(requests|limits)/", "/resources/", field)
    return _short_pointer(field, own_template=False)


def client_errors(error: InvalidError) -> InvalidError:
    """Return a refusal of the API server with pointers into the launch body instead of the object."""
    fields = tuple(FieldError(_body_pointer(field.pointer), field.detail) for field in error.fields)
    return InvalidError(summary("the launch", fields) if fields else str(error), fields=fields)


def _own_errors(body: LaunchBody, pool: ResourcePool) -> list[FieldError]:
    """Return errors for values that a custom resource may have and a launch body may not."""
    errors: list[FieldError] = []
    if body.desired != "Running":
        errors.append(FieldError("/desired", "a launch cannot set it; leave it out"))
    if body.signals is not None:
        errors.append(FieldError("/signals", "a launch cannot set it: the calls under /signals do; leave it out"))
    if body.max_runtime_override is not None:
        detail = (
            "a launch cannot set it: administrators do, after the launch, with slipway limit ID --max-runtime; "
            "leave it out"
        )
        errors.append(FieldError("/maxRuntimeOverride", detail))
    for key in body.labels:
        if key.partition("/")[0].endswith(API_GROUP):
            errors.append(
                FieldError(f"/labels/{key.replace('/', '~1')}", f"labels of {API_GROUP} are reserved for Slipway")
            )
    for index, role in enumerate(body.ranks):
        errors += validate.bytes_without_unit(role.resources, f"/ranks/{index}/resources")
    if body.secret_values:
        # The secret values of the request were removed from the body before, so these come from a template.
        errors.append(FieldError("/secretValues", "a template cannot have secret values; only a launch can"))
    for name in body.secret_variables:
        for field, beside in (("env", body.env), ("secrets", body.secrets)):
            if name in beside:
                at = f"/secretValues{pointer(name)}"
                errors.append(FieldError(at, f"{field} sets {name} too: leave one of them out"))
    for name, reference in body.secrets.items():
        if name in body.env:
            errors.append(FieldError(f"/secrets/{name}", f"env sets {name} too: leave one of them out"))
        if not _SECRET_KEY.fullmatch(reference):
            detail = f"{reference!r} is not a key of a Secret; write SECRET/KEY, such as hub/token"
            errors.append(FieldError(f"/secrets/{name}", detail))
        names = Findings()
        check_env_name(name, f"/secrets/{name}", names)
        errors += names.errors
    return errors + _run_errors(body) + _account_errors(body) + _flavor_errors(body, pool)


def _run_errors(body: LaunchBody) -> list[FieldError]:
    """Return errors for a `run` script that no shell can run, or that is combined with another program."""
    if not body.run:
        return []
    if beside := [name for name in _TYPED if getattr(body, name)]:
        return [FieldError("/run", f"{beside[0]} sets the program too: leave one of them out")]
    if not body.run.strip():
        return [FieldError("/run", "has no command; write one, or leave it out")]
    return [FieldError("/run", "must not contain a NUL character")] if "\0" in body.run else []


def _flavor_errors(body: LaunchBody, pool: ResourcePool) -> list[FieldError]:
    """Return errors for flavors that the pool does not have: no added node could provide them."""
    if body.gpu_type and body.flavors:
        return [FieldError("/gpuType", "flavors sets the accepted flavors too: leave one of them out")]
    known = [flavor.name for flavor in pool.spec.flavors]
    has = f"it has {', '.join(known)}" if known else "it has no flavors"
    named = [("/gpuType", body.gpu_type)] if body.gpu_type else []
    named += [(f"/flavors/{index}", name) for index, name in enumerate(body.flavors)]
    return [
        FieldError(at, f"pool {pool.metadata.name} has no flavor {name!r}; {has}")
        for at, name in named
        if name not in known
    ]


def _account_errors(body: LaunchBody) -> list[FieldError]:
    """Return errors for a service account that differs from the one in a pod template."""
    templates = [("template", body.template)]
    templates += [(f"ranks[{index}].template", object_of(role.template)) for index, role in enumerate(body.ranks)]
    return [
        FieldError("/serviceAccount", f"{at}.spec.serviceAccountName names {account[:80]!r}: leave one of them out")
        for at, template in templates
        if body.service_account and (account := _account_of(template)) not in ("", body.service_account)
    ]


_RUN_AS = {"runAsUser": "user", "runAsGroup": "group", "fsGroup": "fsGroup", "supplementalGroups": "groups"}
"""{field of a securityContext: field of `runAs`}"""


def _run_as_errors(body: LaunchBody, defaults: Collection[str]) -> list[FieldError]:
    """Return errors for a user or group that differs from the one in a pod template.

    A default of the workspace is no error: the pod template overrides it.
    """
    templates = [("template", body.template)]
    templates += [(f"ranks[{index}].template", object_of(role.template)) for index, role in enumerate(body.ranks)]
    said = {field: value for field, value in body.run_as.context.items() if _RUN_AS[field] not in defaults}
    return [
        FieldError(f"/runAs/{_RUN_AS[field]}", f"{at}.spec.securityContext.{field} differs: leave one of them out")
        for at, template in templates
        for field, value in said.items()
        if _context_of(template).get(field) not in (None, value)
    ]


def _context_of(template: Mapping[str, Any]) -> Mapping[str, Any]:
    return object_of(object_of(template.get("spec")).get("securityContext"))


def _says(body: LaunchBody, at: str, field: str) -> bool:
    """Whether the pod template at the pointer sets that field of its securityContext itself."""
    role = re.fullmatch(r"/ranks/(\d+)/template", at)
    found = object_of(body.ranks[int(role[1])].template) if role is not None else body.template
    return _context_of(found).get(field) is not None


def _account_of(template: Mapping[str, Any]) -> str:
    return str(object_of(template.get("spec")).get("serviceAccountName") or "")


def _spec(body: LaunchBody) -> AllocationSpec:
    short: Json = {field: getattr(body, field) for field in _SHORT if getattr(body, field)}
    if body.run:
        short["command"] = command_of(body.run)
    short |= {field: [literal(word) for word in short[field]] for field in _TYPED if field in short}
    secrets = [_from_secret(name, reference) for name, reference in body.secrets.items()]
    fields = {field: getattr(body, field) for field in AllocationSpec.__struct_fields__}
    fields["request_hash"] = ""
    if body.gpu_type:
        fields["flavors"] = [body.gpu_type]
    pod: Json = {"serviceAccountName": body.service_account} if body.service_account else {}
    if body.run_as.context:
        pod["securityContext"] = body.run_as.context
    if short or secrets or pod or is_used(body):

        def complete(template: Mapping[str, Any]) -> Json:
            return apply_short_forms(_with_main(template, short, secrets, pod), body)

        fields["template"] = complete(body.template)
        fields["ranks"] = [
            msgspec.structs.replace(role, template=complete(role.template)) if role.template else role
            for role in body.ranks
        ]
    return AllocationSpec(**fields)


def _from_secret(name: str, reference: str) -> Json:
    secret, _, key = reference.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _with_main(
    template: Mapping[str, Any], short: Json, secrets: Sequence[Json] = (), pod: Mapping[str, Any] | None = None
) -> Json:
    """Return the template with the short fields in its main container, and the fields of `pod` in its pod spec.

    A variable of `secrets` replaces the template's variable of the same name.
    """
    containers = [dict(container) for container in containers_of(template)] or [{"name": MAIN_CONTAINER}]
    main = main_container({**template, "spec": {"containers": containers}})
    containers[main] = {**containers[main], **short}
    if "command" in short and "args" not in short:
        containers[main].pop("args", None)
    if secrets:
        names = {item["name"] for item in secrets}
        own = [item for item in containers[main].get("env") or () if object_of(item).get("name") not in names]
        containers[main]["env"] = [*own, *secrets]
    spec = {**object_of(template.get("spec")), **(pod or {}), "containers": containers}
    if pod and "securityContext" in pod:
        own = {field: value for field, value in _context_of(template).items() if value is not None}
        spec["securityContext"] = {**pod["securityContext"], **own}
    return {**template, "spec": spec}


def _launch_pointer(at: str, body: LaunchBody, own_template: bool) -> str:
    """Return the pointer into the client's launch body for a pointer into the spec."""
    if body.service_account and at.endswith(f"template{_ACCOUNT_AT}"):
        return "/serviceAccount"
    template, found, field = at.partition("/spec/securityContext/")
    field = field.partition("/")[0]
    if found and field in body.run_as.context and not _says(body, template, field):
        return f"/runAs/{_RUN_AS[field]}"
    return _short_pointer(at, own_template)


def _secret_pointer(at: str, body: LaunchBody, spec: AllocationSpec) -> str:
    """Return the pointer to the entry of `secrets` that names a Secret; empty when a template names it."""
    found = _SECRET_AT.fullmatch(at)
    if found is None:
        return ""
    template = spec.ranks[int(found["rank"])].template if found["rank"] else spec.template
    containers = containers_of(template or {})
    variables = objects_of(containers[int(found["container"])].get("env"))
    name = str(variables[int(found["variable"])].get("name"))
    return f"/secrets{pointer(name)}" if name in body.secrets else ""


def _short_pointer(at: str, own_template: bool) -> str:
    """Return the pointer to a short field: without a template of its own, the body has no such container."""
    field = at.removeprefix(_MAIN_AT)
    return f"/{field}" if not own_template and field != at and field.partition("/")[0] in _SHORT else at


def _body_pointer(at: str) -> str:
    for prefix, ours in _FRAME:
        if at == prefix or at.startswith(f"{prefix}/"):
            return ours + at.removeprefix(prefix)
    return at.removeprefix("/spec") if at.startswith("/spec") else at
