"""Merges the layers of a launch: defaults of the workspace, templates, and the request. Pure.

Owns the rules of the merge, and the record of which layer each value comes from. The defaults of pool and kind lie
below all of these layers. `slipway.crd.resolve` adds them, because objects applied by hand need them as well.

The rules: objects are merged key by key, to any depth. Any other value (a list too) replaces the value of the layers
below. Null removes the value of the layers below. The program of a layer (`run`, or `command` and `args`) replaces that
of the layers below: their arguments are for their own command.

The time of a merge is proportional to the size of its layers.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from slipway.api.http.decoding import summary
from slipway.crd.fielderrors import pointer
from slipway.crd.v1alpha1 import AllocationSpec, ResourcePool
from slipway.errors import FieldError, InvalidError

Json = dict[str, Any]
Sources = dict[str, str]
"""{JSON pointer of a value: the layer that it comes from}"""

REQUEST = "request"
WORKSPACE = "workspace"
_PROGRAM = {"run": ("command", "args"), "command": ("run", "args")}
"""{field: the fields of lower layers that it replaces besides itself}"""
_KIND_FIELDS = ("image", "command", "args", "resources", "env", "port")


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A partial launch body and the name of its source."""

    source: str
    body: Mapping[str, Any]


def merge_layers(layers: Sequence[Layer]) -> tuple[Json, Sources]:
    """Merge the layers, lowest first; return the body, and the layer that each value comes from."""
    body: Json = {}
    origin = _Origin()
    for layer in layers:
        replaced = {name for field, others in _PROGRAM.items() if layer.body.get(field) for name in others}
        for name in replaced:
            body.pop(name, None)
            origin.below.pop(name, None)
        body = _laid(body, layer.body, layer.source, origin)
    return body, dict(origin.told())


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """Return `under` with `over` merged over it."""
    return merge_layers([Layer(source="", body=under), Layer(source="", body=over)])[0]


def with_sources(error: InvalidError, sources: Sources, what: str) -> InvalidError:
    """Return the error with the source added to each field that does not come from the request itself."""
    fields: list[FieldError] = []
    blame = _Blame(sources)
    for field in error.fields:
        source = blame.of(field.pointer)
        is_own = source in ("", REQUEST)
        fields.append(field if is_own else FieldError(field.pointer, f"{field.detail} (it comes from {source})"))
    return InvalidError(summary(what, tuple(fields)), fields=tuple(fields))


def with_defaults(sources: Sources, spec: AllocationSpec, pool: ResourcePool) -> Sources:
    """Return the sources, and for each field that no layer sets whether its default is from the pool or the kind."""
    given = pool.spec.defaults.get(spec.kind)
    complete = dict(sources)
    said = {known.split("/", 2)[1] for known in sources}
    for field in _KIND_FIELDS:
        at = "/ports" if field == "port" else f"/{field}"
        if at[1:] not in said:
            value = getattr(given, field) if given is not None else None
            complete[at] = f"pool {pool.metadata.name}" if value else f"kind {spec.kind}"
    return dict(sorted(complete.items()))


class _Origin:
    """The layer that a value comes from, and those of the values inside it."""

    __slots__ = ("below", "source")

    def __init__(self, source: str | None = None) -> None:
        self.source = source
        self.below: dict[str, _Origin] = {}

    def told(self, at: str = "") -> Iterator[tuple[str, str]]:
        """Yield (pointer, layer) of each value that a layer sets."""
        for name, origin in self.below.items():
            here = at + pointer(name)
            if origin.source is not None:
                yield here, origin.source
            yield from origin.told(here)


def _laid(under: Mapping[str, Any], over: Mapping[str, Any], source: str, origin: _Origin) -> Json:
    result: Json = dict(under)
    for name, value in over.items():
        below = result.get(name)
        if value is None:
            result.pop(name, None)
            origin.below.pop(name, None)
        elif isinstance(value, Mapping):
            # Without an object below, the value is merged over an empty one, so that nulls inside it are removed too.
            is_map = isinstance(below, Mapping)
            if not is_map:
                origin.below.pop(name, None)
            base: Mapping[str, Any] = cast("Mapping[str, Any]", below) if is_map else {}
            own = origin.below.setdefault(name, _Origin())
            result[name] = _laid(base, cast("Mapping[str, Any]", value), source, own)
            if not value and own.source is None:
                own.source = source
        else:
            origin.below[name] = _Origin(source)
            result[name] = value
    return result


class _Blame:
    """Finds the source of the value at a pointer, of the nearest value around it, or of the values inside it.

    Values inside it name a source only when all of them come from the same one.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._sorted = sorted(sources)

    def of(self, at: str) -> str:
        step = at
        while step:
            if step in self._sources:
                return self._sources[step]
            step = step.rpartition("/")[0]
        first = bisect_left(self._sorted, f"{at}/")
        last = bisect_left(self._sorted, f"{at}0", lo=first)  # "0" comes next after "/"
        below = {self._sources[known] for known in self._sorted[first:last]}
        return below.pop() if len(below) == 1 else ""
