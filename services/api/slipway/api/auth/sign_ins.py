"""Sign-ins of browsers at the issuer: the authorisation code flow with PKCE, and the renewal of a login after it.

Owns the redirect to the issuer and back, and the renewal of a login by its refresh token. A sealed cookie of ten
minutes binds the redirect to one browser. The newest answer of the issuer about a login is in the memory of this
process, and sealed in Redis for the other replicas, because a refresh token may be valid only once. The login itself
contains the first answer.

Invariants: an answer of the issuer is accepted once, only from the browser that began the sign-in, and only with the
nonce of that sign-in. An answer in Redis is valid only for the login that it was stored for. No token of the issuer is
in a page, an address or a readable cookie. When the issuer refuses to renew a login, the login ends on all replicas. A
login is renewed after half of the lifetime of the newest answer, at most once in `RENEW_GAP_S` on all replicas. The
issuer may be unavailable until the end of that lifetime.

Not promised while Redis is unavailable: that a login survives a restart if the issuer's refresh tokens are valid once.

Source: https://openid.net/specs/openid-connect-core-1_0.html#CodeFlowAuth, RFC 7636 (PKCE), RFC 9207 (iss)
"""

import asyncio
import base64
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from urllib.parse import urlencode
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from slipway.api.auth.issuer import GrantRefusedError, Issuer, IssuerTokens
from slipway.api.auth.issuer_rules import OidcUser, VerifiedToken, check_nonce
from slipway.api.auth.oidc_auth import OidcAuth
from slipway.api.auth.principal import PermissionCheck, Principal, VisibleWorkspaces
from slipway.api.auth.session import (
    SEALED_CHARS_MAX,
    SECURE,
    SKEW_S,
    BrowserSessions,
    LoginSession,
    SignedIn,
    cookies_of,
)
from slipway.api.http.errors import IssuerUnavailableError, UnauthorizedError
from slipway.errors import TransientError
from slipway.model.times import format_time
from slipway.runtime import log
from slipway.runtime.clock import Clock, Random

COOKIE = "slipway_signing_in"
PENDING_S = 600.0
RENEW_GAP_S = 10.0
LIFE_WITHOUT_TOKEN_S = 300.0
"""How long a renewal is valid when the answer has neither an ID token nor a lifetime."""
LOGINS_MAX = 50_000
"""Limit of logins in memory; a dropped login (least recently used first) is read from Redis or its cookie again."""
SHARED_CHARS_MAX = 64 * 1024
_SECRET_BYTES = 32
_GONE = ("invalid_grant",)

_log = log.get_logger(__name__)


