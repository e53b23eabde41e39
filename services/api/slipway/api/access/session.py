"""Browsers: what a login leaves in a browser, for those who cannot send a header of their own.

Owns two cookies, both sealed (`access/seal.py`): the session, for our own origin, and the ticket, for the origin of
one workload. A session holds the token that logged in, so that whoever revokes the token ends it; or, after a sign-in
at an issuer (`access/sign_ins.py`), whom the issuer named and what renews that. A ticket holds the session it was made
from and is good for one allocation, for `TICKET_S`; while it is used, a new one takes its place, until its session
ends. A one-time code leads from our origin to that of a workload.

Invariants: no cookie, code or page holds a token that can be read; a script cannot read a cookie of ours (HttpOnly); no
other site makes a browser send it (SameSite); it belongs to one host name and never to its subdomains or parents; it
changes nothing but from a page of the very same origin. A ticket opens nothing in our origin, a session nothing in that
of a workload. A session that was logged out (`access/ended_sessions.py`) opens nothing, and neither do its tickets.

Not promised: that all replicas have the same time. By any replica's clock, a ticket is good for `TICKET_S` and
`SKEW_S` at most.
"""

import math
from typing import Any, Protocol

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from slipway.api.access.ended_sessions import EndedSessions
from slipway.api.access.issuer_rules import OidcUser
from slipway.api.access.origins import host_name, workload_of
from slipway.api.access.permissions import PermissionCheck, VisibleWorkspaces
from slipway.api.access.principal import Authenticator, Principal
from slipway.api.access.seal import SEALED_CHARS_MAX, SealKeys
from slipway.api.bearer import bearer
from slipway.api.http_errors import UnauthorizedError
from slipway.runtime.clock import Clock, Random
from slipway.runtime.listen import is_loopback

NAME, TICKET_NAME = "slipway_session", "slipway_ticket"
SECURE = "__Host-"
"""Under TLS: a browser then takes a cookie of that name from this very host only, never from a page of a subdomain."""
TOKEN_CHARS_MAX = 3_800
TICKET_S = 900.0
"""How long a ticket that is not used stays good. Half of it, and the next use gives a new one."""
CODE_S = 120.0
"""How long a user may look at the step to a workload before it is to be made again."""
SAME_NAME_MAX = 64
"""Cookies of one name that are tried: pages of neighbouring hosts can add some."""
SKEW_S = 60.0
"""How much the clocks of replicas may differ before a ticket made by one is refused by another."""
BY_COOKIE_KEY, TOKEN_KEY = "slipway.by_cookie", "slipway.cookie_token"
PRESENTED_KEY = "slipway.presented_login"
"""A login that a handler of ours brings: it came by a code, and not with a cookie."""
_ID_BYTES = 16


class SignedIn(msgspec.Struct, frozen=True, kw_only=True, tag="signed-in"):
    """What the issuer said at `at` (epoch seconds); `subject` is its own name of the user, which stays the same.

    Without a refresh token it cannot be renewed."""

    user: OidcUser
    subject: str
    refresh_token: str = ""
    at: float


