"""Services: defaults, checks, and the allocation of cluster addresses and node ports.

Owns the strategy of the kind and both allocations. The local cluster forwards no traffic of Services; it allocates an
address because charts and clients expect one. Invariants: no two Services have the same cluster address or node port;
an allocated address or port stays with its Service; a headless Service stays headless.

Source: pkg/registry/core/service/storage/alloc.go, pkg/apis/core/v1/defaults.go (behaviour, v1.37, one family).
"""

import ipaddress
from collections.abc import Iterable

from slipway.local.apiserver import meta, status
from slipway.local.apiserver.admission import Strategy
from slipway.local.apiserver.objects import Json, listing, mapping, maps, metadata, name_of
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.status import (
    FieldCause,
    StatusError,
    bad_value,
    duplicate,
    missing,
    not_allowed,
    unsupported,
)
from slipway.local.apiserver.store import ApiStore

SERVICES = "services"
RANGE = ipaddress.IPv4Network("10.96.0.0/16")
PORTS = range(30000, 32768)
HEADLESS = "None"
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_NODE_PORT_TYPES = ("LoadBalancer", "NodePort")
_OF_ADDRESSES = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
_KEPT = (*_OF_ADDRESSES, "internalTrafficPolicy")
_OF_NODE_PORTS = ("externalTrafficPolicy", "allocateLoadBalancerNodePorts")


class ServiceStrategy(Strategy):
    name_form = meta.SERVICE_LABEL
    allows_create_on_update = True
    returns_deleted = True
    has_status = True

    def decode(self, obj: Json, options: WriteOptions) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        if spec["type"] != "ExternalName":
            spec.setdefault("internalTrafficPolicy", "Cluster")
        if spec["type"] in _NODE_PORT_TYPES:
            spec.setdefault("externalTrafficPolicy", "Cluster")
        if spec["type"] == "LoadBalancer":
            spec.setdefault("allocateLoadBalancerNodePorts", True)
        for port in maps(listing(spec, "ports")):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        spec = obj["spec"]
        obj["status"] = {"loadBalancer": {}}
        addresses = listing(spec, "clusterIPs")
        if spec.get("clusterIP"):
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
        elif addresses:
            spec["clusterIP"] = addresses[0]

    def prepare_update(self, new: Json, old: Json) -> None:
        super().prepare_update(new, old)
        spec, before = new["spec"], mapping(old, "spec")
        _keep_ports(spec, before)
        _drop_unused(spec, before)
        if spec["type"] == "ExternalName":
            return
        if spec.get("clusterIP") and spec.get("clusterIPs") == before.get("clusterIPs"):
            spec["clusterIPs"] = [spec["clusterIP"]]  # a client that knows only the older field has changed it
        for field in _KEPT:
            if field in before and not spec.get(field):
                spec[field] = before[field]

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        spec = obj["spec"]
        causes = list[FieldCause]()
        if spec["type"] not in _TYPES:
            causes.append(unsupported("spec.type", spec["type"], list(_TYPES)))
        if not spec.get("ports") and spec.get("clusterIP") != HEADLESS and spec["type"] != "ExternalName":
            causes.append(missing("spec.ports"))
        if spec["type"] == "ClusterIP":
            words = "may not be used when `type` is 'ClusterIP'"
            causes += [
                not_allowed(f"spec.ports[{index}].nodePort", words)
                for index, port in enumerate(maps(listing(spec, "ports")))
                if port.get("nodePort")
            ]
        names = [port.get("name") for port in maps(listing(spec, "ports"))]
        causes += [
            duplicate(f"spec.ports[{index}].name", name)
            for index, name in enumerate(names)
            if name and name in names[:index]
        ]
        causes += _address_causes(spec)
        before = mapping(old, "spec") if old is not None else {}
        is_addressed = spec["type"] != "ExternalName" and before.get("type") != "ExternalName"
        if old is not None and is_addressed and before.get("clusterIP", "") != spec.get("clusterIP", ""):
            value = spec.get("clusterIPs") or [spec.get("clusterIP", "")]
            causes.append(bad_value("spec.clusterIPs[0]", value, "may not change once set"))
        return causes


def allocated(store: ApiStore, service: Json, old: Json | None) -> Json:
    """Return the Service with the address and node ports that it lacks; `old` is None on create.

    Raises: StatusError 422 when an address or port is in use or outside the range.
    """
    spec: Json = dict(service["spec"])
    if spec["type"] == "ExternalName":
        return service
    before = mapping(old, "spec") if old is not None else {}
    # A headless Service without a selector may have endpoints of either address family.
    is_open = spec.get("clusterIP") == HEADLESS and not spec.get("selector")
    spec.setdefault("ipFamilies", ["IPv4", "IPv6"] if is_open else ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "RequireDualStack" if is_open else "SingleStack")
    others = [record.obj for record in store.scan(SERVICES) if _place(record.obj) != _place(service)]
    if spec.get("clusterIP") != HEADLESS and not before.get("clusterIP"):
        spec["clusterIP"] = _address(service, str(spec.get("clusterIP") or ""), others)
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec["type"] in _NODE_PORT_TYPES:
        spec["ports"] = _with_node_ports(service, before, others)
    return {**service, "spec": spec}


