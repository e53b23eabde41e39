"""The inputs of a pool's planner as encoded facts, with a digest that does not depend on their order. Pure.

The facts are those of the cluster feed, by the kinds of the feed. The digest is a sum over the facts, so its update
costs only the changed facts. Equal facts have equal digests, whichever process gathered them and in whatever order.
"""

import hashlib
from collections.abc import Iterator

_MODULUS = 1 << 128

Kinds = dict[str, dict[str, bytes]]


class EncodedFacts:
    """{kind: {key: the fact as JSON}}, and its digest."""

    def __init__(self) -> None:
        self.kinds: Kinds = {}
        self.size = 0
        """the bytes of all facts"""
        self._sum = 0

    @property
    def digest(self) -> str:
        """The digest, which is equal for equal facts."""
        return f"{self._sum:032x}"

    def put(self, kind: str, key: str, data: bytes | None) -> bool:
        """Store one fact, or remove it (None); return whether that changed anything."""
        known = self.kinds.setdefault(kind, {})
        before = known.get(key)
        if before == data:
            return False
        if before is not None:
            self._sum -= _weight(kind, key, before)
            self.size -= len(before)
        if data is None:
            del known[key]
        else:
            known[key] = data
            self._sum += _weight(kind, key, data)
            self.size += len(data)
        self._sum %= _MODULUS
        return True

    def __iter__(self) -> Iterator[tuple[str, str, bytes]]:
        return ((kind, key, data) for kind, facts in self.kinds.items() for key, data in facts.items())


def _weight(kind: str, key: str, data: bytes) -> int:
    head = f"{kind}\0{key}\0".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(head + data, digest_size=16).digest(), "big")
