"""Login with a browser: the page, the login, the logout, and the step to the origin of a workload.

The pages are plain forms without scripts. The user pastes a token once; the api checks it, and the browser stores the
login as a cookie that scripts cannot read. Or the browser follows a link with a one-time code, which represents the
token (`auth/session.py`); the address of the next page does not contain the code.

`POST /api/v1/login-links`: a link that logs a browser in once, for a program that has the token.
"""

from html import escape
from typing import Annotated
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from slipway.api.auth import middleware, session
from slipway.api.auth.bearer import bearer
from slipway.api.auth.middleware import permit_on
from slipway.api.auth.origins import ENTER, host_name, local_name, origin_of, spelled_address, workload_of
from slipway.api.auth.principal import PRINCIPAL_KEY, principal_of
from slipway.api.auth.route_rules import PROXIED
from slipway.api.deps import parts_of
from slipway.api.http import audit
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, json_response
from slipway.api.http.errors import BodyTooLargeError, ConflictError, ForbiddenError, UnauthorizedError
from slipway.crd.transitions import id_of
from slipway.errors import NotFoundError, ThrottledError
from slipway.model.times import format_time
from slipway.runtime.listen import is_loopback
from slipway.runtime.web_guard import is_foreign

LOGIN, LINK, LOGOUT = "/login", "/login/link", "/logout"
START, CALLBACK, CLIENT = "/login/start", "/login/callback", "/login/client"
_IN_ADDRESS = ":/%#?=@[]!$&'()*+,;"
FORM_BYTES_MAX = 32 * 1024
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><link rel="icon" href="data:,"><link rel="stylesheet" href="/assets/waiting/waiting.css"></head>
<body><main><h1>{title}</h1>"""
_LOGIN = (
    HEAD
    + """{said}{sign_in}<form method="post" action="/login">
<input type="hidden" name="next" value="{next}">
<p><label>Token <input type="password" name="token" autocomplete="off" autofocus required></label></p>
<p><button>Log in</button></p></form>
<p class="more">{how}</p></main></body></html>"""
)
_SIGN_IN = """<form method="post" action="/login/start"><input type="hidden" name="next" value="{next}">
<p><button autofocus>Sign in with {label}</button></p></form><p class="more">Or with a token:</p>
"""
_LOGOUT = (
    HEAD
    + """<p>As <code>{user}</code>.</p><form method="post" action="/logout"><p><button>Log out</button></p></form>
</main></body></html>"""
)
_ONWARD = (
    HEAD
    + """<p>The page of a workload has an origin of its own.</p>
<form method="post" action="{action}"><input type="hidden" name="code" value="{code}">
<input type="hidden" name="next" value="{next}"><p><button autofocus>Open {id}</button></p></form>
</main></body></html>"""
)
_LATE = (
    HEAD
    + """<p>You are logged out in this browser and at this server.</p>
<p class="message" role="alert">Other servers of the api cannot be notified right now. They will be notified as soon as
possible; until then, a copy of your cookie still works there. If another person may have a copy, revoke the token.</p>
</main></body></html>"""
)
_AT_ISSUER = (
    HEAD
    + """<p>You are logged out here. {said}</p>
<p><a href="{there}">Sign out at {label} too</a></p></main></body></html>"""
)
_CONFIRM = (
    HEAD
    + """<p>A page of another site led here. The link logs this browser in as <code>{user}</code>{instead}: what you
launch or open from then on is done as <code>{user}</code>.</p>
<form method="post" action="{action}"><input type="hidden" name="link" value="{code}">
<input type="hidden" name="next" value="{next}"><p><button>Log in as {user}</button></p></form>
<p class="more">If you did not ask for this link, close this page.</p></main></body></html>"""
)
_USED = (
    HEAD
    + """<p class="message" role="alert">It was followed before, or it is older than five minutes.</p>
<p><code>slipway open</code> creates a new one.</p></main></body></html>"""
)
_BACK = (
    HEAD
    + """<p class="message" role="alert">{why}</p>
