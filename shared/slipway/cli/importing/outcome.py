"""The launch that a document becomes: built by a converter, checked by the rules of the server, then shortened.

Owns the body while it is built, the source of each part of it, and the short fields that make a body easy to read. Also
owns which parts may be removed when the rules refuse them; these parts are then reported as lost. Pure.

Invariant: the result of `settle` passes the check that the api runs on a launch, as far as this is known without a
server. The check assumes a pool without settings of its own, and a workspace that allows every service account.

Failure and success rules of a Kubernetes Job and of a JobSet become `failurePolicy` and `successPolicy` of a launch.

Source: Kubernetes API reference, PodFailurePolicy and SuccessPolicy (batch/v1); JobSet, jobset_types.go (v1alpha2).
"""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, cast

import msgspec

from slipway.cli.importing.foreign import ForeignDocument, ForeignField, Json, Steps, Verdict, path_of
from slipway.crd.expansion import literal
from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER, API_GROUP, ObjectMeta, RunAs
from slipway.crd.resolve import resolve
from slipway.crd.roleresources import MAIN_CONTAINER, containers_of, is_extended, main_container, object_of, objects_of
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, ResourcePool, ResourcePoolSpec
from slipway.crd.validate import bytes_without_unit
from slipway.errors import FieldError, InvalidError
from slipway.model.numbers import number_in

_FRAME = ("name", "workspace", "labels", "gpuType", "secrets", "runAs")
"""Fields of a launch body that the spec of an Allocation does not have."""
_ROUNDS_MAX = 200
_PROTECTED = frozenset({"image", "command", "args", "name", "resources", "env", "containers", "initContainers"})
"""Parts that define the work: a document is refused when the rules refuse one of them."""
_REMOVABLE = tuple(
    re.compile(pattern)
    for pattern in (
        r"(.*/volumes/\d+)(?:/.*)?",
        r"(.*/env/\d+)(?:/.*)?",
        r"(.*/metadata/(?:labels|annotations)/[^/]+)",
        r"(.*/tolerations/\d+)(?:/.*)?",
        r"(.*/capabilities/add)(?:/.*)?",
        r"(.*/securityContext/[^/]+)(?:/.*)?",
        r"(.*/resources/claims)(?:/.*)?",
        r"(.*/containers/\d+/ports/\d+)(?:/.*)?",
        r"(.*/(?:containers|initContainers)/\d+/[^/]+)(?:/.*)?",
        r"(.*template/spec/[^/]+)(?:/.*)?",
        r"(.*template/[^/]+)",
        r"(/labels/[^/]+)",
        r"(/env/[^/]+)",
        r"(/ports/\d+)(?:/.*)?",
        r"(/failurePolicy/rules/\d+)(?:/.*)?",
        r"(/successPolicy/targets/\d+)(?:/.*)?",
        r"(/successPolicy)/targets",
    )
)
_REFERENCE = re.compile(r"\$\(([^)]*)\)")
_PATH = re.compile(r"^(?P<text>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$", re.DOTALL)


