"""MIG: which part of a GPU each slice is. Pure.

NVIDIA's device plugin names a slice by its profile: `nvidia.com/mig-1g.10gb` is one compute slice with 10 GB of memory.
The part of a slice is its number of compute slices, which is in its name, divided by that of a whole GPU: 4 for the
profiles of `FOUR_SLICES`, else 7. A name does not contain the model of the GPU: where two models have a profile of the
same name, the larger part is used.

Amounts are in `GPU_UNITS`, so that a seventh, a quarter and a thousandth of a GPU are whole numbers. Source: NVIDIA
Multi-Instance GPU User Guide, "Supported MIG Profiles"; profiles of NVIDIA/mig-parted.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

GPU_UNITS = 7000
"""Units in which one GPU is counted."""
MIG_PREFIX = "nvidia.com/mig-"
SLICES = 7
"""Compute slices of a GPU, unless `FOUR_SLICES` contains its profile: A100, H100, H200, GH200, B200, GB200, B300."""
FOUR_SLICES = frozenset({"1g.6gb", "2g.12gb", "4g.24gb", "1g.24gb", "2g.48gb", "4g.96gb"})
"""Profiles of GPUs with 4 compute slices: the A30 (24 GB) and the RTX PRO 6000 Blackwell (96 GB)."""
_NEVER_SLICES = frozenset(
    {"cpu", "memory", "pods", "nvidia.com/gpu", "slipway.dev/gpu-milli", "slipway.dev/gpu-shares"}
)
"""Most allocations request only these resources; then no name is parsed."""
_NAME = re.compile(r"(?:(?P<compute>[1-7])c\.)?(?P<profile>(?P<slices>[1-7])g\.[1-9]\d{0,3}gb)(?:[.-][a-z.]+)?")
"""`1g.10gb`; `1g.10gb.me`, `1g.24gb-me` with other engines; `1c.3g.40gb` for a compute slice of a larger slice"""


@lru_cache(maxsize=1024)
def slice_units(name: str) -> int:
    """Return the size of one unit of resource `name` in `GPU_UNITS`; 0 when it is not a slice of a GPU."""
    found = _NAME.fullmatch(name.removeprefix(MIG_PREFIX)) if name.startswith(MIG_PREFIX) else None
    if found is None:
        return 0
    slices = int(found["compute"] or found["slices"])
    return slices * GPU_UNITS // (4 if found["profile"] in FOUR_SLICES else SLICES)


def slices_in(amounts: Iterable[str]) -> list[str]:
    """Return the resources in `amounts` that are slices of a GPU."""
    return [name for name in amounts if name.startswith(MIG_PREFIX) and slice_units(name)]


def units_in(amounts: Mapping[str, int]) -> int:
    """Return the sum of all slices in `amounts`, in `GPU_UNITS`."""
    if _NEVER_SLICES.issuperset(amounts):
        return 0
    units = 0
    for name in amounts:
        if name.startswith(MIG_PREFIX):
            units += amounts[name] * slice_units(name)
    return units


def whole_gpus(units: int) -> int:
    """Return the number of GPUs, rounded up."""
    return -(-units // GPU_UNITS)


def spell_units(units: int) -> str:
    """Return the units as text such as `2`, `300m`, `1/7`, `2 3/7`: thousandths when exact, else sevenths, else rounded
    up to thousandths."""
    whole, rest = divmod(units, GPU_UNITS)
    if not rest:
        return str(whole)
    if not rest * 1000 % GPU_UNITS:
        return f"{units * 1000 // GPU_UNITS}m"
    sevenths, beyond = divmod(rest * SLICES, GPU_UNITS)
    if beyond:
        return f"{-(-units * 1000 // GPU_UNITS)}m"
    return f"{whole} {sevenths}/{SLICES}" if whole else f"{sevenths}/{SLICES}"
