"""Single sign-on of the command line: tokens of an OpenID Connect issuer, with a browser or with a device code.

Owns the requests to the issuer: the client data from the api, the loopback redirect with PKCE, the device flow, renewal
and revocation. Knows no file; `contexts.py` stores the tokens. Uses the standard library only, so that commands start
quickly.

Invariants: each request has a deadline and follows no redirect. Requests to the issuer and its endpoints use HTTPS, or
go to this machine. The redirect listener is on 127.0.0.1 only. It accepts one answer, which must have the state of the
request, and is then closed. No token is printed or put into an address.

Source: RFC 8252 (native apps), RFC 7636 (PKCE), RFC 8628 (device flow)
"""

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qs, urlencode, urlsplit

from slipway.errors import DeadlineError, DeniedError, InvalidError, NotFoundError, UnavailableError
from slipway.model.numbers import lifetime_in

EXCHANGE_S = 10.0
ANSWER_BYTES_MAX = 1024 * 1024
BROWSER_S = 300.0
"""Seconds to wait for the sign-in in a browser."""
TURN_S = 0.5
DEVICE_S_MAX = 1_800.0
POLL_S, SLOWER_S = 5.0, 5.0
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
CALLBACK = "/callback"
HERE = ("127.0.0.1", "localhost", "::1")
AGAIN = "log in again: slipway login"
_DONE = b"<!doctype html><title>Slipway</title><p>You are signed in. This page can be closed.</p>"
_NOT_DONE = b"<!doctype html><title>Slipway</title><p>Not signed in; the command says why.</p>"
Json = dict[str, Any]
Note = Callable[[str], None]


class Oidc(NamedTuple):
    """A sign-on: its issuer, its client, and the tokens that it returned."""

    issuer: str
    client: str
    scopes: str
    id_token: str = ""
    refresh_token: str = ""

    def __repr__(self) -> str:
        return f"Oidc({self.issuer!r}, {self.client!r}, ***)"


def offered(server: str) -> Oidc:
    """Return the sign-on that the api at this address offers.

    Raises:
        NotFoundError: the api has no issuer.
    """
    status, told = _exchange(f"{server}/login/client")
    if status == 404:
        raise NotFoundError(
            f"{server} has no single sign-on; log in with a token: slipway login {server} --token-file FILE"
        )
    if status != 200 or not isinstance(told.get("issuer"), str) or not isinstance(told.get("clientId"), str):
        raise UnavailableError(f"{server}/login/client answers {status} and does not name its issuer")
    return Oidc(str(told["issuer"]), str(told["clientId"]), str(told.get("scopes") or "openid"))


def by_browser(asked: Oidc, note: Note, opened: Callable[[str], bool]) -> Oidc:
    """Sign in with a browser of this machine; `opened` opens an address in a browser and returns whether it could.

    Raises:
        DeadlineError: the user did not sign in within `BROWSER_S`.
        DeniedError: the issuer refuses, or its answer is not for this sign-in.
    """
    document = _discovered(asked.issuer)
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    with _Listener(state) as listener:
        query = {
            "response_type": "code",
            "client_id": asked.client,
            "redirect_uri": listener.url,
            "scope": asked.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = _endpoint(document, "authorization_endpoint", asked.issuer)
        there = f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"
        if opened(there):
            note("the sign-in opens in a browser; if it does not, open this address in a browser of this machine:")
        else:
            note("open this address in a browser of this machine (for a browser of another machine: --device):")
        note(there)
        answer = listener.answer()
        if answer.get("error") or not answer.get("code"):
            told = answer.get("error_description") or answer.get("error") or "it returned no code"
            raise DeniedError(f"{asked.issuer} refused the sign-in: {_shown(told)}")
        if answer.get("iss", asked.issuer) != asked.issuer:
            raise DeniedError("the answer is of another issuer")
        grant = {"code": answer["code"], "redirect_uri": listener.url, "code_verifier": verifier}
        return _taken(asked, document, {"grant_type": "authorization_code", **grant}, nonce=nonce)


def by_device(asked: Oidc, note: Note) -> Oidc:
    """Sign in with a code that the user types on any machine.

    Raises:
        DeadlineError: the user did not sign in before the code expired.
        DeniedError: the issuer refuses.
    """
    document = _discovered(asked.issuer)
    if not document.get("device_authorization_endpoint"):
        raise InvalidError(f"{asked.issuer} has no device flow; log in without --device")
    endpoint = _endpoint(document, "device_authorization_endpoint", asked.issuer)
    status, told = _exchange(endpoint, {"client_id": asked.client, "scope": asked.scopes})
    if status != 200 or not told.get("device_code"):
        raise _refused(asked.issuer, status, told)
    note(f"open {told.get('verification_uri_complete') or told.get('verification_uri')} on any machine")
    note(f"and check the code: {_shown(str(told.get('user_code') or ''))}")
    pause_s = max(lifetime_in(told.get("interval")) or POLL_S, 1.0)
    ends_at = time.monotonic() + min(lifetime_in(told.get("expires_in")) or DEVICE_S_MAX, DEVICE_S_MAX)
    grant = {"grant_type": DEVICE_GRANT, "device_code": str(told["device_code"])}
    while time.monotonic() < ends_at:
        time.sleep(pause_s)
        try:
            return _taken(asked, document, grant)
        except _RefusedGrantError as error:
            if error.reason == "slow_down":
                pause_s += SLOWER_S
            elif error.reason != "authorization_pending":
                raise
        except UnavailableError:
            continue
    raise DeadlineError("the code expired before the sign-in was complete; run the command again")


def renewed(kept: Oidc) -> Oidc:
    """Return the sign-on with a new token. Raises DeniedError when the issuer has ended it; UnavailableError."""
    if not kept.refresh_token:
        raise DeniedError(f"the sign-in at {kept.issuer} has ended, and the issuer gave no refresh token; {AGAIN}")
    try:
        grant = {"grant_type": "refresh_token", "refresh_token": kept.refresh_token}
        return _taken(kept, _discovered(kept.issuer), grant)
    except _RefusedGrantError as error:
        raise DeniedError(f"{error}; {AGAIN}") from error


def ended(kept: Oidc) -> None:
    """Revoke the refresh token, when the issuer has a revocation endpoint. Raises UnavailableError."""
    document = _discovered(kept.issuer)
    if kept.refresh_token and document.get("revocation_endpoint"):
        fields = {"token": kept.refresh_token, "token_type_hint": "refresh_token", "client_id": kept.client}
        _exchange(_endpoint(document, "revocation_endpoint", kept.issuer), fields)


def claims_of(token: str) -> Json:
    """Return the claims of a JWT, unverified; empty when the text is no JWT. The api verifies it at each call."""
    parts = token.split(".")
    try:
        told = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, IndexError, RecursionError):
        return {}
    return cast("Json", told) if isinstance(told, dict) else {}


