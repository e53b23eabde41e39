"""Origins of their own for pages of workloads: `<id>.<domain>` serves one allocation, and nothing else.

Owns what may be asked under such a name. A page of a workload is a program of its owner; a script on it may do whatever
its origin may. So it gets one in which there is only itself: no REST API but to look at itself, no login, no other
workload. Pure.
"""

import re
from collections.abc import Iterable

from slipway.runtime.web_guard import host_name

ENTER = "/.slipway/enter"
"""Where a browser brings its token to such an origin, once."""
_ASSETS = "/assets/"
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_DOMAIN_CHARS_MAX = 190


def check_domain(text: str) -> str:
    """A domain below which workloads have their origins. Raises ValueError."""
    if _DOMAIN.fullmatch(text) is None or len(text) > _DOMAIN_CHARS_MAX:
        raise ValueError("must be a domain in lower case such as apps.example.com, without scheme or port")
    return text


def workload_of(host: str, domain: str) -> str:
    """The AllocationID whose origin a Host header names; empty when it is ours, or there is no domain."""
    name = host_name(host)
    if not domain or not name.endswith(f".{domain}"):
        return ""
    return name.removesuffix(f".{domain}")


def is_inside(id_: str, method: str, path: str) -> bool:
    """Whether that may be asked in the origin of that allocation. `method`: WEBSOCKET for one."""
    if path == f"/proxy/{id_}" or path.startswith(f"/proxy/{id_}/") or path == ENTER:
        return True
    about = f"/api/v1/allocations/{id_}"
    is_about = path == about or path.startswith(f"{about}/")
    return method in ("GET", "HEAD") and (is_about or path.startswith(_ASSETS))


def origin_of(id_: str, domain: str, *, scheme: str, host: str) -> str:
    """The origin of an allocation, at the port under which a browser reaches us."""
    port = host.rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
    return f"{scheme}://{id_}.{domain}{f':{port}' if port.isdigit() else ''}"


def local_name(hosts: Iterable[str]) -> str:
    """The name of ours that a browser of this machine is to use, whatever address a program used; empty without one.

    Browsers keep cookies by host and not by port, so that a cookie of a loopback address goes to every program that
    listens there. A name below `.localhost` is ours alone.
    """
    return next((name.lower() for name in hosts if name.lower().endswith(".localhost")), "")
