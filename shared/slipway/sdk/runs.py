"""The properties of a run, shared by both clients. Pure: they read the view that was received last.

A notebook shows runs as HTML tables, in which every text is escaped.
"""

import html
from collections.abc import Sequence
from typing import Any, cast

from slipway.api.schemas import AllocationView
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.model.state_words import word_for

Json = dict[str, Any]

ROWS_MAX = 25
_CELL = 'style="text-align:left"'


def state_of(view: AllocationView) -> str:
    """Return the phase, or the result after the end. Held, Ready and Waiting replace the phase where they apply."""
    return word_for(view.phase, view.result, hold=view.hold, ready=view.ready, waiting=view.waiting)


def ranks_of(view: AllocationView) -> str:
    """Return `running/all` until the allocation ends, then `all`."""
    roles, ranks = cast("list[Json]", view.spec.get("ranks") or []), cast("list[Json]", view.status.get("ranks") or [])
    count = sum(int(role.get("count", 1)) for role in roles) or 1
    if view.phase is Phase.TERMINATED:
        return str(count)
    running = sum(rank.get("phase") == "Running" for rank in ranks)
    return f"{running}/{count}"


def allocations_table(views: Sequence[AllocationView], *, has_more: bool = False) -> str:
    """Return a table with one row per view; with `has_more` a line below says that there are more."""
    names = ("id", "kind", "state", "ranks", "queue", "user", "created", "message")
    rows = [
        (
            view.id,
            view.kind.value,
            state_of(view),
            ranks_of(view),
            view.queue,
            view.user,
            view.created_at,
            view.message or view.reason,
        )
        for view in views[:ROWS_MAX]
    ]
    more = "<p>… and more</p>" if has_more or len(views) > ROWS_MAX else ""
    return html_table(names, rows) + more


def html_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table of these texts."""
    head = "".join(f"<th {_CELL}>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td {_CELL}>{html.escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class RunState:
    """One allocation, as the client received it last (`view`)."""

    def __init__(self, view: AllocationView) -> None:
        self.view = view

    @property
    def id(self) -> str:
        """The id of the allocation (AllocationID)."""
        return self.view.id

    @property
    def phase(self) -> Phase:
        """The phase in the last view."""
        return self.view.phase

    @property
    def result(self) -> Result | None:
        """The result of the allocation; None until it has ended."""
        return self.view.result

    @property
    def has_ended(self) -> bool:
        """Whether the allocation has ended, which is final."""
        return self.view.phase is Phase.TERMINATED

    @property
    def has_succeeded(self) -> bool:
        """Whether the allocation ended with success."""
        return self.view.result is Result.SUCCEEDED

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {state_of(self.view)}, ranks {ranks_of(self.view)}>"

    def _repr_html_(self) -> str:
        return allocations_table([self.view])
