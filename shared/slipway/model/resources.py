"""Resource amounts: immutable integer vectors by resource name.

Owns the base units (cpu in milli, everything else in ones) and their arithmetic. No other module calculates with floats
or with quantity strings. An absent resource is zero; zero amounts are not stored, so two equal vectors compare equal.
This module also converts amounts to GPUs: whole GPUs, parts of one, and slices of one (`mig.py`).
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from slipway.model import mig
from slipway.model.mig import GPU_UNITS
from slipway.model.quantity import QuantityValue, format_quantity, parse_quantity

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
GPU = "nvidia.com/gpu"
GPU_MILLI = "slipway.dev/gpu-milli"
"""Thousandths of a GPU, for a rank that uses a part of one."""
GPU_SHARES = "slipway.dev/gpu-shares"
"""Number of ranks that use a part of a GPU. No pod requests it: sums of requests use it to count slots."""
GPU_NAMES = (GPU, "amd.com/gpu")
MILLI = 1000
_MILLI_UNITS = GPU_UNITS // MILLI
_OF_FLAVOR = f"{GPU}@"


def gpus_of(flavor: str) -> str:
    """Return the resource name for GPUs of a flavor in quotas; its unit is `GPU_UNITS`."""
    return f"{_OF_FLAVOR}{flavor}"


def flavor_in(name: str) -> str:
    """Return the flavor of a name that `gpus_of` returned; "" for every other resource."""
    return name.removeprefix(_OF_FLAVOR) if name.startswith(_OF_FLAVOR) else ""


def scale_of(name: str) -> int:
    """Return the base units in one of resource `name`: 1000 for cpu (milli), `GPU_UNITS` for the GPUs of a flavor, else
    1."""
    if name == CPU:
        return MILLI
    return GPU_UNITS if name.startswith(_OF_FLAVOR) else 1


def counted_gpus(amounts: Mapping[str, int]) -> int:
    """Return the GPUs in `amounts` as a quota counts them, in `GPU_UNITS`: whole NVIDIA GPUs, parts and slices."""
    return amounts.get(GPU, 0) * GPU_UNITS + amounts.get(GPU_MILLI, 0) * _MILLI_UNITS + mig.units_in(amounts)


class Resources(msgspec.Struct, frozen=True):
    """An immutable vector of amounts, `{resource name: units}`; negative amounts are refused by `parse`."""

    amounts: dict[str, int] = {}

    @classmethod
    def of(cls, amounts: Mapping[str, int]) -> "Resources":
        """Create from amounts in base units; zeros are dropped."""
        return cls({name: amount for name, amount in amounts.items() if amount})

    @classmethod
    def parse(cls, quantities: Mapping[str, QuantityValue]) -> "Resources":
        """Create from Kubernetes quantities, e.g. `{"cpu": "500m", "nvidia.com/gpu": 2}`.

        Raises:
            ValueError: a bad quantity; the message starts with the resource's name.
        """
        amounts: dict[str, int] = {}
        for name, value in quantities.items():
            try:
                amounts[name] = parse_quantity(value, scale=scale_of(name))
            except ValueError as exc:
                raise ValueError(f"{name}: {exc}") from exc
        return cls.of(amounts)

    def __hash__(self) -> int:
        return hash(frozenset(self.amounts.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(self.amounts)

    def __add__(self, other: "Resources") -> "Resources":
        total = dict(self.amounts)
        for name, amount in other.amounts.items():
            total[name] = total.get(name, 0) + amount
        return Resources.of(total)

    def __sub__(self, other: "Resources") -> "Resources":
        total = dict(self.amounts)
        for name, amount in other.amounts.items():
            total[name] = total.get(name, 0) - amount
        return Resources.of(total)

    def __mul__(self, count: int) -> "Resources":
        return Resources.of({name: amount * count for name, amount in self.amounts.items()})

    def get(self, name: str) -> int:
        """Return the units of `name`; 0 when absent."""
        return self.amounts.get(name, 0)

    def fits(self, free: "Resources") -> bool:
        """Whether every amount is at most the amount of that resource in `free`."""
        return all(amount <= free.get(name) for name, amount in self.amounts.items())

    def at_least(self, other: "Resources") -> "Resources":
        """Return the larger amount of each resource, as needed for init containers."""
        return Resources.of({name: max(self.get(name), other.get(name)) for name in {*self.amounts, *other.amounts}})

    def gpus(self) -> int:
        """Return the whole devices of all GPU resources: users call them slots.

        A part of a device is one slot. All slices are added up, and the sum is rounded up to whole devices.
        """
        return mig.whole_gpus(self.gpu_units())

    def gpu_units(self) -> int:
        """Return the GPUs in `GPU_UNITS`, as GPU time is measured: here a slice is only its part of a GPU."""
        shares = self.get(GPU_SHARES) or -(-self.get(GPU_MILLI) // MILLI)
        return (sum(self.get(name) for name in GPU_NAMES) + shares) * GPU_UNITS + mig.units_in(self.amounts)

    def gpu_count(self) -> float:
        """Return the number of GPUs, rounded to three digits: a part is a fraction such as `0.3`; 3/7 is `0.429`."""
        parts = self.get(GPU_MILLI) * _MILLI_UNITS + mig.units_in(self.amounts)
        return round(sum(self.get(name) for name in GPU_NAMES) + parts / GPU_UNITS, 3)

    def quantities(self) -> dict[str, str]:
        """Return the amounts as Kubernetes quantities, sorted by name."""
        return {name: format_quantity(self.amounts[name], scale=scale_of(name)) for name in sorted(self.amounts)}


def total(parts: Iterable[Resources]) -> Resources:
    """The sum of `parts`."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.amounts.items():
            result[name] = result.get(name, 0) + amount
    return Resources.of(result)
