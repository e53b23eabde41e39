"""Users of the issuer: how long their tokens are accepted."""

import pytest
from joserfc import jwk, jwt

from slipway.api.access.issuer_rules import CLOCK_SKEW_S, TokenRules, header_of, keys_of, verified
from slipway.api.access.oidc_auth import ListedRoles, OidcCaller
from slipway.api.http_errors import UnauthorizedError
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
    assert await OidcCaller(user, ListedRoles({}), clock).still() is is_accepted
