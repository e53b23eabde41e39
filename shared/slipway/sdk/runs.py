"""What a run is known by, the same for both clients. Pure: it reads the view that was seen last."""

from slipway.api.schemas import AllocationView
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.sdk import tables


class RunState:
    """One allocation, as it was seen last (`view`)."""

    def __init__(self, view: AllocationView) -> None:
        self.view = view

    @property
    def id(self) -> str:
        """The AllocationID."""
        return self.view.id

    @property
    def phase(self) -> Phase:
        """Where it stood."""
        return self.view.phase

    @property
    def result(self) -> Result | None:
        """How it ended; None while it has not."""
        return self.view.result

    @property
    def has_ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.view.phase is Phase.TERMINATED

    @property
    def has_succeeded(self) -> bool:
        """Whether it ended well."""
        return self.view.result is Result.SUCCEEDED

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {tables.state_of(self.view)}, ranks {tables.ranks_of(self.view)}>"

    def _repr_html_(self) -> str:
        return tables.allocations_table([self.view])
