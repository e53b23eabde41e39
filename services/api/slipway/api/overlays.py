"""What a launch consists of: defaults of the workspace, templates, and the request, laid over each other. Pure.

Owns the rules of the merge, and the note of which layer each value comes from. The defaults of pool and kind lie under
all of this; they are `slipway.crd.resolve`'s, which hand-applied objects go through as well.

Merging takes time in proportion to what is merged.

The rules: objects are merged key by key, to any depth; everything else (a list too) replaces what is below; null takes
away what is below.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from slipway.api.decoding import summary
from slipway.crd.fielderrors import pointer
from slipway.crd.v1alpha1 import AllocationSpec, ResourcePool
from slipway.errors import FieldError, InvalidError

Json = dict[str, Any]
Sources = dict[str, str]
"""{JSON pointer of a value: the layer that it comes from}"""

REQUEST = "request"
WORKSPACE = "workspace"
_KIND_FIELDS = ("image", "command", "args", "resources", "env", "port")


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a launch body, and who says it."""

    source: str
    body: Mapping[str, Any]


def stacked(layers: Sequence[Layer]) -> tuple[Json, Sources]:
    """The layers from the lowest to the highest as one body, and where each value is from."""
    body: Json = {}
    origin = _Origin()
    for layer in layers:
        body = _laid(body, layer.body, layer.source, origin)
    return body, dict(origin.told())


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """`over` laid over `under`."""
    return stacked([Layer(source="", body=under), Layer(source="", body=over)])[0]


def blamed(error: InvalidError, sources: Sources, what: str) -> InvalidError:
    """The error, saying of each field that is not the client's own who said it."""
    fields: list[FieldError] = []
    blame = _Blame(sources)
    for field in error.fields:
        source = blame.of(field.pointer)
        is_own = source in ("", REQUEST)
        fields.append(field if is_own else FieldError(field.pointer, f"{field.detail} (it comes from {source})"))
    return InvalidError(summary(what, tuple(fields)), fields=tuple(fields))


def with_defaults(sources: Sources, spec: AllocationSpec, pool: ResourcePool) -> Sources:
    """The sources, and of what no layer says, whether the pool or the kind gives it."""
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
    """Which layer a value is from, and the same of what is below it."""

    __slots__ = ("below", "source")

    def __init__(self, source: str | None = None) -> None:
        self.source = source
        self.below: dict[str, _Origin] = {}

    def told(self, at: str = "") -> Iterator[tuple[str, str]]:
        """(pointer, layer) of each value that a layer says."""
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
            # What lies above nothing is laid over nothing, so that its nulls take away there too.
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
    """Who said the value at a pointer, the one above it, or (when all below it agree) the ones below."""

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
