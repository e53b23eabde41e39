"""The client of the OpenID Connect issuer: its discovery document, its keys, its token endpoint.

Owns every connection to the issuer, the limits of requests to it, and the cache of its answers.

Promises: each exchange ends within `EXCHANGE_S`. Redirects are not followed. At most `ANSWER_BYTES_MAX` of an answer
is read. Keys are fetched again when a token names an unknown key, and when the keys are older than `KEYS_FRESH_S`, but
never more often than every `FETCH_GAP_S`, however many tokens need it. While the issuer is unavailable, the last known
keys stay in use. Not promised: that a key which the issuer has withdrawn is forgotten while the issuer is unavailable.

Source: https://openid.net/specs/openid-connect-discovery-1_0.html
"""

import asyncio
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from slipway.api.auth.issuer_rules import IssuerKey, TokenHeader, check_issuer_url, key_for, keys_of
from slipway.api.http.errors import IssuerUnavailableError, UnauthorizedError
from slipway.errors import InvalidError, PermanentError
from slipway.model.numbers import lifetime_in
from slipway.model.times import http_date
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.runtime.service import version

if TYPE_CHECKING:
    import httpx2

EXCHANGE_S = 5.0
FETCH_GAP_S = 10.0
KEYS_FRESH_S = 600.0
ANSWER_BYTES_MAX = 1024 * 1024
AT_ONCE_MAX = 16
"""Limit of concurrent exchanges with the token endpoint; further ones wait within their deadline."""
WELL_KNOWN = "/.well-known/openid-configuration"
_TEXT_CHARS_MAX = 200

_log = log.get_logger(__name__)


class GrantRefusedError(PermanentError):
    """The token endpoint refused, and a retry would fail too: code, refresh token or client is not valid."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """the error code of OAuth 2, such as `invalid_grant`"""


class DiscoveryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The issuer's discovery document; unknown fields are ignored."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    end_session_endpoint: str = ""
    revocation_endpoint: str = ""
    device_authorization_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class IssuerTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the token endpoint."""

    id_token: str | None = None
    refresh_token: str | None = None
    expires_in: object = None
    """lifetime of the access token as the issuer writes it, which may be anything: `lifetime_s` reads it"""

    @property
    def lifetime_s(self) -> float:
        """The lifetime of the access token; 0 when the answer does not state it."""
        return lifetime_in(self.expires_in) or 0.0


class IssuerHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of the issuer, as this process knows it."""

    issuer: str
    """its address (SLIPWAY_OIDC_ISSUER_URL)"""
    keys: int
    """number of its public keys that are known"""
    error: str
    """why it cannot be used; empty when it can"""
    ahead_s: float | None
    """seconds by which the issuer's clock is ahead of this process's; null when its answer has no valid date"""


def tokens_of(body: bytes, url: str) -> IssuerTokens:
    """Return the tokens in an answer of the token endpoint. Raises IssuerUnavailableError when it holds none."""
    try:
        return msgspec.json.decode(body, type=IssuerTokens)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise IssuerUnavailableError(f"the answer of the token endpoint of {url} holds no tokens") from error


def refusal_of(body: bytes) -> tuple[str, str]:
    """Return (error, description) of an OAuth 2 error answer; both empty when the body is no such answer."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return "", ""
    if not isinstance(said, dict):
        return "", ""
    told = cast("dict[str, Any]", said)
    words = "".join(each for each in str(told.get("error_description") or "") if each.isprintable())
    return str(told.get("error") or "")[:64], words[:_TEXT_CHARS_MAX]


