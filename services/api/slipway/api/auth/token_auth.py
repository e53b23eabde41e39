"""Mode `token`: principals by our own tokens, whose hashes are files in a folder (a mounted Secret).

The folder is read every `LOOK_S`. Tokens that were added, removed or changed are effective from then on, without a
restart. A file that cannot be read is ignored and logged; all other tokens stay valid.

Invariants: while the folder cannot be read, no caller is admitted, and the answer says so (503, not 401). A token that
has expired or was removed is refused at once, and on open streams within their next check. No token is stored or
logged.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import HTTPConnection

from slipway.api.auth.principal import EVERYWHERE, PermissionCheck, Principal, VisibleWorkspaces, requested_name
from slipway.api.auth.session import credential
from slipway.api.http.errors import UnauthorizedError
from slipway.errors import UnavailableError
from slipway.model import apitokens
from slipway.model.apitokens import TokenRecord
from slipway.runtime import log
from slipway.runtime.clock import Clock

LOOK_S = 2.0
BACKOFF_S = 5.0
_HOW = "send `Authorization: Bearer` with a valid token, or log in: slipway login --token-file FILE"
_NOBODY = TokenRecord(
    id="0" * 16, hash="0" * 64, user="nobody", roles={}, created_at="1970-01-01T00:00:00Z",
    expires_at="1970-01-01T00:00:00Z",
)  # fmt: skip
"""The record that a token with an unknown id is compared with, so that all refusals take the same time."""

_log = log.get_logger(__name__)


class TokenAuth:
    """The token records of a folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._records: Mapping[str, TokenRecord] | None = None
        self._told: tuple[str, ...] = ()

    async def look(self) -> None:
        """Read the folder. Raises UnavailableError when it cannot be read: then every caller is refused."""
        try:
            files = await asyncio.to_thread(_read, self._folder)
        except OSError as error:
            self._records = None
            raise UnavailableError(f"the folder of tokens {self._folder} cannot be read: {error.strerror}") from error
        records, wrong = apitokens.read(files)
        told = tuple(wrong)
        if told != self._told:
            for each in told:
                _log.warning("token ignored", why=each)
        if self._records is None or records.keys() != self._records.keys():
            _log.info("the valid tokens", count=len(records))
        self._records, self._told = records, told

    def all(self) -> list[TokenRecord]:
        """Return every record, by id. Raises UnavailableError."""
        if self._records is None:
            raise UnavailableError("the tokens cannot be read right now")
        return [self._records[id_] for id_ in sorted(self._records)]

    def find(self, id_: str) -> TokenRecord | None:
        """Return the record with that id; None when there is none, or it has expired. Raises UnavailableError."""
        if self._records is None:
            raise UnavailableError("the tokens cannot be read right now")
        found = self._records.get(id_)
        return None if found is None or found.has_expired(self._clock.now()) else found

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return the caller whom the bearer token identifies."""
        token = credential(connection)
        if not token:
            raise UnauthorizedError(f"missing bearer token; {_HOW}")
        record = self.find(apitokens.id_of(token))
        is_right = (record or _NOBODY).is_of(token)
        if record is None or not is_right:
            raise UnauthorizedError(f"unknown, expired or revoked token; {_HOW}")
        return TokenCaller(self, record, requested_name(connection) if record.names_users else "")


class TokenCaller:
    """A caller with a token. `named` is the user that the caller acts as, if the record permits that."""

    def __init__(self, book: TokenAuth, record: TokenRecord, named: str = "") -> None:
        self._book = book
        self._record = record
        self.name = named or record.user
        self.via = f"token {record.id}"
        self.roles = {workspace: role.value for workspace, role in sorted(record.roles.items())}
        self.expires_at = record.expires_at

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """By the roles in the record as it is now."""
        record = self._book.find(self._record.id)
        role = record.role_in(workspace) if record is not None and record.hash == self._record.hash else None
        return role is not None and role.includes(ask.role)

    async def visible_workspaces(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Return the workspaces in which the record permits `ask`."""
        if await self.may(ask, EVERYWHERE):
            return VisibleWorkspaces()
        return VisibleWorkspaces(frozenset([name for name in self._record.roles if await self.may(ask, name)]))

    async def is_still_valid(self) -> bool:
        """Whether the token has neither expired nor been removed."""
        record = self._book.find(self._record.id)
        return record is not None and record.hash == self._record.hash


def _read(folder: Path) -> dict[str, bytes]:
    """Return {file name: content} of the folder, without hidden files such as those of the kubelet (`..data`)."""

    found: dict[str, bytes] = {}
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.suffix != apitokens.SUFFIX:
            continue
        with entry.open("rb") as file:
            found[entry.name] = file.read(apitokens.RECORD_BYTES_MAX + 1)
        if len(found) > apitokens.RECORDS_MAX:
            break
    return found
