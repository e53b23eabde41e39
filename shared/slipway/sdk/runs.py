"""The properties of a run, shared by both clients. Pure: they read the view that was received last."""

from slipway.api.schemas import AllocationView
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.sdk import tables


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
        return f"<{type(self).__name__} {self.id}: {tables.state_of(self.view)}, ranks {tables.ranks_of(self.view)}>"

    def _repr_html_(self) -> str:
        return tables.allocations_table([self.view])
