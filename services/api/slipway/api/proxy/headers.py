"""The headers that the proxy forwards, drops or rewrites. Pure.

Owns the header rules of both directions. Hop-by-hop fields are not forwarded. Our credentials never reach a workload.
The answer of a workload cannot affect our whole origin (cookies, redirects, policies). The bytes of a field are decoded
as ISO 8859-1, so that bytes above 127 are forwarded unchanged.

Source: RFC 9110 section 7.6.1 (Connection); RFC 6265 (cookies) and 6265bis 5.7 (cookies without a name).
"""

import re
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

Fields = list[tuple[str, str]]

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
POD_UID = "X-Slipway-Pod-Uid"
"""The field with the uid of the pod that a request is for; a program in the pod can compare it with SLIPWAY_POD_UID."""
_OUR_CREDENTIALS = frozenset({"authorization", "x-slipway-user", "idempotency-key", POD_UID.lower()})
_OUR_PREFIX = "slipway_"
_OUR_COOKIES = (_OUR_PREFIX, f"__host-{_OUR_PREFIX}")
_FORWARDED = frozenset({"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix"})
_ORIGIN_WIDE = frozenset(
    {
        "alt-svc",
        "clear-site-data",
        "expect-ct",
        "nel",
        "public-key-pins",
        "public-key-pins-report-only",
        "report-to",
        "reporting-endpoints",
        "service-worker-allowed",
        "strict-transport-security",
    }
)
"""Fields of an answer that a browser applies to the whole origin or host, and for a long time.

With NEL and Report-To a workload would receive a report of each failed request to us.
"""
_OUR_SERVER = frozenset({"date"})
"""Fields of an answer that our own server writes: a second one would contradict it."""
_WEBSOCKET = "sec-websocket-"
_BODILESS = (204, 304)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def request_fields(
    received: Iterable[tuple[str, str]], *, client: str, scheme: str, prefix: str, token: str = "", pod_uid: str = ""
) -> Fields:
    """Return the header fields for the workload, from those of the client.

    `token` proves to the workload that we are the caller; `pod_uid` names the pod that the request is for.
    """
    fields = list(received)
    dropped = HOP_BY_HOP | _OUR_CREDENTIALS | _FORWARDED | _named_in_connection(fields)
    kept = [(name, value) for name, value in fields if name.lower() not in dropped]
    kept = [(name, _own_cookies_out(value) if name.lower() == "cookie" else value) for name, value in kept]
    kept = [(name, value) for name, value in kept if value or name.lower() != "cookie"]
    host = next((value for name, value in fields if name.lower() == "host"), "")
    own = {"Authorization": f"Bearer {token}" if token else "", POD_UID: pod_uid}
    added = {**own, "X-Forwarded-For": client, "X-Forwarded-Host": host, "X-Forwarded-Proto": scheme}
    return [*kept, *((name, value) for name, value in added.items() if value), ("X-Forwarded-Prefix", prefix)]


def socket_fields(
    received: Iterable[tuple[str, str]], *, client: str, scheme: str, prefix: str, token: str = "", pod_uid: str = ""
) -> Fields:
    """Like `request_fields`, for a WebSocket: without the fields of the handshake, because the proxy makes its own."""
    fields = request_fields(received, client=client, scheme=scheme, prefix=prefix, token=token, pod_uid=pod_uid)
    return [(name, value) for name, value in fields if not name.lower().startswith(_WEBSOCKET)]


