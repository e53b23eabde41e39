"""Pods: defaulting, validation, allowed changes, and binding.

Owns the strategy of the kind and the pure step from an unbound pod to a bound pod. Knows no store and no node.
Invariants: a pod's node is set once, only by binding (or at creation); the rest of a pod's spec is immutable except
images, deadlines, added tolerations, removed scheduling gates, and the node selection of a gated pod.

Scheduling gates: a gated pod shows a condition, and some of its fields may change while it is gated. Invariant: while a
pod is gated, the set of its eligible nodes only shrinks.

Source: pkg/apis/core/validation (ValidatePodUpdate, validateNodeAffinityMutation, ValidateNodeSelector),
pkg/registry/core/pod/storage BindingREST (behaviour, v1.37).
"""

from typing import Any

from slipway.local.apiserver import meta, objects
from slipway.local.apiserver.admission import Strategy, complete_conditions
from slipway.local.apiserver.objects import Json, clone, is_map, listing, mapping, maps, metadata, type_name
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.status import (
    FieldCause,
    StatusError,
    bad_request,
    bad_value,
    conflict,
    duplicate,
    missing,
    not_allowed,
    unsupported,
)
from slipway.model.resources import parse_thousandths

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_FIELD_OPERATORS = ("In", "NotIn")
_AFFINITY = "spec.affinity.nodeAffinity"
_TERMS = f"{_AFFINITY}.{REQUIRED}.nodeSelectorTerms"


def names_of(spec: Json) -> list[str]:
    """Return the names of the pod's gates."""
    return [str(gate.get("name") or "") for gate in maps(listing(spec, "schedulingGates"))]


def initial_conditions(spec: Json, now_text: str) -> list[Json]:
    """Return the initial conditions of a new pod."""
    if not names_of(spec):
        return []
    message = "Scheduling is blocked due to non-empty scheduling gates"
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": message}
    return [{**gated, "lastProbeTime": None, "lastTransitionTime": now_text}]


def causes(spec: Json, old: Json | None) -> list[FieldCause]:
    """Return the errors in gates and node affinity. `old` is the pod's spec before the write, None on create."""
    found = _own_causes(spec, is_new=old is None)
    if old is None:
        return found
    gates, before = names_of(spec), names_of(old)
    found += [
        not_allowed(f"spec.schedulingGates[{index}].name", "only deletion is allowed, but found new scheduling gate")
        for index, gate in enumerate(gates)
        if gate not in before
    ]
    return found + _narrowing_causes(spec, old) if before else found


def without_places(spec: Json, *, is_gated: bool) -> Json:
    """Return the spec without the fields that a gated pod may narrow, so that the other fields can be compared.

    The spec of a pod without gates is returned unchanged.
    """
    if not is_gated:
        return spec
    rest = {name: value for name, value in spec.items() if name not in ("nodeSelector", "affinity")}
    affinity = {name: value for name, value in mapping(spec, "affinity").items() if name != "nodeAffinity"}
    return {**rest, "affinity": affinity} if affinity else rest