class PendingSignIn(msgspec.Struct, frozen=True, kw_only=True, tag="pending"):
    """A sign-in in progress: the sealed cookie that the browser stores during the redirect to the issuer."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    following: str
    is_secure: bool
    ends_at: float


class SharedSignIn(msgspec.Struct, frozen=True, kw_only=True, tag="shared-sign-in"):
    """The newest answer about a login, sealed in Redis for the other replicas.

    It names its login, so that an answer under the key of another login is recognised.
    """

    session: str
    said: SignedIn


class SignIns:
    """Signs browsers in, and renews their logins."""

    def __init__(
        self, issuer: Issuer, auth: OidcAuth, sessions: BrowserSessions, clock: Clock, random: Random, *, scopes: str
    ) -> None:
        self._issuer = issuer
        self._auth = auth
        self._sessions = sessions
        self._clock = clock
        self._random = random
        self._scopes = scopes
        self._known: OrderedDict[str, SignedIn] = OrderedDict()
        """{id of a login: the newest answer of the issuer}, least recently used first"""
        self._renewing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def begin(self, response: Response, *, redirect_uri: str, following: str, is_secure: bool) -> str:
        """Return the address to redirect the browser to; set the sign-in's cookie in `response`.

        Raises IssuerUnavailableError.
        """
        document = await self._issuer.document()
        if not document.authorization_endpoint:
            raise IssuerUnavailableError(
                f"the issuer {self._issuer.url} has no authorization endpoint, so browsers cannot sign in"
            )
        state, nonce, verifier = (self._random.token_hex(_SECRET_BYTES) for _ in range(3))
        pending = PendingSignIn(
            state=state,
            nonce=nonce,
            verifier=verifier,
            redirect_uri=redirect_uri,
            following=following,
            is_secure=is_secure,
            ends_at=self._clock.now() + PENDING_S,
        )
        sealed = self._sessions.keys.seal(pending)
        if len(sealed) > SEALED_CHARS_MAX:
            # With a long address the cookie would be refused at the end. The sign-in then leads to the first page.
            sealed = self._sessions.keys.seal(msgspec.structs.replace(pending, following="/"))
        # Lax, because the redirect back comes from the issuer's site.
        response.set_cookie(
            SECURE + COOKIE if is_secure else COOKIE,
            sealed,
            max_age=int(PENDING_S),
            path="/",
            secure=is_secure,
            httponly=True,
            samesite="lax",
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        asked = {
            "response_type": "code",
            "client_id": self._issuer.client.id,
            "redirect_uri": redirect_uri,
            "scope": self._scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(document.authorization_endpoint, asked)

    async def finish(self, connection: HTTPConnection) -> tuple[LoginSession, PendingSignIn]:
        """Finish a sign-in by the query of the redirect back. Return (the new login, the sign-in that was pending).

        Raises:
            UnauthorizedError: the answer is not valid, or not for this browser.
            IssuerUnavailableError: the issuer is unavailable.
        """
        pending, answer = self._pending(connection), connection.query_params
        state = answer.get("state", "")
        if pending is None or not hmac.compare_digest(pending.state.encode(), state.encode()):
            raise UnauthorizedError("this sign-in was begun in another browser or more than ten minutes ago")
        if not await self._sessions.ended.take(state, PENDING_S + SKEW_S):
            raise UnauthorizedError("this answer of the issuer was used before")
        if answer.get("iss", self._issuer.url) != self._issuer.url:
            raise UnauthorizedError("the answer comes from another issuer")
        if answer.get("error") or not answer.get("code"):
            told = answer.get("error_description") or answer.get("error") or "its answer has no code"
            raise UnauthorizedError(f"the issuer refused the sign-in: {_shown(told)}")
        grant = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": pending.redirect_uri,
            "code_verifier": pending.verifier,
        }
        try:
            tokens = await self._issuer.redeem(grant)
        except GrantRefusedError as error:
            _log.warning("sign-in refused by the issuer", why=str(error))
            raise UnauthorizedError(str(error)) from error
        found = await self._named(tokens)
        check_nonce(found, pending.nonce)
        signed_in = SignedIn(
            user=found.user,
            subject=str(found.claims.get("sub", "")),
            refresh_token=tokens.refresh_token or "",
            at=self._clock.now(),
        )
        session = self._sessions.begin_signed_in(signed_in)
        await self._keep(session, signed_in)
        _log.info("browser signed in", user=signed_in.user.name)
        return session, pending

    async def principal(self, session: LoginSession) -> Principal:
        """Return the user whom the issuer names now, as a caller.

        Raises:
            UnauthorizedError: the sign-in has ended.
            IssuerUnavailableError: the newest answer has expired, and the issuer is unavailable.
        """
        return SignedInCaller(self, self._auth, session, await self.user(session))

    async def user(self, session: LoginSession) -> OidcUser:
        """Return the user whom the issuer names now; renew the login when that is due. Raises as `principal` does."""
        said = self._last(session)
        if self._is_due(said):
            lock = self._renewing.setdefault(session.id, asyncio.Lock())
            async with lock:
                said = await self._renewed(session)
        return said.user

    async def end(self, session: LoginSession, *, back: str) -> str:
        """Return the issuer's address for a logout, which redirects to `back` after it; empty when it has none."""
        said = self._last(session)
        self._known.pop(session.id, None)
        try:
            document = await self._issuer.document()
            if said.refresh_token:
                await self._issuer.revoke(said.refresh_token)
        except TransientError as error:
            _log.warning("logout not sent to the issuer", why=str(error))
            return ""
        if not document.end_session_endpoint:
            return ""
        asked = {"client_id": self._issuer.client.id, "post_logout_redirect_uri": back}
        return _with_query(document.end_session_endpoint, asked)

    def _pending(self, connection: HTTPConnection) -> PendingSignIn | None:
        """Return the sign-in that this browser has begun; None when there is none, or it has expired."""
        for text in cookies_of(connection, COOKIE):
            found = self._sessions.keys.open(text, PendingSignIn)
            if found is not None and 0.0 < found.ends_at - self._clock.now() <= PENDING_S + SKEW_S:
                return found
        return None

    async def _renewed(self, session: LoginSession) -> SignedIn:
        """Return the newest answer: from another replica, from a renewal, or the last one until it expires."""
        shared = self._sessions.keys.open(
            await self._sessions.ended.shared(session.id), SharedSignIn, chars_max=SHARED_CHARS_MAX
        )
        said = self._last(session)
        if shared is not None and (shared.session, shared.said.subject) != (session.id, said.subject):
            _log.error("sign-in in Redis belongs to another login and was ignored", user=said.user.name)
        elif shared is not None and shared.said.at > said.at:
            said = shared.said
            self._remember(session, said)
        if not self._is_due(said):
            return said
        is_over = self._clock.now() >= said.user.ends_at
        if not said.refresh_token:
            if is_over:
                raise UnauthorizedError("the sign-in has ended; sign in again")
            return said
        try:
            if not await self._sessions.ended.take(f"renew-{session.id}", RENEW_GAP_S):
                raise IssuerUnavailableError("the sign-in is being renewed", retry_after_s=1.0)
            return await self._renew(session, said)
        except TransientError:
            if is_over:
                raise
            return said

    async def _renew(self, session: LoginSession, said: SignedIn) -> SignedIn:
        grant = {"grant_type": "refresh_token", "refresh_token": said.refresh_token}
        try:
            tokens = await self._issuer.redeem(grant)
            now = self._clock.now()
            if tokens.id_token:
                found = await self._named(tokens)
                if found.claims.get("sub") != said.subject:
                    raise UnauthorizedError("the issuer names another user than before; sign in again")
                user = found.user
            else:
                life_s = tokens.lifetime_s or LIFE_WITHOUT_TOKEN_S
                user = msgspec.structs.replace(said.user, ends_at=now + life_s)
        except GrantRefusedError as error:
            if error.reason not in _GONE:
                _log.error("the issuer refuses the api's client", why=str(error))
                raise IssuerUnavailableError(
                    f"the sign-in cannot be renewed: {error}", retry_after_s=RENEW_GAP_S
                ) from error
            await self._sessions.end(session)
            raise UnauthorizedError("the issuer has ended your session; sign in again") from error
        except UnauthorizedError:
            await self._sessions.end(session)
            raise
        refresh_token = tokens.refresh_token or said.refresh_token
        renewed = SignedIn(user=user, subject=said.subject, refresh_token=refresh_token, at=now)
        await self._keep(session, renewed)
        return renewed

    async def _named(self, tokens: IssuerTokens) -> VerifiedToken:
        """Check the ID token for our client, and return its user and claims. Raises UnauthorizedError."""
        client = self._issuer.client.id
        if not tokens.id_token:
            raise UnauthorizedError("the issuer returned no ID token; check that SLIPWAY_OIDC_SCOPES includes openid")
        found = await self._auth.verified(tokens.id_token, audience=client)
        if found.claims.get("azp", client) != client:
            raise UnauthorizedError("the ID token was made for another client")
        return found

    def _last(self, session: LoginSession) -> SignedIn:
        if session.signed_in is None:
            raise UnauthorizedError("the login was not made by single sign-on")
        known = self._known.get(session.id)
        if known is None:
            return session.signed_in
        self._known.move_to_end(session.id)
        return known

    def _is_due(self, said: SignedIn) -> bool:
        """Whether half of the lifetime of the answer is over."""
        return self._clock.now() >= (said.at + said.user.ends_at) / 2

    async def _keep(self, session: LoginSession, said: SignedIn) -> None:
        self._remember(session, said)
        sealed = self._sessions.keys.seal(SharedSignIn(session=session.id, said=said))
        await self._sessions.ended.share(session.id, sealed, session.ends_at - self._clock.now())

    def _remember(self, session: LoginSession, said: SignedIn) -> None:
        self._known[session.id] = said
        self._known.move_to_end(session.id)
        while len(self._known) > LOGINS_MAX:
            self._known.popitem(last=False)


