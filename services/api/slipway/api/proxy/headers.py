"""What passes the proxy and what does not. Pure.

Owns the header rules of both directions: hop-by-hop fields end here, our credentials never reach a workload, and what a
workload answers cannot speak for our whole origin (cookies, redirects, policies). Bytes of a field are characters of
the same numbers here (ISO 8859-1), so that those above 127 pass as they are.

Source: RFC 9110 section 7.6.1 (Connection); RFC 6265 (cookies) and 6265bis 5.7 (those without a name).
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
"""What tells a program which pod a request is for; it knows its own uid as SLIPWAY_POD_UID."""
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
"""Fields of an answer that a browser heeds beyond the path of it: for the whole origin or host, and for long. With NEL
and Report-To a workload would be told of each request to us that fails."""
_OUR_SERVER = frozenset({"date"})
"""Fields of an answer that our own server writes: a second one would contradict it."""
_WEBSOCKET = "sec-websocket-"
_BODILESS = (204, 304)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def request_fields(
    received: Iterable[tuple[str, str]], *, client: str, scheme: str, prefix: str, token: str = "", pod_uid: str = ""
) -> Fields:
    """What the workload is sent of a client's header; `token` tells it that we are the caller, and `pod_uid` which pod
    is meant."""
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
    """The same for a WebSocket, whose handshake is made anew."""
    fields = request_fields(received, client=client, scheme=scheme, prefix=prefix, token=token, pod_uid=pod_uid)
    return [(name, value) for name, value in fields if not name.lower().startswith(_WEBSOCKET)]


def raw_fields(received: Iterable[tuple[bytes, bytes]]) -> Fields:
    """A header as it came over the wire."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in received]


def wire_fields(fields: Fields) -> list[tuple[bytes, bytes]]:
    """A header as it goes over the wire. Raises ValueError when a value holds what none may hold."""
    for name, value in fields:
        if _CONTROL.search(value):
            raise ValueError(f"field {name} holds a control character")
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]


def response_fields(received: Iterable[tuple[str, str]], *, own: Collection[str], prefix: str) -> Fields:
    """What the client is sent of a workload's header. `own` are the host:port under which the workload is known: its
    own, and that of the client's request."""
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
    """The fields of an answer without a Content-Length that does not say how long the body here is.

    An answer 204 or 304 has none, whatever it says (RFC 9110, 8.6), and one in chunks has its own length.
    """
    if not is_chunked and status not in _BODILESS:
        return fields
    return [(name, value) for name, value in fields if name.lower() != "content-length"]


def handshake_fields(received: Iterable[tuple[str, str]], *, own: Collection[str], prefix: str) -> Fields:
    """The same for the answer to a WebSocket's handshake, which is made anew."""
    kept = response_fields(received, own=own, prefix=prefix)
    return [(name, value) for name, value in kept if not name.lower().startswith(_WEBSOCKET)]


def _named_in_connection(fields: Fields) -> frozenset[str]:
    """The fields that the sender itself calls hop-by-hop."""
    return frozenset(
        part.strip().lower() for name, value in fields if name.lower() == "connection" for part in value.split(",")
    )


def _own_cookies_out(value: str) -> str:
    parts = [part.strip() for part in value.split(";")]
    return "; ".join(part for part in parts if part and not part.lower().startswith(_OUR_COOKIES))


def _confined_cookie(value: str, prefix: str) -> str:
    """The cookie for this workload's paths only; nothing when it takes a name of ours, or has none.

    A browser sends a cookie without a name as its bare value, so that `=slipway_session=x` would come back as a cookie
    of ours.
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
    # Of several the last one counts; one that does not begin with a slash is none (RFC 6265, 5.2.4).
    path = paths[-1] if paths and paths[-1].startswith("/") else "/"
    return "; ".join([cookie, f"Path={_below(path, prefix)}", *kept])


def _outside(location: str, own: Collection[str], prefix: str) -> str:
    """A redirect of the workload as the client can follow it: to itself, it stays below its own path."""
    try:
        parts = urlsplit(location)
        is_own = not parts.netloc or _place(parts.netloc, parts.scheme) in {_place(name, parts.scheme) for name in own}
    except ValueError:
        return location  # no URL: the client's to judge, as if there were no proxy
    if not is_own or parts.scheme not in ("", "http", "https"):
        return location
    path = parts.path or "/"
    if not parts.netloc and not path.startswith("/"):
        return location
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return _below(path, prefix) + query + fragment


def _place(netloc: str, scheme: str) -> tuple[str, int]:
    """(host, port) in one spelling."""
    parts = urlsplit(f"//{netloc}")
    return parts.hostname or "", parts.port or (443 if scheme == "https" else 80)


def _below(path: str, prefix: str) -> str:
    """A path of a workload as the client knows it; one that begins with the prefix already is left alone."""
    if path == prefix:
        return f"{prefix}/"
    return path if path.startswith(f"{prefix}/") else prefix + path
