"""The dependencies that an allocation waits for, decided from the object alone."""

from typing import Any

import msgspec
import pytest

from slipway.crd.dependencies import is_met, unmet, waits_for
from slipway.crd.v1alpha1 import AFTER_MAX, DependencyRecord
from slipway.facts.custom_resources import allocation_fact, deadlines_of
from slipway.model.reasons import DependencyEnd, Result
from slipway.model.times import format_time
from tests.support.builders import T0, AllocationStory, an_allocation

FIRST, SECOND = "prep-0123abcd", "data-4567abcd"


def after(*names: str, when: str = "succeeded", **more: Any) -> AllocationStory:
    return an_allocation(after=[{"allocation": name, "when": when} for name in names], **more)


def ended(story: AllocationStory, name: str, result: Result | None, *, at_s: float = 10.0) -> AllocationStory:
    """The story with the recorded end of the dependency `name`."""
    record = DependencyRecord(allocation=name, id=name, result=result, recorded_at=format_time(T0 + at_s))
    return story.with_status(dependencies=[*story.it.status.dependencies, record])


@pytest.mark.parametrize("result", [*Result, None])
def test_how_it_has_to_end(result: Result | None) -> None:
    """The required end decides: `failed` means any other result than Succeeded. For a deleted dependency only its end
    is known."""
    assert is_met(DependencyEnd.ENDED, result)
    assert is_met(DependencyEnd.SUCCEEDED, result) == (result is Result.SUCCEEDED)
    assert is_met(DependencyEnd.FAILED, result) == (result not in (Result.SUCCEEDED, None))


def test_it_waits_for_each_until_its_end_is_recorded() -> None:
    """The allocation waits for each dependency until its end is recorded, whatever end is required."""
    story = after(FIRST, SECOND)
    assert waits_for(story.it) == ((FIRST, "succeeded"), (SECOND, "succeeded"))
    one = ended(story, FIRST, Result.FAILED)
    assert waits_for(one.it) == ((SECOND, "succeeded"),)
    assert waits_for(ended(one, SECOND, Result.SUCCEEDED).it) == ()
    assert waits_for(an_allocation().it) == ()


def test_a_record_without_an_end_only_says_which_it_is() -> None:
    """A record without an end only contains the id of a name."""
    known = DependencyRecord(allocation="prep", id=FIRST)
    assert waits_for(after("prep").with_status(dependencies=[known]).it) == (("prep", "succeeded"),)


def test_what_had_ended_at_the_launch_is_not_waited_for() -> None:
    """A dependency that had ended at the launch is not waited for: the API has recorded the end, and no lookup is
    needed."""
    story = an_allocation(after=[{"allocation": FIRST, "result": "Succeeded"}])
    assert (waits_for(story.it), unmet(story.it)) == ((), "")


@pytest.mark.parametrize(
    ("when", "result", "why"),
    [
        ("succeeded", Result.SUCCEEDED, ""),
        ("ended", Result.TIMED_OUT, ""),
        ("ended", None, ""),
        ("failed", Result.CANCELED, ""),
        ("succeeded", Result.FAILED, f"{FIRST} ended with Failed; this allocation starts only if it succeeded"),
        ("failed", Result.SUCCEEDED, f"{FIRST} ended with Succeeded; this allocation starts only if it failed"),
        (
            "succeeded",
            None,
            f"{FIRST} was deleted, and its result is not known; this allocation starts only if it succeeded",
        ),
    ],
)
def test_why_it_can_never_start(when: str, result: Result | None, why: str) -> None:
    """The reason why it can never start names the other allocation, its end, and the required end."""
    assert unmet(after(FIRST, when=when).it) == ""
    assert unmet(ended(after(FIRST, when=when), FIRST, result).it) == why


def test_the_time_to_start_begins_when_the_last_has_ended() -> None:
    """The pending timeout begins when the last dependency has ended, because a wait for others is no wait for
    capacity."""
    story = after(FIRST, SECOND, pendingTimeout="10m")
    assert deadlines_of(story.it) == {}
    one = ended(story, FIRST, Result.SUCCEEDED, at_s=50)
    assert deadlines_of(one.it) == {}
    assert deadlines_of(ended(one, SECOND, Result.SUCCEEDED, at_s=400).it) == {"pending": T0 + 1000}


def test_the_scheduler_sees_what_is_open() -> None:
    """The fact that a leader plans with is a function of the object, so every leader sees the same."""
    fact = allocation_fact(ended(after(FIRST, SECOND), FIRST, Result.SUCCEEDED).it, None)
    assert fact.waits_for == ((SECOND, "succeeded"),)


def test_so_many_dependencies_and_no_more() -> None:
    """The number of dependencies is bounded, so that the size of the object is bounded."""
    names = [f"p{number}-0123abcd" for number in range(AFTER_MAX + 1)]
    assert len(waits_for(after(*names[1:]).it)) == AFTER_MAX
    with pytest.raises(msgspec.ValidationError, match="after"):
        after(*names)
