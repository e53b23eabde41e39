"""The workload mix: the sorts of ranks that a pool is expected to run; the fragmentation of GPUs is measured by it.

Either the pool's policy states the mix, or it is computed from pending and running work: the commonest sorts that make
up most of the ranks. Knows nothing of nodes. Deterministic: counts are integers, and the order is by count and then by
request.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from slipway.model.facts import RoleFact
from slipway.model.resources import CPU, GPU, GPU_MILLI, MILLI, parse_quantity
from slipway.scheduler.plan.state.nodes import Ints
from slipway.scheduler.plan.state.rank_request import requests_of

COVERED_PERCENT = 95
SORTS_MAX = 64

Sort = tuple[int, int, int]
"""(milli-cpu, GPUs, thousandths of one GPU) of a rank"""


class WorkloadMix(msgspec.Struct, frozen=True, eq=False):
    """The sorts as columns, with their weights; `needs` are the distinct thousandths that sorts need of a device."""

    cpus: Ints
    counts: Ints
    """number of devices that must have `needs[need]` free, per sort"""
    need: Ints
    """index in `needs`; -1 for a sort that requests no GPU"""
    weights: Ints
    needs: tuple[int, ...]
    total: int


def mix_of(work: Iterable[tuple[tuple[RoleFact, ...], int]]) -> WorkloadMix | None:
    """Return the mix of (roles, number of such gangs); None when there is no work."""
    counts: dict[Sort, int] = {}
    for roles, times in work:
        for role in roles:
            asked = requests_of(role)
            sort = (asked.get(CPU), asked.get(GPU), asked.get(GPU_MILLI))
            counts[sort] = counts.get(sort, 0) + role.count * times
    return _mix(counts)


def stated_mix(said: Iterable[Mapping[str, Any]]) -> WorkloadMix | None:
    """Return the mix that a pool's policy states: [{cpu, gpus, gpuMilli, weight}]."""
    counts: dict[Sort, int] = {}
    for item in said:
        sort = (parse_quantity(item.get("cpu", 0), scale=MILLI), item.get("gpus", 0), item.get("gpuMilli", 0))
        counts[sort] = counts.get(sort, 0) + item.get("weight", 1)
    return _mix(counts)


def _mix(counts: Mapping[Sort, int]) -> WorkloadMix | None:
    """Return the mix of the commonest sorts that cover most of the ranks."""
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
    return WorkloadMix(
        cpus=np.array([sort[0] for sort, _ in chosen], dtype=np.int64),
        counts=np.array([1 if sort[2] else sort[1] for sort, _ in chosen], dtype=np.int64),
        need=np.array([needs.index(need) if need else -1 for need in asked], dtype=np.int64),
        weights=np.array([count for _, count in chosen], dtype=np.int64),
        needs=tuple(needs),
        total=sum(count for _, count in chosen),
    )
