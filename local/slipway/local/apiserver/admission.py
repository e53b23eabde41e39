"""Strategies: how a kind decodes, completes and validates an object that a client writes.

Owns the hooks that the core calls on create, update and status update, and the simple built-in kinds. Pods and custom
resources have modules of their own. A strategy knows only its own kind, and no store. Invariants: when a kind has a
status subresource, only writes to this subresource change the status, and they change nothing else; hooks change only
their first argument.
"""

import base64
import binascii
import re
from typing import ClassVar

from slipway.local.apiserver import meta
from slipway.local.apiserver.objects import Json, clone, is_map, listing, mapping, maps, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.status import FieldCause, bad_request, bad_value, not_allowed, too_long, unsupported

DATA_BYTES_MAX = 1024 * 1024
PRIORITY_MAX = 1_000_000_000
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
_DATA_KEY = re.compile(r"^[-._a-zA-Z0-9]{1,253}$")


class Strategy:
    """The strategy of a plain kind: accepts any content and sets no defaults."""

    name_form: ClassVar[meta.NameForm] = meta.SUBDOMAIN
    allows_unconditional_update: ClassVar[bool] = True
    allows_create_on_update: ClassVar[bool] = False
    counts_generation: ClassVar[bool] = False
    is_graceful: ClassVar[bool] = False
    returns_deleted: ClassVar[bool] = False
    has_status: bool = False
    keeps_status_on_create: ClassVar[bool] = False
    completes_late: bool = False
    """Whether a new object is shown with defaults that only its next write stores.

    Then the next write takes effect even if it changes nothing else.
    """

    def decode(self, obj: Json, options: WriteOptions) -> None:
        """Prune and default an object that a client sent. Raises: StatusError 400."""

    def prepare(self, obj: Json) -> None:
        """Complete a new object."""
        if self.has_status and not self.keeps_status_on_create:
            obj.pop("status", None)

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        """Return the validation errors of `obj`; `old` is None on create."""
        return []

    def prepare_update(self, new: Json, old: Json) -> None:
        if self.has_status:
            _carry(new, old, "status")

    def claimed(self, sent: Json, new: Json) -> Json:
        """Return the fields that the writer of a replacement claims: `new` without the values that admission added."""
        return new

    def broken_rules(self, obj: Json) -> list[FieldCause]:
        """Return the rules that a new object breaks. They are also checked for an object that names another kind."""
        return []

    def prepare_status(self, new: Json, old: Json) -> None:
        """Keep all fields of `old` except the status.

        Labels and annotations may change too, as on a real server for built-in kinds.
        """
        for field in [name for name in new if name not in ("status", "metadata")]:
            del new[field]
        for field, value in old.items():
            if field not in ("status", "metadata"):
                new[field] = value

    def spec_changed(self, new: Json, old: Json) -> bool:
        return new.get("spec") != old.get("spec")


class ConfigMapStrategy(Strategy):
    def decode(self, obj: Json, options: WriteOptions) -> None:
        for field in ("data", "binaryData"):
            values = obj.get(field)
            if values is None:
                obj.pop(field, None)
            elif not is_map(values) or not all(isinstance(value, str) for value in values.values()):
                raise bad_request(f"json: cannot unmarshal into Go struct field ConfigMap.{field} of type string")

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        causes = _data_causes(obj, plain="data", encoded="binaryData")
        if old is not None and old.get("immutable") is True:
            if obj.get("immutable") is not True:
                causes.append(not_allowed("immutable", "field is immutable when `immutable` is set"))
            causes += [
                not_allowed(field, "field is immutable when `immutable` is set")
                for field in ("data", "binaryData")
                if obj.get(field) != old.get(field)
            ]
        return causes


class SecretStrategy(Strategy):
    def decode(self, obj: Json, options: WriteOptions) -> None:
        obj.setdefault("type", "Opaque")
        plain = obj.pop("stringData", None)
        if is_map(plain):
            data: Json = dict(mapping(obj, "data"))
            for key, value in plain.items():
                data[key] = base64.b64encode(str(value).encode()).decode()
            obj["data"] = data
        for value in mapping(obj, "data").values():
            try:
                base64.b64decode(str(value), validate=True)
            except binascii.Error as exc:
                raise bad_request(f"illegal base64 data in Secret.data: {exc}") from exc

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        causes = _data_causes(obj, encoded="data")
        if old is not None and obj.get("type") != old.get("type"):
            causes.append(bad_value("type", obj.get("type"), "field is immutable"))
        if old is not None and old.get("immutable") is True and obj.get("data") != old.get("data"):
            causes.append(not_allowed("data", "field is immutable when `immutable` is set"))
        return causes


