"""The URL of Redis, made from its parts: one address for all services, and a login and a CA file for each.

This module owns the precedence: a user and a password that are set separately replace those in the URL. It must not
know what kind of server a URL names; `streams/routes.py` reads the URL.
"""

from collections.abc import Mapping
from urllib.parse import quote

from slipway.errors import InvalidError

URL = "SLIPWAY_REDIS_URL"
USER = "SLIPWAY_REDIS_USER"
PASSWORD = "SLIPWAY_REDIS_PASSWORD"  # noqa: S105 - the name of a variable
CA_FILE = "SLIPWAY_REDIS_CA_FILE"


def whole_url(url: str, *, user: str = "", password: str = "", ca_file: str = "") -> str:
    """Return the URL with this login and this CA file. An empty part leaves the URL as it is; an empty URL stays empty.

    Raises:
        InvalidError: a user without a password, or a CA file for a connection that is not TLS.
    """
    if not url:
        return ""
    if user and not password:
        raise InvalidError(f"{USER}: {PASSWORD} is missing; set both, or put the login into {URL}")
    scheme, separator, rest = url.partition("://")
    before, query = rest.partition("?")[::2]
    authority, slash, path = before.partition("/")
    if password:
        authority = f"{quote(user, safe='')}:{quote(password, safe='')}@{authority.rpartition('@')[2]}"
    if ca_file:
        if not scheme.lower().startswith("rediss"):
            raise InvalidError(f"{CA_FILE}: {URL} is not a TLS URL; begin it with rediss")
        kept = [each for each in query.split("&") if each and not each.startswith("ssl_ca_certs=")]
        query = "&".join([*kept, f"ssl_ca_certs={quote(ca_file)}"])
    return f"{scheme}{separator}{authority}{slash}{path}{'?' if query else ''}{query}"


def from_environment(env: Mapping[str, str]) -> str:
    """Return the whole URL from the variables; empty without a URL. Raises as `whole_url` does."""
    return whole_url(
        env.get(URL, ""), user=env.get(USER, ""), password=env.get(PASSWORD, ""), ca_file=env.get(CA_FILE, "")
    )
