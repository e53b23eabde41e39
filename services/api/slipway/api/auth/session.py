"""Login sessions of browsers, which cannot send an Authorization header: cookies, sealed texts, one-time links.

Cookies: there are two, both sealed: the session, for the api's own origin, and the ticket, for the origin of one
workload. A session contains the token that logged in, so a revoked token ends its sessions. After a sign-in at an
issuer (`auth/sign_ins.py`), a session contains the user whom the issuer named and the refresh token instead. A ticket
contains the session it was made from, and is valid for one allocation, for `TICKET_S`. While a ticket is used, a new
ticket replaces it, until its session ends. A one-time code carries the session from the api's origin to the origin of a
workload.

Invariants: no cookie, code or page contains a readable token. A script cannot read our cookies (HttpOnly). No other
site makes a browser send a session cookie (SameSite). A cookie belongs to one host name, never to its subdomains or
parents. A request by cookie can change something only from a page of exactly the same origin. A ticket is refused in
the api's origin, and a session is refused in the origin of a workload. After a logout (`auth/ended_sessions.py`) the
session and its tickets are refused.

Not promised: that the clocks of all replicas agree. By any replica's clock, a ticket is valid for at most `TICKET_S`
plus `SKEW_S`.

Sealed texts: data that a browser stores for the api and can neither read nor change. It is a struct, packed,
compressed, then encrypted and authenticated by Fernet of the package `cryptography`. The tag of a struct is its
purpose, so a text that was sealed for one purpose cannot be opened for another.

Keys are the files `*.key` of a folder (a mounted Secret) that all replicas share. A file contains one Fernet key, or
several, one a line. Every key opens texts. The key whose file name is last in the alphabet seals texts, once this
process has known it for `SETTLE_S`: other replicas may get a new key later, and have to open texts that are sealed
here. Without a folder the process generates a key of its own, which is lost when the process ends.

Invariants: a text that no key opens gives None, and no error. While the folder cannot be read, the keys that were read
last stay in use. No key is logged.

Source: https://github.com/fernet/spec/blob/master/Spec.md

One-time links: a program that has a token logs a browser in, and the user has nothing to paste. The code of a link
represents the token that requested it, and is accepted once and within `LIFE_S`. Only hashes of codes are stored, in
the memory of this process: at most `LINKS_OF_ONE_MAX` for one user, whatever tokens the user has, and at most
`LINKS_MAX` in total. Beyond the first limit the user's oldest code is dropped; beyond the second, the oldest code of
the user who has the most. Several api processes may share one address. A process that did not make the code does not
know it: then the program requests another code, or the user pastes the token.

Invariants: a used or expired code is refused. A code opens only the page that it was made for: the api's own page or
the page of one workload. Whether the token is still valid is checked when the code is used.
"""

import asyncio
import hashlib
import math
import zlib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from slipway.api.auth.bearer import bearer
from slipway.api.auth.ended_sessions import EndedSessions
from slipway.api.auth.issuer_rules import OidcUser
from slipway.api.auth.origins import host_name, workload_of
from slipway.api.auth.principal import Authenticator, PermissionCheck, Principal, VisibleWorkspaces
from slipway.api.http.errors import UnauthorizedError
from slipway.errors import UnavailableError
from slipway.runtime import log
from slipway.runtime.clock import Clock, Random
from slipway.runtime.listen import is_loopback

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


SETTLE_S = 180.0
"""A kubelet may need this long to update a changed Secret in every replica."""
SUFFIX = ".key"
SEALED_CHARS_MAX = 3_900
"""Browsers store 4,096 bytes of a cookie, including its name and attributes."""
FILES_MAX, FILE_BYTES_MAX = 32, 4_096
T = TypeVar("T", bound=msgspec.Struct)

_log = log.get_logger(__name__)


