"""Label and field selectors: parses a text into a predicate.

Owns the grammar. Knows no kind: the selectable fields are an argument. Invariant: text that cannot be parsed, and
fields that are not selectable, are refused (400), never ignored.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from slipway.local.apiserver.objects import Json, at_path, is_map, listing, mapping, maps, metadata
from slipway.local.apiserver.status import StatusError, bad_request

Predicate = Callable[[Json], bool]
FieldReaders = Mapping[str, tuple[str, ...]]
"""{selectable label: path in the object}."""

_SET = re.compile(r"^\s*(?P<key>[^\s!=(),]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\s*$")
_COMPARE = re.compile(r"^\s*(?P<key>[^\s!=(),]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=(),]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[^\s!=(),]+)\s*$")
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


class SelectorTerm(msgspec.Struct, frozen=True):
    """One term of a label selector: `op` is one of in, notin, exists, absent."""

    key: str
    op: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Json) -> bool:
        value = labels.get(self.key)
        match self.op:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case _:
                return value is None


def parse_labels(text: str) -> tuple[SelectorTerm, ...]:
    """Return the terms of a label selector. Raises: StatusError 400."""
    return tuple(_requirement(term) for term in _terms(text) if term.strip())


def parse_fields(text: str) -> tuple[tuple[str, str, bool], ...]:
    """Return (field, value, whether it must be equal) of each term. Raises: StatusError 400."""
    found: list[tuple[str, str, bool]] = []
    for term in text.split(","):
        if not term.strip():
            continue
        match = re.match(r"^\s*([^=!\s]+)\s*(==|=|!=)\s*(.*?)\s*$", term)
        if match is None:
            raise bad_request(f"invalid selector: '{term}'; can't understand '{term}'")
        found.append((match[1], match[3], match[2] != "!="))
    return tuple(found)


def selector(labels: str, fields: str, readers: FieldReaders) -> Predicate | None:
    """Return one predicate for both texts, or None when every object matches. Raises: StatusError 400."""
    wanted = parse_labels(labels) if labels else ()
    terms = parse_fields(fields) if fields else ()
    for field, _, _ in terms:
        if field not in readers:
            raise _unknown_field(field, readers)
    if not wanted and not terms:
        return None
    paths = tuple((readers[field], value, equal) for field, value, equal in terms)

    def matches(obj: Json) -> bool:
        if wanted:
            own = mapping(metadata(obj), "labels")
            if not all(requirement.holds(own) for requirement in wanted):
                return False
        return all((_text(at_path(obj, path)) == value) is equal for path, value, equal in paths)

    return matches


def selects(selector: object, labels: Json) -> bool:
    """Whether a LabelSelector (`matchLabels`, `matchExpressions`) selects `labels`. None selects nothing, {} all."""
    if not is_map(selector):
        return False
    if any(labels.get(key) != value for key, value in mapping(selector, "matchLabels").items()):
        return False
    for term in maps(listing(selector, "matchExpressions")):
        name = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}.get(
            str(term.get("operator"))
        )
        if name is None:
            return False
        values = frozenset(str(value) for value in listing(term, "values"))
        if not SelectorTerm(str(term.get("key")), name, values).holds(labels):
            return False
    return True


def _unknown_field(field: str, readers: FieldReaders) -> StatusError:
    """Return the error for an unknown field; kinds with only name and namespace have their own message."""
    if set(readers) == {"metadata.name", "metadata.namespace"}:
        words = 'only "metadata.name", "metadata.namespace"'
        return bad_request(f'"{field}" is not a known field selector: {words}')
    return bad_request(f"field label not supported: {field}")


def _terms(text: str) -> list[str]:
    """Split at the commas that are not inside parentheses."""
    terms, depth, start = list[str](), 0, 0
    for index, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            terms.append(text[start:index])
            start = index + 1
    return [*terms, text[start:]]


def _requirement(term: str) -> SelectorTerm:
    if match := _SET.match(term):
        values = frozenset(value.strip() for value in match["values"].split(","))
        return SelectorTerm(match["key"], match["op"], values)
    if match := _COMPARE.match(term):
        return SelectorTerm(match["key"], "notin" if match["op"] == "!=" else "in", frozenset({match["value"]}))
    if match := _EXISTS.match(term):
        return SelectorTerm(match["key"], "absent" if match["not"] else "exists")
    raise bad_request(f"unable to parse requirement: found '{term.strip()}'")


def _text(value: object) -> str:
    """Return a field's value as a selector compares it; an unset value is the empty string."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
