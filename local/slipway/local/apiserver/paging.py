"""Lists: selection, pages, and the resourceVersion that a list shows.

Owns the continue token. Reads the store. Invariant: all pages of one list show the same version, even if objects change
between them; when that version is older than the history, the next page is refused (410), never mixed.
"""

import base64
import binascii
import re

import msgspec

from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.selectors import selector
from slipway.local.apiserver.status import bad_request, expired, too_large_version
from slipway.local.apiserver.store import ApiStore, CompactedError, ObjectVersion

_CONTINUE_GONE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)
_ONE_NAME = re.compile(r"(^|,)metadata\.name==?[^,=!]")
"""A selector of one name, which a real server answers by looking up that one object."""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The selection of a list. `version` 0 means now; with `exact` the list shows the state at that version."""

    labels: str = ""
    fields: str = ""
    limit: int = 0
    continue_token: str = ""
    version: int = 0
    exact: bool = False


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """One page. `remaining` is None when it is unknown; `continue_token` is empty on the last page."""

    records: list[ObjectVersion]
    version: int
    continue_token: str = ""
    remaining: int | None = None

    @property
    def items(self) -> list[Json]:
        return [record.obj for record in self.records]


class _Token(msgspec.Struct, frozen=True):
    v: int
    after: tuple[str, str]


def read(store: ApiStore, kind: ResourceKind, namespace: str | None, query: ListQuery) -> Listing:
    """Return one page of a list. Raises: StatusError 400, 410, 504."""
    matches = selector(query.labels, query.fields, kind.readers)
    token = _decode(query.continue_token) if query.continue_token else None
    if token is None and query.version > store.version:
        raise too_large_version(query.version, store.version)
    version = token.v if token else query.version if query.exact and query.version else store.version
    try:
        records = store.scan_at(kind.resource, namespace, version, token.after if token else None)
    except CompactedError as exc:
        words = _CONTINUE_GONE if token else "The resourceVersion for the provided list is too old."
        raise expired(words) from exc
    last = _key(records[-1]) if records and not _ONE_NAME.search(query.fields) else None
    if matches is not None:
        records = [record for record in records if matches(record.obj)]
    page = records[: query.limit] if query.limit else records
    # A full page ends the search: only the request for the next page finds out whether later objects are selected.
    if not query.limit or len(page) < query.limit or last in (None, _key(page[-1])):
        return Listing(records=_shown(kind, page), version=version)
    after = _Token(version, _key(page[-1]))
    remaining = None if matches is not None else len(records) - len(page)
    return Listing(records=_shown(kind, page), version=version, continue_token=_encode(after), remaining=remaining)


def _shown(kind: ResourceKind, records: list[ObjectVersion]) -> list[ObjectVersion]:
    return records if kind.view is None else [kind.shown_record(record) for record in records]


def _key(record: ObjectVersion) -> tuple[str, str]:
    meta = record.obj["metadata"]
    return (meta.get("namespace", ""), meta["name"])


def _encode(token: _Token) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decode(text: str) -> _Token:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token)
    except (binascii.Error, ValueError, msgspec.MsgspecError) as exc:
        raise bad_request(f"invalid continue token: continue key is not valid: {exc}") from exc