class SealKeys:
    """The keys that open texts now, and the key that seals them."""

    def __init__(self, folder: Path | None, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._keys: dict[str, Fernet] = {}
        """{text of a key: its cipher}, the last file name in the alphabet first"""
        self._since: dict[str, float] = {}
        """{text of a key: when this process first read it}, by the monotonic clock"""
        self._ignored: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether other replicas, and this one after a restart, have the same keys."""
        return self._folder is not None

    async def look(self) -> None:
        """Read the folder. Raises UnavailableError when it cannot be read and no key is known."""
        if self._folder is None:
            return
        try:
            files = await asyncio.to_thread(_read, self._folder)
        except OSError as error:
            if self._keys:
                _log.warning("folder of session keys not read", why=error.strerror)
                return
            raise UnavailableError(f"the folder of session keys {self._folder} cannot be read") from error
        self._take(files)

    def seal(self, value: msgspec.Struct) -> str:
        """Return the sealed text; it may be longer than a browser stores. Raises UnavailableError without a key."""
        key = self._sealing()
        if key is None:
            raise UnavailableError(f"no session key in {self._folder}, so no browser can log in: add a file *.key")
        packed = zlib.compress(msgspec.msgpack.encode(value), 9)
        return key.encrypt_at_time(packed, int(self._clock.now())).decode().rstrip("=")

    def open(self, text: str, as_type: type[T], *, chars_max: int = SEALED_CHARS_MAX) -> T | None:
        """Return the sealed value; None when no key opens it, its type differs, or it is longer than `chars_max`."""
        from cryptography.fernet import InvalidToken

        if not text or len(text) > chars_max or not text.isascii():
            return None
        padded = text + "=" * (-len(text) % 4)
        for key in self._keys.values():
            try:
                # The sealed value contains its own expiry, which the caller checks.
                packed = key.decrypt(padded)
            except InvalidToken:
                continue
            try:
                return msgspec.msgpack.decode(zlib.decompress(packed), type=as_type)
            except (msgspec.MsgspecError, zlib.error):
                return None
        return None

    def _sealing(self) -> "Fernet | None":
        if self._folder is None and not self._keys:
            from cryptography.fernet import Fernet

            key = Fernet.generate_key()
            self._keys = {key.decode(): Fernet(key)}
        now = self._clock.monotonic()
        settled = [key for text, key in self._keys.items() if now - self._since.get(text, -SETTLE_S) >= SETTLE_S]
        return next(iter(settled or self._keys.values()), None)

    def _take(self, files: dict[str, str]) -> None:
        from cryptography.fernet import Fernet

        found: dict[str, Fernet] = {}
        ignored: list[str] = []
        for name in sorted(files, reverse=True):
            for text in files[name].split():
                try:
                    found[text] = self._keys.get(text) or Fernet(text)
                except ValueError:
                    ignored.append(name)
        if tuple(ignored) != self._ignored:
            self._ignored = tuple(ignored)
            for name in ignored:
                _log.warning("session key ignored", file=name, why="must be 32 bytes in URL-safe base64")
        if not found and self._keys:
            _log.warning("no session key left in the folder; the keys read last stay in use", folder=str(self._folder))
            return
        if found.keys() != self._keys.keys():
            _log.info("session keys read", count=len(found))
        # At the start there is no need to wait: all texts that exist were sealed by one of these keys.
        known_since = self._clock.monotonic() if self._keys else self._clock.monotonic() - SETTLE_S
        self._since = {text: self._since.get(text, known_since) for text in found}
        self._keys = found


def _read(folder: Path) -> dict[str, str]:
    """Return {file name: its text}, without hidden files such as those of the kubelet (`..data`)."""
    entries = sorted(each for each in folder.iterdir() if each.suffix == SUFFIX and not each.name.startswith("."))
    found: dict[str, str] = {}
    for entry in entries[-FILES_MAX:]:
        with entry.open("rb") as file:
            found[entry.name] = file.read(FILE_BYTES_MAX).decode("ascii", "replace")
    return found


NAME, TICKET_NAME = "slipway_session", "slipway_ticket"
SECURE = "__Host-"
"""Prefix of cookie names under TLS: a browser accepts such a cookie from this host only, never from a subdomain."""
TOKEN_CHARS_MAX = 3_800
TICKET_S = 900.0
"""Lifetime of a ticket that is not used. After half of it, the next use replaces the ticket."""
CODE_S = 120.0
"""Lifetime of a one-time code: the user has this long to take the step to the workload."""
SAME_NAME_MAX = 64
"""Limit of cookies with one name that are tried: pages of neighbouring hosts can add some."""
SKEW_S = 60.0
"""Tolerated difference between the clocks of replicas; beyond it, a new ticket of one is refused by another."""
BY_COOKIE_KEY, TOKEN_KEY = "slipway.by_cookie", "slipway.cookie_token"
PRESENTED_KEY = "slipway.presented_login"
"""Scope key of a login that a handler of ours has set: the login came with a code, not with a cookie."""
_ID_BYTES = 16
_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_LONGEST_ALLOCATION = _ID_CHARACTERS + _ID_CHARACTERS[::-1]
"""Needs more space than any AllocationID after compression: it repeats nothing, and it is longer than every id."""


class SignedIn(msgspec.Struct, frozen=True, kw_only=True, tag="signed-in"):
    """The user whom the issuer named at `at` (epoch seconds).

    `subject` is the issuer's own, constant name of the user. Without a refresh token the sign-in cannot be renewed.
    """

    user: OidcUser
    subject: str
    refresh_token: str = ""
    at: float


class LoginSession(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """A login: its token, or the user whom the issuer named; and its expiry (epoch seconds)."""

    id: str
    token: str = ""
    ends_at: float
    signed_in: SignedIn | None = None


class WorkloadTicket(msgspec.Struct, frozen=True, kw_only=True, tag="ticket"):
    """Permission of a login to open the origin of one allocation."""

    session: LoginSession
    allocation: str
    ends_at: float


class EntryCode(msgspec.Struct, frozen=True, kw_only=True, tag="code"):
    """A one-time code with which a browser enters the origin of one allocation."""

    id: str
    session: LoginSession
    allocation: str
    ends_at: float


class BrowserSessions:
    """The logins of browsers. Loops of the process keep `keys` and `ended` up to date.

    `domain` is the parent domain of the origins of workloads; `life_s` is the lifetime of a login.
    """

    def __init__(
        self, keys: SealKeys, ended: EndedSessions, clock: Clock, random: Random, *, domain: str, life_s: float
    ) -> None:
        self.keys = keys
        self.ended = ended
        self._clock = clock
        self._random = random
        self._domain = domain
        self._life_s = life_s

    def begin(self, token: str) -> LoginSession:
        """Return a new login. Raises UnauthorizedError when its cookie would be too long for a browser."""
        ends_at = self._clock.now() + self._life_s
        session = LoginSession(id=self._random.token_hex(_ID_BYTES), token=token, ends_at=ends_at)
        if len(token) > TOKEN_CHARS_MAX or not self._fits(session):
            raise UnauthorizedError("the token is too long for a cookie; use a token with fewer claims")
        return session

    def begin_signed_in(self, signed_in: SignedIn) -> LoginSession:
        """Return a new login of the user whom the issuer named.

        Without a refresh token, the login ends when the issuer's token expires. Raises UnauthorizedError when its
        cookie would be too long for a browser.
        """
        ends_at = self._clock.now() + self._life_s
        if not signed_in.refresh_token:
            ends_at = min(ends_at, signed_in.user.ends_at)
        # A long refresh token may be left out, because replicas share it too. The group names are stored here only.
        for each in (signed_in, msgspec.structs.replace(signed_in, refresh_token="")):
            session = LoginSession(id=self._random.token_hex(_ID_BYTES), ends_at=ends_at, signed_in=each)
            if self._fits(session):
                return session
        raise UnauthorizedError(
            f"the issuer names {len(signed_in.user.groups)} groups, too many for a cookie; configure it to name "
            "only groups that have roles here"
        )

    def of(self, connection: HTTPConnection) -> LoginSession | None:
        """Return the valid login of a request: by its session, or by its ticket in the origin of a workload."""
        id_ = self._workload(connection)
        found = self.ticket_of(connection) if id_ else None
        session = found.session if found is not None else None if id_ else self._session_of(connection)
        return session if session is not None and self.is_good(session) else None

    def ticket_of(self, connection: HTTPConnection) -> WorkloadTicket | None:
        """Return the valid ticket of a request; None when there is none for the workload of this origin."""
        for text in cookies_of(connection, TICKET_NAME):
            ticket = self.keys.open(text, WorkloadTicket)
            if ticket is not None and self._is_now(ticket.ends_at, TICKET_S):
                return ticket if ticket.allocation == self._workload(connection) else None
        return None

    def has_refused(self, connection: HTTPConnection) -> bool:
        """Whether the browser sent cookies of ours and none is valid here: ended, expired, or of another allocation."""
        name = TICKET_NAME if self._workload(connection) else NAME
        return bool(cookies_of(connection, name)) and self.of(connection) is None

    def is_good(self, session: LoginSession) -> bool:
        """Whether the session has neither expired nor been logged out."""
        return self._is_now(session.ends_at, self._life_s) and not self.ended.has(session.id)

    def code(self, session: LoginSession, allocation: str) -> str:
        """Return a one-time code with which the browser of that login enters the origin of an allocation."""
        id_, ends_at = self._random.token_hex(_ID_BYTES), self._clock.now() + CODE_S
        return self.keys.seal(EntryCode(id=id_, session=session, allocation=allocation, ends_at=ends_at))

    async def redeem(self, text: str, allocation: str) -> LoginSession | None:
        """Return the login of a code; None when the code is not valid for that allocation, or was used before."""
        code = self.keys.open(text, EntryCode)
        if code is None or code.allocation != allocation or not self._is_now(code.ends_at, CODE_S):
            return None
        if not self.is_good(code.session) or not await self.ended.take(code.id, CODE_S + SKEW_S):
            return None
        return code.session

    async def end(self, session: LoginSession) -> bool:
        """Log out. Return whether the other replicas were informed: False while Redis is unavailable."""
        return await self.ended.end(session.id, session.ends_at)

    def keep_session(self, response: Response, session: LoginSession, *, is_secure: bool) -> None:
        """Set the cookie of the login."""
        self._keep(response, NAME, self.keys.seal(session), session, is_secure=is_secure, is_strict=True)

    def keep_ticket(self, response: Response, session: LoginSession, allocation: str, *, is_secure: bool) -> None:
        """Set the cookie of a ticket. It is not SameSite=Strict, because the first visit comes from another site."""
        ends_at = min(self._clock.now() + TICKET_S, session.ends_at)
        ticket = WorkloadTicket(session=session, allocation=allocation, ends_at=ends_at)
        # The cookie lives as long as the session, so that the api can tell an expired ticket from a missing one.
        self._keep(response, TICKET_NAME, self.keys.seal(ticket), session, is_secure=is_secure, is_strict=False)

    def renewed(self, connection: HTTPConnection) -> list[tuple[bytes, bytes]]:
        """Return the response headers that set a new ticket; empty while the present ticket is still young."""
        ticket = self.ticket_of(connection) if connection.scope.get(BY_COOKIE_KEY) else None
        now = self._clock.now()
        if ticket is None or ticket.ends_at - now > TICKET_S / 2 or ticket.ends_at >= ticket.session.ends_at:
            return []
        carrier = Response()
        is_under_tls = bool(connection.cookies.get(SECURE + TICKET_NAME))
        self.keep_ticket(carrier, ticket.session, ticket.allocation, is_secure=is_under_tls)
        return [(name, value) for name, value in carrier.raw_headers if name == b"set-cookie"]

    def _fits(self, session: LoginSession) -> bool:
        """Whether each text that is sealed from the login is short enough to be opened, whatever its allocation."""
        # A code has the fields of a ticket and an id, so it is the longest text.
        id_, ends_at = self._random.token_hex(_ID_BYTES), self._clock.now()
        longest = EntryCode(id=id_, session=session, allocation=_LONGEST_ALLOCATION, ends_at=ends_at)
        return len(self.keys.seal(longest)) <= SEALED_CHARS_MAX

    def _keep(
        self, response: Response, name: str, value: str, session: LoginSession, *, is_secure: bool, is_strict: bool
    ) -> None:
        response.set_cookie(
            SECURE + name if is_secure else name,
            value,
            max_age=max(1, math.ceil(session.ends_at - self._clock.now())),
            path="/",
            secure=is_secure,
            httponly=True,
            samesite="strict" if is_strict else "lax",
        )

    def _session_of(self, connection: HTTPConnection) -> LoginSession | None:
        """Return the first session cookie that opens; a cookie that only this host can have set is tried first."""
        opened = (self.keys.open(text, LoginSession) for text in cookies_of(connection, NAME))
        return next((session for session in opened if session is not None), None)

    def _workload(self, connection: HTTPConnection) -> str:
        return workload_of(connection.headers.get("host", ""), self._domain)

    def _is_now(self, ends_at: float, life_s: float) -> bool:
        """Whether `ends_at` is in the future, and not further away than the lifetime allows by this clock."""
        left_s = ends_at - self._clock.now()
        return 0.0 < left_s <= life_s + SKEW_S


class RenewsSignIns(Protocol):
    """A port: the current user of a sign-in at the issuer."""

    async def principal(self, session: LoginSession) -> Principal:
        """Return the user whom the issuer names now. Raises UnauthorizedError or TransientError."""
        ...


class CookieAuth:
    """An `Authenticator` that uses the token of the header, or else the login of the browser."""

    def __init__(self, inner: Authenticator, sessions: BrowserSessions, sign_ins: RenewsSignIns | None = None) -> None:
        self._inner = inner
        self._sessions = sessions
        self._sign_ins = sign_ins

    async def authenticate(self, connection: HTTPConnection) -> Principal:
        """Return the caller, by the header's token or by the browser's login."""
        if bearer(connection):
            return await self._inner.authenticate(connection)
        presented: LoginSession | None = connection.scope.get(PRESENTED_KEY)
        session = presented or self._sessions.of(connection)
        if session is None:
            return await self._inner.authenticate(connection)
        connection.scope[BY_COOKIE_KEY] = presented is None
        if session.signed_in is not None:
            if self._sign_ins is None:
                raise UnauthorizedError("single sign-on is no longer set up here; log in again")
            return BrowserCaller(await self._sign_ins.principal(session), session, self._sessions)
        connection.scope[TOKEN_KEY] = session.token
        return BrowserCaller(await self._inner.authenticate(connection), session, self._sessions)


class BrowserCaller:
    """The principal of a browser's login; it is no longer valid when the login has ended."""

    def __init__(self, inner: Principal, session: LoginSession, sessions: BrowserSessions) -> None:
        self._inner = inner
        self._session = session
        self._sessions = sessions
        self.name, self.via = inner.name, inner.via
        self.roles, self.expires_at = inner.roles, inner.expires_at

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """Whether the login's token or user has the permission in the workspace."""
        return await self._inner.may(ask, workspace)

    async def visible_workspaces(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Return the workspaces in which the login's token or user has the permission."""
        return await self._inner.visible_workspaces(ask)

    async def is_still_valid(self) -> bool:
        """Whether both the login and its token are still valid."""
        return self._sessions.is_good(self._session) and await self._inner.is_still_valid()


def credential(connection: HTTPConnection) -> str:
    """Return the token of a request: from its header, or else from its login; empty when there is none."""
    token: Any = bearer(connection) or connection.scope.get(TOKEN_KEY, "")
    return str(token)


def is_by_cookie(connection: HTTPConnection) -> bool:
    """Whether the login of the request came with a cookie."""
    return bool(connection.scope.get(BY_COOKIE_KEY))


def forget(response: Response, name: str = NAME) -> None:
    """Delete a cookie in the browser, under both names: with and without `__Host-`."""
    for whole, is_secure_name in ((SECURE + name, True), (name, False)):
        response.set_cookie(whole, "", max_age=0, path="/", secure=is_secure_name, httponly=True, samesite="strict")


def is_secure(connection: HTTPConnection) -> bool:
    """Whether the browser uses TLS. A proxy may terminate TLS in front of us: then a header of the request shows it."""
    return _is_browser_under_tls(connection) or connection.headers.get("origin", "").startswith("https://")


def has_secure_session(connection: HTTPConnection) -> bool:
    """Whether the browser was logged in under TLS."""
    return SECURE + NAME in connection.cookies


def cookies_of(connection: HTTPConnection, name: str) -> list[str]:
    """Return the values of the cookies with that name, at most `SAME_NAME_MAX`.

    A cookie that only this host can have set is first. A page of a neighbouring host can set a cookie with the plain
    name for our host, and the browser sends both, so the caller tries each. Under TLS only the name with `__Host-` is
    accepted. Otherwise such a page could log its reader in as another user.
    """
    given = [
        (key.strip(), value.strip().strip('"'))
        for field in connection.headers.getlist("cookie")
        for key, _, value in (part.partition("=") for part in field.split(";"))
    ]
    names = (SECURE + name,) if _is_browser_under_tls(connection) else (SECURE + name, name)
    return [text for whole in names for key, text in given if key == whole and text][:SAME_NAME_MAX]


def _is_browser_under_tls(connection: HTTPConnection) -> bool:
    """Whether the browser uses TLS, also when a proxy terminates TLS in front of us.

    A browser sends `Sec-Fetch-Site` only to hosts that it trusts: hosts under TLS, and its own machine.
    """
    if connection.url.scheme in ("https", "wss"):
        return True
    name = host_name(connection.headers.get("host", ""))
    is_here = is_loopback(name) or name.endswith(".localhost")
    return "sec-fetch-site" in connection.headers and not is_here


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
