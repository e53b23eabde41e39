"""NodeResourcesFit: every requested resource must be free; the number of pods is a resource too.

A request above what is *allocatable* is final: no eviction helps. The rarest resources are checked first, since the
shortage of GPUs is more informative than that of cpu on a node that lacks both. A request of zero is not checked.
"""

import numpy as np

from slipway.model.mig import spell_units
from slipway.model.resources import CPU, GPU, GPU_MILLI, MEMORY, PODS, flavor_in, format_quantity, scale_of
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "NodeResourcesFit"
_COMMON = (CPU, MEMORY, PODS)


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse nodes that could never have room for the rank, then nodes that lack something now."""
    table = usage.table
    devices = usage.devices_for(request)
    for name in request.missing:
        yield too_small(name, request.requests.get(name)), np.ones(table.ready[at].shape, dtype=np.bool_)
    steps = sorted(request.steps, key=lambda step: _rarity(table.resources[step[0]]))
    for row, amount in steps:
        yield too_small(table.resources[row], amount), table.allocatable[row, at] < amount
    if devices is not None:
        yield UNKNOWN_DEVICES, devices.is_blocked(at) & ~devices.fits(request.gpu_milli, at)
        yield no_device(request.gpu_milli), ~devices.fits(request.gpu_milli, at)
    for row, amount in steps:
        yield insufficient(table.resources[row], amount), usage.free(row, at) < amount


def _rarity(name: str) -> tuple[int, str]:
    return (_COMMON.index(name) + 1 if name in _COMMON else 0, name)


def no_device(milli: int) -> NodeRefusal:
    """Return the refusal of a node where no single device has enough free, though all devices together may have."""
    words = f"no device with {milli} thousandths free"
    return NodeRefusal(f"Insufficient {GPU_MILLI}", f"has {words}", f"have {words}", is_final=False)


UNKNOWN_DEVICES = NodeRefusal(
    "UnknownDevices",
    "shares its GPUs and runs other pods on unknown devices",
    "share their GPUs and run other pods on unknown devices",
    is_final=False,
)


def too_small(name: str, amount: int) -> NodeRefusal:
    """Return the refusal of a node whose allocatable amount is less than one rank requests."""
    name, amount = (GPU, 1) if name == GPU_MILLI else (name, amount)
    asked = spell(name, amount)
    return NodeRefusal(f"NodeTooSmall {name}", f"has less than {asked} in all", f"have less than {asked} in all")


def insufficient(name: str, amount: int) -> NodeRefusal:
    """Return the refusal of a node that has enough, but not enough of it free."""
    if name == PODS:
        return NodeRefusal(f"Insufficient {name}", "is full of pods", "are full of pods", is_final=False)
    asked = spell(name, amount)
    return NodeRefusal(f"Insufficient {name}", f"lacks {asked} free", f"lack {asked} free", is_final=False)


def spell(name: str, amount: int) -> str:
    """Return an amount in words: `2 nvidia.com/gpu`, `1500m cpu`, `16Gi memory`, `2 nvidia.com/gpu of flavor h100`."""
    flavor = flavor_in(name)
    if flavor:
        return f"{spell_units(amount)} {GPU} of flavor {flavor}"
    return f"{format_quantity(amount, scale=scale_of(name))} {name}"