<p><a href="{back}">Open it again</a></p></main></body></html>"""
)
_AGAIN = HEAD + """<p><a href="{here}">Open {here}</a></p></main></body></html>"""
_UNKEPT = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
_HOW = {
    "token": "<code>slipway token create --for NAME --role WORKSPACE=editor</code> makes one.",
    "kubernetes": "<code>kubectl create token ACCOUNT --audience {audience}</code> makes one.",
}


async def show(request: Request) -> Response:
    """Return the login page; for a browser that is logged in, the logout page."""
    _check_login_enabled(request)
    instead = _origin_instead_of_loopback(request)
    if instead:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{instead}{LOGIN}{query}", status_code=303)
    try:
        principal = await parts_of(request).access.authenticate(request)
    except UnauthorizedError:
        if _is_from_elsewhere(request):
            return reload_page(request)
        response = page_of(_form(request, request.query_params.get("next", "/")))
        if parts_of(request).sessions.has_refused(request):
            session.forget(response)
        return response
    return page_of(_LOGOUT.format(title="You are logged in", user=escape(principal.name)))


async def log_in(request: Request) -> Response:
    """Check the token, and set the session cookie."""
    _check_login_enabled(request)
    with audit.log_call(request, LOGIN):
        check_same_origin(request)
        instead = _origin_instead_of_loopback(request)
        if instead:
            raise ForbiddenError(
                f"other programs of this machine would receive this cookie too: log in at {instead}{LOGIN}"
            )
        given = await fields_of(request)
        token = given.get("token", "").strip()
        try:
            await _enter(request, token)
            login = parts_of(request).sessions.begin(token)
        except UnauthorizedError as error:
            audit.set_status(request, 401)
            said = f'<p class="message" role="alert">{escape(str(error).partition(";")[0])}</p>'
            return page_of(_form(request, given.get("next", "/"), said), status=401)
        except ThrottledError as error:
            audit.set_status(request, 429)
            said = f'<p class="message" role="alert">{escape(str(error))}</p>'
            return page_of(_form(request, given.get("next", "/"), said), status=429)
        response = RedirectResponse(local_path(given.get("next", "/")), status_code=303)
        parts_of(request).sessions.keep_session(response, login, is_secure=session.is_secure(request))
        audit.set_status(request, 303)
        return response


async def follow(request: Request) -> Response:
    """Log in with a one-time code instead of a token: for the api's own pages, or for the page of a workload.

    When a page of another site led here, the user has to confirm first. Otherwise the author of the link could log this
    browser in as a user of the author's choice.
    """
    _check_login_enabled(request)
    if request.method != "GET" or "prefetch" in request.headers.get("sec-purpose", ""):
        raise ForbiddenError("the link is for a browser, and valid only once")
    code, following = request.query_params.get("code", ""), request.query_params.get("next", "")
    if _is_led_here(request):
        return await _confirm(request, code, following)
    return await _take_link(request, code, following)


async def follow_confirmed(request: Request) -> Response:
    """Log in with a one-time code after the user has confirmed it in a form."""
    _check_login_enabled(request)
    check_same_origin(request)
    given = await fields_of(request)
    return await _take_link(request, given.get("link", ""), given.get("next", ""))


async def _confirm(request: Request, code: str, following: str) -> Response:
    """Return the page that asks the user to confirm the login. The code stays valid."""
    parts = parts_of(request)
    token = parts.links.token_of(code, workload_of(request.headers.get("host", ""), parts.settings.proxy_domain))
    try:
        await _enter(request, token)
    except UnauthorizedError:
        return page_of(_USED.format(title="This link is no longer valid"), status=401)
    user = escape(principal_of(request).name)
    page = _CONFIRM.format(
        title="Log in by this link?",
        user=user,
        instead="instead of the present user" if parts.sessions.of(request) else "",
        action=escape(request.url.path),
        code=escape(code),
        next=escape(local_path(following) if following else ""),
    )
    return page_of(page)


async def _take_link(request: Request, code: str, following: str) -> Response:
    """Log in with the code of a link, and write the audit line."""
    path = request.url.path
    with audit.log_call(request, path, is_change=True):
        id_ = workload_of(request.headers.get("host", ""), parts_of(request).settings.proxy_domain)
        if path == ENTER and not id_:
            raise NotFoundError("this is not the origin of a workload")
        return await _log_in_by_link(request, code, following, id_)


async def _log_in_by_link(request: Request, code: str, following: str, id_: str) -> Response:
    """Log in with the code of a link: for the page of the workload `id_`, or with an empty one for our own pages."""
    parts = parts_of(request)
    token = parts.links.use(code, id_)
    try:
        asked = await _enter(request, token)
        login = parts.sessions.begin(token)
    except UnauthorizedError:
        audit.set_status(request, 401)
        return page_of(_USED.format(title="This link is no longer valid"), status=401)
    if id_:
        asked.scope["path_params"] = {"id": id_}
        await middleware.admit(asked, PROXIED)
    following = local_path(following or (f"/proxy/{id_}/" if id_ else "/"))
    response = RedirectResponse(following, status_code=303, headers=_UNKEPT)
    if id_:
        parts.sessions.keep_ticket(response, login, id_, is_secure=session.is_secure(request))
    else:
        parts.sessions.keep_session(response, login, is_secure=session.is_secure(request))
    audit.set_status(request, 303)
    return response


async def log_out(request: Request) -> Response:
    """End the login on all replicas and in the origins of workloads, and delete the cookie."""
    parts = parts_of(request)
    with audit.log_call(request, LOGOUT):
        check_same_origin(request)
        login = parts.sessions.of(request)
        is_told = login is None or await parts.sessions.end(login)
        there = await _at_issuer(request, login)
        if there:
            said = "" if is_told else "Other servers of the api will be notified as soon as possible."
            label = escape(parts.settings.oidc_label)
            response = page_of(_AT_ISSUER.format(title="Logged out", said=said, there=escape(there), label=label))
            if is_told:
                go_on(response, there)
        else:
            response = (
                RedirectResponse(LOGIN, status_code=303) if is_told else page_of(_LATE.format(title="Logged out"))
            )
        session.forget(response)
        audit.set_status(request, response.status_code)
        return response


async def enter(request: Request) -> Response:
    """In the origin of a workload: exchange a one-time code for a ticket, if its user may open this workload."""
    parts = parts_of(request)
    with audit.log_call(request, ENTER):
        id_ = workload_of(request.headers.get("host", ""), parts.settings.proxy_domain)
        if not id_:
            raise NotFoundError("this is not the origin of a workload")
        given = await fields_of(request)
        if "link" in given and not is_foreign(request.headers.get("origin", ""), request.headers.get("host", "")):
            check_same_origin(request)
            return await _log_in_by_link(request, given["link"], given.get("next", ""), id_)
        if not _is_api_origin(request, request.headers.get("origin", "")):
            raise ForbiddenError(
                "only the pages of Slipway may link here: open the workload from there (SLIPWAY_HOSTS)"
            )
        login = await parts.sessions.redeem(given.get("code", ""), id_)
        following = local_path(given.get("next", f"/proxy/{id_}/"))
        if login is None:
            audit.set_status(request, 401)
            return back_link_page(request, following, "This step was used before, or it is older than two minutes.")
        asked = await _present(request, login)
        asked.scope["path_params"] = {"id": id_}
        await middleware.admit(asked, PROXIED)
        response = RedirectResponse(following, status_code=303)
        parts.sessions.keep_ticket(response, login, id_, is_secure=session.is_secure(request))
        audit.set_status(request, 303)
        return response


def origin_page(request: Request, id_: str, login: session.LoginSession) -> Response:
    """Return the page that leads to the origin of a workload. It has a form, so that no address contains the code."""
    parts = parts_of(request)
    scheme = "https" if session.is_secure(request) or session.has_secure_session(request) else "http"
    origin = origin_of(id_, parts.settings.proxy_domain, scheme=scheme, host=request.headers.get("host", ""))
    page = _ONWARD.format(
        title="One more step",
        action=escape(origin + ENTER),
        code=escape(parts.sessions.code(login, id_)),
        next=escape(spelled_address(request.scope)),
        id=escape(id_),
    )
    return page_of(page, form_action=f"{origin}")


def redirect_to_login(request: Request) -> Response:
    """Redirect a browser that is not logged in to the login page, which leads back afterwards."""
    return RedirectResponse(f"{LOGIN}?next={quote(spelled_address(request.scope))}", status_code=303)


def back_link_page(request: Request, path: str, why: str) -> Response:
    """In the origin of a workload: return a page with a link to the api's origin, where the browser can enter again."""
    response = page_of(
        _BACK.format(title="Open this page again", why=escape(why), back=escape(api_origin(request) + path)), status=401
    )
    session.forget(response, session.TICKET_NAME)
    return response


