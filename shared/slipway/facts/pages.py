"""Pages of facts of one kind, as a snapshot of the cluster feed contains them.

Owns the wire format: facts encoded as in the feed, joined and compressed. Roles that thousands of allocations of a
sweep share are in a page once. One `PageReader` decodes equal roles to one shared object, because equal but distinct
objects make the planner's columns slower.
"""

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

from slipway.facts.core_objects import FEED_KINDS, Fact, decode_fact, encode_fact
from slipway.model.facts import AllocationFact, RoleFact

BYTES_MAX: Final = 64 * 1024 * 1024
"""of one unpacked page"""
_LEVEL: Final = 1
_OWN: Final = -1
"""in place of an index into the roles: the fact contains its own roles, if it has any"""

FactRow = tuple[str, int, Fact]
"""(key, version, fact)"""


class _Page(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    kind: str
    roles: list[bytes]
    told: list[tuple[str, int, int, bytes]]
    """(key, version, index into `roles`, fact)"""


_packed = msgspec.msgpack.Encoder().encode
_page = msgspec.msgpack.Decoder(_Page)
_roles_text = msgspec.json.Encoder().encode
_roles = msgspec.json.Decoder(tuple[RoleFact, ...])


def encode_page(kind: str, told: Iterable[FactRow]) -> bytes:
    """Return one page of facts of a kind of `FEED_KINDS`."""
    texts: dict[bytes, int] = {}
    known: dict[int, tuple[tuple[RoleFact, ...], int]] = {}
    packed: list[tuple[str, int, int, bytes]] = []
    for key, version, fact in told:
        number = _OWN
        if isinstance(fact, AllocationFact) and fact.roles:
            # Look up by identity first, which is fast. `known` keeps a reference, so that the id stays valid.
            found = known.get(id(fact.roles))
            number = found[1] if found is not None else texts.setdefault(_roles_text(fact.roles), len(texts))
            known[id(fact.roles)] = fact.roles, number
            fact = msgspec.structs.replace(fact, roles=())
        packed.append((key, version, number, encode_fact(fact)))
    return zlib.compress(_packed(_Page(kind=kind, roles=list(texts), told=packed)), _LEVEL)


class PageReader:
    """Reads the pages of one snapshot."""

    def __init__(self) -> None:
        self._roles: dict[bytes, tuple[RoleFact, ...]] = {}

    def read(self, data: bytes) -> tuple[str, list[FactRow]]:
        """Return the kind, and the facts with their keys and versions.

        Raises:
            msgspec.ValidationError: not a page, or one of another version: LIST instead.
        """
        page = _unpacked(data)
        if page.kind not in FEED_KINDS:
            raise msgspec.ValidationError(f"a page of {page.kind[:64]!r}, which the feed does not contain")
        roles = [self._known(text) for text in page.roles]
        told: list[FactRow] = []
        for key, version, number, text in page.told:
            fact = decode_fact(page.kind, text)
            if number != _OWN:
                if not (isinstance(fact, AllocationFact) and 0 <= number < len(roles)):
                    raise msgspec.ValidationError("a page without the roles that a fact of it has")
                # No other code has the fact yet, so it may be changed.
                msgspec.structs.force_setattr(fact, "roles", roles[number])
            told.append((key, version, fact))
        return page.kind, told

    def _known(self, text: bytes) -> tuple[RoleFact, ...]:
        found = self._roles.get(text)
        if found is None:
            try:
                found = self._roles[text] = _roles.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
                raise msgspec.ValidationError(f"not roles: {exc}") from exc
        return found


def _unpacked(data: bytes) -> _Page:
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, BYTES_MAX)
        if not unpacking.eof:
            raise msgspec.ValidationError("a page that is incomplete or too large")
        return _page.decode(text)
    except (zlib.error, msgspec.DecodeError, RecursionError) as exc:
        raise msgspec.ValidationError(f"not a page of facts: {exc}") from exc
