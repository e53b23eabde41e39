"""The what-if copy that a plan is made on: usage that may be taken and given back, and its feasibility rows.

Invariant: whoever takes for something that is then not admitted gives all of it back.
"""

from slipway.model.facts import RoleFact
from slipway.model.resources import GPU_NAMES
from slipway.scheduler.plan.ask import Ask, ask_key, compile_ask
from slipway.scheduler.plan.policy import Policy
from slipway.scheduler.plan.rows import Row
from slipway.scheduler.plan.usage import Usage


class WhatIf:
    """A private copy of a usage, with one row per distinct ask."""

    def __init__(self, usage: Usage, policy: Policy) -> None:
        self.usage = usage.copy()
        self.table = usage.table
        self.policy = policy
        self._rows: dict[bytes, Row] = {}
        self._keys: dict[tuple[int, tuple[str, ...]], tuple[RoleFact, bytes]] = {}

    def key_of(self, role: RoleFact, avoid: tuple[str, ...] = ()) -> bytes:
        """The ask key of `role`, computed once per role object (which is kept alive, so its identity is its own)."""
        known = self._keys.get((id(role), avoid))
        if known is None:
            known = (role, ask_key(role, avoid))
            self._keys[id(role), avoid] = known
        return known[1]

    def row(self, role: RoleFact, avoid: tuple[str, ...] = ()) -> Row:
        """The row of `role`, shared by all that ask the same."""
        key = self.key_of(role, avoid)
        row = self._rows.get(key)
        if row is None:
            ask = compile_ask(role, self.table, tolerations=self.policy.tolerations, avoid=avoid)
            row = Row(ask, self.usage, self.weights(ask))
            self._rows[key] = row
        return row

    def weights(self, ask: Ask) -> dict[str, int]:
        """The scores that weigh nodes for `ask`."""
        is_gpu = any(ask.requests.get(name) for name in GPU_NAMES)
        return self.policy.pack if is_gpu else self.policy.spread

    def take(self, row: Row, nodes: list[int]) -> None:
        """One rank of the row's ask on each of `nodes`, which the row has just been asked for."""
        self.usage.take(row.ask, nodes)
        row.took(nodes)

    def give(self, row: Row, nodes: list[int]) -> None:
        """Undo `take`."""
        self.usage.take(row.ask, nodes, -1)
