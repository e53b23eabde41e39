"""Conversion of raw replies of the stream commands (RESP 2) to entries, and of field maps to arguments.

This module owns the shape of XRANGE, XREAD, XREADGROUP, XAUTOCLAIM and XINFO STREAM replies. It does not know the
meaning of the fields.
"""

from collections.abc import Iterable, Mapping

from slipway.errors import ControlPlaneError
from slipway.streams.client import Argument
from slipway.streams.codec import cursor_parts
from slipway.streams.pages import ZERO, Id
from slipway.streams.routes import Reply

Entry = tuple[Id, dict[str, bytes]]


def entry_id(raw: bytes) -> Id:
    """Return the two numbers of an id in the server's format."""
    return cursor_parts(raw.decode())


def entries(reply: Reply) -> list[Entry]:
    """Return the entries of an XRANGE, or of one stream of an XREAD, without trimmed ones (which have no fields)."""
    return [(entry_id(raw_id), fields(flat)) for raw_id, flat in (reply or ()) if flat is not None]


def fields(flat: Iterable[bytes]) -> dict[str, bytes]:
    """Return the field map of a flat list of names and values."""
    items = iter(flat)
    return {name.decode("utf-8", "replace"): value for name, value in zip(items, items, strict=False)}


def by_stream(reply: Reply) -> list[tuple[str, list[Entry]]]:
    """Return (key, entries) of an XREAD or XREADGROUP; empty when it timed out."""
    return [(key.decode(), entries(page)) for key, page in (reply or ())]


def flat(values: Mapping[str, bytes]) -> list[Argument]:
    """Return the arguments of XADD or HSET for a field map."""
    return [part for item in values.items() for part in item]


def oldest_left(reply: Reply | ControlPlaneError) -> Id:
    """Return the id of the oldest entry of an XINFO STREAM reply when older entries were removed, else zero.

    Raises the error that was received instead of a reply.
    """
    [info] = checked([reply])
    state = dict(zip(info[::2], info[1::2], strict=True))
    if state[b"entries-added"] <= state[b"length"]:
        return ZERO
    return entry_id(state[b"first-entry"][0] if state[b"first-entry"] else state[b"last-generated-id"])


def checked(replies: Iterable[Reply | ControlPlaneError]) -> list[Reply]:
    """Return the replies when none is an error. Raises the first error."""
    found: list[Reply] = []
    for reply in replies:
        if isinstance(reply, ControlPlaneError):
            raise reply
        found.append(reply)
    return found