def _is_api_origin(request: Request, origin: str) -> bool:
    """In the origin of a workload: whether `origin` is the api's own.

    It must have one of the api's host names, the same port, and https if this request is secure.
    """
    try:
        ours, here = urlsplit(origin), urlsplit(f"//{request.headers.get('host', '')}")
        usual = {"http": 80, "https": 443}.get(ours.scheme)
        is_there = usual is not None and (ours.port or usual) == (here.port or usual)
    except ValueError:
        return False
    known = {name.lower() for name in parts_of(request).settings.hosts}
    return is_there and (ours.hostname or "") in known and (ours.scheme == "https" or not session.is_secure(request))


def api_origin(request: Request) -> str:
    """Return the api's own origin for a browser that is in the origin of a workload."""
    host = request.headers.get("host", "")
    port = f":{host.rpartition(':')[2]}" if host.rpartition(":")[2].isdigit() else ""
    scheme = (
        "https" if session.is_secure(request) or request.cookies.get(session.SECURE + session.TICKET_NAME) else "http"
    )
    return f"{scheme}://{parts_of(request).settings.hosts[0]}{port}"


def reload_page(request: Request) -> Response:
    """Return a page of ours that opens the same address again.

    A browser that follows a link of another site does not send the session cookie. From our own page it does.
    """
    here = escape(spelled_address(request.scope))
    response = page_of(_AGAIN.format(title="One moment", here=here))
    response.headers["Refresh"] = "0"
    return response


