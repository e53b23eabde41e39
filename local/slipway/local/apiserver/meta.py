"""ObjectMeta: the rules that all kinds share.

Owns names, labels, annotations, finalizers and owner references: their validation, and the fields that the server
preserves on update. Knows no kind. Invariant: only the server sets uid, creationTimestamp, deletionTimestamp and
generation; values that a client sends for them have no effect.
"""

import re
from typing import Any

from slipway.local.apiserver.objects import (
    Json,
    finalizers_of,
    is_list,
    is_map,
    listing,
    mapping,
    maps,
    metadata,
)
from slipway.local.apiserver.status import FieldCause, bad_request, bad_value, missing, not_allowed, too_long

NAME_LENGTH_MAX = 253
LABEL_LENGTH_MAX = 63
ANNOTATIONS_BYTES_MAX = 256 * 1024
RANDOM_LENGTH = 5
RANDOM_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_LABEL = re.compile(rf"^{_LABEL}$")
DNS_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
DNS_SUBDOMAIN = re.compile(rf"^{_LABEL}(\.{_LABEL})*$")
_QUALIFIED = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_OWNER_FIELDS = (
    ("apiVersion", "version must not be empty"),
    ("kind", "must not be empty"),
    ("name", "must not be empty"),
    ("uid", "must not be empty"),
)
_OWNED_BY_SERVER = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")

_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_DNS_1035_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)

NameForm = tuple[re.Pattern[str], int, str]
"""(pattern, maximum length, the rule as text) of the names of a kind."""
SUBDOMAIN: NameForm = (DNS_SUBDOMAIN, NAME_LENGTH_MAX, _SUBDOMAIN_RULE)
LABEL: NameForm = (DNS_LABEL, LABEL_LENGTH_MAX, _LABEL_RULE)
SERVICE_LABEL: NameForm = (DNS_1035, LABEL_LENGTH_MAX, _DNS_1035_RULE)
PATH_SEGMENT: NameForm = (
    re.compile(r"^(?!\.{1,2}$)[^/%]+$"),
    NAME_LENGTH_MAX,
    "may not be '.' or '..' and may not contain '/' or '%'",
)


def check_shape(obj: Json) -> None:
    """Check that the metadata can be decoded, and remove its empty fields. Raises: StatusError 400."""
    meta = obj.setdefault("metadata", {})
    if meta is None:
        meta = obj["metadata"] = {}
    if not is_map(meta):
        raise bad_request("metadata must be an object")
    for field in ("labels", "annotations"):
        values = meta.get(field)
        if values is None:
            meta.pop(field, None)
            continue
        if not is_map(values) or not all(isinstance(value, str) for value in values.values()):
            raise bad_request(f"json: cannot unmarshal into Go struct field ObjectMeta.metadata.{field} of type string")
    for field in ("finalizers", "ownerReferences"):
        if meta.get(field) is not None and not is_list(meta[field]):
            raise bad_request(f"json: cannot unmarshal into Go struct field ObjectMeta.metadata.{field} of type array")
    for field in ("name", "namespace", "generateName", "resourceVersion", "uid"):
        if not isinstance(meta.get(field, ""), str | None):
            raise bad_request(f"json: cannot unmarshal into Go struct field ObjectMeta.metadata.{field} of type string")
    for field in ("managedFields", "selfLink"):
        meta.pop(field, None)
    for field in [field for field, value in meta.items() if value is None or value in ({}, [], "")]:
        del meta[field]


def random_suffix(uid: str) -> str:
    """Return five characters for generateName, derived from a new uid, so that equal uids give equal names."""
    number = int.from_bytes(uid.encode(), "big") * 2654435761 % (2**61 - 1)
    letters = list[str]()
    for _ in range(RANDOM_LENGTH):
        number, index = divmod(number, len(RANDOM_ALPHABET))
        letters.append(RANDOM_ALPHABET[index])
    return "".join(letters)


def keep_server_fields(new: Json, old: Json) -> None:
    """Copy the fields that no client may change from `old` to `new`."""
    for field in _OWNED_BY_SERVER:
        if field in old:
            new[field] = old[field]
        else:
            new.pop(field, None)
    new["name"] = old["name"]
    if "namespace" in old:
        new["namespace"] = old["namespace"]
    if "generateName" in old:
        new["generateName"] = old["generateName"]


def validate(obj: Json, form: NameForm) -> list[FieldCause]:
    meta = metadata(obj)
    causes = _name(meta, form)
    for key, value in mapping(meta, "labels").items():
        causes += qualified("metadata.labels", key)
        if len(value) > LABEL_LENGTH_MAX:
            causes.append(bad_value("metadata.labels", value, f"must be no more than {LABEL_LENGTH_MAX} bytes"))
        elif value and not _QUALIFIED.match(value):
            causes.append(bad_value("metadata.labels", value, _VALUE_RULE))
    size = 0
    for key, value in mapping(meta, "annotations").items():
        causes += qualified("metadata.annotations", key.lower())
        size += len(key) + len(value)
    if size > ANNOTATIONS_BYTES_MAX:
        causes.append(too_long("metadata.annotations", ANNOTATIONS_BYTES_MAX))
    return causes + _finalizers(meta) + _owners(meta)


def validate_update(new: Json, old: Json) -> list[FieldCause]:
    """Return the errors in an update: while an object is being deleted, finalizers can only be removed."""
    if not metadata(old).get("deletionTimestamp"):
        return []
    added = sorted(set(finalizers_of(new)) - set(finalizers_of(old)))
    if not added:
        return []
    listed = ", ".join(f'"{name}"' for name in added)
    words = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
    return [not_allowed("metadata.finalizers", words)]


def _name(meta: Json, form: NameForm) -> list[FieldCause]:
    pattern, longest, rule = form
    name = meta.get("name")
    if not name:
        return [missing("metadata.name", "name or generateName is required")]
    if len(name) > longest:
        return [bad_value("metadata.name", name, f"must be no more than {longest} bytes")]
    return [] if pattern.match(name) else [bad_value("metadata.name", name, rule)]


def qualified(field: str, key: str) -> list[FieldCause]:
    """Return the errors in a qualified name, such as the key of a label."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > NAME_LENGTH_MAX or not DNS_SUBDOMAIN.match(prefix)):
        return [bad_value(field, key, f"prefix part {_SUBDOMAIN_RULE}")]
    if len(name) > LABEL_LENGTH_MAX or not _QUALIFIED.match(name):
        return [bad_value(field, key, _QUALIFIED_RULE)]
    return []


def _finalizers(meta: Json) -> list[FieldCause]:
    causes = list[FieldCause]()
    for name in listing(meta, "finalizers"):
        causes += qualified("metadata.finalizers", str(name))
    return causes


def _owners(meta: Json) -> list[FieldCause]:
    causes = list[FieldCause]()
    controllers = 0
    for owner in maps(listing(meta, "ownerReferences")):
        for field, words in _OWNER_FIELDS:
            if not owner.get(field):
                causes.append(bad_value(f"metadata.ownerReferences.{field}", "", words))
        controllers += owner.get("controller") is True
    if controllers > 1:
        value: Any = meta["ownerReferences"]
        causes.append(
            bad_value("metadata.ownerReferences", value, "Only one reference can have Controller set to true")
        )
    return causes
