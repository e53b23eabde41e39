"""The port to message authentication codes: a value in Redis says that a service with the keys has written it there.

Owns what a code is asked for and how a value without one is answered. Pure: `mac_keys.py` has the keys.
"""

from typing import Protocol

from slipway.errors import InvalidError


class ForgedError(InvalidError):
    """A value in Redis without a code of one of our keys: it was not written by a service that holds them."""


class Macs(Protocol):
    """Codes of one purpose. `place` names where a value stands: a code of one place is none at any other place."""

    def sign(self, place: bytes, value: bytes) -> bytes:
        """The code (32 bytes) of a value at a place. Raises UnavailableError when there is no key."""
        ...

    def check(self, code: bytes | None, place: bytes, value: bytes) -> None:
        """Raises ForgedError unless the code is one of our keys for this value at this place."""
        ...
