"""Kubernetes quantities as integers.

Owns the parsing of `1`, `100m`, `1Gi`, `2e3`, ... into an exact integer of a base unit: milli for cpu, one for
everything else. Rounds up, as the Kubernetes API does, so that a request never shrinks.

Source: k8s.io/apimachinery/pkg/api/resource/quantity.go
"""

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

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
