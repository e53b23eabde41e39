"""Scheduling gates: the condition that a gated pod shows, and the fields that may change while it is gated.

Owns the rules of gates, the checked part of the rules of node affinity, and the rules for narrowing the nodes of a
gated pod. Pure; knows no other part of a pod. Invariant: while a pod is gated, the set of its eligible nodes only
shrinks.

Source: pkg/apis/core/validation (ValidatePodUpdate, validateNodeAffinityMutation, ValidateNodeSelector), behaviour of
v1.37.
"""

from typing import Any

from slipway.local.apiserver import meta
from slipway.local.apiserver.objects import Json, clone, is_map, listing, mapping, maps
from slipway.local.apiserver.status import FieldCause, bad_value, duplicate, missing, not_allowed, unsupported

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
