"""Structural schemas of custom resources: compiled once, then used to prune, default and validate objects.

Pruning and defaulting adapt an object to its schema, and find unknown fields. Invariant: a compiled `Schema` is never
changed; `shape` changes only the given object.

Validation walks over value, old value and schema, and checks the CEL rules of a schema. It interprets no CEL: for each
rule there is a Python function, its twin, which is looked up by the text of the rule. Invariants: rules run only when
no value is missing, too long or of a wrong type; a transition rule runs only where both the old and the new value exist
and belong to the same element.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from slipway.local.apiserver.objects import Json, clone, is_list, is_map, listing, mapping, maps, parse_time, type_name
from slipway.local.apiserver.status import (
    FieldCause,
    bad_type,
    bad_value,
    duplicate,
    missing,
    not_allowed,
    quoted,
    too_long,
    too_many,
    unsupported,
)


class CelRule(msgspec.Struct, frozen=True):
    """One entry of `x-kubernetes-validations`; a transition rule compares with the old value."""

    text: str
    message: str
    reason: str
    field_path: str
    is_transition: bool


class Schema(msgspec.Struct):
    """One node of a structural schema."""

    type: str = ""
    nullable: bool = False
    properties: dict[str, "Schema"] = {}
    additional: "Schema | None" = None
    items: "Schema | None" = None
    required: tuple[str, ...] = ()
    enum: list[Any] | None = None
    pattern: re.Pattern[str] | None = None
    format: str = ""
    limits: dict[str, float] = {}
    exclusive_min: bool = False
    exclusive_max: bool = False
    int_or_string: bool = False
    preserve: bool = False
    embedded: bool = False
    list_type: str = "atomic"
    list_keys: tuple[str, ...] = ()
    unique: bool = False
    default: Any = msgspec.UNSET
    rules: tuple[CelRule, ...] = ()
    all_of: tuple["Schema", ...] = ()
    any_of: tuple["Schema", ...] = ()
    one_of: tuple["Schema", ...] = ()
    negated: "Schema | None" = None
    source: Json = {}
    defaulted: "tuple[tuple[str, Schema], ...] | None" = None
    """The properties with a default, cached at the first use; None before."""


_LIMITS = (
    "minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
    "maxProperties",
)  # fmt: skip
COMPILED_MAX = 128
"""Maximum number of compiled schemas in the cache."""
_OLD = re.compile(r"\boldSelf\b")


def compile_schema(source: Json) -> Schema:
    """Return the compiled schema. Raises: ValueError for a schema that cannot be read, `re.error` for a bad pattern.

    The result is cached, because a definition is compiled when it is checked and again when its kinds are installed.
    This repeats at each start and in each core of a process.
    """
    return _compiled_text(msgspec.json.encode(source))


@functools.lru_cache(maxsize=COMPILED_MAX)
def _compiled_text(text: bytes) -> Schema:
    return _compiled(msgspec.json.decode(text))


def _compiled(source: Json) -> Schema:
    limits = {name: source[name] for name in _LIMITS if isinstance(source.get(name), int | float)}
    additional = source.get("additionalProperties")
    items = source.get("items")
    preserve = source.get("x-kubernetes-preserve-unknown-fields") is True or additional is True
    return Schema(
        type=str(source.get("type") or ""),
        nullable=source.get("nullable") is True,
        properties={name: _compiled(node) for name, node in mapping(source, "properties").items()},
        additional=_compiled(additional) if is_map(additional) else None,
        items=_compiled(items) if is_map(items) else None,
        required=tuple(listing(source, "required")),
        enum=source.get("enum"),
        pattern=re.compile(source["pattern"]) if source.get("pattern") else None,
        format=str(source.get("format") or ""),
        limits=limits,
        exclusive_min=source.get("exclusiveMinimum") is True,
        exclusive_max=source.get("exclusiveMaximum") is True,
        int_or_string=source.get("x-kubernetes-int-or-string") is True,
        preserve=preserve,
        embedded=source.get("x-kubernetes-embedded-resource") is True,
        list_type=str(source.get("x-kubernetes-list-type") or "atomic"),
        list_keys=tuple(listing(source, "x-kubernetes-list-map-keys")),
        unique=source.get("uniqueItems") is True,
        default=source.get("default", msgspec.UNSET),
        rules=tuple(_rule(entry) for entry in maps(listing(source, "x-kubernetes-validations"))),
        all_of=tuple(_compiled(node) for node in maps(listing(source, "allOf"))),
        any_of=tuple(_compiled(node) for node in maps(listing(source, "anyOf"))),
        one_of=tuple(_compiled(node) for node in maps(listing(source, "oneOf"))),
        negated=_compiled(source["not"]) if is_map(source.get("not")) else None,
        source=source,
    )


def rules_of(schema: Schema, path: str = "", *, correlated: bool = True) -> list[tuple[str, CelRule, bool]]:
    """Return (path, rule, whether the old value at this path can be found) of every rule in the tree."""
    found = [(path, rule, correlated) for rule in schema.rules]
    for name, node in schema.properties.items():
        found += rules_of(node, f"{path}.properties[{name}]", correlated=correlated)
    if schema.additional is not None:
        found += rules_of(schema.additional, f"{path}.additionalProperties", correlated=correlated)
    if schema.items is not None:
        found += rules_of(schema.items, f"{path}.items", correlated=correlated and schema.list_type == "map")
    return found


def shape(schema: Schema, value: Any, path: str = "", *, is_root: bool = False, keeps_nulls: bool = False) -> list[str]:
    """Prune unknown fields and set the defaults, in place. Return the pruned paths.

    Nulls of fields that are not nullable are dropped too, unless `keeps_nulls` leaves them for validation.
    """
    pruned = list[str]()
    if is_map(value):
        _shape_map(schema, value, path, pruned, is_root=is_root, keeps_nulls=keeps_nulls)
    elif is_list(value) and schema.items is not None:
        for index, item in enumerate(value):
            pruned += shape(schema.items, item, f"{path}[{index}]", keeps_nulls=keeps_nulls)
    return pruned


def fill_defaults(schema: Schema, value: Any) -> None:
    """Set only the defaults, as the server does when it reads an object from storage."""
    if is_map(value):
        _default(schema, value)
        for name, item in value.items():
            node = schema.properties.get(name) or schema.additional
            if node is not None:
                fill_defaults(node, item)
    elif is_list(value) and schema.items is not None:
        for item in value:
            fill_defaults(schema.items, item)


def _shape_map(schema: Schema, value: Json, path: str, pruned: list[str], *, is_root: bool, keeps_nulls: bool) -> None:
    _default(schema, value)
    keeps_meta = is_root or schema.embedded
    for name, item in list(value.items()):
        node = schema.properties.get(name) or schema.additional
        if keeps_meta and name in ("apiVersion", "kind", "metadata"):
            continue
        if node is not None:
            if item is None and not node.nullable and not keeps_nulls:
                del value[name]
            elif is_map(item) or is_list(item):
                pruned += shape(node, item, f"{path}.{name}" if path else name, keeps_nulls=keeps_nulls)
        elif not schema.preserve:
            del value[name]
            pruned.append(f"{path}.{name}" if path else name)


def _default(schema: Schema, value: Json) -> None:
    if schema.defaulted is None:
        schema.defaulted = tuple(
            (name, node) for name, node in schema.properties.items() if node.default is not msgspec.UNSET
        )
    for name, node in schema.defaulted:
        if name not in value or (value[name] is None and not node.nullable):
            value[name] = clone(node.default)


def _rule(entry: Json) -> CelRule:
    text = str(entry.get("rule") or "")
    return CelRule(
        text=text,
        message=str(entry.get("message") or f"failed rule: {' '.join(text.split())}"),
        reason=str(entry.get("reason") or "FieldValueInvalid"),
        field_path=str(entry.get("fieldPath") or ""),
        is_transition=bool(_OLD.search(text)),
    )


RuleTwin = Callable[[Any, Any], bool]
RuleTwins = Mapping[str, RuleTwin]
"""{text of the rule: its twin, called with the value and the old value (None if there is none)}."""

_BLOCKING = frozenset(f"FieldValue{what}" for what in ("NotSupported", "Required", "TooLong", "TooMany", "TypeInvalid"))
"""The reasons of errors after which rules are not checked."""
_INT_RANGE = {"int32": 2**31, "int64": 2**63}
_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)


def validate(schema: Schema, obj: Json, old: Json | None, twins: RuleTwins) -> list[FieldCause]:
    """Return all schema errors of `obj`, and also the broken rules unless a schema error prevents their check."""
    causes = _structure(schema, obj, "")
    if any(cause.reason in _BLOCKING for cause in causes):
        has_rules = bool(schema.rules or any(node.rules for node in schema.properties.values()))
        return [*causes, bad_value("<nil>", None, _NOT_CHECKED)] if has_rules else causes
    return causes + broken_rules(schema, obj, old, twins)


def broken_rules(schema: Schema, obj: Json, old: Json | None, twins: RuleTwins) -> list[FieldCause]:
    """Return every rule that `obj` breaks. Without `old`, transition rules are not checked."""
    return _rules(schema, obj, old, "", twins)


def _structure(schema: Schema, value: Any, path: str) -> list[FieldCause]:
    if value is None and schema.nullable:
        return []
    causes = _type(schema, value, path)
    if causes:
        return causes
    if schema.enum is not None and value not in schema.enum:
        causes.append(unsupported(path, value, schema.enum))
    if is_map(value):
        causes += _map(schema, value, path)
    elif is_list(value):
        causes += _list(schema, value, path)
    elif isinstance(value, str):
        causes += _string(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        causes += _number(schema, value, path)
    return causes + _combined(schema, value, path)


def _type(schema: Schema, value: Any, path: str) -> list[FieldCause]:
    found = type_name(value)
    if schema.int_or_string:
        if found in ("integer", "string"):
            return []
        return [bad_type(path, found, f'{path} in body must be of type integer,string: "{found}"')]
    wanted = schema.type
    if not wanted or wanted == found:
        return []
    if wanted == "number" and found == "integer":
        return []
    if wanted == "integer" and found == "number" and float(value).is_integer():
        return []
    return [bad_type(path, found, f'{path or "object"} in body must be of type {wanted}: "{found}"')]


def _map(schema: Schema, value: Json, path: str) -> list[FieldCause]:
    causes = [missing(_join(path, name)) for name in schema.required if name not in value]
    causes += _count(schema, len(value), path, "minProperties", "maxProperties", "properties")
    for name, item in value.items():
        node = schema.properties.get(name) or schema.additional
        if node is not None:
            causes += _structure(node, item, _join(path, name))
    return causes


def _list(schema: Schema, value: list[Any], path: str) -> list[FieldCause]:
    causes = _count(schema, len(value), path, "minItems", "maxItems", "items")
    if schema.items is not None:
        for index, item in enumerate(value):
            causes += _structure(schema.items, item, f"{path}[{index}]")
    if schema.list_type in ("set", "map") or schema.unique:
        seen = set[str]()
        for index, item in enumerate(value):
            shown = _identity(schema, item)
            key = quoted(shown)
            if key in seen:
                causes.append(duplicate(f"{path}[{index}]", shown))
            seen.add(key)
    return causes


def _identity(schema: Schema, item: Any) -> Any:
    if schema.list_type == "map" and is_map(item):
        return {name: item.get(name) for name in schema.list_keys}
    return item


def _string(schema: Schema, value: str, path: str) -> list[FieldCause]:
    causes = list[FieldCause]()
    limits = schema.limits
    if "maxLength" in limits and len(value) > limits["maxLength"]:
        causes.append(too_long(path, int(limits["maxLength"])))
    if "minLength" in limits and len(value) < limits["minLength"]:
        least = int(limits["minLength"])
        causes.append(bad_value(path, value, f"{path} in body should be at least {least} chars long"))
    if schema.pattern is not None and not schema.pattern.search(value):
        causes.append(bad_value(path, value, f"{path} in body should match '{schema.pattern.pattern}'"))
    if schema.format == "date-time" and parse_time(value) is None:
        causes.append(bad_value(path, value, f"{path} in body must be of type date-time: {quoted(value)}"))
    return causes


def _number(schema: Schema, value: float, path: str) -> list[FieldCause]:
    causes = list[FieldCause]()
    limits = schema.limits
    if "minimum" in limits:
        least = limits["minimum"]
        if value < least or (schema.exclusive_min and value == least):
            words = "greater than" if schema.exclusive_min else "greater than or equal to"
            causes.append(bad_value(path, value, f"{path} in body should be {words} {least:g}"))
    if "maximum" in limits:
        most = limits["maximum"]
        if value > most or (schema.exclusive_max and value == most):
            words = "less than" if schema.exclusive_max else "less than or equal to"
            causes.append(bad_value(path, value, f"{path} in body should be {words} {most:g}"))
    if limits.get("multipleOf") and value % limits["multipleOf"]:
        causes.append(bad_value(path, value, f"{path} in body should be a multiple of {limits['multipleOf']:g}"))
    bound = _INT_RANGE.get(schema.format)
    if bound and not -bound <= value < bound:
        causes.append(bad_value(path, value, f"{path} in body must be of type {schema.format}: {value}"))
    return causes


def _count(schema: Schema, count: int, path: str, low: str, high: str, noun: str) -> list[FieldCause]:
    limits = schema.limits
    if high in limits and count > limits[high]:
        return [too_many(path, count, int(limits[high]))]
    if low in limits and count < limits[low]:
        return [bad_value(path, count, f"{path} in body should have at least {int(limits[low])} {noun}")]
    return []


def _combined(schema: Schema, value: Any, path: str) -> list[FieldCause]:
    causes = [cause for node in schema.all_of for cause in _structure(node, value, path)]
    if schema.any_of and all(_structure(node, value, path) for node in schema.any_of):
        causes.append(bad_value(path, value, f"{path} in body must validate at least one schema (anyOf)"))
    if schema.one_of and sum(not _structure(node, value, path) for node in schema.one_of) != 1:
        causes.append(bad_value(path, value, f"{path} in body must validate one and only one schema (oneOf)"))
    if schema.negated is not None and not _structure(schema.negated, value, path):
        causes.append(bad_value(path, value, f"{path} in body must not validate the schema (not)"))
    return causes


def _rules(schema: Schema, value: Any, old: Any, path: str, twins: RuleTwins) -> list[FieldCause]:
    """Return the broken rules of the value and of the values in it; `old` is None where there is no old value."""
    if value is None:
        return []
    causes = list[FieldCause]()
    for rule in schema.rules:
        if rule.text in twins and not (rule.is_transition and old is None) and not _holds(rule, value, old, twins):
            causes.append(_broken(rule, schema, value, path))
    if is_map(value):
        before: Json = old if is_map(old) else {}
        for name, item in value.items():
            node = schema.properties.get(name) or schema.additional
            if node is not None:
                causes += _rules(node, item, before.get(name), _join(path, name), twins)
    elif is_list(value) and schema.items is not None:
        olds = _by_identity(schema, old)
        for index, item in enumerate(value):
            previous = olds.get(quoted(_identity(schema, item))) if olds else None
            causes += _rules(schema.items, item, previous, f"{path}[{index}]", twins)
    return causes


def _by_identity(schema: Schema, old: Any) -> dict[str, Any]:
    if schema.list_type != "map" or not is_list(old):
        return {}
    return {quoted(_identity(schema, item)): item for item in old}


def _holds(rule: CelRule, value: Any, old: Any, twins: RuleTwins) -> bool:
    """Whether the rule holds. A twin that reads a missing field refuses the value, like the CEL error `no such key`."""
    try:
        return bool(twins[rule.text](value, old))
    except (KeyError, IndexError, TypeError, AttributeError):
        return False


def _broken(rule: CelRule, schema: Schema, value: Any, path: str) -> FieldCause:
    where = (path + rule.field_path) or "<nil>"
    if where.startswith("."):
        where = where[1:]
    match rule.reason:
        case "FieldValueForbidden":
            return not_allowed(where, rule.message)
        case "FieldValueRequired":
            return missing(where, rule.message)
        case "FieldValueDuplicate":
            return duplicate(where, value)
        case _:
            shown = schema.type if schema.type else type_name(value)
            return FieldCause(where, rule.reason, f'Invalid value: "{shown}": {rule.message}')


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
