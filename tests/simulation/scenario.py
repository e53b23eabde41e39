"""What a scenario is: a story on a cluster, and how it has to end whatever goes wrong meanwhile."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from tests.support.world import Setup, World

Story = Callable[[World], Awaitable[None]]
RUNS_S = 1.0


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How one allocation ends. None: it may be anything. `phase` for those that live on; `is_gone` when deleted."""

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
    """All that it needs runs."""
    return found.status.phase is Phase.RUNNING


def has_begun(found: Allocation) -> bool:
    """It runs, or is over already: whoever looks seldom never sees what is short as running."""
    return is_running(found) or has_ended(found)


def has_ended(found: Allocation) -> bool:
    """It is over."""
    return found.status.phase is Phase.TERMINATED


def ended(result: Result, attempt: int | None = 1) -> Ending:
    """It ended so, in that attempt."""
    return Ending(result=result, attempt=attempt)


DONE = {"job": ended(Result.SUCCEEDED)}
AGAIN = {"job": ended(Result.SUCCEEDED, 2)}
STOPPED = {"job": ended(Result.CANCELED)}
GONE = {"job": Ending(is_gone=True)}
