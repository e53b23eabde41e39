"""One-time links: how a browser is logged in by a program that has the token, without anything to paste.

Owns the codes: each stands for the token that asked for it, is good once, and for `LIFE_S`. Only their hashes are kept,
in the memory of this process: `LINKS_OF_ONE_MAX` of one user, whose oldest gives way, whatever tokens they have, and
at most `LINKS_MAX` of all; then the oldest of who has most gives way. With several processes behind one address
another one may be asked, and does not know the code: then it is asked for again, or the token is pasted.

Invariants: a code opens nothing after it was used or its time is over; it opens only the page that it was made for,
the api's own or that of one workload; whether the token still counts is found out when the code is used.
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
    """The codes that are good now."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._links: OrderedDict[str, _Link] = OrderedDict()
        """{hash of the code: what it opens}, the oldest first"""

    def make(self, token: str, user: str, allocation: str = "") -> tuple[str, float]:
        """A code for a token of `user`, and when it ends, in epoch seconds.

        `allocation`: it opens the origin of that workload, and not ours.
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
        """The token that the code stands for, which stays good; empty when it is not."""
        self._forget()
        found = self._links.get(_digest(code[:_CODE_CHARS_MAX]))
        return found.token if found is not None and found.allocation == allocation else ""

    def use(self, code: str, allocation: str = "") -> str:
        """The token that the code stands for; empty when it is not good, here or any more."""
        self._forget()
        found = self._links.pop(_digest(code[:_CODE_CHARS_MAX]), None)
        return found.token if found is not None and found.allocation == allocation else ""

    def _forget(self) -> None:
        """Drop those whose time is over."""
        now = self._clock.now()
        while self._links and next(iter(self._links.values())).ends_at <= now:
            self._links.popitem(last=False)


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