class ImportedLaunch:
    """A launch body that is being built.

    `body` has the wire names of a launch. Pod templates in it have the fields of Kubernetes.
    """

    def __init__(self, document: ForeignDocument, kind: str = "training") -> None:
        self.document = document
        self.body: Json = {"kind": kind}
        self._came_from: dict[int, Steps] = {}
        self._fields: dict[str, Steps] = {}

    def copied(self, field: ForeignField) -> Any:
        """Return a deep copy of a field's value, whose parts can be traced to the document."""
        made = copy.deepcopy(field.value)
        self._trace(made, field.steps)
        return made

    def put(self, name: str, value: Any, source: ForeignField) -> None:
        """Set a field of the body, and record the field of the document that it came from."""
        self.body[name] = value
        self._fields[f"/{name}"] = source.steps

    def trace(self, made: Json, source: ForeignField) -> Json:
        """Record that `made`, an object of the body, came from `source`; return `made`."""
        self._came_from[id(made)] = source.steps
        return made

    def roles(self) -> list[Json]:
        """Return the roles of the body."""
        return cast("list[Json]", self.body.setdefault("ranks", []))

    def source_of(self, pointer: str) -> Steps:
        """Return the path in the document that the part of the body at a JSON pointer came from; empty when unknown."""
        found: Steps | None = None
        for prefix, steps in self._fields.items():
            if pointer == prefix or pointer.startswith(f"{prefix}/"):
                found = steps
        node: Any = self.body
        for step in _steps_of(pointer):
            if found is not None:
                found = _deeper(found, node, step)
            node = _child(node, step)
            if node is None:
                break
            found = self._came_from.get(id(node), found)
        return found or ()

    def _trace(self, made: Any, steps: Steps) -> None:
        if isinstance(made, dict):
            self._came_from[id(cast("Json", made))] = steps
            for name, child in cast("Json", made).items():
                self._trace(child, (*steps, name))
        elif isinstance(made, list):
            for index, child in enumerate(cast("list[Any]", made)):
                self._trace(child, (*steps, index))

    # --- judging --------------------------------------------------------------------------------------------------

    def settle(self) -> Json:
        """Return the finished body in short fields. Parts that the rules refuse are removed and reported.

        Raises:
            InvalidError: the rules refuse a part that defines the work. The error has its path in the document.
        """
        for _ in range(_ROUNDS_MAX):
            errors = _judged(self.body)
            if not errors:
                self._note_user()
                return shortened(self.body)
            self._take_out(errors[0])
        raise InvalidError("too many fields are refused here; convert this document by hand")

    def _note_user(self) -> None:
        """Report the user that the launch runs as, when the document sets none."""
        pods = [object_of(object_of(role.get("template")).get("spec")) for role in self.roles()]
        if "runAs" in self.body or all("runAsUser" in object_of(pod.get("securityContext")) for pod in pods):
            return
        does = "runs as the user of the image, often root, or as you"
        self.document.note((), Verdict.CHANGED, does, "runs as user 1000; set runAs, and let that user read its files")

    def _take_out(self, error: FieldError) -> None:
        for pattern in _REMOVABLE:
            found = pattern.fullmatch(error.pointer)
            if found is None:
                continue
            place = found[1]
            if place.rpartition("/")[2] in _PROTECTED:
                break
            steps = self.source_of(place)
            self.document.note(steps, Verdict.LOST, _DOES.get(_word(steps), ""), error.detail)
            self._remove(place)
            return
        steps = self.source_of(error.pointer)
        where = path_of(steps) or error.pointer.removeprefix("/").replace("/", ".") or "the document"
        raise InvalidError(f"{where}: {error.detail}", fields=(FieldError(where, error.detail),))

    def _remove(self, place: str) -> None:
        parent, _, last = place.rpartition("/")
        node: Any = self.body
        for step in _steps_of(parent):
            node = _child(node, step)
        if isinstance(node, list):
            gone = cast("list[Any]", node).pop(int(last))
            if parent.endswith("/volumes"):
                self._remove_mounts(parent.removesuffix("/volumes"), object_of(gone).get("name"))
        else:
            cast("Json", node).pop(_unescaped(last))

    def _remove_mounts(self, pod: str, volume: Any) -> None:
        """Remove the mounts of a removed volume from the containers of the pod."""
        node: Any = self.body
        for step in _steps_of(pod):
            node = _child(node, step)
        for group in ("containers", "initContainers"):
            for container in cast("list[Json]", object_of(node).get(group) or []):
                mounts = objects_of(container.get("volumeMounts"))
                for mount in mounts:
                    if mount.get("name") == volume:
                        steps = self._came_from.get(id(mount), ())
                        here = f"the volume {volume} is not carried over"
                        self.document.note(steps, Verdict.LOST, "mounts the volume", here)
                if mounts:
                    container["volumeMounts"] = [mount for mount in mounts if mount.get("name") != volume]


_DOES = {
    "hostNetwork": "the pod uses the network of its node",
    "hostPID": "the pod sees the processes of its node",
    "hostIPC": "the pod shares the memory segments of its node",
    "runAsUser": "the user that processes run as",
    "runAsNonRoot": "whether a process may run as root",
    "privileged": "the container may do what its node may",
    "allowPrivilegeEscalation": "a process may gain more rights",
    "add": "Linux capabilities beyond the usual ones",
    "priorityClassName": "a priority of Kubernetes",
    "nodeName": "the one node of the pod",
    "hostname": "the host name of the pod",
    "subdomain": "the domain of the pod's host name",
    "volumeDevices": "raw block devices",
    "resourceClaims": "devices by claims",
    "claims": "devices by claims",
}
"""{field that the rules often refuse: what it does}"""


