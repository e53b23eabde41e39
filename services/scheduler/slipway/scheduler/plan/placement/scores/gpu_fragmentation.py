"""GpuFragmentation: prefers the node on which a rank makes the least free GPU unusable for expected requests.

The fragmentation of a node is the part of its free GPU that a rank drawn from the workload mix (`workload_mix.py`)
cannot use, on average over the mix. All of it is unusable if the rank requests no GPU, or the node lacks the rank's cpu
or number of devices. Otherwise the free capacity of devices that have too little for the rank is unusable.

The score is above 50 when the rank makes the fragmentation smaller, and below 50 when it makes it larger, in steps of
80 thousandths of a GPU. A second score (BestFit) can thus decide between nodes that are about equally good. Give this
score more than 100 times the weight of that other score to let it decide first.

Source: Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent,
USENIX ATC 2023, section 3.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipway.model.resources import CPU, GPU, MILLI
from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, Extra, ScoreNodes
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage
from slipway.scheduler.plan.state.workload_mix import WorkloadMix, stated_mix

NAME = "GpuFragmentation"
STEP = 80
"""The thousandths of a GPU that are worth one point."""
_MIDDLE = SCORE_MAX // 2


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return the score over the pool's expected mix; 50 when the fragmentation does not change."""
    return _score(usage.mix, request, usage, at, extra)


def bind(args: Mapping[str, Any]) -> ScoreNodes:
    """Return the score over the mix that the pool's args state."""
    mix = stated_mix(args.get("mix", ()))
    return lambda request, usage, at, extra: _score(mix or usage.mix, request, usage, at, extra)


def _score(mix: WorkloadMix | None, request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    table = usage.table
    if mix is None or GPU not in table.row:
        return np.full(table.ready[at].shape, _MIDDLE, dtype=np.int64)
    cpu = usage.free(table.row[CPU], at) - request.requests.get(CPU) * extra
    before = after_ranks(devices_left(usage, at), request, extra)
    after = after_ranks(before, request, 1)
    change = fragmentation(mix, before, cpu) - fragmentation(mix, after, cpu - request.requests.get(CPU))
    return np.clip(_MIDDLE + change // (STEP * mix.total), 0, SCORE_MAX)


def devices_left(usage: NodeUsage, at: At) -> Ints:
    """Return the free thousandths per device, shape (devices, nodes).

    On nodes that do not share their GPUs, each free GPU is a whole device.
    """
    table = usage.table
    free = usage.free(table.row[GPU], at)
    most = int(table.allocatable[table.row[GPU]].max(initial=0))
    whole = np.where(np.arange(most, dtype=np.int64)[:, None] < free, MILLI, 0)
    if usage.devices is None:
        return whole
    left = usage.devices.left[:, at]
    padded = np.zeros_like(whole)
    padded[: left.shape[0]] = left
    return np.where(table.shares[at], padded, whole)


def after_ranks(left: Ints, request: RankRequest, ranks: Extra) -> Ints:
    """Return `left` after `ranks` more ranks (a number, or one per node).

    Whole GPUs are taken from unused devices, and shares from the fitting device with the least free.
    """
    if not (request.gpus or request.gpu_milli) or (isinstance(ranks, int) and ranks == 0):
        return left
    order = np.argsort(left, axis=0, kind="stable")
    tightest = np.take_along_axis(left, order, axis=0)
    wanted = np.broadcast_to(np.asarray(ranks, dtype=np.int64), left.shape[1:])
    if request.gpu_milli:
        room = tightest // request.gpu_milli
        taken = np.clip(wanted - (np.cumsum(room, axis=0) - room), 0, room) * request.gpu_milli
    else:
        room = (tightest == MILLI).astype(np.int64)
        taken = np.clip(wanted * request.gpus - (np.cumsum(room, axis=0) - room), 0, room) * MILLI
    result = np.empty_like(left)
    np.put_along_axis(result, order, tightest - taken, axis=0)
    return result


def fragmentation(mix: WorkloadMix, left: Ints, cpu: Ints) -> Ints:
    """Return the free thousandths that a rank of the mix cannot use, summed over the mix by weight."""
    idle = left.sum(axis=0)
    if not mix.needs:
        return idle * mix.total
    needs = np.array(mix.needs, dtype=np.int64)[:, None, None]
    fits = left >= needs
    devices = fits.sum(axis=1)
    stranded: Ints = np.where(fits, 0, left).sum(axis=1)
    is_usable = (devices[mix.need] >= mix.counts[:, None]) & (cpu >= mix.cpus[:, None]) & (mix.need >= 0)[:, None]
    unusable: Ints = np.where(is_usable, stranded[mix.need], idle)
    return mix.weights @ unusable
