"""A trace as text: one bar per span, children under their parents, on one time axis. Pure.

A span whose parent is missing (another process has not sent it, or it was cut) is shown at the top level.
"""

from typing import Any, NamedTuple, cast

from slipway.cli.table import cut, filled, one_line, width_of
from slipway.model.times import format_duration

Json = dict[str, Any]
BAR_MIN = 16
NAME_MAX = 34
SERVICE_MAX = 10


class WorkSpan(NamedTuple):
    """One span of work; times are in nanoseconds."""

    id: str
    parent: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    is_ok: bool


def spans_of(body: Any) -> list[WorkSpan]:
    """Return the spans in an answer of the API."""
    whole = cast("Json", body)
    items = cast("list[Json]", whole.get("spans") or whole.get("items") or [])
    return [_span(item) for item in items]


def _span(item: Json) -> WorkSpan:
    def value(*names: str) -> Any:
        return next((item[name] for name in names if name in item), "")

    return WorkSpan(
        id=str(value("span_id", "spanId")),
        parent=str(value("parentSpanId", "parent_id")),
        name=one_line(str(value("name"))),
        service=one_line(str(value("service"))),
        start_ns=int(value("start_ns", "startNs")),
        end_ns=int(value("end_ns", "endNs")),
        is_ok=bool(item.get("ok", True)),
    )


def render(spans: list[WorkSpan], *, width: int = 80) -> str:
    """Return the waterfall; empty when there are no spans."""
    if not spans:
        return ""
    begin = min(span.start_ns for span in spans)
    whole = max(1, max(span.end_ns for span in spans) - begin)
    rows = in_order(spans)
    names = [("  " * depth + span.name) for depth, span in rows]
    name_width = min(NAME_MAX, max(width_of(name) for name in names))
    service_width = min(SERVICE_MAX, max(width_of(span.service) for _, span in rows))
    bar_width = max(BAR_MIN, width - name_width - service_width - 22)
    lines: list[str] = []
    for (_, span), name in zip(rows, names, strict=True):
        at = _spell(span.start_ns - begin)
        took = _spell(span.end_ns - span.start_ns)
        mark = "" if span.is_ok else " !"
        shown = filled(cut(name, name_width), name_width)
        service = filled(cut(span.service, service_width), service_width)
        bar = _bar(span, begin, whole, bar_width)
        lines.append(f"{service} {shown} {at:>7} {took:>7} |{bar}|{mark}")
    lines.append(f"{len(spans)} spans, {_spell(whole)} from the first to the last")
    return "\n".join(lines)


def in_order(spans: list[WorkSpan]) -> list[tuple[int, WorkSpan]]:
    """Return (depth, span): each span followed by its children, the earliest first."""
    known = {span.id for span in spans}
    ordered = sorted(spans, key=lambda each: (each.start_ns, -each.end_ns, each.id))
    children: dict[str, list[WorkSpan]] = {}
    for span in ordered:
        is_child = span.parent in known and span.parent != span.id
        children.setdefault(span.parent if is_child else "", []).append(span)
    found: list[tuple[int, WorkSpan]] = []
    # What has no way to a top span is in a ring of parents, or below one: the first of these starts a tree too.
    shown: set[int] = set()
    for top in [*children.get("", []), *ordered]:
        stack = [(0, top)]
        while stack:
            depth, span = stack.pop()
            if id(span) in shown:
                continue
            shown.add(id(span))
            found.append((depth, span))
            if span.id:
                stack += [(depth + 1, child) for child in reversed(children.get(span.id, []))]
    return found


def _bar(span: WorkSpan, begin: int, whole: int, width: int) -> str:
    first = min(width - 1, (span.start_ns - begin) * width // whole)
    last = max(first + 1, min(width, -(-(span.end_ns - begin) * width // whole)))
    return " " * first + "█" * (last - first) + " " * (width - last)


def _spell(nanoseconds: int) -> str:
    milliseconds = nanoseconds / 1e6
    return f"{milliseconds:.1f}ms" if milliseconds < 100 else format_duration(milliseconds / 1000)
