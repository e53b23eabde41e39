"""Separate origins for pages of workloads: `<id>.<domain>` serves one allocation, and nothing else.

Owns the rule that decides which requests are accepted in such an origin. A page of a workload is a program of its
owner, and a script on it may do everything that its origin may do. So each workload gets its own origin, which serves
only that workload: its page and reads of its own allocation, but no other part of the REST API, no login and no other
workload. Pure.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote

from starlette.types import Scope

from slipway.runtime.web_guard import host_name

ENTER = "/.slipway/enter"
"""The path at which a browser hands over its one-time code in such an origin."""
_ASSETS = "/assets/"
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_DOMAIN_CHARS_MAX = 190


def check_domain(text: str) -> str:
    """Return the domain whose subdomains are the origins of workloads. Raises ValueError when it is not a domain."""
    if _DOMAIN.fullmatch(text) is None or len(text) > _DOMAIN_CHARS_MAX:
        raise ValueError("must be a domain in lower case such as apps.example.com, without scheme or port")
    return text


def workload_of(host: str, domain: str) -> str:
    """Return the AllocationID whose origin a Host header names; empty for the api's own origin or without a domain."""
    name = host_name(host)
    if not domain or not name.endswith(f".{domain}"):
        return ""
    return name.removesuffix(f".{domain}")


def is_inside(id_: str, method: str, path: str) -> bool:
    """Whether a request is accepted in the origin of that allocation. `method` is WEBSOCKET for a WebSocket."""
    if path == f"/proxy/{id_}" or path.startswith(f"/proxy/{id_}/") or path == ENTER:
        return True
    about = f"/api/v1/allocations/{id_}"
    is_about = path == about or path.startswith(f"{about}/")
    return method in ("GET", "HEAD") and (is_about or path.startswith(_ASSETS))


def origin_of(id_: str, domain: str, *, scheme: str, host: str) -> str:
    """Return the origin of an allocation, with the port at which the browser reaches the api."""
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    return f"{scheme}://{id_}.{domain}{f':{port}' if port.isdigit() else ''}"


def spelled_path(scope: Scope) -> str:
    """Return the path of a request as the client spelled it, for a redirect to the same path.

    A decoded path cannot be encoded again without errors: `a%2Fb` is one segment, and `50%25` is no escape.
    """
    raw = bytes(scope.get("raw_path") or scope["path"].encode())
    return quote(raw.partition(b"#")[0].partition(b"?")[0], safe="/%:@!$&'()*+,;=~")


def spelled_address(scope: Scope) -> str:
    """Return the path and the query of a request as the client spelled them."""
    query = quote(bytes(scope["query_string"]), safe="/%:@!$&'()*+,;=~?")
    return spelled_path(scope) + (f"?{query}" if query else "")


def local_name(hosts: Iterable[str]) -> str:
    """Return the host name that a browser on this machine has to use to reach the api; empty when there is none.

    Browsers store cookies by host and not by port, so a cookie of a loopback address is sent to every program that
    listens there. A name below `.localhost` is the api's alone.
    """
    return next((name.lower() for name in hosts if name.lower().endswith(".localhost")), "")
