"""LimitRange: sets the missing requests and limits of a new pod's containers, and refuses values out of range.

Owns the strategy of the kind and the two steps of admission. Reads the store; changes only the given object, and no
value that a client sent in it. Invariant: a refusal has the message of the real server.

Source: plugin/pkg/admission/limitranger, pkg/apis/core/v1/defaults.go SetDefaults_LimitRangeItem and
pkg/apis/core/validation ValidateLimitRange (behaviour, v1.37; where Go's maps have no order, results are sorted by
name).
"""

from collections.abc import Iterator
from decimal import Decimal

from slipway.local.apiserver.admission import Strategy
from slipway.local.apiserver.objects import Json, is_map, listing, mapping, maps, metadata, name_of
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.status import (
    FieldCause,
    bad_request,
    bad_value,
    duplicate,
    forbidden,
    missing,
    not_allowed,
)
from slipway.local.apiserver.store import ApiStore
from slipway.model.resources import format_quantity, parse_thousandths

RANGES = "limitranges"
ANNOTATION = "kubernetes.io/limit-ranger"
CLAIMS = "persistentvolumeclaims"
_PODS = "pods"
_CONTAINER, _POD, _CLAIM = "Container", "Pod", "PersistentVolumeClaim"
_GROUPS = (("containers", "container"), ("initContainers", "init container"))
_OVERCOMMITTED = frozenset({"cpu", "memory", "ephemeral-storage"})
_MILLI = 1000


class LimitRangeStrategy(Strategy):
    def decode(self, obj: Json, options: WriteOptions) -> None:
        spec = obj.get("spec")
        if spec is None:
            spec = obj["spec"] = {}
        if not is_map(spec):
            raise bad_request("json: cannot unmarshal into Go struct field LimitRange.spec of type v1.LimitRangeSpec")
        spec.setdefault("limits", None)
        for item in maps(listing(spec, "limits")):
            if item.get("type") == _CONTAINER:
                _complete(item)

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        causes, seen = list[FieldCause](), set[str]()
        for index, item in enumerate(maps(listing(mapping(obj, "spec"), "limits"))):
            path, kind = f"spec.limits[{index}]", str(item.get("type") or "")
            if not kind:
                causes.append(missing(f"{path}.type"))
            elif "/" not in kind and kind not in (_CONTAINER, _POD, _CLAIM):
                causes.append(bad_value(f"{path}.type", kind, "must be a standard limit type or fully qualified"))
            if kind in seen:
                causes.append(duplicate(f"{path}.type", kind))
            seen.add(kind)
            if kind == _POD:
                causes += [
                    not_allowed(f"{path}.{field}", "may not be specified when `type` is 'Pod'")
                    for field in ("default", "defaultRequest")
                    if item.get(field)
                ]
            causes += _item_causes(item, path)
        return causes


def complete_pod(store: ApiStore, pod: Json, namespace: str) -> None:
    """Set the defaults that the namespace's LimitRanges have for the pod, and list them in an annotation."""
    for record in store.scan(RANGES, namespace):
        requests, limits = dict[str, str](), dict[str, str]()
        for item in _items(record.obj, _CONTAINER):
            requests |= mapping(item, "defaultRequest")
            limits |= mapping(item, "default")
        spec, told = pod["spec"], list[str]()
        for group, words in _GROUPS:
            if maps(listing(spec, group)):
                spec[group] = [_completed(each, requests, limits, words, told) for each in maps(spec[group])]
        if told:
            note = "LimitRanger plugin set: " + "; ".join(told)
            pod["metadata"]["annotations"] = {**mapping(metadata(pod), "annotations"), ANNOTATION: note}


def check_pod(store: ApiStore, pod: Json, namespace: str) -> None:
    """Check a completed pod. Raises: StatusError 403 when it is out of range."""
    for record in store.scan(RANGES, namespace):
        found = list[str]()
        for item in _items(record.obj, _CONTAINER):
            for group, _ in _GROUPS:
                for container in maps(listing(pod["spec"], group)):
                    resources = mapping(container, "resources")
                    found += _faults(item, mapping(resources, "requests"), mapping(resources, "limits"))
        for item in _items(record.obj, _POD):
            found += _faults(item, _whole(pod, "requests"), _whole(pod, "limits"))
        _refuse(_PODS, pod, found)


