"""How long an allocation spent in each phase, computed from its transitions. Pure."""

from collections.abc import Sequence

from slipway.api.schemas import Span, TimelineView
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time, seconds_between


def timeline(allocation_id: AllocationId, events: Sequence[AllocationEvent], now: float) -> TimelineView:
    """Return one span for each period of the same phase and attempt; the last one is open until `terminated`."""
    spans: list[Span] = []
    for index, event in enumerate(events):
        if index and (events[index - 1].phase, events[index - 1].attempt) == (event.phase, event.attempt):
            continue
        if event.phase is Phase.TERMINATED:
            break
        end = next((later.time for later in events[index + 1 :] if _differs(later, event)), None)
        seconds = max(0.0, seconds_between(event.time, end or format_time(now)))
        spans.append(
            Span(
                phase=event.phase,
                attempt=event.attempt,
                from_=event.time,
                to=end,
                seconds=round(seconds, 3),
                reason=event.reason,
            )
        )
    by_phase: dict[str, float] = {}
    for span in spans:
        by_phase[span.phase.value] = round(by_phase.get(span.phase.value, 0.0) + span.seconds, 3)
    return TimelineView(
        id=allocation_id,
        spans=spans,
        seconds_by_phase=by_phase,
        total_seconds=round(sum(span.seconds for span in spans), 3),
    )


def _differs(later: AllocationEvent, event: AllocationEvent) -> bool:
    return (later.phase, later.attempt) != (event.phase, event.attempt)
