"""GpuFragmentation: prefers the node on which a rank makes the least free GPU unusable for what is expected next.

The fragmentation of a node is the part of its free GPU that a rank drawn from the mix (`workload_mix.py`) cannot use,
expected over the mix: all of it where the rank asks for no GPU or the node lacks its cpu or its number of devices, else
what is left on devices that have too little for it. The score is 50 and more where the rank makes it smaller, less
where it makes it larger, in steps of 80 thousandths of a GPU, so that a second score (BestFit) decides between nodes
that are about as good. Weigh it more than 100 times as much as that other score to have it decide first.

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
from slipway.scheduler.plan.state.workload_mix import Mix, mix_said

NAME = "GpuFragmentation"
STEP = 80
"""Thousandths of a GPU that are one point."""
_MIDDLE = SCORE_MAX // 2


def score(ask: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """50 where nothing changes."""
    return _score(usage.mix, ask, usage, at, extra)


def bind(args: Mapping[str, Any]) -> ScoreNodes:
    """The same over the mix that the pool says."""
    mix = mix_said(args.get("mix", ()))
    return lambda ask, usage, at, extra: _score(mix or usage.mix, ask, usage, at, extra)


def _score(mix: Mix | None, ask: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    table = usage.table
    if mix is None or GPU not in table.row:
        return np.full(table.ready[at].shape, _MIDDLE, dtype=np.int64)
    cpu = usage.free(table.row[CPU], at) - ask.requests.get(CPU) * extra
    before = after_ranks(devices_left(usage, at), ask, extra)
    after = after_ranks(before, ask, 1)
    change = fragmentation(mix, before, cpu) - fragmentation(mix, after, cpu - ask.requests.get(CPU))
    return np.clip(_MIDDLE + change // (STEP * mix.total), 0, SCORE_MAX)


def devices_left(usage: NodeUsage, at: At) -> Ints:
    """Thousandths left per device, shape (devices, nodes); free GPUs of nodes that do not share them are whole."""
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


def after_ranks(left: Ints, ask: RankRequest, ranks: Extra) -> Ints:
    """`left` once `ranks` more are there (a number, or one per node): whole GPUs from untouched devices, shares where
    the least is left."""
    if not (ask.gpus or ask.gpu_milli) or (isinstance(ranks, int) and ranks == 0):
        return left
    order = np.argsort(left, axis=0, kind="stable")
    tightest = np.take_along_axis(left, order, axis=0)
    wanted = np.broadcast_to(np.asarray(ranks, dtype=np.int64), left.shape[1:])
    if ask.gpu_milli:
        room = tightest // ask.gpu_milli
        taken = np.clip(wanted - (np.cumsum(room, axis=0) - room), 0, room) * ask.gpu_milli
    else:
        room = (tightest == MILLI).astype(np.int64)
        taken = np.clip(wanted * ask.gpus - (np.cumsum(room, axis=0) - room), 0, room) * MILLI
    result = np.empty_like(left)
    np.put_along_axis(result, order, tightest - taken, axis=0)
    return result


def fragmentation(mix: Mix, left: Ints, cpu: Ints) -> Ints:
    """The free thousandths that a rank of the mix cannot use, summed over the mix by weight."""
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
