"""Signing in with a browser at the issuer: the step there, and the way back.

Plain pages, no script. The step there is a form of our own page, so that no other site begins it, and a page that goes
on, since a browser follows no redirect of a form to another site here (form-action). The way back ends with a page of
ours too: to a page that another site led to, a browser would not send the new login.
"""

from html import escape

from starlette.requests import Request
from starlette.responses import Response

from slipway.api import audit
from slipway.api.access import session
from slipway.api.access.origins import host_name
from slipway.api.access.sign_ins import COOKIE, SignIns
from slipway.api.deps import parts_of
from slipway.api.endpoint import json_response
from slipway.api.http_errors import ForbiddenError, UnauthorizedError
from slipway.api.routes import login
from slipway.errors import ControlPlaneError, NotFoundError, ThrottledError, TransientError
from slipway.runtime import web_guard

_STEP = login.HEAD + """<p><a href="{there}">Go on</a></p></main></body></html>"""
_REFUSED = (
    login.HEAD
    + """<p class="message" role="alert">{why}</p><p><a href="/login">Try again</a></p></main></body></html>"""
)


async def start(request: Request) -> Response:
    """Send the browser to the issuer, and let it remember what it asked for."""
    sign_ins = _sign_ins(request)
    with audit.told(request, login.START):
        login.check_same_origin(request)
        _check_host(request)
        given = await login.fields_of(request)
        response = login.page_of("")
        try:
            there = await sign_ins.begin(
                response,
                redirect_uri=login.own_address(request) + login.CALLBACK,
                following=login.local_path(given.get("next", "/")),
                is_secure=session.is_secure(request),
            )
        except TransientError as error:
            response = _refused(error, status=503)
        else:
            response = _onward(response, there, "To the sign-in")
        audit.answered(request, response.status_code)
        return response


async def finish(request: Request) -> Response:
    """Take the issuer's answer, and let the browser keep the login that it gives."""
    sign_ins, parts = _sign_ins(request), parts_of(request)
    with audit.told(request, login.CALLBACK, is_change=True):
        try:
            # A code of the issuer is checked by asking the issuer.
            async with parts.refusals.tried(request, request.query_params.get("code", ""), is_remembered=False):
                kept, pending = await sign_ins.finish(request)
        except UnauthorizedError as error:
            response = _refused(error, status=401)
        except TransientError as error:
            response = _refused(error, status=429 if isinstance(error, ThrottledError) else 503)
        else:
            response = _onward(login.page_of(""), pending.following, "You are signed in")
            parts.sessions.keep_session(response, kept, is_secure=pending.is_secure)
        session.forget(response, COOKIE)
        response.headers["Referrer-Policy"] = "no-referrer"
        audit.answered(request, response.status_code)
        return response


async def client(request: Request) -> Response:
    """What the command line needs to know to sign in at the issuer: facts that are no secrets."""
    _sign_ins(request)
    settings = parts_of(request).settings
    scopes = " ".join(dict.fromkeys(("openid", *settings.oidc_scopes)))
    told = {"issuer": settings.oidc_issuer_url, "clientId": settings.cli_client_id, "scopes": scopes}
    return json_response({**told, "label": settings.oidc_label})


def _sign_ins(request: Request) -> SignIns:
    found = parts_of(request).sign_ins
    if found is None:
        raise NotFoundError("single sign-on is not set up here (SLIPWAY_OIDC_ISSUER_URL)")
    return found


def _check_host(request: Request) -> None:
    """The issuer sends the browser back to the name that it came by: only to one that is ours."""
    hosts = {name.lower() for name in parts_of(request).settings.hosts}
    host = request.headers.get("host", "")
    refused = web_guard.check_host(host, hosts)
    if refused is not None:
        raise ForbiddenError(f"{host_name(host)[:128]!r} is no known name of the api: add it to SLIPWAY_HOSTS")


def _refused(error: ControlPlaneError, *, status: int) -> Response:
    """A page for people: why there is no login, and where to try again."""
    return login.page_of(_REFUSED.format(title="Not signed in", why=escape(str(error))), status=status)


def _onward(response: Response, there: str, title: str) -> Response:
    """A page that goes on by itself, and has a link for who does not."""
    response.body = _STEP.format(title=title, there=escape(there)).encode()
    response.headers["Content-Length"] = str(len(response.body))
    login.go_on(response, there)
    return response
