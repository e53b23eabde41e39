"""The custom resource reference: every field of the five kinds, from the schemas that the API server enforces."""

from collections.abc import Iterator
from typing import Any

from slipway.crd.meta import GROUP_VERSION
from slipway.crd.policies import EXIT_CODES_PATTERN
from slipway.crd.rules import RULES
from slipway.crd.schema import DEFINITIONS, Definition, crd_manifests
from tools.reference.markdown import code, phrase, table

Schema = dict[str, Any]
TOP = f"""# Custom resources

Group and version `{GROUP_VERSION}`. `spec` is what you request, `status` is what was observed; only the services write
`status`. The definitions are in `helm/files/crds`; `kubectl explain allocation.spec` shows the same text.
"""
_SKIPPED = ("apiVersion", "kind", "metadata")


def page() -> str:
    """Return one section per kind: names, fields, rules, columns."""
    parts = [TOP]
    for definition, manifest in zip(DEFINITIONS, crd_manifests(), strict=True):
        parts += _section(definition, manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    return "\n".join(parts)


def _section(definition: Definition, root: Schema) -> list[str]:
    scope = "namespaced" if definition.namespaced else "cluster-scoped"
    parts = [f"## {definition.kind}\n", f"`{definition.plural}`, short `{definition.short}`, {scope}.\n"]
    fields = [row for name, schema in root["properties"].items() if name not in _SKIPPED for row in _rows(name, schema)]
    parts.append(table(("field", "type", "default", "what"), fields))
    rules = [rule for rule in RULES if rule.kind == definition.kind]
    if rules:
        parts.append("The API server itself refuses an object that breaks one of these rules:\n")
        parts.append(
            "\n".join(f"- {phrase(message)}" for message in dict.fromkeys(rule.message for rule in rules)) + "\n"
        )
    shown = ", ".join(column.name + (" (wide)" if column.wide else "") for column in definition.columns)
    parts.append(f"Columns of `kubectl get {definition.short}`: {shown}.\n")
    if definition.selectable:
        selectable = ", ".join(code(path.removeprefix(".")) for path in definition.selectable)
        parts.append(f"Field selectors: {selectable}.\n")
    return parts


def _rows(path: str, schema: Schema, *, is_required: bool = False) -> Iterator[tuple[str, str, str, str]]:
    default = schema.get("default")
    shown = "required" if is_required else "" if default is None or isinstance(default, dict) else _spelled(default)
    if "." in path:  # `spec` and `status` themselves have no description
        yield code(path), _type(schema), shown, phrase(str(schema.get("description", "")))
    inner, suffix = schema, ""
    while inner.get("type") == "array":
        inner, suffix = inner["items"], suffix + "[]"
    if "properties" in (values := _values(inner)):
        inner, suffix = values, suffix + ".*"
    for name, field in inner.get("properties", {}).items():
        yield from _rows(f"{path}{suffix}.{name}", field, is_required=name in inner.get("required", ()))


def _spelled(value: object) -> str:
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(code(word) for word in schema["enum"] if word)
    match schema.get("type"):
        case "array":
            items = schema["items"]
            is_range = items.get("pattern") == EXIT_CODES_PATTERN
            return "list of integer or range" if is_range else f"list of {_type(items)}"
        case "object":
            return f"map of {_type(values)}" if (values := _values(schema)) else "object"
        case "integer" | "number" as kind:
            return kind + _bounds(schema)
        case str(kind):
            return kind
        case _:
            return "quantity" if schema.get("x-kubernetes-int-or-string") else "any"


def _values(schema: Schema) -> Schema:
    """Return the schema of a map's values; empty when the schema is not a map."""
    return schema.get("additionalProperties") or {}


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return ""
    return f" {'' if low is None else f'{low:g}' if isinstance(low, float) else low}..{'' if high is None else high}"