def _own_causes(spec: Json, *, is_new: bool) -> list[FieldCause]:
    found = list[FieldCause]()
    names = names_of(spec)
    for index, name in enumerate(names):
        path = f"spec.schedulingGates[{index}]"
        found += meta.qualified(path, name)
        if name in names[:index]:
            found.append(duplicate(path, name))
    if names and is_new and spec.get("nodeName"):
        found.append(not_allowed("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return found + _affinity_causes(spec)


def _affinity_causes(spec: Json) -> list[FieldCause]:
    required = mapping(mapping(spec, "affinity"), "nodeAffinity").get(REQUIRED)
    if not is_map(required):
        return []
    terms = maps(listing(required, "nodeSelectorTerms"))
    if not terms:
        return [missing(_TERMS, "must have at least one node selector term")]
    found = list[FieldCause]()
    for at, term in enumerate(terms):
        for index, item in enumerate(maps(listing(term, "matchExpressions"))):
            found += _expression_causes(item, f"{_TERMS}[{at}].matchExpressions[{index}]")
        for index, item in enumerate(maps(listing(term, "matchFields"))):
            found += _field_causes(item, f"{_TERMS}[{at}].matchFields[{index}]")
    return found


def _expression_causes(item: Json, path: str) -> list[FieldCause]:
    operator, values = item.get("operator"), listing(item, "values")
    match operator:
        case "In" | "NotIn" if not values:
            words = "must be specified when `operator` is 'In' or 'NotIn'"
            return [missing(f"{path}.values", words)]
        case "Exists" | "DoesNotExist" if values:
            return [not_allowed(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")]
        case "Gt" | "Lt" if len(values) != 1:
            words = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            return [missing(f"{path}.values", words)]
        case _ if operator not in _OPERATORS:
            return [bad_value(f"{path}.operator", operator, "not a valid selector operator")]
        case _:
            return []


def _field_causes(item: Json, path: str) -> list[FieldCause]:
    found = list[FieldCause]()
    if item.get("operator") not in _FIELD_OPERATORS:
        found.append(bad_value(f"{path}.operator", item.get("operator"), "not a valid selector operator"))
    elif len(listing(item, "values")) != 1:
        words = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        found.append(missing(f"{path}.values", words))
    if item.get("key") != "metadata.name":
        found.append(unsupported(f"{path}.key", item.get("key"), ["metadata.name"]))
    return found


def _narrowing_causes(spec: Json, old: Json) -> list[FieldCause]:
    found = list[FieldCause]()
    selector, before = mapping(spec, "nodeSelector"), mapping(old, "nodeSelector")
    if any(selector.get(key) != value for key, value in before.items()):
        words = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        found.append(bad_value("spec.nodeSelector", selector, words))
    terms, known = _terms(spec), _terms(old)
    if not known or terms == known:
        return found
    if len(terms) != len(known):
        words = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [*found, bad_value(_TERMS, terms, words)]
    for index, (term, was) in enumerate(zip(terms, known, strict=True)):
        if not _is_narrower(term, was):
            words = "only additions are allowed (no mutations or deletions)"
            found.append(bad_value(f"{_TERMS}[{index}]", term, words))
    return found


def _is_narrower(term: Json, was: Json) -> bool:
    """Whether the term starts with all of its old requirements. An empty term matches no node and must stay empty."""
    fields = ("matchExpressions", "matchFields")
    if not any(listing(was, field) for field in fields):
        return not any(listing(term, field) for field in fields)
    return all(listing(term, field)[: len(listing(was, field))] == listing(was, field) for field in fields)


def _terms(spec: Json) -> list[Any]:
    required = mapping(mapping(mapping(spec, "affinity"), "nodeAffinity"), REQUIRED)
    return clone(listing(required, "nodeSelectorTerms"))


FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
_QUALITY_RESOURCES = ("cpu", "memory")
_SPEC_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_ADMITTED = ("serviceAccountName", "serviceAccount", "priority", "preemptionPolicy")
"""Fields that are set at creation and preserved if a replacement leaves them out."""
_CONTAINER_DEFAULTS: Json = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
_NODE_GONE_TOLERATIONS = tuple(
    {"key": f"node.kubernetes.io/{trouble}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for trouble in ("not-ready", "unreachable")
)
_FIXED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


class PodStrategy(Strategy):
    """The strategy of pods. `has_groups`: a pod may name its kube-scheduler group (`podgroups.py`)."""

    has_status = True
    counts_generation = True
    is_graceful = True
    returns_deleted = True

    def __init__(self, *, has_groups: bool = False) -> None:
        self._has_groups = has_groups

    def decode(self, obj: Json, options: WriteOptions) -> None:
        spec = obj.get("spec")
        if not is_map(spec):
            if spec is not None:
                raise bad_request("json: cannot unmarshal into Go struct field Pod.spec of type v1.PodSpec")
            spec = obj["spec"] = {}
        for field in [name for name, value in spec.items() if value is None]:
            del spec[field]
        spec.setdefault("enableServiceLinks", True)
        default_spec(spec)
        complete_conditions(obj, "lastProbeTime", "lastTransitionTime")
        _complete_status(mapping(obj, "status"))

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        spec = obj["spec"]
        if not self._has_groups:
            spec.pop("schedulingGroup", None)
        _tolerate_gone_nodes(spec)
        conditions = initial_conditions(spec, str(metadata(obj).get("creationTimestamp", "")))
        told: Json = {"conditions": conditions} if conditions else {}
        obj["status"] = {"phase": "Pending", "qosClass": _quality(spec), **told}

    def prepare_update(self, new: Json, old: Json) -> None:
        super().prepare_update(new, old)
        for field in _ADMITTED:
            if field in old["spec"]:
                new["spec"].setdefault(field, old["spec"][field])
        _tolerate_gone_nodes(new["spec"])

    def claimed(self, sent: Json, new: Json) -> Json:
        tolerations = listing(mapping(sent, "spec"), "tolerations")
        if tolerations == new["spec"]["tolerations"]:
            return new
        claimed: Json = {**new, "spec": {**new["spec"], "tolerations": tolerations}}
        if not tolerations:  # a writer without tolerations claims no such field
            del claimed["spec"]["tolerations"]
        return claimed

    def prepare_status(self, new: Json, old: Json) -> None:
        super().prepare_status(new, old)
        _keep(new["metadata"], metadata(old), "ownerReferences")
        status: Json = dict(mapping(new, "status"))
        if "qosClass" in mapping(old, "status"):
            status["qosClass"] = old["status"]["qosClass"]
        new["status"] = status

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        spec = obj["spec"]
        if old is None:
            return _spec_causes(spec) + causes(spec, None)
        stopping = _changed_containers(spec, old["spec"])
        if stopping is not None:
            return _spec_causes(spec) + causes(spec, spec) + stopping
        return _spec_causes(spec) + causes(spec, old["spec"]) + _changed_spec(spec, old["spec"])


def _complete_status(status: Json) -> None:
    """Complete a pod's status in place.

    Makes podIP and podIPs agree, likewise hostIP and hostIPs, and sets missing times of containers to null.
    """
    for one, several in (("podIP", "podIPs"), ("hostIP", "hostIPs")):
        listed = maps(listing(status, several))
        if status.get(one) and (not listed or listed[0].get("ip") != status[one]):
            status[several] = [{"ip": status[one]}]
        elif listed and not status.get(one):
            status[one] = listed[0].get("ip", "")
    for field in ("containerStatuses", "initContainerStatuses"):
        for container in maps(listing(status, field)):
            for state in (mapping(container, "state"), mapping(container, "lastState")):
                mapping(state, "running").setdefault("startedAt", None)
                mapping(state, "terminated").setdefault("startedAt", None)
                mapping(state, "terminated").setdefault("finishedAt", None)


def default_spec(spec: Json) -> None:
    """Set the defaults that pods and pod templates share, in place. Raises: StatusError 400."""
    for field, value in _SPEC_DEFAULTS.items():
        spec.setdefault(field, value)
    spec.setdefault("securityContext", {})
    for container in [*maps(listing(spec, "containers")), *maps(listing(spec, "initContainers"))]:
        _check_types(container)
        _default_container(container)


def check_binding(binding: Json) -> None:
    """Check that the binding names a node. Raises: StatusError 500."""
    target = mapping(binding, "target")
    if target.get("kind") not in (None, "", "Node"):
        raise StatusError(500, "", str(unsupported("target.kind", target["kind"], ["Node", "<empty>"])))
    if not target.get("name"):
        raise StatusError(500, "", "target.name: Required value")


def bind(pod: Json, binding: Json, now_text: str) -> Json:
    """Return the pod, bound to the target of a checked binding. Raises: StatusError 409."""
    name = str(metadata(pod)["name"])
    node = str(mapping(binding, "target")["name"])
    for field, title in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, found = metadata(binding).get(field), metadata(pod).get(field)
        if wanted and wanted != found:
            why = f"Precondition failed: {title} in precondition: {wanted}, {title} in object meta: {found}"
            raise conflict("pods", name, why)
    if metadata(pod).get("deletionTimestamp"):
        raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    current = pod["spec"].get("nodeName")
    if current:
        raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{current}"')
    if names_of(pod["spec"]):
        raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    bound = clone(pod)
    bound["spec"]["nodeName"] = node
    extra = mapping(metadata(binding), "annotations")
    if extra:
        bound["metadata"]["annotations"] = {**mapping(metadata(pod), "annotations"), **extra}
    status = bound.setdefault("status", {})
    conditions = [item for item in maps(listing(status, "conditions")) if item.get("type") != "PodScheduled"]
    conditions.append({"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now_text})
    status["conditions"] = conditions
    return bound


def grace_of(pod: Json) -> int:
    """Return the pod's own grace period in seconds, used when a delete names none."""
    return int(mapping(pod, "spec").get("terminationGracePeriodSeconds", 30))


def is_settled(pod: Json) -> bool:
    """Whether the pod runs on no node, so that a delete does not wait for a kubelet."""
    return not mapping(pod, "spec").get("nodeName") or mapping(pod, "status").get("phase") in FINISHED_PHASES


def _check_types(container: Json) -> None:
    """Refuse values that cannot be decoded, mainly numbers in place of text. Raises: StatusError 400."""
    words = "json: cannot unmarshal {} into Go struct field {} of type string"
    for field in ("name", "image", "workingDir"):
        if not isinstance(container.get(field), str | None):
            raise bad_request(words.format(type_name(container[field]), f"Container.spec.containers.{field}"))
    for field in ("command", "args"):
        for item in listing(container, field):
            if not isinstance(item, str):
                raise bad_request(words.format(type_name(item), f"Container.spec.containers.{field}"))
    for variable in maps(listing(container, "env")):
        for field in ("name", "value"):
            if not isinstance(variable.get(field), str | None):
                raise bad_request(words.format(type_name(variable[field]), f"EnvVar.spec.containers.env.{field}"))


def _default_container(container: Json) -> None:
    for field, value in _CONTAINER_DEFAULTS.items():
        container.setdefault(field, value)
    image = str(container.get("image") or "")
    tag = image.rpartition("/")[2].partition(":")[2]
    container.setdefault(
        "imagePullPolicy", "Always" if image and tag in ("", "latest") and "@" not in image else "IfNotPresent"
    )
    resources = container.setdefault("resources", {})
    if is_map(resources):
        objects.canonicalize(resources)
        if mapping(resources, "limits"):
            resources["requests"] = {**mapping(resources, "limits"), **mapping(resources, "requests")}
    for port in maps(listing(container, "ports")):
        port.setdefault("protocol", "TCP")


def _tolerate_gone_nodes(spec: Json) -> None:
    tolerations: list[Json] = [*maps(listing(spec, "tolerations"))]
    for extra in _NODE_GONE_TOLERATIONS:
        if not any(_tolerates(toleration, str(extra["key"])) for toleration in tolerations):
            tolerations.append(dict(extra))
    spec["tolerations"] = tolerations


def _tolerates(toleration: Json, key: str) -> bool:
    return toleration.get("key", key) == key and toleration.get("effect") in (None, "", "NoExecute")


def _quality(spec: Json) -> str:
    """Return the QoS class, which depends only on cpu and memory."""
    containers = [*maps(listing(spec, "containers")), *maps(listing(spec, "initContainers"))]
    requests, limits = ([_counted(each, field) for each in containers] for field in ("requests", "limits"))
    if not any([*requests, *limits]):
        return "BestEffort"
    is_sure = all(len(most) == len(_QUALITY_RESOURCES) for most in limits) and requests == limits
    return "Guaranteed" if is_sure else "Burstable"


def _counted(container: Json, field: str) -> Json:
    amounts = mapping(mapping(container, "resources"), field)
    return {name: amounts[name] for name in _QUALITY_RESOURCES if amounts.get(name) not in (None, "0", 0)}


def _spec_causes(spec: Json) -> list[FieldCause]:
    causes = list[FieldCause]()
    containers = maps(listing(spec, "containers"))
    if not containers:
        causes.append(missing("spec.containers"))
    group = spec.get("schedulingGroup")
    if is_map(group) and group.get("podGroupName") is None:
        causes.append(bad_value("spec.schedulingGroup.podGroupName", None, "must specify one of: `podGroupName`"))
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never"):
        causes.append(unsupported("spec.restartPolicy", spec["restartPolicy"], ["Always", "OnFailure", "Never"]))
    volumes = {str(volume.get("name")) for volume in maps(listing(spec, "volumes"))}
    names = set[str]()
    for field in ("containers", "initContainers"):
        for index, container in enumerate(maps(listing(spec, field))):
            path = f"spec.{field}[{index}]"
            name = str(container.get("name") or "")
            if name in names:
                causes.append(duplicate(f"{path}.name", name))
            names.add(name)
            causes += _container_causes(container, path, volumes)
    return causes


def _container_causes(container: Json, path: str, volumes: set[str]) -> list[FieldCause]:
    causes = list[FieldCause]()
    name = str(container.get("name") or "")
    pattern, _, rule = meta.LABEL
    if not name:
        causes.append(missing(f"{path}.name"))
    elif not pattern.match(name) or len(name) > meta.LABEL_LENGTH_MAX:
        causes.append(bad_value(f"{path}.name", name, rule))
    if not container.get("image"):
        causes.append(missing(f"{path}.image"))
    for index, mount in enumerate(maps(listing(container, "volumeMounts"))):
        if str(mount.get("name")) not in volumes:
            body = f'Not found: "{mount.get("name")}"'
            causes.append(FieldCause(f"{path}.volumeMounts[{index}].name", "FieldValueNotFound", body))
        if not mount.get("mountPath"):
            causes.append(missing(f"{path}.volumeMounts[{index}].mountPath"))
    for index, variable in enumerate(maps(listing(container, "env"))):
        if not variable.get("name"):
            causes.append(missing(f"{path}.env[{index}].name"))
    return causes + _resource_causes(mapping(container, "resources"), f"{path}.resources")


def _resource_causes(resources: Json, path: str) -> list[FieldCause]:
    causes = list[FieldCause]()
    limits = mapping(resources, "limits")
    for field in ("limits", "requests"):
        for name, value in mapping(resources, field).items():
            try:
                amount = parse_thousandths(value)
            except ValueError as exc:
                causes.append(bad_value(f"{path}.{field}[{name}]", value, str(exc)))
                continue
            if field == "limits":
                continue
            is_extended = "/" in name and not name.startswith("kubernetes.io/")
            if is_extended and name not in limits:
                causes.append(missing(f"{path}.limits", "Limit must be set for non overcommitable resources"))
            elif name in limits and _exceeds(amount, limits[name]):
                causes.append(bad_value(f"{path}.requests", value, f"must be less than or equal to {name} limit"))
    return causes


def _exceeds(amount: int, limit: Any) -> bool:
    try:
        return amount > parse_thousandths(limit)
    except ValueError:
        return False


def _changed_containers(new: Json, old: Json) -> list[FieldCause] | None:
    """Return the error of an update that makes further checks of changes useless, or None."""
    for field in ("containers", "initContainers"):
        if len(listing(new, field)) != len(listing(old, field)):
            return [not_allowed(f"spec.{field}", "pod updates may not add or remove containers")]
    before, now = old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if isinstance(before, int) and isinstance(now, int) and now > before:
        return [bad_value("spec.activeDeadlineSeconds", now, "must be less than or equal to previous value")]
    return None


def _changed_spec(new: Json, old: Json) -> list[FieldCause]:
    causes = list[FieldCause]()
    if "activeDeadlineSeconds" in old and "activeDeadlineSeconds" not in new:
        words = "must not update from a positive integer to nil value"
        causes.append(bad_value("spec.activeDeadlineSeconds", None, words))
    tolerated = {_toleration_key(toleration) for toleration in maps(listing(new, "tolerations"))}
    if not tolerated.issuperset(map(_toleration_key, maps(listing(old, "tolerations")))):
        words = "existing toleration can not be modified except its tolerationSeconds"
        causes.append(not_allowed("spec.tolerations", words))
    mutable = {"activeDeadlineSeconds", "tolerations", "schedulingGates"}
    is_gated = bool(names_of(old))
    new, old = without_places(new, is_gated=is_gated), without_places(old, is_gated=is_gated)
    if int(old.get("terminationGracePeriodSeconds", 30)) < 0:
        mutable.add("terminationGracePeriodSeconds")
    if _frozen(new, mutable) != _frozen(old, mutable):
        causes.append(not_allowed("spec", _FIXED))
    return causes


def _toleration_key(toleration: Json) -> tuple[str, ...]:
    """Return the fields of a toleration that an update must keep."""
    return tuple(str(toleration.get(field) or "") for field in ("key", "operator", "value", "effect"))


def _frozen(spec: Json, mutable: set[str]) -> Json:
    """Return the part of a spec that must not change."""
    rest = {name: value for name, value in spec.items() if name not in mutable and value not in (None, [], {})}
    for field in ("containers", "initContainers"):
        rest[field] = [
            {name: value for name, value in container.items() if name != "image"}
            for container in maps(listing(spec, field))
        ]
    return rest


def _keep(new: Json, old: Json, field: str) -> None:
    if field in old:
        new[field] = old[field]
    else:
        new.pop(field, None)
