"""One-time links: a program that has a token logs a browser in, and the user has nothing to paste.

Owns the codes of the links. A code represents the token that requested it, and is accepted once and within `LIFE_S`.
Only hashes of codes are stored, in the memory of this process: at most `LINKS_OF_ONE_MAX` for one user, whatever tokens
the user has, and at most `LINKS_MAX` in total. Beyond the first limit the user's oldest code is dropped; beyond the
second, the oldest code of the user who has the most. Several api processes may share one address. A process that did
not make the code does not know it: then the program requests another code, or the user pastes the token.

Invariants: a used or expired code is refused. A code opens only the page that it was made for: the api's own page or
the page of one workload. Whether the token is still valid is checked when the code is used.
"""

import hashlib
from collections import Counter, OrderedDict

import msgspec

from slipway.runtime.clock import Clock, Random

LIFE_S = 300.0
LINKS_MAX = 256
LINKS_OF_ONE_MAX = 8
_CODE_BYTES = 32
_CODE_CHARS_MAX = 128


class _Link(msgspec.Struct, frozen=True):
    token: str
    user: str
    allocation: str
    ends_at: float


class LoginLinks:
    """The codes that are valid now."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._links: OrderedDict[str, _Link] = OrderedDict()
        """{hash of the code: the token and the page of the code}, oldest first"""

    def make(self, token: str, user: str, allocation: str = "") -> tuple[str, float]:
        """Return (a new code for a token of `user`, its expiry in epoch seconds).

        With `allocation`, the code is valid for the origin of that workload, and not for the api's origin.
        """
        code, ends_at = self._random.token_hex(_CODE_BYTES), self._clock.now() + LIFE_S
        self._forget()
        own = [each for each, link in self._links.items() if link.user == user]
        for each in own[: max(0, len(own) - LINKS_OF_ONE_MAX + 1)]:
            del self._links[each]
        if len(self._links) >= LINKS_MAX:
            ((most, _),) = Counter(link.user for link in self._links.values()).most_common(1)
            del self._links[next(each for each, link in self._links.items() if link.user == most)]
        self._links[_digest(code)] = _Link(token, user, allocation, ends_at)
        return code, ends_at

    def token_of(self, code: str, allocation: str = "") -> str:
        """Return the token that the code represents, and leave the code valid; empty when the code is not valid."""
        self._forget()
        found = self._links.get(_digest(code[:_CODE_CHARS_MAX]))
        return found.token if found is not None and found.allocation == allocation else ""

    def use(self, code: str, allocation: str = "") -> str:
        """Return the token that the code represents, and delete the code; empty when the code is not valid."""
        self._forget()
        found = self._links.pop(_digest(code[:_CODE_CHARS_MAX]), None)
        return found.token if found is not None and found.allocation == allocation else ""

    def _forget(self) -> None:
        """Drop the expired codes."""
        now = self._clock.now()
        while self._links and next(iter(self._links.values())).ends_at <= now:
            self._links.popitem(last=False)


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
