"""What a launch consists of: defaults of the workspace, templates, and the request, laid over each other. Pure.

Owns the rules of the merge, and the note of which layer each value comes from. The defaults of pool and kind lie under
all of this; they are `slipway.crd.resolve`'s, which hand-applied objects go through as well.

The rules: objects are merged key by key, to any depth; everything else (a list too) replaces what is below; null takes
away what is below.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from slipway.api.strict import summary
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
    sources: Sources = {}
    for layer in layers:
        body = _laid(body, layer.body, "", layer.source, sources)
    return body, sources


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """`over` laid over `under`."""
    return stacked([Layer(source="", body=under), Layer(source="", body=over)])[0]


def blamed(error: InvalidError, sources: Sources, what: str) -> InvalidError:
    """The error, saying of each field that is not the client's own who said it."""
    fields: list[FieldError] = []
    for field in error.fields:
        source = _source_of(field.pointer, sources)
        is_own = source in ("", REQUEST)
        fields.append(field if is_own else FieldError(field.pointer, f"{field.detail} (it comes from {source})"))
    return InvalidError(summary(what, tuple(fields)), fields=tuple(fields))


def with_defaults(sources: Sources, spec: AllocationSpec, pool: ResourcePool) -> Sources:
    """The sources, and of what no layer says, whether the pool or the kind gives it."""
    given = pool.spec.defaults.get(spec.kind)
    complete = dict(sources)
    for field in _KIND_FIELDS:
        at = "/ports" if field == "port" else f"/{field}"
        if not any(known == at or known.startswith(f"{at}/") for known in sources):
            value = getattr(given, field) if given is not None else None
            complete[at] = f"pool {pool.metadata.name}" if value else f"kind {spec.kind}"
    return dict(sorted(complete.items()))


def _laid(under: Mapping[str, Any], over: Mapping[str, Any], at: str, source: str, sources: Sources) -> Json:
    result: Json = dict(under)
    for name, value in over.items():
        here = at + pointer(name)
        below = result.get(name)
        if value is None:
            result.pop(name, None)
            _forget(here, sources)
        elif isinstance(value, Mapping):
            # What lies above nothing is laid over nothing, so that its nulls take away there too.
            is_map = isinstance(below, Mapping)
            if not is_map:
                _forget(here, sources)
            base: Mapping[str, Any] = cast("Mapping[str, Any]", below) if is_map else {}
            result[name] = _laid(base, cast("Mapping[str, Any]", value), here, source, sources)
            if not value:
                sources.setdefault(here, source)
        else:
            _forget(here, sources)
            result[name] = value
            sources[here] = source
    return result


def _forget(at: str, sources: Sources) -> None:
    for known in [known for known in sources if known == at or known.startswith(f"{at}/")]:
        del sources[known]


def _source_of(at: str, sources: Sources) -> str:
    """Who said the value at `at`, the one above it, or (when all below it agree) the ones below."""
    step = at
    while step:
        if step in sources:
            return sources[step]
        step = step.rpartition("/")[0]
    below = {source for known, source in sources.items() if known.startswith(f"{at}/")}
    return below.pop() if len(below) == 1 else ""
