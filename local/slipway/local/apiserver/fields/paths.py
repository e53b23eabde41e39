"""Sets of fields of an object, and their FieldsV1 form.

Owns the operations on sets, and the name of a list element in a path. Of a shape this module knows only which lists
have keys. Invariants: a shared set is never changed, because all operations except `insert` return new sets; an element
is named by its FieldsV1 text (`f:name`, `k:{"name":"a"}`, `v:"a"`), so equal elements have equal names; a set stores no
empty branch.

Source: sigs.k8s.io/structured-merge-diff, fieldpath (behaviour).
"""

from typing import Any

import msgspec

from slipway.local.apiserver.fields.shapes import Shape
from slipway.local.apiserver.objects import Json, is_map

Path = tuple[str, ...]
_NOTHING: Json = {}
_encode = msgspec.json.Encoder(order="sorted").encode


class FieldSet:
    """A tree: `members` are the elements in the set at this level, `children` the branches below."""

    __slots__ = ("children", "members")

    def __init__(self, members: set[str] | None = None, children: "dict[str, FieldSet] | None" = None) -> None:
        # `set[str]()` is several times slower than `set()`, and this module creates many sets.
        self.members: set[str] = members if members is not None else set()
        self.children: dict[str, FieldSet] = children if children is not None else {}

    def __bool__(self) -> bool:
        return bool(self.members or self.children)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FieldSet) and (self.members, self.children) == (other.members, other.children)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def insert(self, path: Path) -> None:
        """Add one path; an empty path is ignored."""
        if not path:
            return
        node = self
        for element in path[:-1]:
            child = node.children.get(element)
            if child is None:
                child = node.children[element] = FieldSet()
            node = child
        node.members.add(path[-1])

    def below(self, element: str) -> "FieldSet":
        return self.children.get(element) or EMPTY

    def union(self, other: "FieldSet") -> "FieldSet":
        if not other or not self:
            return self or other
        children = dict(self.children)
        for name, child in other.children.items():
            children[name] = children[name].union(child) if name in children else child
        return FieldSet(self.members | other.members, children)

    def intersection(self, other: "FieldSet") -> "FieldSet":
        if not other.children:
            common = self.members & other.members
            return FieldSet(common) if common else EMPTY
        met = other.children
        found = {name: child.intersection(met[name]) for name, child in self.children.items() if name in met}
        return FieldSet(self.members & other.members, _kept(found))

    def difference(self, other: "FieldSet") -> "FieldSet":
        """Return the set without the members of `other`, but with the branches below them.

        Returns the same object if nothing changes.
        """
        if not other or not self:
            return self
        met = self.children.keys() & other.children.keys()
        changed = {
            name: left
            for name in met
            if (left := self.children[name].difference(other.children[name])) is not self.children[name]
        }
        if not changed and self.members.isdisjoint(other.members):
            return self
        return FieldSet(self.members - other.members, _kept(self.children | changed))

    def without(self, other: "FieldSet") -> "FieldSet":
        """Return the set without the members of `other` and all branches below them."""
        children = {name: child for name, child in self.children.items() if name not in other.members}
        found = {name: child.without(other.below(name)) for name, child in children.items()}
        return FieldSet(self.members - other.members, _kept(found))

    def with_named(self, shape: Shape) -> "FieldSet":
        """Return the set plus the struct fields on the way to a member, which are not members themselves."""
        members = set(self.members)
        children: dict[str, FieldSet] = {}
        for element, child in self.children.items():
            if element.startswith("f:") and element[2:] in shape.fields:
                members.add(element)
            children[element] = child.with_named(shape_below(shape, element))
        return FieldSet(members, children)

    def paths(self, start: Path = ()) -> list[Path]:
        """Return the path of every member; the members of a level precede the members below it."""
        found: list[Path] = [(*start, element) for element in sorted(self.members)]
        for element in sorted(self.children):
            found += self.children[element].paths((*start, element))
        return found

    def to_json(self) -> Json:
        """Return the set as FieldsV1, where `.` marks a member that has a branch below it."""
        if not self.children:
            return dict.fromkeys(sorted(self.members), _NOTHING)
        found: Json = {}
        for element in sorted({*self.members, *self.children}):
            child = self.children.get(element)
            below = child.to_json() if child is not None else _NOTHING
            found[element] = {".": _NOTHING, **below} if below and element in self.members else below
        return found


EMPTY = FieldSet()


def of_json(document: Json) -> FieldSet:
    """Return the set that a FieldsV1 document describes."""
    found = FieldSet()
    for element, below in document.items():
        if element == ".":
            continue
        inner: Json = below if is_map(below) else {}
        if not inner or "." in inner:
            found.members.add(element)
        child = of_json(inner)
        if child:
            found.children[element] = child
    return found


def field(name: str) -> str:
    return f"f:{name}"


def element_of(shape: Shape, item: Any) -> str | None:
    """Return the name of a list item in a path, or None when the item cannot be distinguished from others."""
    if not shape.keys:
        return None if item is None or isinstance(item, dict | list) else "v:" + _encode(item).decode()
    if not is_map(item):
        return None
    keys = {name: item.get(name, shape.key_defaults.get(name)) for name in shape.keys}
    present = {name: value for name, value in keys.items() if value is not None}
    return "k:" + _encode(present).decode() if present else None


def shape_below(shape: Shape, element: str) -> Shape:
    if element.startswith("f:"):
        return shape.child(element[2:])
    return shape.item or shape


def show(path: Path) -> str:
    """Return a path in readable form: `.spec.containers[name="main"].image`."""
    return "".join(_show(element) for element in path)


def _show(element: str) -> str:
    sort, _, rest = element.partition(":")
    match sort:
        case "f":
            return f".{rest}"
        case "k":
            keys: Json = msgspec.json.decode(rest)
            return "[" + ",".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in keys.items()) + "]"
        case "v":
            return f"[={rest}]"
        case _:
            return f"[{rest}]"


def _kept(children: dict[str, FieldSet]) -> dict[str, FieldSet]:
    return {name: child for name, child in children.items() if child}