def _judged(body: Json) -> tuple[FieldError, ...]:
    """Return what the server would refuse in a launch with that body, as pointers into the body."""
    spec = {name: value for name, value in body.items() if name not in _FRAME}
    try:
        wanted = Allocation(
            metadata=ObjectMeta(name=str(body.get("name") or "unnamed"), labels=body.get("labels") or {}),
            spec=msgspec.convert(spec, AllocationSpec),
        )
        msgspec.convert(body.get("runAs") or {}, RunAs)
    except msgspec.ValidationError as exc:
        found = _PATH.match(str(exc))
        path = (found["path"] or "") if found else ""
        path = path if "runAs" not in body or path.lstrip(".").partition("[")[0] in spec else f".runAs{path}"
        return (FieldError(re.sub(r"[.\[]", "/", path).replace("]", ""), found["text"] if found else str(exc)),)
    errors: list[FieldError] = []
    for key in cast("Json", body.get("labels") or {}):
        if key.partition("/")[0].endswith(API_GROUP):
            errors.append(FieldError(f"/labels/{key.replace('/', '~1')}", f"labels of {API_GROUP} are Slipway's own"))
    for index, role in enumerate(cast("list[Json]", body.get("ranks") or [])):
        template = object_of(role.get("template"))
        for place, container in enumerate(containers_of(template)):
            at = f"/ranks/{index}/template/spec/containers/{place}/resources"
            errors += bytes_without_unit(object_of(container.get("resources")), at)
        errors += bytes_without_unit(object_of(role.get("resources")), f"/ranks/{index}/resources")
    pool = ResourcePool(metadata=ObjectMeta(name="default"), spec=ResourcePoolSpec())
    return (*errors, *resolve(wanted, pool).errors)


def _word(steps: Steps) -> str:
    return next((step for step in reversed(steps) if isinstance(step, str)), "")


def _steps_of(pointer: str) -> list[str]:
    return [_unescaped(step) for step in pointer.split("/")[1:]]