def check_claim(store: ApiStore, claim: Json, namespace: str) -> None:
    """Check a volume claim. Raises: StatusError 403 when it is out of range."""
    asked = mapping(mapping(mapping(claim, "spec"), "resources"), "requests")
    for record in store.scan(RANGES, namespace):
        found = list[str]()
        for item in _items(record.obj, _CLAIM):
            found += _below(item, asked, {})
            for name, most in sorted(mapping(item, "max").items()):
                says = f"maximum {name} usage per {_CLAIM} is {most}"
                if name not in asked:
                    found.append(f"{says}.  No request is specified")
                elif _amount(asked[name]) > _amount(most):
                    found.append(f"{says}, but request is {asked[name]}")
        _refuse(CLAIMS, claim, found)


def _items(limit_range: Json, kind: str) -> list[Json]:
    return [item for item in maps(listing(mapping(limit_range, "spec"), "limits")) if item.get("type") == kind]


def _complete(item: Json) -> None:
    """Complete an item in place.

    A missing default limit is the max. A missing default request is the default limit, else the min.
    """
    default, requests = dict(mapping(item, "default")), dict(mapping(item, "defaultRequest"))
    default = {**mapping(item, "max"), **default}
    requests = {**mapping(item, "min"), **default, **requests}
    for field, amounts in (("default", default), ("defaultRequest", requests)):
        if amounts:
            item[field] = amounts


def _completed(container: Json, requests: Json, limits: Json, words: str, told: list[str]) -> Json:
    resources = mapping(container, "resources")
    completed = dict(resources)
    for field, kind, given in (("requests", "request", requests), ("limits", "limit", limits)):
        stated = mapping(resources, field)
        added = sorted(name for name in given if name not in stated)
        if added:
            completed[field] = {**given, **stated}
            told.append(f"{', '.join(added)} {kind} for {words} {container.get('name')}")
    return {**container, "resources": completed}


def _faults(item: Json, requests: Json, limits: Json) -> Iterator[str]:
    yield from _below(item, requests, limits)
    kind = item["type"]
    for name, most in sorted(mapping(item, "max").items()):
        says = f"maximum {name} usage per {kind} is {most}"
        if name not in limits:
            yield f"{says}.  No limit is specified"
        elif _amount(limits[name]) > _amount(most):
            yield f"{says}, but limit is {limits[name]}"
        elif name in requests and _amount(requests[name]) > _amount(most):
            yield f"{says}, but request is {requests[name]}"
    for name, ratio in sorted(mapping(item, "maxLimitRequestRatio").items()):
        says = f"{name} max limit to request ratio per {kind} is {ratio}"
        if not _amount(requests.get(name, 0)):
            yield f"{says}, but no request is specified or request is 0"
        elif not _amount(limits.get(name, 0)):
            yield f"{says}, but no limit is specified or limit is 0"
        else:
            provided = Decimal(_amount(limits[name])) / _amount(requests[name])
            if provided * _MILLI > _amount(ratio):
                yield f"{says}, but provided ratio is {provided:.6f}"


def _below(item: Json, requests: Json, limits: Json) -> Iterator[str]:
    for name, least in sorted(mapping(item, "min").items()):
        says = f"minimum {name} usage per {item['type']} is {least}"
        if name not in requests:
            yield f"{says}.  No request is specified"
        elif _amount(requests[name]) < _amount(least):
            yield f"{says}, but request is {requests[name]}"
        elif name in limits and _amount(limits[name]) < _amount(least):
            yield f"{says}, but limit is {limits[name]}"