class MethodRouter:
    """One path with a different handler for each method."""

    def __init__(self, **by_method: ASGIApp) -> None:
        self._by_method = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._by_method.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if app is None:
            app = Response(status_code=405, headers={"Allow": ", ".join(self._by_method)})
        await app(scope, receive, send)


async def _enter(request: Request, token: str) -> Request:
    """Authenticate a token as if the request had sent it in its header; return that request.

    Raises UnauthorizedError when the token is not valid.
    """
    if not token or len(token) > session.TOKEN_CHARS_MAX:
        raise UnauthorizedError("that is not a token, or it is too long for a cookie")
    headers = [(name, value) for name, value in request.scope["headers"] if name not in (b"authorization", b"cookie")]
    headers.append((b"authorization", f"Bearer {token}".encode("latin-1", "replace")))
    asked = Request({**request.scope, "headers": headers}, request.receive)
    request.scope[PRINCIPAL_KEY] = await parts_of(request).access.authenticate(asked)
    return asked


async def _present(request: Request, login: session.LoginSession) -> Request:
    """Authenticate a login as if its browser had sent the request; return that request.

    Raises UnauthorizedError when the login has ended.
    """
    headers = [(name, value) for name, value in request.scope["headers"] if name not in (b"authorization", b"cookie")]
    asked = Request({**request.scope, "headers": headers, session.PRESENTED_KEY: login}, request.receive)
    request.scope[PRINCIPAL_KEY] = await parts_of(request).access.authenticate(asked)
    return asked


async def fields_of(request: Request) -> dict[str, str]:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise BodyTooLargeError(f"a form has at most {FORM_BYTES_MAX} bytes")
    found = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=10)
    return {name: values[0] for name, values in found.items()}


