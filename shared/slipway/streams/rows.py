"""Raw replies of the stream commands (RESP 2) to entries, and field maps to arguments.

Owns the shape of XRANGE, XREAD, XREADGROUP and XAUTOCLAIM replies. Knows nothing of what the fields mean.
"""

from collections.abc import Iterable, Mapping

from slipway.errors import ControlPlaneError
from slipway.streams.client import Argument
from slipway.streams.codec import cursor_parts
from slipway.streams.pages import Id
from slipway.streams.routes import Reply

Entry = tuple[Id, dict[str, bytes]]


def entry_id(raw: bytes) -> Id:
    """The two numbers of an id as the server sends it."""
    return cursor_parts(raw.decode())


def entries(reply: Reply) -> list[Entry]:
    """The entries of an XRANGE, or of one stream of an XREAD; trimmed ones (without fields) are left out."""
    return [(entry_id(raw_id), fields(flat)) for raw_id, flat in (reply or ()) if flat is not None]


def fields(flat: Iterable[bytes]) -> dict[str, bytes]:
    """The field map of a flat list of names and values."""
    items = iter(flat)
    return {name.decode("utf-8", "replace"): value for name, value in zip(items, items, strict=False)}


def by_stream(reply: Reply) -> list[tuple[str, list[Entry]]]:
    """(key, entries) of an XREAD or XREADGROUP; empty when it timed out."""
    return [(key.decode(), entries(page)) for key, page in (reply or ())]


def flat(values: Mapping[str, bytes]) -> list[Argument]:
    """The arguments of XADD or HSET for a field map."""
    return [part for item in values.items() for part in item]


def checked(replies: Iterable[Reply | ControlPlaneError]) -> list[Reply]:
    """The replies, none of which may be an error. Raises the first that is."""
    found: list[Reply] = []
    for reply in replies:
        if isinstance(reply, ControlPlaneError):
            raise reply
        found.append(reply)
    return found
