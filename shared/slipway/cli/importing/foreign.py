"""A document of another system: its fields with their paths, and the verdict on each field.

Owns the four verdicts on a field, the path shown to the user, and the search for fields without a verdict. Knows no
system by name. A converter reads a field and then gives its verdict (`carried`, `changed`, `lost`, `unneeded`). A
verdict on an object applies to all parts without a verdict of their own. Fields without any verdict were not understood
and are reported as lost: nothing is dropped silently.
"""

import enum
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

import msgspec

from slipway.errors import FieldError, InvalidError

Steps = tuple[str | int, ...]
Json = dict[str, Any]
_PLAIN = re.compile(r"[A-Za-z_][-A-Za-z0-9_]*")
_WHOLE_MAX = 2**31 - 1
_SHOWN_MAX = 60
"""The most characters of a value that an error shows."""


class Verdict(enum.StrEnum):
    """The verdict on a field of the document."""

    CARRIED = "carried"
    """the field has the same meaning here"""
    CHANGED = "changed"
    """the field exists here, with another meaning"""
    LOST = "lost"
    """the field is not carried over"""
    UNNEEDED = "unneeded"
    """the field is not needed here"""


class ImportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a report."""

    path: str
    """the path of the field in the file: `spec.tasks[0].name`"""
    verdict: Verdict
    does: str = ""
    """what the field does in the other system"""
    here: str = ""
    """the result here, or what the user should do here"""


class ForeignDocument:
    """One document, and the verdicts on its fields."""

    def __init__(self, value: Any) -> None:
        self.root = ForeignField(self, (), value)
        self._verdicts: dict[Steps, ImportEntry] = {}

    def note(self, steps: Steps, verdict: Verdict, does: str = "", here: str = "") -> None:
        """Record the verdict on the field at `steps`; a later verdict replaces an earlier one."""
        self._verdicts[steps] = ImportEntry(path=path_of(steps), verdict=verdict, does=does, here=here)

    def verdict(self, steps: Steps) -> Verdict | None:
        """Return the verdict on exactly that field; None when it has none."""
        entry = self._verdicts.get(steps)
        return None if entry is None else entry.verdict

    def entries(self) -> list[ImportEntry]:
        """Return all verdicts in the order of the document; verdicts on absent fields come last."""
        self._note_leftovers((), self.root.value)
        found = [self._verdicts[steps] for steps in _walk((), self.root.value) if steps in self._verdicts]
        return [*found, *(entry for entry in self._verdicts.values() if entry not in found)]

    def _note_leftovers(self, steps: Steps, value: Any) -> None:
        """Report the largest parts of the document that have no verdict."""
        if value is None or (steps and steps in self._verdicts):
            return
        if not steps or any(known[: len(steps)] == steps for known in self._verdicts):
            for step, child in _children(value):
                self._note_leftovers((*steps, step), child)
            return
        self.note(
            steps, Verdict.LOST, "a field that this import does not know", "check what it does, and do it by hand"
        )


class ForeignField:
    """A field of a document; an absent field has the value None. The readers raise InvalidError for a wrong type."""

    def __init__(self, document: ForeignDocument, steps: Steps, value: Any) -> None:
        self.document = document
        self.steps = steps
        self.value = value

    @property
    def path(self) -> str:
        """The path of the field, as people write it."""
        return path_of(self.steps)

    @property
    def is_set(self) -> bool:
        """Whether the document contains the field."""
        return self.value is not None

    @property
    def is_object(self) -> bool:
        """Whether the value is an object."""
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        """Whether the value is a list."""
        return isinstance(self.value, list)

    # --- reading --------------------------------------------------------------------------------------------------

    def get(self, *names: str) -> "ForeignField":
        """Return the field with that name; several names lead to nested fields."""
        found = self
        for name in names:
            found = ForeignField(self.document, (*found.steps, name), found.object().get(name))
        return found

    def object(self) -> Json:
        """Return the value as an object; empty when the field is absent."""
        if self.value is None:
            return {}
        if not self.is_object:
            self.refuse("must be an object (name: value)")
        return cast("Json", self.value)

    def filled(self) -> Json:
        """Return the value as an object; unlike `object`, refuse an absent one, such as an empty item of a list."""
        if self.value is None:
            self.refuse("must be an object (name: value), and is empty")
        return self.object()

    def fields(self) -> "dict[str, ForeignField]":
        """Return the fields of an object, by name."""
        return {name: ForeignField(self.document, (*self.steps, name), value) for name, value in self.object().items()}

    def items(self) -> "list[ForeignField]":
        """Return the items of a list; empty when the field is absent."""
        if self.value is None:
            return []
        if not self.is_list:
            self.refuse("must be a list")
        values = cast("list[Any]", self.value)
        return [ForeignField(self.document, (*self.steps, index), value) for index, value in enumerate(values)]

    def text(self, default: str = "") -> str:
        """Return the value as text; a number is converted to text."""
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            self.refuse("must be text")
        return str(self.value)

    def words(self) -> list[str]:
        """Return the value as a list of texts."""
        return [item.text() for item in self.items()]

    def whole(self, default: int = 0, *, least: int = 0, most: int = _WHOLE_MAX) -> int:
        """Return the value as a whole number from `least` to `most`."""
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse("must be a whole number")
        if not least <= self.value <= most:
            self.refuse(f"must be a whole number from {least} to {most}")
        return self.value

    def truth(self, *, default: bool = False) -> bool:
        """Return the value as true or false."""
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            self.refuse("must be true or false")
        return self.value

    def refuse(self, detail: str) -> NoReturn:
        """Raise InvalidError: the document cannot be converted because of this field."""
        shown = json.dumps(self.value, default=str, ensure_ascii=False)
        shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."
        text = detail if self.value is None else f"{detail}; it is {shown}"
        where = self.path or "the document"
        raise InvalidError(f"{where}: {text}", fields=(FieldError(where, text),))

    # --- verdicts -------------------------------------------------------------------------------------------------

    def carried(self, here: str = "") -> "ForeignField":
        """Record that the field has the same meaning here; `here` is its name here, when it differs."""
        return self._note(Verdict.CARRIED, "", here)

    def changed(self, does: str, here: str) -> "ForeignField":
        """Record that the field exists here, with another meaning."""
        return self._note(Verdict.CHANGED, does, here)

    def lost(self, does: str, here: str) -> "ForeignField":
        """Record that the field is not carried over."""
        return self._note(Verdict.LOST, does, here)

    def unneeded(self, here: str = "") -> "ForeignField":
        """Record that the field is not needed here."""
        return self._note(Verdict.UNNEEDED, "", here)

    def _note(self, verdict: Verdict, does: str, here: str) -> "ForeignField":
        if self.is_set:
            self.document.note(self.steps, verdict, does, here)
        return self


Lost = tuple[str, str]
"""(what a field does there, what to do here)"""


def lose(field: ForeignField, table: dict[str, Lost]) -> None:
    """Report the fields of an object that this system does not have."""
    for name, (does, here) in table.items():
        field.get(name).lost(does, here)


def each(field: ForeignField, names: tuple[str, ...], note: Callable[[ForeignField], object]) -> None:
    """Give the same verdict on several fields of an object."""
    for name in names:
        note(field.get(name))


def path_of(steps: Steps) -> str:
    """Format a path as people write it: `spec.tasks[0].labels["a.b/c"]`."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.startswith("#"):  # the step is an option of a batch script
            text += step
        elif _PLAIN.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    return text


def _children(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return list(cast("Json", value).items())
    return list(enumerate(cast("list[Any]", value))) if isinstance(value, list) else []


def _walk(steps: Steps, value: Any) -> Iterator[Steps]:
    yield steps
    for step, child in _children(value):
        yield from _walk((*steps, step), child)
