"""Sign-in with a browser at the issuer: the redirect to the issuer, and the redirect back.

The pages are plain, without scripts. The sign-in begins with a form of our own page, so that no other site can begin
it. The form leads to a page that opens the issuer automatically, because our form-action policy forbids a redirect of
a form to another site. The redirect back also ends with a page of ours: a browser would not send the new login to a
page that another site led to.
"""

from html import escape

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.auth import login_routes, session
from slipway.api.auth.origins import host_name
from slipway.api.auth.sign_ins import COOKIE, SignIns
from slipway.api.deps import parts_of
from slipway.api.http import audit
from slipway.api.http.endpoint import json_response
from slipway.api.http.errors import ForbiddenError, UnauthorizedError
from slipway.errors import ControlPlaneError, NotFoundError, ThrottledError, TransientError
from slipway.runtime import web_guard

_STEP = login_routes.HEAD + """<p><a href="{there}">Go on</a></p></main></body></html>"""
_REFUSED = (
    login_routes.HEAD
    + """<p class="message" role="alert">{why}</p><p><a href="/login">Try again</a></p></main></body></html>"""
)


async def start(request: Request) -> Response:
    """Send the browser to the issuer, and set the cookie of the pending sign-in."""
    sign_ins = _sign_ins(request)
    with audit.log_call(request, login_routes.START):
        login_routes.check_same_origin(request)
        _check_host(request)
        given = await login_routes.fields_of(request)
        response = login_routes.page_of("")
        try:
            there = await sign_ins.begin(
                response,
                redirect_uri=login_routes.requested_origin(request) + login_routes.CALLBACK,
                following=login_routes.local_path(given.get("next", "/")),
                is_secure=session.is_secure(request),
            )
        except TransientError as error:
            response = _refused(error, status=503)
        else:
            response = _onward(response, there, "Continue to the sign-in")
        audit.set_status(request, response.status_code)
        return response


async def finish(request: Request) -> Response:
    """Check the issuer's answer, and set the session cookie of the new login."""
    sign_ins, parts = _sign_ins(request), parts_of(request)
    with audit.log_call(request, login_routes.CALLBACK, is_change=True):
        try:
            # Checking a code needs a request to the issuer, so refused codes are limited by address.
            async with parts.refusals.tried(request, request.query_params.get("code", ""), is_remembered=False):
                kept, pending = await sign_ins.finish(request)
        except UnauthorizedError as error:
            response = _refused(error, status=401)
        except TransientError as error:
            response = _refused(error, status=429 if isinstance(error, ThrottledError) else 503)
        else:
            response = _onward(login_routes.page_of(""), pending.following, "You are signed in")
            parts.sessions.keep_session(response, kept, is_secure=pending.is_secure)
        session.forget(response, COOKIE)
        response.headers["Referrer-Policy"] = "no-referrer"
        audit.set_status(request, response.status_code)
        return response


async def client(request: Request) -> Response:
    """Return the settings that the command line needs for a sign-in at the issuer; none of them is secret."""
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
    """Check that the request's host name is one of ours, because the issuer redirects the browser back to it.

    Raises ForbiddenError.
    """
    hosts = {name.lower() for name in parts_of(request).settings.hosts}
    host = request.headers.get("host", "")
    refused = web_guard.check_host(host, hosts)
    if refused is not None:
        raise ForbiddenError(f"{host_name(host)[:128]!r} is not a known name of the api: add it to SLIPWAY_HOSTS")


def _refused(error: ControlPlaneError, *, status: int) -> Response:
    """Return a page with the reason of the refusal and a link to try again."""
    return login_routes.page_of(_REFUSED.format(title="Not signed in", why=escape(str(error))), status=status)


def _onward(response: Response, there: str, title: str) -> Response:
    """Make `response` a page that opens `there` automatically, with a link for browsers that do not."""
    response.body = _STEP.format(title=title, there=escape(there)).encode()
    response.headers["Content-Length"] = str(len(response.body))
    login_routes.go_on(response, there)
    return response
