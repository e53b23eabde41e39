"""Names derived from a user: the login name in a rank, and the name of the volume claim of the home directory.

Pure. Invariant: the name of the claim depends only on the user, so that its creation is idempotent and every launch of
the user finds the same claim.
"""

import re

from slipway.crd.hashing import sha256_hex
from slipway.crd.transitions import user_of
from slipway.crd.v1alpha1 import Allocation

LOGIN_LENGTH_MAX = 32
"""Maximum length of a login name. Source: useradd(8)."""
_NO_NAME = "user"
_OUTSIDE_LOGINS = re.compile(r"[^A-Za-z0-9._-]+")
_READABLE_MAX = 24
_HASH_LENGTH = 10
_OUTSIDE_NAMES = re.compile(r"[^a-z0-9]+")


def login_of(user: str) -> str:
    """Return the login name of a caller: `ada` for `ada@lab.org`, `ci` for `system:serviceaccount:team:ci`."""
    short = user.rpartition(":")[2].partition("@")[0]
    return _OUTSIDE_LOGINS.sub("-", short).strip("-.")[:LOGIN_LENGTH_MAX].rstrip("-.") or _NO_NAME


def claim_name(user: str) -> str:
    """Return a claim name such as `home-ada-0a1b2c3d4e`: two users never share one, however similar their names are."""
    readable = _OUTSIDE_NAMES.sub("-", login_of(user).lower()).strip("-")[:_READABLE_MAX].rstrip("-")
    return "-".join(part for part in ("home", readable, sha256_hex(user)[:_HASH_LENGTH]) if part)


def home_claim(allocation: Allocation) -> str:
    """Return the claim of the requested home directory; empty: it requests none, or was applied without a user."""
    user = user_of(allocation, "")
    return claim_name(user) if allocation.spec.home and user else ""