class SignedInCaller:
    """A caller who is a user of the issuer, by a browser's login."""

    def __init__(self, sign_ins: SignIns, auth: OidcAuth, session: LoginSession, user: OidcUser) -> None:
        self._sign_ins = sign_ins
        self._auth = auth
        self._session = session
        self._caller = auth.principal(user)
        self.name, self.via, self.roles = self._caller.name, self._caller.via, self._caller.roles
        self.expires_at = format_time(session.ends_at)

    async def may(self, ask: PermissionCheck, workspace: str) -> bool:
        """By the rights of the name and groups that the issuer gave."""
        return await self._caller.may(ask, workspace)

    async def visible_workspaces(self, ask: PermissionCheck) -> VisibleWorkspaces:
        """By the rights of the name and groups that the issuer gave."""
        return await self._caller.visible_workspaces(ask)

    async def is_still_valid(self) -> bool:
        """Whether the sign-in is still valid; from now on, the groups are those that the issuer names now."""
        try:
            self._caller = self._auth.principal(await self._sign_ins.user(self._session))
        except UnauthorizedError:
            return False
        return True


def _with_query(address: str, asked: Mapping[str, str]) -> str:
    return f"{address}{'&' if '?' in address else '?'}{urlencode(asked)}"


def _shown(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[:200]