class LoginSession(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """A login: whose token it is, or whom the issuer named, and until when (epoch seconds)."""

    id: str
    token: str = ""
    ends_at: float
    signed_in: SignedIn | None = None


class WorkloadTicket(msgspec.Struct, frozen=True, kw_only=True, tag="ticket"):
    """What a login may open in the origin of one allocation."""

    session: LoginSession
    allocation: str
    ends_at: float


class EntryCode(msgspec.Struct, frozen=True, kw_only=True, tag="code"):
    """What a browser brings to that origin, once."""

    id: str
    session: LoginSession
    allocation: str
    ends_at: float


class BrowserSessions:
    """The logins of browsers. `keys` and `ended` are kept up to date by loops of the process.

    `domain`: that of the origins of workloads; `life_s`: how long a login is good.
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
        """A new login. Raises UnauthorizedError when no browser would keep it."""
        ends_at = self._clock.now() + self._life_s
        session = LoginSession(id=self._random.token_hex(_ID_BYTES), token=token, ends_at=ends_at)
        # A ticket is the longest of what is made of it.
        ticket = WorkloadTicket(session=session, allocation="x" * 64, ends_at=ends_at)
        if len(token) > TOKEN_CHARS_MAX or len(self.keys.seal(ticket)) > SEALED_CHARS_MAX:
            raise UnauthorizedError("the token is longer than a browser keeps; use one with fewer claims")
        return session

    def begin_signed_in(self, signed_in: SignedIn) -> LoginSession:
        """A new login of whom the issuer named, which ends with what cannot be renewed.

        Raises UnauthorizedError when no browser would keep it."""
        ends_at = self._clock.now() + self._life_s
        if not signed_in.refresh_token:
            ends_at = min(ends_at, signed_in.user.ends_at)
        # A long refresh token is left to the replicas, who know it too; the names of groups have no other place.
        for each in (signed_in, msgspec.structs.replace(signed_in, refresh_token="")):
            session = LoginSession(id=self._random.token_hex(_ID_BYTES), ends_at=ends_at, signed_in=each)
            ticket = WorkloadTicket(session=session, allocation="x" * 64, ends_at=ends_at)
            if len(self.keys.seal(ticket)) <= SEALED_CHARS_MAX:
                return session
        raise UnauthorizedError(
            f"the issuer names {len(signed_in.user.groups)} groups, more than a browser keeps; let it name those only "
            "that have roles here"
        )

    def of(self, connection: HTTPConnection) -> LoginSession | None:
        """The login of a request: by a session in our origin, by a ticket in that of a workload."""
        id_ = self._workload(connection)
        found = self.ticket_of(connection) if id_ else None
        session = found.session if found is not None else None if id_ else self._session_of(connection)
        return session if session is not None and self.is_good(session) else None

    def ticket_of(self, connection: HTTPConnection) -> WorkloadTicket | None:
        """The ticket of a request in the origin of its allocation."""
        for text in cookies_of(connection, TICKET_NAME):
            ticket = self.keys.open(text, WorkloadTicket)
            if ticket is not None and self._is_now(ticket.ends_at, TICKET_S):
                return ticket if ticket.allocation == self._workload(connection) else None
        return None

    def has_refused(self, connection: HTTPConnection) -> bool:
        """Whether the browser has a cookie of ours that opens nothing here: ended, of another allocation, or old."""
        name = TICKET_NAME if self._workload(connection) else NAME
        return bool(cookies_of(connection, name)) and self.of(connection) is None

    def is_good(self, session: LoginSession) -> bool:
        """Whether it has neither ended nor been logged out."""
        return self._is_now(session.ends_at, self._life_s) and not self.ended.has(session.id)

    def code(self, session: LoginSession, allocation: str) -> str:
        """What lets the browser of that login into the origin of an allocation, once."""
        id_, ends_at = self._random.token_hex(_ID_BYTES), self._clock.now() + CODE_S
        return self.keys.seal(EntryCode(id=id_, session=session, allocation=allocation, ends_at=ends_at))

    async def redeem(self, text: str, allocation: str) -> LoginSession | None:
        """The login of a code that is good for that allocation, and was not used before."""
        code = self.keys.open(text, EntryCode)
        if code is None or code.allocation != allocation or not self._is_now(code.ends_at, CODE_S):
            return None
        if not self.is_good(code.session) or not await self.ended.take(code.id, CODE_S + SKEW_S):
            return None
        return code.session

    async def end(self, session: LoginSession) -> bool:
        """Log out. Whether other replicas will know: not while Redis is away."""
        return await self.ended.end(session.id, session.ends_at)

    def keep_session(self, response: Response, session: LoginSession, *, is_secure: bool) -> None:
        """Let the browser keep the login."""
        self._keep(response, NAME, self.keys.seal(session), session, is_secure=is_secure, is_strict=True)

    def keep_ticket(self, response: Response, session: LoginSession, allocation: str, *, is_secure: bool) -> None:
        """Let the browser keep a ticket. The way to it leads from another site, where a strict cookie is not sent."""
        ends_at = min(self._clock.now() + TICKET_S, session.ends_at)
        ticket = WorkloadTicket(session=session, allocation=allocation, ends_at=ends_at)
        # The browser keeps it as long as its session, so that the api can tell an expired ticket from a missing one.
        self._keep(response, TICKET_NAME, self.keys.seal(ticket), session, is_secure=is_secure, is_strict=False)

    def renewed(self, connection: HTTPConnection) -> list[tuple[bytes, bytes]]:
        """The fields of an answer that give the browser a new ticket; empty while the one it has is good for long."""
        ticket = self.ticket_of(connection) if connection.scope.get(BY_COOKIE_KEY) else None
        now = self._clock.now()
        if ticket is None or ticket.ends_at - now > TICKET_S / 2 or ticket.ends_at >= ticket.session.ends_at:
            return []
        carrier = Response()
        is_under_tls = bool(connection.cookies.get(SECURE + TICKET_NAME))
        self.keep_ticket(carrier, ticket.session, ticket.allocation, is_secure=is_under_tls)
        return [(name, value) for name, value in carrier.raw_headers if name == b"set-cookie"]

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
        """With several, the one that only this host can have set is tried first."""
        opened = (self.keys.open(text, LoginSession) for text in cookies_of(connection, NAME))
        return next((session for session in opened if session is not None), None)

    def _workload(self, connection: HTTPConnection) -> str:
        return workload_of(connection.headers.get("host", ""), self._domain)

    def _is_now(self, ends_at: float, life_s: float) -> bool:
        """Whether the end is still to come, and not later than the life allows by this clock."""
        left_s = ends_at - self._clock.now()
        return 0.0 < left_s <= life_s + SKEW_S


class Renews(Protocol):
    """Who knows what has become of a sign-in at the issuer."""

    async def principal(self, session: LoginSession) -> Principal:
        """Whom the issuer names now. Raises UnauthorizedError or TransientError."""
        ...


class CookieAuth:
    """An `Authenticator` that takes a header's token, and else that of a browser's login."""

    def __init__(self, inner: Authenticator, sessions: BrowserSessions, sign_ins: Renews | None = None) -> None:
        self._inner = inner
        self._sessions = sessions
        self._sign_ins = sign_ins

    async def who(self, connection: HTTPConnection) -> Principal:
        """Who calls, or who has logged in."""
        if bearer(connection):
            return await self._inner.who(connection)
        presented: LoginSession | None = connection.scope.get(PRESENTED_KEY)
        session = presented or self._sessions.of(connection)
        if session is None:
            return await self._inner.who(connection)
        connection.scope[BY_COOKIE_KEY] = presented is None
        if session.signed_in is not None:
            if self._sign_ins is None:
                raise UnauthorizedError("single sign-on is not set up here any more; log in again")
            return LoggedIn(await self._sign_ins.principal(session), session, self._sessions)
        connection.scope[TOKEN_KEY] = session.token
        return LoggedIn(await self._inner.who(connection), session, self._sessions)


class LoggedIn:
    """A principal by a browser's login, which ends with that as well."""

    def __init__(self, inner: Principal, session: LoginSession, sessions: BrowserSessions) -> None:
        self._inner = inner
        self._session = session
        self._sessions = sessions
        self.name, self.via = inner.name, inner.via
        self.roles, self.expires_at = inner.roles, inner.expires_at

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """What the token may."""
        return await self._inner.may(ask, workspace)

    async def sight(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """Where the token may."""
        return await self._inner.sight(ask)

    async def still(self) -> bool:
        """Whether neither the login nor its token has ended."""
        return self._sessions.is_good(self._session) and await self._inner.still()


def credential(connection: HTTPConnection) -> str:
    """The token of a request: that of its header, else that of its login; empty when there is none."""
    token: Any = bearer(connection) or connection.scope.get(TOKEN_KEY, "")
    return str(token)


def is_by_cookie(connection: HTTPConnection) -> bool:
    """Whether the browser itself has brought the login along."""
    return bool(connection.scope.get(BY_COOKIE_KEY))


def forget(response: Response, name: str = NAME) -> None:
    """Let the browser forget a cookie, by either name."""
    for whole, is_secure_name in ((SECURE + name, True), (name, False)):
        response.set_cookie(whole, "", max_age=0, path="/", secure=is_secure_name, httponly=True, samesite="strict")


def is_secure(connection: HTTPConnection) -> bool:
    """Whether the browser sees us under TLS, which may end in front of us: then a field of its request says so."""
    return _is_browser_under_tls(connection) or connection.headers.get("origin", "").startswith("https://")


def has_secure_session(connection: HTTPConnection) -> bool:
    """Whether the browser was logged in under TLS."""
    return SECURE + NAME in connection.cookies


def cookies_of(connection: HTTPConnection, name: str) -> list[str]:
    """The texts under that name, at most `SAME_NAME_MAX`, the one that only this host can have set first.

    A page of a neighbouring host can set a cookie of the plain name for us too, and the browser sends both: each is
    tried. Where a browser reaches us under TLS, only the name counts that it takes from this very host; otherwise such
    a page could log its reader in as somebody else.
    """
    given = [
        (key.strip(), value.strip().strip('"'))
        for field in connection.headers.getlist("cookie")
        for key, _, value in (part.partition("=") for part in field.split(";"))
    ]
    names = (SECURE + name,) if _is_browser_under_tls(connection) else (SECURE + name, name)
    return [text for whole in names for key, text in given if key == whole and text][:SAME_NAME_MAX]


def _is_browser_under_tls(connection: HTTPConnection) -> bool:
    """Whether a browser says so, which may see TLS that ends in front of us: it sends `Sec-Fetch-Site` to hosts that
    it trusts, which are those under TLS and this machine."""
    if connection.url.scheme in ("https", "wss"):
        return True
    name = host_name(connection.headers.get("host", ""))
    is_here = is_loopback(name) or name.endswith(".localhost")
    return "sec-fetch-site" in connection.headers and not is_here