def _whole(pod: Json, field: str) -> dict[str, str]:
    """Return a pod's total amounts: containers plus sidecars, or the largest init step if that is larger."""
    total, sidecars, peak = dict[str, int](), dict[str, int](), dict[str, int]()
    for container in maps(listing(pod["spec"], "containers")):
        _add(total, _stated(container, field))
    for container in maps(listing(pod["spec"], "initContainers")):
        own = _stated(container, field)
        if container.get("restartPolicy") == "Always":
            _add(total, own)
            _add(sidecars, own)
            own = dict(sidecars)
        else:
            _add(own, sidecars)
        peak |= {name: max(peak.get(name, 0), amount) for name, amount in own.items()}
    amounts = {name: max(total.get(name, 0), peak.get(name, 0)) for name in {**total, **peak}}
    # Amounts of the pod's own `resources` replace the sums over its containers.
    own = mapping(mapping(pod["spec"], "resources"), field)
    amounts |= {name: _amount(own[name]) for name in ("cpu", "memory") if name in own}
    return {name: _spelled(amount) for name, amount in amounts.items()}


def _stated(container: Json, field: str) -> dict[str, int]:
    return {name: _amount(value) for name, value in mapping(mapping(container, "resources"), field).items()}


def _add(into: dict[str, int], amounts: dict[str, int]) -> None:
    for name, amount in amounts.items():
        into[name] = into.get(name, 0) + amount


def _amount(value: str | int | float) -> int:
    """Return a quantity in thousandths."""
    return parse_thousandths(value)


def _spelled(thousandths: int) -> str:
    if thousandths % _MILLI:
        return format_quantity(thousandths, scale=_MILLI)
    return format_quantity(thousandths // _MILLI, scale=1)


def _refuse(resource: str, obj: Json, found: list[str]) -> None:
    if found:
        raise forbidden(resource, name_of(obj), found[0] if len(found) == 1 else f"[{', '.join(found)}]")


def _item_causes(item: Json, path: str) -> list[FieldCause]:
    causes = list[FieldCause]()
    low, high = mapping(item, "min"), mapping(item, "max")
    limits, requests, ratios = (mapping(item, field) for field in ("default", "defaultRequest", "maxLimitRequestRatio"))
    orders = (
        ("min", "min value", low, "max value", high),
        ("defaultRequest", "min value", low, "default request value", requests),
        ("defaultRequest", "default request value", requests, "max value", high),
        ("defaultRequest", "default request value", requests, "default limit value", limits),
        ("default", "min value", low, "default value", limits),
        ("default", "default value", limits, "max value", high),
    )
    for name in sorted({**low, **high, **limits, **requests, **ratios}):
        for field, smaller, few, larger, many in orders:
            if name in few and name in many and _amount(few[name]) > _amount(many[name]):
                words = f"{smaller} {few[name]} is greater than {larger} {many[name]}"
                causes.append(bad_value(f"{path}.{field}[{name}]", mapping(item, field)[name], words))
        if name in ratios:
            causes += _ratio_causes(name, ratios[name], low, high, path)
        is_fixed = name not in _OVERCOMMITTED and name in limits and name in requests
        if is_fixed and _amount(limits[name]) != _amount(requests[name]):
            words = f"default value {limits[name]} must equal to defaultRequest value {requests[name]} in {name}"
            causes.append(bad_value(f"{path}.defaultRequest[{name}]", requests[name], words))
    return causes


def _ratio_causes(name: str, ratio: str, low: Json, high: Json, path: str) -> list[FieldCause]:
    field = f"{path}.maxLimitRequestRatio[{name}]"
    causes = list[FieldCause]()
    if _amount(ratio) < _MILLI:
        causes.append(bad_value(field, ratio, f"ratio {ratio} is less than 1"))
    if name in low and name in high and _amount(low[name]):
        most = Decimal(_amount(high[name])) / _amount(low[name])
        if Decimal(_amount(ratio)) / _MILLI > most:
            causes.append(bad_value(field, ratio, f"ratio {ratio} is greater than max/min = {most:.6f}"))
    return causes