def _unescaped(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _deeper(steps: Steps, node: Any, step: str) -> Steps:
    """Return the path of a child of `node`, which is at `steps`, for one step of a JSON pointer."""
    is_index = isinstance(cast("object", node), list) and step.isdigit()
    return (*steps, int(step) if is_index else step)


def _child(node: Any, step: str) -> Any:
    if isinstance(node, dict):
        return cast("Json", node).get(step)
    if isinstance(node, list) and step.isdigit():
        items = cast("list[Any]", node)
        return items[int(step)] if int(step) < len(items) else None
    return None


# --- writing short ------------------------------------------------------------------------------------------------


def shortened(body: Json) -> Json:
    """Return the same launch in the short fields of a launch body, where they can express it."""
    made = dict(body)
    roles = [dict(role) for role in cast("list[Json]", body.get("ranks") or [])]
    templates = [role.get("template") for role in roles]
    for role in roles:
        if template := role.get("template"):
            role["template"] = _without_resources(role, cast("Json", template))
    own = [role.get("template") for role in roles]
    if templates and all(own) and all(template == own[0] for template in own):
        for role in roles:
            del role["template"]
        made |= _short_fields(cast("Json", own[0]), cast("Json", made.get("env") or {}))
    made["ranks"] = [role for role in map(_short_role, roles) if role]
    if made["ranks"] in ([], [{"name": "worker"}]):
        del made["ranks"]
    order = ("name", "workspace", "labels", "kind", "pool", "queue", "priority", "preemptible", "hold", "image")
    order = (*order, "command", "args", "env", "secrets", "gpuType", "flavors", "ranks", "minAvailable")
    ordered = {name: made[name] for name in order if name in made}
    rest = {name: value for name, value in made.items() if name not in ordered and name != "template"}
    template = {"template": made["template"]} if made.get("template") else {}
    return {name: value for name, value in {**ordered, **rest, **template}.items() if value not in ({}, [], None, "")}


def _without_resources(role: Json, template: Json) -> Json:
    """Return the template without the resources of its main container, which are moved into the role."""
    spec = dict(object_of(template.get("spec")))
    containers = [dict(container) for container in containers_of(template)]
    if not containers:
        return template
    main = containers[main_container(template)]
    resources = dict(object_of(main.get("resources")))
    if resources and not role.get("resources") and "claims" not in resources:
        role["resources"] = _flat(resources)
        del main["resources"]
    elif "resources" in main and not resources:
        del main["resources"]
    return {**template, "spec": {**spec, "containers": containers}}


def _flat(resources: Json) -> Json:
    """Return the resources as a plain map of quantities, when that has the same meaning."""
    requests, limits = dict(object_of(resources.get("requests"))), dict(object_of(resources.get("limits")))
    asked = {**limits, **requests}
    if all(is_extended(name) for name in limits):
        return asked
    return {part: amounts for part, amounts in (("requests", requests), ("limits", limits)) if amounts}


def _short_role(role: Json) -> Json:
    shown = {name: value for name, value in role.items() if value is not False and value not in ({}, [], None)}
    if shown.get("count") == 1:
        del shown["count"]
    return shown


def _short_fields(template: Json, env: Json) -> Json:
    """Convert image, command, args, env and secrets of the main container to short fields, the rest to a template."""
    template = copy.deepcopy(template)
    spec = cast("Json", template.get("spec") or {})
    containers = cast("list[Json]", spec.get("containers") or [{}])
    index = main_container(template)
    main = containers[index] if index < len(containers) else {}
    made: Json = {}
    if "image" in main:
        made["image"] = main.pop("image")
    known = None if main.get("envFrom") else {str(item.get("name")) for item in objects_of(main.get("env"))} | {*env}
    words = {name: [_as_typed(str(word), known) for word in cast("list[Any]", main.get(name) or [])] for name in _TYPED}
    if all(word is not None for typed in words.values() for word in typed):
        for name, typed in words.items():
            main.pop(name, None)
            if typed:
                made[name] = typed
    plain, secrets, rest = _variables(cast("list[Json]", main.pop("env", None) or []))
    if rest:
        main["env"] = rest
    made |= {"env": {**plain, **env}} if plain or env else {}
    made |= {"secrets": secrets} if secrets else {}
    if account := spec.pop("serviceAccountName", None):
        made["serviceAccount"] = account
    if set(main) <= {"name", "imagePullPolicy"} and main.get("imagePullPolicy") in (None, "IfNotPresent"):
        main.pop("imagePullPolicy", None)
    if len(containers) == 1 and set(main) <= {"name"}:
        spec.pop("containers", None)
        annotations = object_of(object_of(template.get("metadata")).get("annotations"))
        if ANNOTATION_MAIN_CONTAINER in annotations:
            cast("Json", template["metadata"]["annotations"]).pop(ANNOTATION_MAIN_CONTAINER)
    return {**made, **({"template": pruned} if (pruned := _without_empty(template)) else {})}


_TYPED = ("command", "args")


def _as_typed(word: str, known: set[str] | None) -> str | None:
    """Return the word of a launch body for a word of a container; None when only a container can express it.

    `known` are the variables of the container; None when they are unknown. Kubernetes leaves `$(NAME)` unchanged when
    no such variable exists.
    """
    for typed in (word, word.replace("$$", "$")):
        if literal(typed) == word:
            return typed
    names = set(_REFERENCE.findall(word))
    return word if known is not None and "$$" not in word and not names & known else None


def _variables(variables: list[Json]) -> tuple[Json, Json, list[Json]]:
    """Return ({name: value}, {name: SECRET/KEY}, the variables that neither can express)."""
    plain: Json = {}
    secrets: Json = {}
    rest: list[Json] = []
    for variable in variables:
        name, reference = str(variable.get("name")), object_of(object_of(variable.get("valueFrom")).get("secretKeyRef"))
        if set(variable) <= {"name", "value"}:
            plain[name] = str(variable.get("value") or "")
        elif set(variable) == {"name", "valueFrom"} and set(reference) == {"name", "key"}:
            secrets[name] = f"{reference['name']}/{reference['key']}"
        else:
            rest.append(variable)
    return plain, secrets, rest


def _without_empty(value: Any) -> Any:
    """Remove empty objects at the top of a template; an empty volume source stays."""
    template = cast("Json", value)
    spec = {name: part for name, part in object_of(template.get("spec")).items() if part not in ({}, [], None)}
    metadata = {name: part for name, part in object_of(template.get("metadata")).items() if part not in ({}, None)}
    return {name: part for name, part in (("metadata", metadata), ("spec", spec)) if part}


def main_template(launch: ImportedLaunch, container: Json, pod: Json | None = None) -> Json:
    """Return a pod template with one main container; command and args are literal words."""
    made = dict(container)
    for name in _TYPED:
        if made.get(name):
            made[name] = [literal(str(word)) for word in made[name]]
    return {"spec": {**(pod or {}), "containers": [{"name": MAIN_CONTAINER, **made}]}}


RESTARTS = 1000
"""The limit of restarts here, when the other system has no limit."""
_CODES = range(1, 256)
_INDEXES_MAX = 256
_LIMITLESS = f"as often as needed, at most {RESTARTS} times; all ranks start again, as one"
_POD_ACTIONS = {"FailJob": "fail", "Count": "retry", "Ignore": "notCounted"}
_SET_ACTIONS = {
    "FailJobSet": "fail",
    "RestartJobSet": "retry",
    "RestartJobSetAndIgnoreMaxRestarts": "notCounted",
    "RestartJob": "retry",
    "RestartJobAndIgnoreMaxRestarts": "notCounted",
}
_OF_A_POD = frozenset({"PodFailurePolicy"})
_OF_ANY_POD = frozenset({"BackoffLimitExceeded"})


def add_rule(launch: ImportedLaunch, source: ForeignField, action: str, **of: Any) -> None:
    """Add a rule to the launch; empty values in `of` are left out."""
    policy = cast("Json", launch.body.setdefault("failurePolicy", {"rules": []}))
    rule = launch.trace({"action": action, **{name: value for name, value in of.items() if value}}, source)
    cast("list[Json]", policy["rules"]).append(rule)
    if action == "notCounted":
        policy["maxUncountedRestarts"] = RESTARTS


def add_target(launch: ImportedLaunch, source: ForeignField, **of: Any) -> None:
    """Add a target to the success policy; empty values in `of` are left out."""
    policy = cast("Json", launch.body.setdefault("successPolicy", {"targets": []}))
    target = launch.trace({name: value for name, value in of.items() if value}, source)
    cast("list[Json]", policy["targets"]).append(target)


def exit_codes(codes: Iterable[int]) -> list[int | str]:
    """Return the codes in the form of a rule: numbers, and ranges of three or more codes."""
    made: list[int | str] = []
    for _, group in groupby(enumerate(sorted(set(codes))), key=lambda item: item[1] - item[0]):
        run = [code for _, code in group]
        made += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else run
    return made


def pod_failures(
    launch: ImportedLaunch, policy: ForeignField, *, main: str, role: str = "", failing: str = "fail"
) -> None:
    """Convert the `podFailurePolicy` of a Job whose main container is `main`.

    `failing` is the action for FailJob. `role` is the role of the Job's ranks, when the launch has other roles."""
    roles = [role] if role else []
    for rule in policy.get("rules").items():
        name = rule.get("action").text()
        action = failing if name == "FailJob" else _POD_ACTIONS.get(name, "")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        types = {item.get("type").text() for item in conditions.items()}
        if not action:
            rule.lost(f"{name} at a failure of a pod", "a rank has no retries of its own")
        elif types == {"DisruptionTarget"} and not codes.is_set:
            if action == "notCounted":
                rule.unneeded("an eviction never counts against maxRestarts")
            else:
                add_rule(launch, rule, action, roles=roles, disruption=True)
                rule.changed(f"{name} when a pod is evicted", f"failurePolicy: {action}, disruption; all ranks end")
        elif codes.is_set and not types:
            _on_exit_codes(launch, rule, action, main=main, roles=roles)
        else:
            rule.lost(f"{name} at a condition of a pod", "rules are about exit codes and disruptions")


def _on_exit_codes(launch: ImportedLaunch, rule: ForeignField, action: str, *, main: str, roles: list[str]) -> None:
    codes, name = rule.get("onExitCodes"), rule.get("action").text()
    container = codes.get("containerName")
    if container.is_set and container.text() != main:
        rule.lost(f"{name} at an exit code of {container.text()}", f"only {main}, the main container, decides")
        return
    values = {item.whole(least=0, most=2**31 - 1) for item in codes.get("values").items()}
    operator = codes.get("operator").text("In")
    if operator not in ("In", "NotIn"):
        codes.get("operator").refuse("must be In or NotIn")
    meant = [code for code in _CODES if (code in values) is (operator == "In")]
    if not meant:
        rule.lost(f"{name} at exit codes that no container has", "write exit codes from 1 to 255")
        return
    add_rule(launch, rule, action, roles=roles, exitCodes=exit_codes(meant))
    if action == "fail":
        rule.carried("failurePolicy: fail")
    elif action == "notCounted":
        rule.changed(
            f"{name}: the pod starts again, and this is not counted", f"failurePolicy: notCounted, {_LIMITLESS}"
        )
    else:
        rule.changed(f"{name}: the pod starts again", "failurePolicy: retry; all ranks start again, as one")


def job_success(launch: ImportedLaunch, policy: ForeignField, *, role: str = "") -> None:
    """Convert the `successPolicy` of an indexed Job: one of its rules is enough."""
    rules = policy.get("rules").items()
    for rule in rules:
        text = rule.get("succeededIndexes").text()
        indexes = _indexes(rule.get("succeededIndexes")) if text else []
        if len(indexes) > _INDEXES_MAX:
            rule.lost(f"success by {len(indexes)} indexes", f"a target names at most {_INDEXES_MAX}; write a count")
            continue
        count = rule.get("succeededCount").whole()
        add_target(launch, rule, role=role, indexes=indexes, count=count)
        rule.carried("successPolicy.targets")
    if len(rules) > 1 and "successPolicy" in launch.body:
        cast("Json", launch.body["successPolicy"])["operator"] = "Any"


def _indexes(field: ForeignField) -> list[int]:
    """Parse indexes such as `0,2-4`."""
    made: list[int] = []
    for part in field.text().split(","):
        first, is_range, last = part.strip().partition("-")
        low = number_in(first)
        high = number_in(last) if is_range else low
        if low is None or high is None:
            field.refuse("must be indexes such as 0,2-4")
        made += range(low, min(high, low + _INDEXES_MAX) + 1)
    return made


def set_success(
    launch: ImportedLaunch, policy: ForeignField, jobs: Mapping[str, str], *, replicated: Sequence[str]
) -> None:
    """Convert the `successPolicy` of a JobSet with these jobs, {name: role}; `replicated` are roles of several Jobs."""
    if not policy.is_set:
        return
    named, operator = policy.get("targetReplicatedJobs"), policy.get("operator")
    targets = named.words()
    unknown = [name for name in targets if name not in jobs]
    if unknown:
        named.refuse(f"names no job of this set: {unknown[0]}")
    meant = [role for name, role in jobs.items() if name in targets or not targets]
    is_any = operator.text("All") == "Any"
    if is_any or len(meant) < len(jobs):
        for name in meant:
            add_target(launch, named if named.is_set else policy, role=name)
    if is_any and len(meant) > 1:
        cast("Json", launch.body["successPolicy"])["operator"] = "Any"
    several = [name for name in meant if name in replicated]
    if is_any and several:
        operator.changed("one Job of those is enough", f"successPolicy: all ranks of {' or '.join(several)}")
    elif operator.is_set:
        operator.carried("successPolicy.operator")
    named.carried("successPolicy.targets")


def failing_of(policy: ForeignField, job: str) -> str:
    """Return the action of a JobSet when the `podFailurePolicy` of a job fails that job."""
    for rule in policy.get("rules").items():
        if _is_about(rule, job) and _reasons(rule) & _OF_A_POD and not rule.get("onJobFailureMessagePatterns").items():
            return _SET_ACTIONS.get(rule.get("action").text(), "retry")
    return "retry"


def set_failures(
    launch: ImportedLaunch, policy: ForeignField, jobs: Mapping[str, str], *, is_part: bool = False
) -> None:
    """Convert the rules of a JobSet on failed jobs, {name: role}; they follow the exit code rules of its jobs.

    With `is_part` the launch is one of several, and a rule may be about jobs of another launch."""
    for rule in policy.get("rules").items():
        name = rule.get("action").text()
        action = _SET_ACTIONS.get(name)
        meant = [role for job, role in jobs.items() if _is_about(rule, job)]
        if is_part and not meant:
            continue
        if action is None or rule.get("onJobFailureMessagePatterns").items() or not meant:
            rule.lost(f"what a failed Job means ({name})", "write rules of failurePolicy, by role and exit code")
        elif _reasons(rule) & _OF_ANY_POD:
            add_rule(launch, rule, action, roles=meant if len(meant) < len(jobs) else [])
            here = {"notCounted": f", {_LIMITLESS}", "retry": "; all ranks start again, as one"}.get(action, "")
            rule.changed(f"{name} when a Job has failed", f"failurePolicy: {action}, when a rank has failed{here}")
        elif _reasons(rule) & _OF_A_POD:
            rule.changed(f"{name} when a podFailurePolicy has failed a Job", f"its rules with FailJob mean {action}")
        else:
            reasons = ", ".join(rule.get("onJobFailureReasons").words())
            rule.lost(f"{name} at {reasons}", "rules are about exit codes and disruptions of ranks")


def _is_about(rule: ForeignField, job: str) -> bool:
    targets = rule.get("targetReplicatedJobs").words()
    return not targets or job in targets


def _reasons(rule: ForeignField) -> frozenset[str]:
    return frozenset(rule.get("onJobFailureReasons").words()) or _OF_A_POD | _OF_ANY_POD
