"""Label selectors: parsed once, matched often. Pure data.

A value without the shape of a selector matches nothing: the API server refuses such a pod, so nothing depends on it.
Source: apimachinery's labels.Requirement; a null selector matches nothing, an empty selector matches everything.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

IN, NOT_IN, EXISTS, ABSENT = "In", "NotIn", "Exists", "DoesNotExist"
OPERATORS = (IN, NOT_IN, EXISTS, ABSENT)


class LabelRequirement(msgspec.Struct, frozen=True):
    """One condition on one label."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` satisfy the condition; an absent label is in no set."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case _:
                return value is None


class Selector(msgspec.Struct, frozen=True):
    """A selector that matches when all `requirements` do; with `is_nothing` it never matches."""

    requirements: tuple[LabelRequirement, ...] = ()
    is_nothing: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether the selector matches everything."""
        return not self.requirements and not self.is_nothing

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the selector matches `labels`."""
        return not self.is_nothing and all(item.matches(labels) for item in self.requirements)

    def also(self, more: tuple[LabelRequirement, ...]) -> "Selector":
        """Return the selector with additional requirements; a selector of nothing stays one."""
        return self if self.is_nothing or not more else Selector((*self.requirements, *more))


NOTHING = Selector(is_nothing=True)


def selector_of(data: Any) -> Selector:
    """Parse a metav1.LabelSelector from JSON."""
    if not isinstance(data, Mapping):
        return NOTHING
    requirements: list[LabelRequirement] = []
    for key, value in sorted(mapping_of(cast("Mapping[str, Any]", data).get("matchLabels")).items()):
        requirements.append(LabelRequirement(key, IN, (str(value),)))
    for item in mappings_of(cast("Mapping[str, Any]", data).get("matchExpressions")):
        operator = str(item.get("operator"))
        if operator not in OPERATORS:
            return NOTHING
        requirements.append(LabelRequirement(str(item.get("key")), operator, strings_of(item.get("values"))))
    return Selector(tuple(requirements))


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def mappings_of(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects in the list `value`."""
    if isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            if isinstance(item, Mapping):
                yield cast("Mapping[str, Any]", item)


def strings_of(value: Any) -> tuple[str, ...]:
    """Return the entries of the list `value` as strings, sorted; empty when `value` is no list."""
    return tuple(sorted(str(item) for item in cast("list[Any]", value))) if isinstance(value, list | tuple) else ()
