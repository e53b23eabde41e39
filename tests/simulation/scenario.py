"""A scenario: a story on a cluster, and how it must end whatever faults strike."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from tests.support.world import Setup, World

Story = Callable[[World], Awaitable[None]]
RUNS_S = 1.0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How one allocation ends. None: any value. `phase` for an allocation that lives on; `is_gone` when deleted."""

    result: Result | None = None
    phase: Phase = Phase.TERMINATED
    attempt: int | None = None
    is_gone: bool = False


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One story on one cluster."""

    name: str
    story: Story
    ends: Mapping[str, Ending]
    setup: Setup = Setup()


def is_running(found: Allocation) -> bool:
    """Whether it runs with all that it needs."""
    return found.status.phase is Phase.RUNNING


def has_begun(found: Allocation) -> bool:
    """Whether it runs or has ended: a rare reader never sees a short allocation as running."""
    return is_running(found) or has_ended(found)


def has_ended(found: Allocation) -> bool:
    """Whether it has ended."""
    return found.status.phase is Phase.TERMINATED


def ended(result: Result, attempt: int | None = 1) -> Ending:
    """The ending with that result, in that attempt."""
    return Ending(result=result, attempt=attempt)


DONE = {"job": ended(Result.SUCCEEDED)}
AGAIN = {"job": ended(Result.SUCCEEDED, 2)}
STOPPED = {"job": ended(Result.CANCELED)}
GONE = {"job": Ending(is_gone=True)}
