"""What passes the proxy and what does not. Pure.

Owns the header rules of both directions: hop-by-hop fields end here, our credentials never reach a workload, and what a
workload answers can not speak for our whole origin (cookies, redirects, policies).

Source: RFC 9110 section 7.6.1 (Connection); RFC 6265 (cookies).
"""

from collections.abc import Iterable
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
_OUR_CREDENTIALS = frozenset({"authorization", "x-slipway-user", "idempotency-key"})
_OUR_PREFIX = "slipway_"
_OUR_COOKIES = (_OUR_PREFIX, f"__host-{_OUR_PREFIX}")
_FORWARDED = frozenset({"forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix"})
_ORIGIN_WIDE = frozenset(
    {"clear-site-data", "service-worker-allowed", "strict-transport-security", "public-key-pins", "alt-svc"}
)
_OUR_SERVER = frozenset({"date"})
"""Fields of an answer that our own server writes: a second one would contradict it."""
_WEBSOCKET = "sec-websocket-"


def request_fields(
    received: Iterable[tuple[str, str]], *, client: str, scheme: str, prefix: str, token: str = ""
) -> Fields:
    """What the workload is sent of a client's header; `token` tells it that we are the caller."""
    fields = list(received)
    dropped = HOP_BY_HOP | _OUR_CREDENTIALS | _FORWARDED | _named_in_connection(fields)
    kept = [(name, value) for name, value in fields if name.lower() not in dropped]
    kept = [(name, _own_cookies_out(value) if name.lower() == "cookie" else value) for name, value in kept]
    kept = [(name, value) for name, value in kept if value or name.lower() != "cookie"]
    host = next((value for name, value in fields if name.lower() == "host"), "")
    own = {"Authorization": f"Bearer {token}" if token else ""}
    added = {**own, "X-Forwarded-For": client, "X-Forwarded-Host": host, "X-Forwarded-Proto": scheme}
    return [*kept, *((name, value) for name, value in added.items() if value), ("X-Forwarded-Prefix", prefix)]


def socket_fields(
    received: Iterable[tuple[str, str]], *, client: str, scheme: str, prefix: str, token: str = ""
) -> Fields:
    """The same for a WebSocket, whose handshake is made anew."""
    fields = request_fields(received, client=client, scheme=scheme, prefix=prefix, token=token)
    return [(name, value) for name, value in fields if not name.lower().startswith(_WEBSOCKET)]


def response_fields(received: Iterable[tuple[str, str]], *, target: str, prefix: str, is_stripped: bool) -> Fields:
    """What the client is sent of a workload's header. `target` is the workload's host:port."""
    fields = list(received)
    dropped = HOP_BY_HOP | _ORIGIN_WIDE | _OUR_SERVER | _named_in_connection(fields)
    kept: Fields = []
    for name, value in fields:
        lower = name.lower()
        if lower in dropped:
            continue
        if lower == "set-cookie":
            value = _confined_cookie(value, prefix)
        elif lower in ("location", "content-location"):
            value = _outside(value, target, prefix, is_stripped=is_stripped)
        if value:
            kept.append((name, value))
    return kept


def _named_in_connection(fields: Fields) -> frozenset[str]:
    """The fields that the sender itself calls hop-by-hop."""
    return frozenset(
        part.strip().lower() for name, value in fields if name.lower() == "connection" for part in value.split(",")
    )


def _own_cookies_out(value: str) -> str:
    parts = [part.strip() for part in value.split(";")]
    return "; ".join(part for part in parts if part and not part.lower().startswith(_OUR_COOKIES))


def _confined_cookie(value: str, prefix: str) -> str:
    """The cookie for this workload's paths only; nothing when it takes a name of ours."""
    cookie, *attributes = [part.strip() for part in value.split(";")]
    if cookie.lower().startswith((_OUR_PREFIX, "__host-")):
        return ""
    kept = [part for part in attributes if part.partition("=")[0].strip().lower() not in ("path", "domain")]
    paths = [part.partition("=")[2].strip() for part in attributes if part.lower().startswith("path")]
    path = paths[-1] if paths and paths[-1].startswith(f"{prefix}/") else f"{prefix}/"
    return "; ".join([cookie, f"Path={path}", *kept])


def _outside(location: str, target: str, prefix: str, *, is_stripped: bool) -> str:
    """A redirect of the workload as the client can follow it."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return location  # no URL: the client's to judge, as if there were no proxy
    if parts.netloc and parts.netloc != target:
        return location
    path = parts.path or "/"
    if not parts.netloc and not path.startswith("/"):
        return location
    if is_stripped and path != prefix and not path.startswith(f"{prefix}/"):
        path = prefix + path
    query = f"?{parts.query}" if parts.query else ""
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return path + query + fragment
