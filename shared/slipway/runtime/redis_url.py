"""The URL of Redis, made of its parts: an address for all services, an account and an authority for each.

Owns the order: a user and a password that are given by themselves take the place of those in the URL. Must not know
what a URL leads to; `streams/routes.py` reads it.
"""

from collections.abc import Mapping
from urllib.parse import quote

from slipway.errors import InvalidError

URL = "SLIPWAY_REDIS_URL"
USER = "SLIPWAY_REDIS_USER"
PASSWORD = "SLIPWAY_REDIS_PASSWORD"  # noqa: S105 - the name of a variable
CA_FILE = "SLIPWAY_REDIS_CA_FILE"


def whole_url(url: str, *, user: str = "", password: str = "", ca_file: str = "") -> str:
    """The URL with that login and that authority; what is empty is left as the URL says. An empty URL stays empty.

    Raises:
        InvalidError: a user without a password, or an authority for a connection that is not TLS.
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
            raise InvalidError(f"{CA_FILE}: {URL} is not TLS; begin it with rediss")
        kept = [each for each in query.split("&") if each and not each.startswith("ssl_ca_certs=")]
        query = "&".join([*kept, f"ssl_ca_certs={quote(ca_file)}"])
    return f"{scheme}{separator}{authority}{slash}{path}{'?' if query else ''}{query}"


def from_environment(env: Mapping[str, str]) -> str:
    """The whole URL that the variables give; empty without one. Raises as `whole_url` does."""
    return whole_url(
        env.get(URL, ""), user=env.get(USER, ""), password=env.get(PASSWORD, ""), ca_file=env.get(CA_FILE, "")
    )
