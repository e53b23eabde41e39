"""The operations of server-side apply on values: compare, merge, remove, and the fields that a value sets.

Owns the rule by which a shape decides whether a map or a list is atomic or granular. Pure. Invariants: arguments are
never changed, and results may share parts with them; a list whose items cannot be distinguished is one value.

Source: sigs.k8s.io/structured-merge-diff, typed (behaviour).
"""

from typing import Any

import msgspec

from slipway.local.apiserver.fields import paths
from slipway.local.apiserver.fields.paths import FieldSet, Path
from slipway.local.apiserver.fields.shapes import ANY, Shape
from slipway.local.apiserver.objects import Json, is_list, is_map

_ABSENT: Any = msgspec.UNSET


class FieldDifference(msgspec.Struct, frozen=True):
    """The fields that a new value changes, and the fields of the old value that the new value lacks."""

    changed: FieldSet
    removed: FieldSet


class IgnoredFields(msgspec.Struct, frozen=True):
    """The fields that a comparison ignores: top-level fields, and fields of the metadata."""

    fields: frozenset[str] = frozenset()
    of_metadata: frozenset[str] = frozenset()


NOTHING = IgnoredFields()


class DuplicateError(Exception):
    """Two items of a list have the same keys."""


def compare(shape: Shape, old: Json, new: Json, *, ignored: IgnoredFields = NOTHING) -> FieldDifference:
    """Return the fields that `new` changes and removes, without the `ignored` fields."""
    found = FieldDifference(FieldSet(), FieldSet())
    for name in {**old, **new}:
        if name in ignored.fields:
            continue
        was, now = old.get(name, _ABSENT), new.get(name, _ABSENT)
        if name == "metadata" and ignored.of_metadata:
            was = _rest(was, ignored.of_metadata)
            now = _rest(now, ignored.of_metadata)
        _compare(shape.child(name), was, now, paths.field(name), found)
    return found


def fields_of(shape: Shape, value: Any) -> FieldSet:
    """Return the fields that an applied value claims."""
    found = FieldSet()
    _collect(shape, value, (), found)
    return found


def merge(shape: Shape, live: Any, applied: Any) -> Any:
    """Merge `applied` into `live`. Raises: DuplicateError."""
    return _merge(shape, live, applied)


def remove(shape: Shape, value: Any, gone: FieldSet) -> Any:
    """Return `value` without the members of `gone`, or None when it becomes empty."""
    if is_map(value) and _is_granular(shape, value):
        kept: Json = {}
        for name, item in value.items():
            element = paths.field(name)
            if element in gone.members:
                continue
            below = gone.below(element)
            kept[name] = remove(shape.child(name), item, below) if below else item
        return kept or None
    if is_list(value) and _is_granular(shape, value):
        items = list[Any]()
        for item in value:
            element = paths.element_of(shape, item) or ""
            if element not in gone.members:
                below = gone.below(element)
                items.append(remove(shape.item or ANY, item, below) if below else item)
        return items or None
    return None if is_map(value) or is_list(value) else value


def _is_granular(shape: Shape, value: Any) -> bool:
    """Whether the entries of a map or list are separate values, so that the whole is not one value."""
    if is_map(value):
        return not shape.atomic
    return shape.is_granular_list and all(paths.element_of(shape, item) is not None for item in value)


def _splits(shape: Shape, left: Any, right: Any) -> str:
    """Return "map" or "list" if the two values are compared entry by entry, "" if each is one value."""
    shown = right if right is not None and right is not _ABSENT else left
    other = left if shown is right else right
    if not shown and not other:
        return ""
    if is_map(shown):
        return "" if shape.atomic or not (is_map(other) or other is None or other is _ABSENT) else "map"
    if is_list(shown) and (is_list(other) or other is None or other is _ABSENT):
        both = all(_is_granular(shape, side) for side in (shown, other) if is_list(side))
        return "list" if both and (shape.keys or shape.is_set) else ""
    return ""


def _compare(shape: Shape, old: Any, new: Any, element: str, found: FieldDifference) -> None:
    if old is _ABSENT:
        _add(shape, new, element, found.changed)
        return
    if new is _ABSENT:
        _add(shape, old, element, found.removed)
        return
    if old == new:
        return
    sort = _splits(shape, old, new)
    if not sort:
        found.changed.members.add(element)
        if is_map(old) != is_map(new):
            _turn(shape, old, new, element, found)
        return
    below = FieldDifference(FieldSet(), FieldSet())
    if sort == "map":
        before: Json = old or {}
        after: Json = new or {}
        for name in {**before, **after}:
            was, now = before.get(name, _ABSENT), after.get(name, _ABSENT)
            _compare(shape.child(name), was, now, paths.field(name), below)
    else:
        befores, afters = _by_element(shape, old), _by_element(shape, new)
        for inner in {**befores, **afters}:
            _compare(shape.item or ANY, befores.get(inner, _ABSENT), afters.get(inner, _ABSENT), inner, below)
    if below.changed:
        found.changed.children[element] = below.changed
    if below.removed:
        found.removed.children[element] = below.removed


