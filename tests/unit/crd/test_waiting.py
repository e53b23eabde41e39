"""Since when an attempt waits: a held attempt does not wait; its wait begins again when it is resumed."""

from slipway.crd.transitions import HELD, is_hold_recorded, waiting_since
from slipway.facts.custom_resources import deadlines_of
from slipway.model.lifecycle import Event
from slipway.model.reasons import Reason, Result
from tests.support.builders import T0, AllocationStory, an_allocation
from tests.support.reductions import ending, once


def waits(**spec: object) -> AllocationStory:
    return an_allocation(pendingTimeout="10m", **spec)  # pyright: ignore[reportArgumentType] - a body


def test_it_counts_from_the_request_or_the_restart() -> None:
    """The wait counts from the request or the restart: each attempt has the whole pending timeout, and other events do
    not change it."""
    story = waits()
    assert deadlines_of(story.it) == {"pending": T0 + 600}
    assert deadlines_of(story.recorded(Event.UPDATED, at_s=50).it) == {"pending": T0 + 600}
    again = story.assigned().recorded(Event.RESTARTED, at_s=70)
    assert deadlines_of(again.it)["pending"] == T0 + 670
    assert waiting_since(story.assigned().it) is None


def test_what_is_held_has_all_the_time() -> None:
    """A held attempt has no deadline. The ring records the hold and the resume, because the object does not contain the
    time of the resume."""
    held = waits(hold=True)
    assert deadlines_of(held.it) == {}
    told = AllocationStory(once(held.it, now=T0 + 5).allocation)
    assert (told.it.status.transitions[-1].data, is_hold_recorded(told.it)) == ({HELD: True}, True)
    assert not once(told.it, now=T0 + 6).changed
    resumed = told.with_spec(hold=False)
    assert deadlines_of(resumed.it) == {}
    noted = once(resumed.it, now=T0 + 5000).allocation
    assert deadlines_of(noted) == {"pending": T0 + 5600}
    assert not once(noted, now=T0 + 5001).changed


def test_without_a_pending_timeout_no_deadline_is_shown() -> None:
    """Without a pending timeout a hold is not recorded, because the write would have no use."""
    assert not once(an_allocation(hold=True).it).changed


def test_a_pause_does_not_use_up_its_time() -> None:
    """The attempt that waits to be resumed is not timed out."""
    paused = waits(hold=True).assigned().recorded(Event.RESTARTED, at_s=100)
    assert not is_hold_recorded(paused.it)
    told = once(paused.it, now=T0 + 101).allocation
    assert (is_hold_recorded(told), deadlines_of(told)) == (True, {})
    late = AllocationStory(told).with_spec(hold=False).stopped("PendingTimeout", at_s=5000)
    assert ending(once(late.it).allocation)[1:] == (Result.TIMED_OUT, Reason.PENDING_TIMEOUT)