def raw_fields(received: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Decode a header as it was received."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in received]


def wire_fields(fields: Fields) -> list[tuple[bytes, bytes]]:
    """Encode a header for sending. Raises ValueError when a value contains a control character."""
    for name, value in fields:
        if _CONTROL.search(value):
            raise ValueError(f"field {name} holds a control character")
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def response_fields(received: Iterable[tuple[str, str]], *, own: Collection[str], prefix: str) -> Fields:
    """Return the header fields for the client, from those of the workload.

    `own` are the host:port names of the workload: its own, and that of the client's request.
    """
    fields = list(received)
    dropped = HOP_BY_HOP | _ORIGIN_WIDE | _OUR_SERVER | _named_in_connection(fields)
    kept: Fields = []
    for name, value in fields:
        lower = name.lower()
        if lower in dropped:
            continue
        if lower == "set-cookie":
            value = _confined_cookie(value, prefix)
            if not value:
                continue
        elif lower in ("location", "content-location"):
            value = _outside(value, own, prefix)
        kept.append((name, value))
    return kept


def without_length(fields: Fields, *, status: int, is_chunked: bool) -> Fields:
    """Return the fields of an answer without its Content-Length, where that is not the length of the body.

    An answer 204 or 304 has no body, whatever its Content-Length is (RFC 9110, 8.6). A chunked answer has its own
    length.
    """
    if not is_chunked and status not in _BODILESS:
        return fields
    return [(name, value) for name, value in fields if name.lower() != "content-length"]


def handshake_fields(received: Iterable[tuple[str, str]], *, own: Collection[str], prefix: str) -> Fields:
    """Like `response_fields`, for the answer to a WebSocket handshake: without the fields of the handshake itself."""
    kept = response_fields(received, own=own, prefix=prefix)
    return [(name, value) for name, value in kept if not name.lower().startswith(_WEBSOCKET)]


def _named_in_connection(fields: Fields) -> frozenset[str]:
    """Return the names of the fields that the sender declares as hop-by-hop."""
    return frozenset(
        part.strip().lower() for name, value in fields if name.lower() == "connection" for part in value.split(",")
    )


def _own_cookies_out(value: str) -> str:
    parts = [part.strip() for part in value.split(";")]
    return "; ".join(part for part in parts if part and not part.lower().startswith(_OUR_COOKIES))


def _confined_cookie(value: str, prefix: str) -> str:
    """Return the cookie limited to the paths of this workload; empty when its name is one of ours, or is missing.

    A browser sends a cookie without a name as its bare value, so `=slipway_session=x` would be returned as a cookie of
    ours.
    """
    cookie, *attributes = [part.strip() for part in value.split(";")]
    name, has_name, _ = cookie.partition("=")
    if not has_name or not name.strip():
        return ""
    if cookie.lower().startswith((_OUR_PREFIX, "__host-")):
        return ""
    named = [(part.partition("=")[0].strip().lower(), part) for part in attributes]
    kept = [part for name, part in named if name not in ("path", "domain")]
    paths = [part.partition("=")[2].strip() for name, part in named if name == "path"]
    # The last Path attribute is valid; one that does not begin with a slash is ignored (RFC 6265, 5.2.4).
    path = paths[-1] if paths and paths[-1].startswith("/") else "/"
    return "; ".join([cookie, f"Path={_below(path, prefix)}", *kept])


def _outside(location: str, own: Collection[str], prefix: str) -> str:
    """Return a redirect that the client can follow: a redirect of the workload to itself gets the prefix."""
    try:
        parts = urlsplit(location)
        is_own = not parts.netloc or _place(parts.netloc, parts.scheme) in {_place(name, parts.scheme) for name in own}
    except ValueError:
        return location  # no URL: the client decides, as it would without a proxy
    if not is_own or parts.scheme not in ("", "http", "https"):
        return location
    if not parts.netloc and not parts.path.startswith("/"):
        return location  # relative to the page, such as `there` or `?page=2`
    path = parts.path or "/"
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return _below(path, prefix) + query + fragment


def _place(netloc: str, scheme: str) -> tuple[str, int]:
    """Return (host, port) in one spelling."""
    parts = urlsplit(f"//{netloc}")
    return parts.hostname or "", parts.port or (443 if scheme == "https" else 80)


def _below(path: str, prefix: str) -> str:
    """Return the path of a workload with the prefix; a path that already begins with the prefix is not changed."""
    if path == prefix:
        return f"{prefix}/"
    return path if path.startswith(f"{prefix}/") else prefix + path