def _keep_ports(spec: Json, before: Json) -> None:
    """Give ports without a node port the one that the port of the same name had, in place."""
    if not {spec["type"], before.get("type")} <= {*_NODE_PORT_TYPES}:
        return
    known = {port.get("name"): port.get("nodePort") for port in maps(listing(before, "ports"))}
    used = _node_ports(spec)
    for port in maps(listing(spec, "ports")):
        number = known.get(port.get("name"))
        if number and number not in used and not port.get("nodePort"):
            port["nodePort"] = number


def _drop_unused(spec: Json, before: Json) -> None:
    """Remove what the Service's new type does not use, in place; values that the client changed stay, to be checked."""
    dropped = list[str]()
    if spec["type"] == "ExternalName":
        dropped += _KEPT
    if spec["type"] not in _NODE_PORT_TYPES and before.get("type") in _NODE_PORT_TYPES:
        dropped += _OF_NODE_PORTS
        if _node_ports(spec) <= _node_ports(before):
            for port in maps(listing(spec, "ports")):
                port.pop("nodePort", None)
    elif spec["type"] != "LoadBalancer":
        dropped.append("allocateLoadBalancerNodePorts")
    for field in dropped:
        if field in spec and spec[field] == before.get(field):
            del spec[field]


def _node_ports(spec: Json) -> set[int]:
    return {port["nodePort"] for port in maps(listing(spec, "ports")) if port.get("nodePort")}


def _address(service: Json, wanted: str, others: Iterable[Json]) -> str:
    taken = {str(mapping(other, "spec").get("clusterIP")) for other in others}
    if not wanted:
        return next(str(address) for address in RANGE.hosts() if str(address) not in taken)
    why = ""
    if ipaddress.ip_address(wanted) not in RANGE:
        why = "the provided network does not match the current range"
    elif wanted in taken:
        why = "provided IP is already allocated"
    if why:
        value = service["spec"].get("clusterIPs")
        raise _refused(service, bad_value("spec.clusterIPs", value, f"failed to allocate IP {wanted}: {why}"))
    return wanted


def _address_causes(spec: Json) -> list[FieldCause]:
    """Return the errors of the addresses that a client chose. Whether they are free is decided by `allocated`."""
    addresses = listing(spec, "clusterIPs")
    causes = [
        bad_value(f"spec.clusterIPs[{index}]", address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")
        for index, address in enumerate(addresses)
        if (index, address) != (0, HEADLESS) and not _is_address(address)
    ]
    if addresses and spec.get("clusterIP") and spec["clusterIP"] != addresses[0]:
        causes.append(bad_value("spec.clusterIPs", addresses, "first value must match `clusterIP`"))
    return causes


def _is_address(text: object) -> bool:
    try:
        ipaddress.ip_address(str(text))
    except ValueError:
        return False
    return True


def _with_node_ports(service: Json, before: Json, others: Iterable[Json]) -> list[Json]:
    """Return the ports with a node port each; ports of a new Service with the same number (TCP and UDP) share one."""
    ports = maps(listing(service["spec"], "ports"))
    taken = set[int]().union(*(_node_ports(mapping(other, "spec")) for other in others))
    own = _node_ports(before)
    shared = {port.get("port"): port["nodePort"] for port in reversed(ports) if port.get("nodePort")}
    free = (number for number in PORTS if number not in taken | own | _node_ports(service["spec"]))
    gives = service["spec"].get("allocateLoadBalancerNodePorts") is not False
    given, numbers = list[Json](), dict[int, object]()
    for index, port in enumerate(ports):
        number = port.get("nodePort") or (shared.get(port.get("port")) if not before else None)
        if number is None and not gives:
            given.append(port)
            continue
        if number is None:
            number = shared[port.get("port")] = next(free)
        elif number not in own:
            _check_port(service, index, number, is_taken=number in taken)
        if numbers.setdefault(number, port.get("port")) != port.get("port"):
            _check_port(service, index, number, is_taken=True)
        given.append({**port, "nodePort": number})
    return given


def _check_port(service: Json, index: int, number: int, *, is_taken: bool) -> None:
    why = ""
    if number not in PORTS:
        why = f"provided port is not in the valid range. The range of valid ports is {PORTS[0]}-{PORTS[-1]}"
    elif is_taken:
        why = "provided port is already allocated"
    if why:
        raise _refused(service, bad_value(f"spec.ports[{index}].nodePort", number, why))


def _refused(service: Json, cause: FieldCause) -> StatusError:
    return status.invalid("Service", name_of(service), [cause])


def _place(service: Json) -> tuple[object, object]:
    return (metadata(service).get("namespace"), metadata(service).get("name"))