class NamespaceStrategy(Strategy):
    """Namespaces. A namespace under deletion keeps the finalizer `kubernetes` in its spec until it is empty."""

    name_form = meta.LABEL
    has_status = True
    returns_deleted = True

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
        labels: Json = dict(mapping(metadata(obj), "labels"))
        labels["kubernetes.io/metadata.name"] = metadata(obj)["name"]
        obj["metadata"]["labels"] = labels

    def prepare_update(self, new: Json, old: Json) -> None:
        super().prepare_update(new, old)
        _carry(new, old, "spec")


class NodeStrategy(Strategy):
    has_status = True
    keeps_status_on_create = True

    def decode(self, obj: Json, options: WriteOptions) -> None:
        _spec(obj)
        status = mapping(obj, "status")
        if "capacity" in status and "allocatable" not in status:
            status["allocatable"] = dict(status["capacity"])
        complete_conditions(obj, "lastHeartbeatTime", "lastTransitionTime")


class LeaseStrategy(Strategy):
    allows_unconditional_update = False
    allows_create_on_update = True

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        duration = mapping(obj, "spec").get("leaseDurationSeconds")
        if duration is not None and (not isinstance(duration, int) or duration <= 0):
            return [bad_value("spec.leaseDurationSeconds", duration, "must be greater than 0")]
        return []


class ServiceAccountStrategy(Strategy):
    allows_unconditional_update = False


class QuotaStrategy(Strategy):
    has_status = True

    def decode(self, obj: Json, options: WriteOptions) -> None:
        _spec(obj)


class ClaimStrategy(Strategy):
    has_status = True

    def decode(self, obj: Json, options: WriteOptions) -> None:
        _spec(obj).setdefault("volumeMode", "Filesystem")

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        obj["status"] = {"phase": "Pending"}


class PriorityClassStrategy(Strategy):
    def decode(self, obj: Json, options: WriteOptions) -> None:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        name, value = str(metadata(obj)["name"]), obj.get("value", 0)
        causes = list[FieldCause]()
        if name.startswith("system-"):
            if SYSTEM_PRIORITIES.get(name) != value:
                words = "priority class names with 'system-' prefix are reserved for system use only. error: "
                causes.append(not_allowed("metadata.name", f"{words}{name} is not a known system priority class"))
        elif value > PRIORITY_MAX:
            causes.append(not_allowed("value", f"maximum allowed value of a user defined priority is {PRIORITY_MAX}"))
        if obj["preemptionPolicy"] not in PREEMPTION_POLICIES:
            causes.append(unsupported("preemptionPolicy", obj["preemptionPolicy"], list(PREEMPTION_POLICIES)))
        if old is not None and value != old.get("value", 0):
            causes.append(not_allowed("value", "may not be changed in an update."))
        if old is not None and obj["preemptionPolicy"] != old.get("preemptionPolicy"):
            causes.append(bad_value("preemptionPolicy", obj["preemptionPolicy"], "field is immutable"))
        return causes


def complete_conditions(obj: Json, *times: str) -> None:
    """Set the missing times of conditions to null, because built-in kinds show them even when they are not set."""
    for condition in maps(listing(mapping(obj, "status"), "conditions")):
        for field in times:
            condition.setdefault(field, None)


def carry_status(new: Json, old: Json) -> None:
    """Copy the status of the old object to the new one."""
    _carry(new, old, "status")


def _carry(new: Json, old: Json, field: str) -> None:
    if field in old:
        new[field] = clone(old[field])
    else:
        new.pop(field, None)


def _spec(obj: Json) -> Json:
    spec = obj.get("spec")
    if spec is None:
        spec = obj["spec"] = {}
    if not is_map(spec):
        raise bad_request("json: cannot unmarshal into Go struct field .spec of type object")
    return spec


def _data_causes(obj: Json, *, encoded: str, plain: str = "") -> list[FieldCause]:
    """Return the errors in keys and total size. A base64 value is measured by its decoded size."""
    causes = list[FieldCause]()
    size = 0
    for field in (plain, encoded) if plain else (encoded,):
        for key, value in mapping(obj, field).items():
            text = str(value)
            size += len(text) * 3 // 4 - text[-2:].count("=") if field == encoded else len(text.encode())
            if not _DATA_KEY.match(key) or key in (".", ".."):
                rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
                causes.append(bad_value(f"{field}[{key}]", key, rule))
    if size > DATA_BYTES_MAX:
        causes.append(too_long("", DATA_BYTES_MAX))
    return causes
