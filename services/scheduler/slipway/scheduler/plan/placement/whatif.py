"""The what-if copy on which a plan is made: a usage with taking and giving back, and its feasibility rows.

Invariant: a caller that takes places for work that is then not admitted gives all of them back.
"""

import msgspec

from slipway.model.facts import AllocationFact, RoleFact
from slipway.scheduler.plan.placement.extenders import PlanExtenders, large_enough
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.placement.policy import IMAGE_LOCALITY, PlacementPolicy
from slipway.scheduler.plan.placement.scores import scores_under
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.rank_request import (
    RankRequest,
    compile_request,
    image_key,
    label_key,
    request_key,
    requests_of,
)
from slipway.scheduler.plan.state.usage import NODES_MIN, NodeUsage, SampleCursor

PACKED = {"MostAllocated": 1}


class WhatIf:
    """A private copy of a usage, with one row per distinct request."""

    def __init__(self, usage: NodeUsage, policy: PlacementPolicy, plan_extenders: PlanExtenders | None = None) -> None:
        self.usage = usage.copy()
        self.table = usage.table
        self.policy = policy
        self.scores = scores_under(policy.args)
        self._counts_images = IMAGE_LOCALITY in policy.spread or IMAGE_LOCALITY in policy.pack
        self.usage.pod_index.spreads_all = policy.spreads_by_default
        self.usage.pod_index.is_watched |= policy.spreads_by_default
        self.plan_extenders = plan_extenders
        """the extenders of the plan; None when there are none"""
        self.owner: AllocationFact | None = None
        """the allocation whose ranks are being placed"""
        self.is_packing = False
        """whether new rows fill the fullest nodes first, whatever the policy's scores are"""
        self.confined: dict[bytes, Bools | None] = {}
        """{request key: the nodes that its ranks are confined to; None for all open nodes}, filled when asked for"""
        self._rows: dict[bytes, FeasibilityRow] = {}
        self._handed: dict[tuple[bytes, int], int] = {}
        self._keys: dict[tuple[int, tuple[str, ...]], tuple[RoleFact, bytes]] = {}

    def sample_from(self, seed: int) -> None:
        """Compare only a sample of the nodes from now on, if the pool uses sampling."""
        if self.policy.sampling and len(self.table) >= NODES_MIN:
            self.usage.sample = SampleCursor(len(self.table), seed)

    def key_of(self, role: RoleFact, avoid: tuple[str, ...] = ()) -> bytes:
        """Return the request key of `role`, computed once per role object.

        The cache keeps the object alive, so its id stays unique.
        """
        known = self._keys.get((id(role), avoid))
        if known is None:
            key = request_key(role, avoid)
            if self.usage.pod_index.is_watched:
                key += label_key(role)
            if self.table.has_images and self._counts_images:
                key += image_key(role)
            known = (role, key)
            self._keys[id(role), avoid] = known
        return known[1]

    def row(self, role: RoleFact, avoid: tuple[str, ...] = ()) -> FeasibilityRow:
        """Return the row of `role`, shared by all roles with the same request."""
        key = self.key_of(role, avoid)
        if self.is_packing:
            key += b" packed"
        row = self._rows.get(key)
        if row is None:
            asked = role if self.plan_extenders is None else self.plan_extenders.without_ignored(role)
            request = compile_request(asked, self.table, tolerations=self.policy.tolerations, avoid=avoid)
            row = FeasibilityRow(request, self.usage, self.weights(request), self.scores)
            if self.plan_extenders is not None:
                row = self._consulted(self.plan_extenders, role, row)
            self._rows[key] = row
        return row

    def _consulted(self, plan_extenders: PlanExtenders, role: RoleFact, row: FeasibilityRow) -> FeasibilityRow:
        """Return the row with the extenders' answers."""
        fits = row.fits
        if plan_extenders.considers_full_nodes(self.owner):
            fits = fits | row.passed & large_enough(row.request, self.table)
        extender_results = plan_extenders.consult(
            role, requests_of(role), fits, request_key=self.key_of(role), owner=self.owner
        )
        if extender_results is None:
            return row
        return FeasibilityRow(
            msgspec.structs.replace(row.request, extender_results=extender_results),
            self.usage,
            self.weights(row.request),
            self.scores,
        )

    def weights(self, request: RankRequest) -> dict[str, int]:
        """Return the weights of the scores that apply to `request`."""
        if self.is_packing:
            return PACKED
        if request.gpu_milli:
            return self.policy.share
        return self.policy.pack if request.requests.gpus() else self.policy.spread

    def take(self, row: FeasibilityRow, nodes: list[int]) -> None:
        """Take one rank of the row's request on each of `nodes`, which the refreshed row has just returned."""
        self.usage.take(row.request, nodes)
        row.note_taken(nodes)

    def give(self, row: FeasibilityRow, nodes: list[int]) -> None:
        """Undo `take`."""
        self.usage.take(row.request, nodes, -1)

    def assign_devices(self, row: FeasibilityRow, node: int) -> tuple[int, ...]:
        """Return the devices of the next rank of the row's request on `node`, after all ranks were taken.

        Each rank's devices are returned once.
        """
        devices = self.usage.devices
        if devices is None or not devices.count[node]:
            return ()
        key = (row.request.key, node)
        given, at = devices.given.get(key, []), self._handed.get(key, 0)
        self._handed[key] = at + 1
        return given[at] if at < len(given) else ()
