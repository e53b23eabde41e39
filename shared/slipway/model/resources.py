"""Resource amounts, immutable integer vectors by resource name, and the quantities that Kubernetes writes for them.

Owns the base units (cpu in milli, everything else in ones) and their arithmetic. No other module calculates with floats
or with quantity strings. An absent resource is zero; zero amounts are not stored, so two equal vectors compare equal.
This module also converts amounts to GPUs: whole GPUs, parts of one, and slices of one (`mig.py`).

Quantities such as `1`, `100m`, `1Gi` and `2e3` are parsed into exact integers of a base unit. Parsing rounds up, as the
Kubernetes API does, so that a request never shrinks.

Source: k8s.io/apimachinery/pkg/api/resource/quantity.go
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

import msgspec

from slipway.model import mig
from slipway.model.mig import GPU_UNITS

_PATTERN = re.compile(
    r"^(?P<sign>[+-]?)(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?$"
)
_SUFFIX: dict[str, Decimal] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
QUANTITY_MAX = 2**63 - 1
LENGTH_MAX = 64
"""Maximum characters of a quantity, as in the schemas: the time to parse a number grows with the square of its
length."""

QuantityValue = str | int | float


@lru_cache(maxsize=4096)
def parse_quantity(value: QuantityValue, *, scale: int = 1) -> int:
    """Return `value` in units of 1/`scale`, rounded up: `parse_quantity("1.5", scale=1000)` is 1500.

    Raises:
        ValueError: not a quantity, negative, or above 2**63 - 1; the message states which.
    """
    result = _scaled(value, scale)
    if result > QUANTITY_MAX:
        raise ValueError(f"{value!r} is larger than any machine")
    return result


@lru_cache(maxsize=4096)
def parse_thousandths(value: QuantityValue) -> int:
    """Return `value` in thousandths, rounded up. It is at most 2**63 - 1, so its thousandths may be above 64 bits.

    For sums and bounds of a whole namespace, in which the amounts of one name may be bytes or cores.

    Raises:
        ValueError: not a quantity, negative, or above 2**63 - 1; the message states which.
    """
    result = _scaled(value, 1000)
    if result > QUANTITY_MAX * 1000:
        raise ValueError(f"{value!r} is larger than any quota")
    return result


def _scaled(value: QuantityValue, scale: int) -> int:
    text = str(value).strip()
    if len(text) > LENGTH_MAX:
        raise ValueError(f"{text[:LENGTH_MAX]!r}... has {len(text)} characters; a quantity has at most {LENGTH_MAX}")
    match = _PATTERN.match(text)
    if match is None:
        raise ValueError(f"{value!r} is not a quantity; write a number with an optional suffix such as 500m, 2 or 16Gi")
    suffix = match["suffix"] or ""
    factor = (
        Decimal(f"1{suffix.lower()}") if suffix[:1] in "eE" and len(suffix) > 1 and suffix != "Ei" else _SUFFIX[suffix]
    )
    number = Decimal(match["number"]) * factor
    if match["sign"] == "-" and number:
        raise ValueError(f"{value!r} is negative; a quantity is zero or more")
    return int((number * scale).to_integral_value(rounding=ROUND_CEILING))


def format_quantity(amount: int, *, scale: int = 1) -> str:
    """Return the shortest Kubernetes spelling of `amount` units of 1/`scale`, rounded up to thousandths."""
    if scale != 1:
        amount = -(-amount * 1000 // scale)
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    for suffix in ("Ti", "Gi", "Mi", "Ki"):
        unit = int(_SUFFIX[suffix])
        if amount and amount % unit == 0:
            return f"{amount // unit}{suffix}"
    return str(amount)


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
