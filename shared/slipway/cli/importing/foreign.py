"""A document of another system: its fields with their paths, and what became of each.

Owns the four verdicts on a field, the path that people read, and the search for fields without a verdict. Knows no
system by name. A converter reads a field, and then says what became of it (`carried`, `changed`, `lost`, `unneeded`);
a verdict on an object holds for all that is in it and has no verdict of its own. What is left over was not understood,
and is reported as lost: nothing is dropped silently.
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
"""Characters of a value that an error shows."""


class Verdict(enum.StrEnum):
    """What became of a field."""

    CARRIED = "carried"
    """it means the same here"""
    CHANGED = "changed"
    """it is here, and means something else"""
    LOST = "lost"
    """it is not here"""
    UNNEEDED = "unneeded"
    """nothing of it is needed here"""


class ImportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a report."""

    path: str
    """of the field in the file: `spec.tasks[0].name`"""
    verdict: Verdict
    does: str = ""
    """what the field does in the other system"""
    here: str = ""
    """what it is here, or what to do here"""


class ForeignDocument:
    """One document, and the verdicts on its fields."""

    def __init__(self, value: Any) -> None:
        self.root = ForeignField(self, (), value)
        self._verdicts: dict[Steps, ImportEntry] = {}

    def note(self, steps: Steps, verdict: Verdict, does: str = "", here: str = "") -> None:
        """The verdict on the field at `steps`; a later one takes the place of an earlier one."""
        self._verdicts[steps] = ImportEntry(path=path_of(steps), verdict=verdict, does=does, here=here)

    def verdict(self, steps: Steps) -> Verdict | None:
        """The verdict on exactly that field."""
        entry = self._verdicts.get(steps)
        return None if entry is None else entry.verdict

    def entries(self) -> list[ImportEntry]:
        """All verdicts, in the order of the document; those on fields that are absent come last."""
        self._note_leftovers((), self.root.value)
        found = [self._verdicts[steps] for steps in _walk((), self.root.value) if steps in self._verdicts]
        return [*found, *(entry for entry in self._verdicts.values() if entry not in found)]

    def _note_leftovers(self, steps: Steps, value: Any) -> None:
        """Reports the largest parts of the document on which no verdict was given."""
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
    """A field of a document; absent when its value is None. What has the wrong type raises InvalidError."""

    def __init__(self, document: ForeignDocument, steps: Steps, value: Any) -> None:
        self.document = document
        self.steps = steps
        self.value = value

    @property
    def path(self) -> str:
        """As people write it."""
        return path_of(self.steps)

    @property
    def is_set(self) -> bool:
        """Whether the document says it."""
        return self.value is not None

    @property
    def is_object(self) -> bool:
        """Whether it is an object."""
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self.value, list)

    # --- reading --------------------------------------------------------------------------------------------------

    def get(self, *names: str) -> "ForeignField":
        """The field of that name; several names lead deeper."""
        found = self
        for name in names:
            found = ForeignField(self.document, (*found.steps, name), found.object().get(name))
        return found

    def object(self) -> Json:
        """Its value as an object; empty when absent."""
        if self.value is None:
            return {}
        if not self.is_object:
            self.refuse("must be an object (name: value)")
        return cast("Json", self.value)

    def filled(self) -> Json:
        """Its value as an object that is there, such as an item of a list must be."""
        if self.value is None:
            self.refuse("must be an object (name: value), and is empty")
        return self.object()

    def fields(self) -> "dict[str, ForeignField]":
        """The fields of an object, by name."""
        return {name: ForeignField(self.document, (*self.steps, name), value) for name, value in self.object().items()}

    def items(self) -> "list[ForeignField]":
        """The items of a list; empty when absent."""
        if self.value is None:
            return []
        if not self.is_list:
            self.refuse("must be a list")
        values = cast("list[Any]", self.value)
        return [ForeignField(self.document, (*self.steps, index), value) for index, value in enumerate(values)]

    def text(self, default: str = "") -> str:
        """Its value as text; a number is the text of it."""
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, str | int | float):
            self.refuse("must be text")
        return str(self.value)

    def words(self) -> list[str]:
        """Its value as a list of texts."""
        return [item.text() for item in self.items()]

    def whole(self, default: int = 0, *, least: int = 0, most: int = _WHOLE_MAX) -> int:
        """Its value as a whole number from `least` to `most`."""
        if self.value is None:
            return default
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse("must be a whole number")
        if not least <= self.value <= most:
            self.refuse(f"must be a whole number from {least} to {most}")
        return self.value

    def truth(self, *, default: bool = False) -> bool:
        """Its value as true or false."""
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            self.refuse("must be true or false")
        return self.value

    def refuse(self, detail: str) -> NoReturn:
        """Raises InvalidError: the document cannot be converted, because of this field."""
        shown = json.dumps(self.value, default=str, ensure_ascii=False)
        shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."
        text = detail if self.value is None else f"{detail}; it is {shown}"
        where = self.path or "the document"
        raise InvalidError(f"{where}: {text}", fields=(FieldError(where, text),))

    # --- verdicts -------------------------------------------------------------------------------------------------

    def carried(self, here: str = "") -> "ForeignField":
        """It means the same here; `here` names it, if it has another name."""
        return self._note(Verdict.CARRIED, "", here)

    def changed(self, does: str, here: str) -> "ForeignField":
        """It is here, and means something else."""
        return self._note(Verdict.CHANGED, does, here)

    def lost(self, does: str, here: str) -> "ForeignField":
        """It is not here."""
        return self._note(Verdict.LOST, does, here)

    def unneeded(self, here: str = "") -> "ForeignField":
        """Nothing of it is needed here."""
        return self._note(Verdict.UNNEEDED, "", here)

    def _note(self, verdict: Verdict, does: str, here: str) -> "ForeignField":
        if self.is_set:
            self.document.note(self.steps, verdict, does, here)
        return self


Lost = tuple[str, str]
"""(what a field does there, what to do here)"""


def lose(field: ForeignField, table: dict[str, Lost]) -> None:
    """Reports the fields of an object that this system has no place for."""
    for name, (does, here) in table.items():
        field.get(name).lost(does, here)


def each(field: ForeignField, names: tuple[str, ...], note: Callable[[ForeignField], object]) -> None:
    """Gives the same verdict on several fields of an object."""
    for name in names:
        note(field.get(name))


def path_of(steps: Steps) -> str:
    """A path as people write it: `spec.tasks[0].labels["a.b/c"]`."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.startswith("#"):  # an option of a batch script
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