def _turn(shape: Shape, old: Any, new: Any, element: str, found: FieldDifference) -> None:
    """Record the fields below an untyped value that became a map, or that was a map before."""
    below = FieldSet()
    _add(shape, new if is_map(new) else old, element, below)
    into = found.changed if is_map(new) else found.removed
    into.children.update(below.children)


def _add(shape: Shape, value: Any, element: str, found: FieldSet) -> None:
    """Record a value that one side lacks, with all fields below it."""
    found.members.add(element)
    if not value or shape.atomic:
        return
    if is_map(value):
        below = found.children[element] = FieldSet()
        for name, item in value.items():
            _add(shape.child(name), item, paths.field(name), below)
    elif is_list(value) and (shape.keys or shape.is_set) and _is_granular(shape, value):
        below = found.children[element] = FieldSet()
        for inner, item in _by_element(shape, value).items():
            _add(shape.item or ANY, item, inner, below)


def _rest(value: Any, ignored: frozenset[str]) -> Any:
    """Return the metadata without the ignored fields; {} when there is no metadata."""
    return {name: item for name, item in value.items() if name not in ignored} if is_map(value) else {}


def _by_element(shape: Shape, value: Any) -> Json:
    """Return {element: item}, with the first of several items that have the same keys."""
    found: Json = {}
    for item in value if is_list(value) else ():
        found.setdefault(str(paths.element_of(shape, item)), item)
    return found


def _collect(shape: Shape, value: Any, path: Path, found: FieldSet) -> None:
    if is_map(value) and _is_granular(shape, value):
        for name, item in value.items():
            below = (*path, paths.field(name))
            _collect(shape.child(name), item, below, found)
            if item is None or item == {} or name not in shape.fields:
                found.insert(below)
    elif is_list(value) and _is_granular(shape, value):
        for item in value:
            below = (*path, str(paths.element_of(shape, item)))
            _collect(shape.item or ANY, item, below, found)
            found.insert(below)
    elif value is not None or shape.sort not in ("struct", "map", "list"):
        found.insert(path)


def _merge(shape: Shape, live: Any, applied: Any) -> Any:
    if applied is _ABSENT:
        return live
    match _splits(shape, live, applied):
        case "map":
            before: Json = live if is_map(live) else {}
            after: Json = applied if is_map(applied) else {}
            return {
                name: _merge(shape.child(name), before.get(name, _ABSENT), after.get(name, _ABSENT))
                for name in {**before, **after}
            }
        case "list":
            return _merge_lists(shape, live if is_list(live) else [], applied if is_list(applied) else [])
        case _:
            _check_different(shape, applied)
            return applied


def _check_different(shape: Shape, value: Any) -> None:
    """Raise DuplicateError for a list with two items of the same keys, also inside an atomic value."""
    if is_map(value):
        for name, item in value.items():
            _check_different(shape.child(name), item)
    elif is_list(value):
        if shape.is_granular_list and _is_granular(shape, value):
            _refuse_twins([str(paths.element_of(shape, item)) for item in value])
        for item in value:
            _check_different(shape.item or ANY, item)


def _refuse_twins(elements: list[str]) -> None:
    if len(set(elements)) != len(elements):
        twice = next(each for index, each in enumerate(elements) if each in elements[:index])
        raise DuplicateError(f"duplicate entries for key {paths.show((twice,))}")


def _merge_lists(shape: Shape, live: list[Any], applied: list[Any]) -> list[Any]:
    """Return the applied items in their order. The other items keep their relative places among them."""
    item = shape.item or ANY
    lefts = [str(paths.element_of(shape, each)) for each in live]
    rights = [str(paths.element_of(shape, each)) for each in applied]
    _refuse_twins(rights)
    before, after = _by_element(shape, live), dict(zip(rights, applied, strict=True))
    shared = [each for each in rights if each in before]
    merged: list[Any] = []
    done = set[str]()
    left = right = 0
    while left < len(lefts) or right < len(rights):
        if left < len(lefts) and right < len(rights):
            if lefts[left] == rights[right]:
                merged.append(_merge(item, before[lefts[left]], after[lefts[left]]))
                done.add(lefts[left])
                left, right, shared = left + 1, right + 1, shared[1:]
                continue
            if lefts[left] in after and shared and shared[0] != lefts[left]:
                left += 1
                continue
        if left < len(lefts):
            if lefts[left] not in after:
                merged.append(live[left])
                left += 1
                continue
            if lefts[left] in done:
                left += 1
        if right < len(rights):
            element = rights[right]
            merged.append(_merge(item, before.get(element, _ABSENT), after[element]))
            done.add(element)
            right += 1
            if shared and shared[0] == element:
                shared = shared[1:]
    return merged