class ClientLogin(msgspec.Struct, frozen=True, kw_only=True):
    """The api's client at the issuer; a public client when `secret_file` is empty."""

    id: str
    secret_file: str = ""

    def secret(self) -> str:
        """Return the content of the file now. Raises IssuerUnavailableError when it cannot be read."""
        if not self.secret_file:
            return ""
        try:
            return Path(self.secret_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise IssuerUnavailableError(
                f"SLIPWAY_OIDC_CLIENT_SECRET_FILE: {self.secret_file} cannot be read"
            ) from error


class Issuer:
    """One issuer. An empty `ca_file` means the certificate authorities of the system."""

    def __init__(self, url: str, client: ClientLogin, clock: Clock, *, ca_file: str = "") -> None:
        self.url = url
        self.client = client
        self._clock = clock
        self._ca_file = ca_file
        self._http: httpx2.AsyncClient | None = None
        self._document: DiscoveryDocument | None = None
        self._keys: tuple[IssuerKey, ...] = ()
        self._fetched_at = -math.inf
        self._tried_at = -math.inf
        self._fetching = asyncio.Lock()
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._error = ""
        self._ahead_s: float | None = None

    async def aclose(self) -> None:
        """Close every connection."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def document(self) -> DiscoveryDocument:
        """Return the discovery document. Raises IssuerUnavailableError if it was never read and cannot be read."""
        if self._document is None or self._is_stale():
            await self._refresh()
        if self._document is None:
            raise self._away()
        return self._document

    async def key(self, header: TokenHeader) -> IssuerKey:
        """Return the key that a token names.

        Raises:
            UnauthorizedError: the issuer has no such key.
            IssuerUnavailableError: no keys are known, and the issuer cannot be reached.
        """
        found = key_for(header, self._keys)
        # One request fetches stale keys; concurrent requests continue with the keys that are known.
        if found is None or (self._is_stale() and not self._fetching.locked()):
            await self._refresh()
            found = key_for(header, self._keys)
        if found is not None:
            return found
        if not self._keys:
            raise self._away()
        what = f"key {header.kid[:64]!r}" if header.kid else "a key that it does not name"
        raise UnauthorizedError(f"the token is signed with {what}, which the issuer {self.url} does not publish")

    async def health(self) -> IssuerHealth:
        """Return whether the issuer can be used, after a refresh when one is due."""
        if self._is_stale() or self._error:
            await self._refresh()
        return IssuerHealth(issuer=self.url, keys=len(self._keys), error=self._error, ahead_s=self._ahead_s)

    async def redeem(self, fields: Mapping[str, str]) -> IssuerTokens:
        """Return the tokens that the token endpoint issues for a grant.

        Raises:
            GrantRefusedError: the endpoint refuses the grant, and a retry would fail too.
            IssuerUnavailableError: the endpoint cannot be reached, or its answer cannot be read.
        """
        document = await self.document()
        status, body = await self._post(document.token_endpoint, fields, document)
        if status == 200:
            return tokens_of(body, self.url)
        reason, words = refusal_of(body)
        if 400 <= status < 500 and status not in (408, 429) and reason:
            told = f": {words}" if words else ""
            raise GrantRefusedError(f"the issuer refuses ({reason}){told}", reason)
        raise IssuerUnavailableError(f"the token endpoint of {self.url} answers {status}", retry_after_s=FETCH_GAP_S)

    async def revoke(self, refresh_token: str) -> None:
        """Revoke a refresh token, if the issuer has a revocation endpoint. Raises IssuerUnavailableError."""
        document = await self.document()
        if document.revocation_endpoint:
            fields = {"token": refresh_token, "token_type_hint": "refresh_token"}
            await self._post(document.revocation_endpoint, fields, document)

    def _is_stale(self) -> bool:
        now = self._clock.monotonic()
        return now - self._fetched_at > KEYS_FRESH_S and now - self._tried_at >= FETCH_GAP_S

    async def _refresh(self) -> None:
        """Fetch document and keys, unless that was tried within `FETCH_GAP_S`. After a failure, the old ones stay."""
        async with self._fetching:
            now = self._clock.monotonic()
            if now - self._tried_at < FETCH_GAP_S:
                return
            self._tried_at = now
            try:
                async with asyncio.timeout(EXCHANGE_S):
                    document = await self._fetch_document()
                    keys = keys_of(msgspec.json.decode(await self._get(document.jwks_uri)))
            except TimeoutError:
                self._fail(f"no answer within {EXCHANGE_S:g} s")
            except (IssuerUnavailableError, InvalidError) as error:
                self._fail(str(error))
            except (ValueError, msgspec.MsgspecError, RecursionError) as error:
                self._fail(f"its keys cannot be used: {error}")
            else:
                if self._error or not self._keys:
                    _log.info("keys of the issuer read", issuer=self.url, count=len(keys))
                self._document, self._keys, self._error = document, keys, ""
                self._fetched_at = self._clock.monotonic()

    def _fail(self, why: str) -> None:
        if why != self._error:
            _log.warning("issuer cannot be used", issuer=self.url, why=why, known_keys=len(self._keys))
        self._error = why

    def _away(self) -> IssuerUnavailableError:
        why = self._error or "its discovery document was not read yet"
        return IssuerUnavailableError(f"the issuer {self.url} cannot be used: {why}", retry_after_s=FETCH_GAP_S)

    async def _fetch_document(self) -> DiscoveryDocument:
        address = self.url.rstrip("/") + WELL_KNOWN
        try:
            document = msgspec.json.decode(await self._get(address), type=DiscoveryDocument)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidError(f"{address} is no discovery document: {error}") from error
        if document.issuer != self.url:
            raise InvalidError(
                f"{address} names the issuer {document.issuer[:_TEXT_CHARS_MAX]!r}; "
                "SLIPWAY_OIDC_ISSUER_URL must be the same"
            )
        for name in msgspec.structs.asdict(document):
            if name == "jwks_uri" or (name.endswith("_endpoint") and getattr(document, name)):
                try:
                    check_issuer_url(getattr(document, name).partition("?")[0])
                except ValueError as error:
                    raise InvalidError(f"{address}: {name} {error}") from error
        return document

    async def _get(self, address: str) -> bytes:
        status, body = await self._exchange("GET", address)
        if status != 200:
            raise IssuerUnavailableError(f"{address} answers {status}")
        return body

    async def _post(self, address: str, fields: Mapping[str, str], document: DiscoveryDocument) -> tuple[int, bytes]:
        """Send a form with the api's client credentials; return (status, body)."""
        from httpx2 import BasicAuth

        if not address:
            raise IssuerUnavailableError(f"the issuer {self.url} names no such endpoint in its discovery document")
        secret = await asyncio.to_thread(self.client.secret)
        options: dict[str, Any] = {"data": {**fields, "client_id": self.client.id}}
        if secret and "client_secret_basic" in document.token_endpoint_auth_methods_supported:
            options = {"data": dict(fields), "auth": BasicAuth(*_quoted(self.client.id, secret))}
        elif secret:
            options["data"]["client_secret"] = secret
        try:
            async with asyncio.timeout(EXCHANGE_S), self._turns:
                return await self._exchange("POST", address, **options)
        except TimeoutError as error:
            raise IssuerUnavailableError(f"{address} did not answer within {EXCHANGE_S:g} s") from error

    async def _exchange(self, method: str, address: str, **options: Any) -> tuple[int, bytes]:
        import httpx2

        body = bytearray()
        try:
            http = await self._opened()
            async with http.stream(method, address, headers={"Accept": "application/json"}, **options) as response:
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise IssuerUnavailableError(f"{address} answers more than {ANSWER_BYTES_MAX} bytes")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise IssuerUnavailableError(
                f"{address} cannot be reached: {str(error) or type(error).__name__}"
            ) from error
        self._compare_clocks(response.headers.get("date", ""))
        return response.status_code, bytes(body)

    def _compare_clocks(self, date: str) -> None:
        at = http_date(date)
        self._ahead_s = None if at is None else round(at + 0.5 - self._clock.now(), 1)

    async def _opened(self) -> "httpx2.AsyncClient":
        if self._http is None:
            import httpx2

            verify = await asyncio.to_thread(_authorities, self._ca_file)
            if self._http is None:
                agent = {"User-Agent": f"slipway/{version()}"}
                limits = httpx2.Limits(max_connections=AT_ONCE_MAX, max_keepalive_connections=2)
                self._http = httpx2.AsyncClient(
                    verify=verify, trust_env=False, timeout=EXCHANGE_S, headers=agent, limits=limits
                )
        return self._http


def _authorities(ca_file: str) -> Any:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise IssuerUnavailableError(f"SLIPWAY_OIDC_CA_FILE: {ca_file} cannot be read as certificates") from error


def _quoted(name: str, secret: str) -> tuple[str, str]:
    """Encode client id and secret for the Basic scheme, as OAuth 2 requires (RFC 6749, 2.3.1)."""
    from urllib.parse import quote

    return quote(name, safe=""), quote(secret, safe="")
