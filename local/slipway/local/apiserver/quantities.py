"""Quantities as the API server stores them: `0.5` becomes `500m`, `1024Mi` becomes `1Gi`, `1000` becomes `1k`.

Owns only the canonical form; `slipway.model.quantity` compares amounts. Pure. Invariant: the form changes, never the
amount; a text that is not a quantity stays unchanged, and validation refuses it.

Source: k8s.io/apimachinery/pkg/api/resource Quantity.CanonicalizeBytes.
"""

import re
from decimal import Decimal
from typing import Any

from slipway.local.apiserver.objects import Json, is_map

_FORM = re.compile(r"^(\+?(?:\d+(?:\.\d*)?|\.\d+))([numkMGTPE]|[KMGTPE]i)?$")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SMALLEST = Decimal("1e-9")


def canonical(value: Any) -> Any:
    """Return the server's form of a quantity. Other values, and quantities with an exponent, are returned unchanged."""
    match = _FORM.match(str(value)) if not isinstance(value, bool) else None
    if match is None:
        return value
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY[1:]:
        return _binary(number * 1024 ** _BINARY.index(suffix))
    return _decimal(number * Decimal(1000) ** (_DECIMAL.index(suffix) - 3))


def canonicalize(resources: Json) -> None:
    """Put the requests and limits of a container into the canonical form, in place."""
    for field in ("requests", "limits"):
        amounts = resources.get(field)
        if is_map(amounts):
            resources[field] = {name: canonical(value) for name, value in amounts.items()}


def _binary(amount: Decimal) -> str:
    """Return an amount with a binary suffix, or with a decimal suffix if it is not a whole number."""
    if amount != amount.to_integral_value():
        return _decimal(amount)
    whole, power = int(amount), 0
    while whole and whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole //= 1024
        power += 1
    return f"{whole}{_BINARY[power]}"


def _decimal(amount: Decimal) -> str:
    whole, power = int((amount / _SMALLEST).to_integral_value(rounding="ROUND_CEILING")), 0
    if not whole:
        return "0"
    while whole % 1000 == 0 and power < len(_DECIMAL) - 1:
        whole //= 1000
        power += 1
    return f"{whole}{_DECIMAL[power]}"
