"""Users of the API server: names, groups, the user names of service accounts, and the administrator's token.

Pure. Invariant: exactly the users with valid credentials are in `system:authenticated`.
"""

import hmac

import msgspec

from slipway.local.apiserver.objects import Json

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ACCOUNT_PREFIX = "system:serviceaccount:"
ACCOUNTS = "system:serviceaccounts"
_ACCOUNT_PARTS = 2


class User(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = {}

    def to_json(self) -> Json:
        """Return the user as a `UserInfo`, without empty fields."""
        shown: Json = {"username": self.name}
        if self.uid:
            shown["uid"] = self.uid
        if self.groups:
            shown["groups"] = list(self.groups)
        if self.extra:
            shown["extra"] = self.extra
        return shown


ADMIN = User(name="slipway-local", groups=(MASTERS, AUTHENTICATED))
ANONYMOUS = User(name="system:anonymous", groups=(UNAUTHENTICATED,))


def is_admin_token(given: str, token: str) -> bool:
    """Whether `given` is the administrator's `token`; never when there is none. The time tells nothing of the token."""
    encoded = (text.encode(errors="surrogatepass") for text in (given, token))
    return bool(token) and hmac.compare_digest(*encoded)


def account_name(namespace: str, name: str) -> str:
    return f"{ACCOUNT_PREFIX}{namespace}:{name}"


def account_groups(namespace: str) -> tuple[str, ...]:
    return (ACCOUNTS, f"{ACCOUNTS}:{namespace}", AUTHENTICATED)


def account_of(user: str) -> tuple[str, str] | None:
    """Return (namespace, name) of a user that is a service account, else None."""
    parts = tuple(user.removeprefix(ACCOUNT_PREFIX).split(":"))
    is_account = user.startswith(ACCOUNT_PREFIX) and len(parts) == _ACCOUNT_PARTS and all(parts)
    return (parts[0], parts[1]) if is_account else None
