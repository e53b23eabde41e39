"""The mix: what sorts of ranks a pool is expected to run, by which fragmentation of GPUs is measured.

Either the pool says it, or it is what waits and runs: the commonest sorts that make up most of the ranks. Owns nothing
of nodes. Deterministic: counts are whole, the order is by count and then by what is asked.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from slipway.model.facts import RoleFact
from slipway.model.quantity import parse_quantity
from slipway.model.resources import CPU, GPU, GPU_MILLI, MILLI
from slipway.scheduler.plan.state.nodes import Ints
from slipway.scheduler.plan.state.rank_request import requests_of

COVERED_PERCENT = 95
SORTS_MAX = 64

Sort = tuple[int, int, int]
"""(milli-cpu, GPUs, thousandths of one GPU) of a rank"""


class Mix(msgspec.Struct, frozen=True, eq=False):
    """The sorts as columns, with their weights; `needs` are the distinct thousandths that a device must have."""

    cpus: Ints
    counts: Ints
    """devices that must have as much"""
    need: Ints
    """which of `needs`; -1 for a sort that asks for no GPU"""
    weights: Ints
    needs: tuple[int, ...]
    total: int


def mix_of(work: Iterable[tuple[tuple[RoleFact, ...], int]]) -> Mix | None:
    """The mix of (roles, how many such gangs); None when there is nothing."""
    counts: dict[Sort, int] = {}
    for roles, times in work:
        for role in roles:
            asked = requests_of(role)
            sort = (asked.get(CPU), asked.get(GPU), asked.get(GPU_MILLI))
            counts[sort] = counts.get(sort, 0) + role.count * times
    return _mix(counts)


def mix_said(said: Iterable[Mapping[str, Any]]) -> Mix | None:
    """The mix that a pool says: [{cpu, gpus, gpuMilli, weight}]."""
    counts: dict[Sort, int] = {}
    for item in said:
        sort = (parse_quantity(item.get("cpu", 0), scale=MILLI), item.get("gpus", 0), item.get("gpuMilli", 0))
        counts[sort] = counts.get(sort, 0) + item.get("weight", 1)
    return _mix(counts)


def _mix(counts: Mapping[Sort, int]) -> Mix | None:
    """The commonest sorts, until they cover most of all."""
    left = sum(counts.values()) * COVERED_PERCENT
    chosen: list[tuple[Sort, int]] = []
    for sort, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:SORTS_MAX]:
        if left <= 0:
            break
        chosen.append((sort, count))
        left -= count * 100
    if not chosen:
        return None
    asked = [milli or (MILLI if gpus else 0) for (_, gpus, milli), _ in chosen]
    needs = sorted({need for need in asked if need})
    return Mix(
        cpus=np.array([sort[0] for sort, _ in chosen], dtype=np.int64),
        counts=np.array([1 if sort[2] else sort[1] for sort, _ in chosen], dtype=np.int64),
        need=np.array([needs.index(need) if need else -1 for need in asked], dtype=np.int64),
        weights=np.array([count for _, count in chosen], dtype=np.int64),
        needs=tuple(needs),
        total=sum(count for _, count in chosen),
    )
