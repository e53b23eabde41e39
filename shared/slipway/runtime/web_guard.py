"""The rules by which a server refuses browser requests: those for another host name, and those from another site's
page.

This module owns three rules. First, the Host must be a loopback name, a loopback address or a name of the server.
Otherwise a page of another name that resolves to this machine would be of the same origin (DNS rebinding). Second, a
request with an `Origin` must come from a page of the server itself. Third, a request is refused when `Sec-Fetch-Site`
states another site, even without an `Origin`. Pages of other ports of this machine are other sites too.

Programs send neither `Origin` nor `Sec-Fetch-Site` and pass these rules; their token decides what they may do. The
module is pure.

Source: OWASP, "Cross-Site Request Forgery Prevention"; Fetch, "Origin header"; Fetch Metadata Request Headers.
"""

import re
from collections.abc import Callable, Collection
from typing import NamedTuple
from urllib.parse import urlsplit

from slipway.runtime.listen import is_loopback

MISDIRECTED, FORBIDDEN = 421, 403
_OWN_SITES = ("", "none", "same-origin")
_LOCALHOST = ".localhost"
_SHOWN_CHARS = 128
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s/?#@:\[\]\\]+))(?::[0-9]{0,5})?")


class HttpRefusal(NamedTuple):
    """The answer to send instead: its HTTP status and what is wrong."""

    status: int
    detail: str


Header = Callable[[str], str]
"""The value of a header by its lower-case name; empty when it is absent."""


def check(header: Header, *, hosts: Collection[str] = ()) -> HttpRefusal | None:
    """Return why a server without its own pages refuses a request; None when it accepts it. `hosts` as in
    `check_host`.
    """
    return check_host(header("host"), hosts) or check_page(header)


def check_host(host: str, hosts: Collection[str] = (), *, remedy: str = "") -> HttpRefusal | None:
    """Refuse a Host header that is neither a loopback name or address nor one of `hosts` (lower case)."""
    name = host_name(host)
    if name and (is_loopback(name) or name.endswith(_LOCALHOST) or name in hosts):
        return None
    return HttpRefusal(MISDIRECTED, f"host {host[:_SHOWN_CHARS]!r} is not served here{remedy}")


def check_page(header: Header) -> HttpRefusal | None:
    """Refuse a request that a page of another origin makes."""
    origin = header("origin")
    if not is_foreign(origin, header("host")) and header("sec-fetch-site") in _OWN_SITES:
        return None
    return HttpRefusal(FORBIDDEN, f"requests from a page of {origin[:_SHOWN_CHARS] or 'another site'} are not allowed")


def is_navigation(header: Header) -> bool:
    """Whether a browser opens the address as a page: from a link or a bookmark, not from a script or in a frame."""
    return header("sec-fetch-mode") == "navigate" and header("sec-fetch-dest") in ("", "document")


def is_foreign(origin: str, host: str) -> bool:
    """Whether a page of `origin` is of another origin than `host`; the scheme may differ behind a TLS proxy."""
    if not origin:
        return False
    try:
        return urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:
        return True


def host_name(host: str) -> str:
    """Return the name in a Host header, without port and brackets, in lower case; empty when the header is malformed.

    Source: RFC 9112, section 3.2: uri-host [ ":" port ], without a user.
    """
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found is not None else ""
