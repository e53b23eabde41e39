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
from slipway.local.apiserver.objects import Json, listing, mapping, maps, name_of
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.status import FieldCause, StatusError, bad_value, missing, twice, unsupported
from slipway.local.apiserver.store import ApiStore

SERVICES = "services"
RANGE = ipaddress.IPv4Network("10.96.0.0/16")
PORTS = range(30000, 32768)
HEADLESS = "None"
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_KEPT = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy")


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
        for port in maps(listing(spec, "ports")):
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        spec = obj["spec"]
        obj["status"] = {"loadBalancer": {}}
        if spec["type"] != "ExternalName":
            # A headless Service without a selector may have endpoints of either address family.
            is_open = spec.get("clusterIP") == HEADLESS and not spec.get("selector")
            spec.setdefault("ipFamilies", ["IPv4", "IPv6"] if is_open else ["IPv4"])
            spec.setdefault("ipFamilyPolicy", "RequireDualStack" if is_open else "SingleStack")
        if spec["type"] in ("NodePort", "LoadBalancer"):
            spec.setdefault("externalTrafficPolicy", "Cluster")
        if spec["type"] == "LoadBalancer":
            spec.setdefault("allocateLoadBalancerNodePorts", True)
        addresses = listing(spec, "clusterIPs")
        if spec.get("clusterIP"):
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
        elif addresses:
            spec["clusterIP"] = addresses[0]

    def prepare_update(self, new: Json, old: Json) -> None:
        super().prepare_update(new, old)
        spec, before = new["spec"], mapping(old, "spec")
        if spec["type"] == "ExternalName":
            return
        for field in _KEPT:
            if field in before and not spec.get(field):
                spec[field] = before[field]
        ports = {_port_key(port): port.get("nodePort") for port in maps(listing(before, "ports"))}
        if spec["type"] in ("NodePort", "LoadBalancer"):
            for port in maps(listing(spec, "ports")):
                if not port.get("nodePort") and ports.get(_port_key(port)):
                    port["nodePort"] = ports[_port_key(port)]

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        spec = obj["spec"]
        causes = list[FieldCause]()
        if spec["type"] not in _TYPES:
            causes.append(unsupported("spec.type", spec["type"], list(_TYPES)))
        if not spec.get("ports") and spec.get("clusterIP") != HEADLESS and spec["type"] != "ExternalName":
            causes.append(missing("spec.ports"))
        names = [port.get("name") for port in maps(listing(spec, "ports"))]
        causes += [
            twice(f"spec.ports[{index}].name", name)
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


def allocate(store: ApiStore, service: Json) -> None:
    """Allocate the address and node ports of a new Service. Raises: StatusError 422 when one is in use or invalid."""
    spec = service["spec"]
    if spec["type"] == "ExternalName":
        return
    others = [record.obj for record in store.scan(SERVICES)]
    if spec.get("clusterIP") != HEADLESS:
        spec["clusterIP"] = _address(service, str(spec.get("clusterIP") or ""), others)
        spec["clusterIPs"] = [spec["clusterIP"]]
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _give_ports(service, others)


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
    """Return the errors of the addresses that a client chose. Whether they are free is decided by `allocate`."""
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


def _give_ports(service: Json, others: Iterable[Json]) -> None:
    ports = [port for other in others for port in maps(listing(mapping(other, "spec"), "ports"))]
    taken = {port["nodePort"] for port in ports if port.get("nodePort")}
    for index, port in enumerate(maps(listing(service["spec"], "ports"))):
        wanted = port.get("nodePort")
        why = ""
        if wanted and wanted not in PORTS:
            why = f"provided port is not in the valid range. The range of valid ports is {PORTS[0]}-{PORTS[-1]}"
        elif wanted in taken:
            why = "provided port is already allocated"
        if why:
            raise _refused(service, bad_value(f"spec.ports[{index}].nodePort", wanted, why))
        if not wanted:
            port["nodePort"] = next(number for number in PORTS if number not in taken)
        taken.add(port["nodePort"])


def _refused(service: Json, cause: FieldCause) -> StatusError:
    return status.invalid("Service", name_of(service), [cause])


def _port_key(port: Json) -> tuple[object, object]:
    return (port.get("port"), port.get("protocol"))