def _is_led_here(request: Request) -> bool:
    """Whether a page of another origin opened this address. False when a program or the user opened it directly."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("cross-site", "same-site")
    return is_foreign(request.headers.get("referer", ""), request.headers.get("host", ""))


def _is_from_elsewhere(request: Request) -> bool:
    """Whether the login may be missing only because another site led here: browsers then omit the strict cookie."""
    return request.headers.get("sec-fetch-site", "") == "cross-site" and not parts_of(request).sessions.of(request)


def requested_origin(request: Request) -> str:
    """Return the origin of the api at the host that the browser used; the host name is not checked here."""
    scheme = "https" if session.is_secure(request) or session.has_secure_session(request) else "http"
    return f"{scheme}://{request.headers.get('host', '')}"


def go_on(response: Response, there: str) -> None:
    """Make the browser open an address automatically after the page."""
    response.headers["Refresh"] = f"0; url={quote(there, safe=_IN_ADDRESS)}"


async def _at_issuer(request: Request, login: session.LoginSession | None) -> str:
    """Return the address at which the logout continues at the issuer; empty when the logout ends here."""
    parts = parts_of(request)
    if parts.sign_ins is None or login is None or login.signed_in is None:
        return ""
    return await parts.sign_ins.end(login, back=f"{requested_origin(request)}{LOGIN}")


def _check_login_enabled(request: Request) -> None:
    """Raises NotFoundError in mode none, which has no login."""
    if parts_of(request).settings.auth == "none":
        raise NotFoundError("login is disabled (SLIPWAY_AUTH=none)")


def _origin_instead_of_loopback(request: Request) -> str:
    """Return the origin where a browser at a loopback address has to log in; empty when it may log in here."""
    host = request.headers.get("host", "")
    name = local_name(parts_of(request).settings.hosts)
    if not name or not is_loopback(host_name(host)):
        return ""
    port = host.rpartition(":")[2]
    return f"{request.url.scheme}://{name}{f':{port}' if port.isdigit() else ''}"


def check_same_origin(request: Request) -> None:
    """Check that our own page sent the form. Raises ForbiddenError.

    The outermost layer (`http/guard.py`) has already refused pages of other origins.
    """
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        raise ForbiddenError("only the login page of this server may log in and out")


def local_path(path: str) -> str:
    """Return `path` if it is a path of ours, else `/`.

    Browsers read a backslash as a slash and drop tabs and line breaks, so `/<tab>/evil.example` would name a host.
    """
    is_plain = path.isprintable() and "\\" not in path
    return path if is_plain and path.startswith("/") and not path.startswith("//") else "/"


def _form(request: Request, following: str, said: str = "") -> str:
    settings = parts_of(request).settings
    how = _HOW[settings.auth].format(audience=escape(settings.auth_audience or "slipway-api"))
    if local_name(settings.hosts):
        how = "<code>slipway open</code> logs this browser in without one."
    following, sign_in = escape(local_path(following)), ""
    if parts_of(request).sign_ins is not None:
        sign_in = _SIGN_IN.format(next=following, label=escape(settings.oidc_label))
        how = f"Or on the command line: <code>slipway login {escape(requested_origin(request))} --sso</code>."
    page = _LOGIN.format(title="Log in", said=said, sign_in=sign_in, next=following, how=how)
    return page.replace(" autofocus required>", " required>") if sign_in else page


def page_of(text: str, *, status: int = 200, form_action: str = "'self'") -> Response:
    # A browser follows the redirect of a form only if form-action also allows the redirect's target.
    policy = f"default-src 'none'; style-src 'self'; img-src data:; form-action 'self' {form_action}; base-uri 'none'"
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    # Under `no-referrer` a browser sends a form with `Origin: null`, which is refused as an origin of another page.
    headers["Referrer-Policy"] = "strict-origin"
    return HTMLResponse(text, status_code=status, headers=headers)


LINKS_PATH = "/api/v1/login-links"


class LoginLinkRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page that the link leads to."""

    allocation: Annotated[str, Meta(max_length=253, description="AllocationID of a workload, to open its page.")] = ""
    path: Annotated[
        str,
        Meta(
            max_length=2048,
            pattern=r"^(/.*)?$",
            description="Path of the page. Default: the first page of Slipway or of the workload.",
        ),
    ] = ""


class LoginLink(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A login link. It works once, until `expiresAt`."""

    url: str
    expires_at: str


async def create_link(request: Request) -> Response:
    """Return a login link for the browser of the caller."""
    parts, settings = parts_of(request), parts_of(request).settings
    if settings.auth == "none":
        raise ConflictError("login is disabled (SLIPWAY_AUTH=none): open the page without a link")
    token = bearer(request)
    if session.is_by_cookie(request) or not token or len(token) > session.TOKEN_CHARS_MAX:
        raise ForbiddenError("only a program that sends its token in a header can create a link, not a browser")
    wanted = checked(await read_object(request, settings.body_bytes_max), LoginLinkRequest)
    scheme = "https" if session.is_secure(request) else "http"
    host = request.headers.get("host", "")
    if wanted.allocation:
        if not settings.proxy_domain:
            raise ConflictError(
                "pages of workloads have no origins of their own here (SLIPWAY_PROXY_DOMAIN is not set); "
                "use slipway port-forward"
            )
        found = await parts.lookup.find(wanted.allocation)
        id_ = id_of(found)
        await permit_on(request, PROXIED.ask, found.metadata.namespace, f"allocation {id_}")
        audit.note_object(request, {"id": id_}, workspace=found.metadata.namespace)
        code, ends_at = parts.links.make(token, principal_of(request).name, id_)
        origin = origin_of(id_, settings.proxy_domain, scheme=scheme, host=host)
        where, following = origin + ENTER, wanted.path or f"/proxy/{id_}/"
    else:
        code, ends_at = parts.links.make(token, principal_of(request).name)
        name = local_name(settings.hosts) or host_name(host)
        where, following = f"{scheme}://{_with_port(name, host)}{LINK}", wanted.path or "/"
    url = f"{where}?{urlencode({'code': code, 'next': following})}"
    return json_response(LoginLink(url=url, expires_at=format_time(ends_at)), status=201)


def _with_port(name: str, host: str) -> str:
    shown = f"[{name}]" if ":" in name else name
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    return f"{shown}:{port}" if port.isdigit() else shown


ENDPOINTS = (
    Endpoint(
        method="POST",
        path=LINKS_PATH,
        handler=create_link,
        summary="Create a link that logs a browser in once",
        tag="admin",
        body=LoginLinkRequest,
        answer=LoginLink,
        status=201,
    ),
)