class _RefusedGrantError(DeniedError):
    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Listener:
    """Receives the browser's redirect, once. It runs in a thread, because some browsers block until they end."""

    def __init__(self, state: str) -> None:
        import threading
        from http.server import BaseHTTPRequestHandler, HTTPServer

        found: list[dict[str, str]] = []

        class Answer(BaseHTTPRequestHandler):
            timeout = EXCHANGE_S

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                is_ours = parts.path == CALLBACK and hmac.compare_digest(
                    query.get("state", "").encode(), state.encode()
                )
                if is_ours:
                    found.append(query)
                body = _DONE if is_ours and query.get("code") else _NOT_DONE
                self.send_response(200 if is_ours else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: the line contains the code."""

        self._found = found
        self._is_over = False
        self._has_answer = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._server = HTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}{CALLBACK}"

    def __enter__(self) -> "_Listener":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(EXCHANGE_S + TURN_S)
        self._server.server_close()

    def answer(self) -> dict[str, str]:
        """Return the query of the redirect. Raises DeadlineError."""
        if not self._has_answer.wait(BROWSER_S):
            raise DeadlineError(f"the sign-in was not complete within {BROWSER_S:.0f} s; run the command again")
        return self._found[0]

    def _serve(self) -> None:
        self._server.timeout = TURN_S
        while not self._found and not self._is_over:
            self._server.handle_request()
        self._has_answer.set()


def _taken(asked: Oidc, document: Json, grant: Mapping[str, str], *, nonce: str = "") -> Oidc:
    """Exchange a grant for tokens at the token endpoint."""
    endpoint = _endpoint(document, "token_endpoint", asked.issuer)
    status, told = _exchange(endpoint, {**grant, "client_id": asked.client})
    if status != 200:
        raise _refused(asked.issuer, status, told)
    token = str(told.get("id_token") or "")
    if not token:
        raise DeniedError(f"{asked.issuer} gives no ID token; its client {asked.client} needs the scope openid")
    if nonce and claims_of(token).get("nonce") != nonce:
        raise DeniedError("the issuer's answer is not for this sign-in: its nonce is missing or another one")
    return asked._replace(id_token=token, refresh_token=str(told.get("refresh_token") or asked.refresh_token))


def _refused(issuer: str, status: int, told: Json) -> Exception:
    reason = str(told.get("error") or "")
    if 400 <= status < 500 and reason:
        words = _shown(str(told.get("error_description") or ""))
        return _RefusedGrantError(f"{issuer} refuses ({reason}){f': {words}' if words else ''}", reason)
    return UnavailableError(f"{issuer} answers {status}")


def _discovered(issuer: str) -> Json:
    status, document = _exchange(_checked(issuer).rstrip("/") + "/.well-known/openid-configuration")
    if status != 200 or document.get("issuer") != issuer:
        raise UnavailableError(f"{issuer} has no discovery document that names it (it answers {status})")
    return document


def _endpoint(document: Json, name: str, issuer: str) -> str:
    found = document.get(name)
    if not isinstance(found, str) or not found:
        raise UnavailableError(f"{issuer} names no {name} in its discovery document")
    return _checked(found)


def _checked(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in HERE):
        return address
    raise InvalidError(f"{address[:200]!r}: an issuer must have an https:// address, or be on this machine")


def _exchange(address: str, form: Mapping[str, str] | None = None) -> tuple[int, Json]:
    """Return (status, body as JSON; empty when the body is no JSON object). Raises UnavailableError."""
    import http.client
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    body = urlencode(form).encode() if form is not None else None
    request = Request(address, data=body, headers={"Accept": "application/json", "User-Agent": "slipway"})  # noqa: S310
    opener = build_opener(ProxyHandler({}), NoRedirects())
    try:
        with opener.open(request, timeout=EXCHANGE_S) as answer:
            status, raw = int(answer.status), answer.read(ANSWER_BYTES_MAX)
    except HTTPError as error:
        with error:
            status, raw = error.code, error.read(ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{urlsplit(address).netloc} does not answer: {error}") from error
    try:
        told = json.loads(raw)
    except ValueError:
        told = {}
    return status, cast("Json", told) if isinstance(told, dict) else {}


def _shown(text: str) -> str:
    return "".join(each for each in text if each.isprintable())[:200]
