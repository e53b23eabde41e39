"""Users of the issuer: how long their tokens are accepted, and how the issuer may write that."""

import msgspec
import pytest
from joserfc import jwk, jwt

from slipway.api.auth.issuer import IssuerTokens
from slipway.api.auth.issuer_rules import CLOCK_SKEW_S, TokenRules, header_of, keys_of, verified
from slipway.api.auth.oidc_auth import ListedRoles, OidcCaller
from slipway.api.http.errors import UnauthorizedError
from tests.support.clock import FakeClock

ISSUER = "https://issuer.test"
RULES = TokenRules(
    issuer=ISSUER,
    audiences=("slipway",),
    algorithms=("ES256",),
    username_claim="sub",
    username_prefix="-",
    groups_claim="groups",
    groups_prefix="",
    required_claims={},
)


@pytest.mark.parametrize("ended_s", [-60.0, -1.0, 0.0, CLOCK_SKEW_S - 1.0, CLOCK_SKEW_S, CLOCK_SKEW_S + 60.0])
async def test_a_stream_lasts_as_long_as_its_token_is_accepted(ended_s: float) -> None:
    """A new request and an open stream judge the expiry alike, so that no stream ends which could begin again."""
    clock = FakeClock()
    key = jwk.ECKey.generate_key("P-256", parameters={"kid": "k"})
    ends_at = int(clock.now() - ended_s)
    claims = {"iss": ISSUER, "aud": "slipway", "sub": "ada", "exp": ends_at}
    token = jwt.encode({"alg": "ES256", "kid": "k"}, claims, key, ["ES256"])
    (known,) = keys_of({"keys": [key.as_dict(private=False)]})
    header = header_of(token, RULES)
    user = verified(token, header, known, RULES, now=ends_at - 1.0).user
    try:
        verified(token, header, known, RULES, now=clock.now())
        is_accepted = True
    except UnauthorizedError:
        is_accepted = False
    assert is_accepted is (ended_s < CLOCK_SKEW_S)
    assert await OidcCaller(user, ListedRoles({}), clock).is_still_valid() is is_accepted


@pytest.mark.parametrize(
    ("written", "lifetime_s"),
    [
        (b"3600", 3600.0),
        (b'"3600"', 3600.0),
        (b"59.5", 59.5),
        (b"0", 0.0),
        (b"null", 0.0),
        (b"true", 0.0),
        (b"-5", 0.0),
        (b'"soon"', 0.0),
        (b"1e300", 0.0),
        (b"9" * 400, 0.0),
        (b'"%s"' % (b"9" * 5000), 0.0),
        (b"[1]", 0.0),
    ],
)
def test_a_lifetime_is_read_as_issuers_write_it(written: bytes, lifetime_s: float) -> None:
    """Some issuers write text. A value that is no lifetime counts as not stated; the tokens beside it are used."""
    body = b'{"id_token": "a.b.c", "refresh_token": null, "expires_in": %s}' % written
    tokens = msgspec.json.decode(body, type=IssuerTokens)
    assert (tokens.id_token, tokens.refresh_token, tokens.lifetime_s) == ("a.b.c", None, lifetime_s)
