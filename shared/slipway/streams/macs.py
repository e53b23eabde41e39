"""The port to message authentication codes. A code proves that a service with the keys wrote a value at its place in
Redis.

This module owns the interface and the error for a value without a valid code. Pure: `mac_keys.py` has the keys.
"""

from typing import Protocol

from slipway.errors import InvalidError


class ForgedError(InvalidError):
    """A value in Redis has no valid code, so it was not written by a service that has our keys."""


class Macs(Protocol):
    """Codes of one purpose. `place` names the location of a value; a code for one place is invalid at any other
    place.
    """

    def sign(self, place: bytes, value: bytes) -> bytes:
        """Return the code (32 bytes) of a value at a place. Raises UnavailableError when there is no key."""
        ...

    def check(self, code: bytes | None, place: bytes, value: bytes) -> None:
        """Raises ForgedError unless the code is one of our keys for this value at this place."""
        ...
