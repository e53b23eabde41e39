"""The claims of a token before it is checked: anybody can write them, so no value may cause a fault of ours."""

from pathlib import Path
from typing import Any

import pytest

from slipway.api.auth.bearer import claims_of, wrong_audience
from slipway.sdk import credentials
from tests.support.access import teams_world
from tests.support.tokens import forged

NO_TIMES: tuple[Any, ...] = (10**400, -(10**400), 1e308, -1e308, -1, True, "1", None, [1], {}, 253402300800 * 10**6)
"""Values of a time claim that state no time."""
NAMES = [f"{value!r:.12}" for value in NO_TIMES]


@pytest.mark.parametrize("value", NO_TIMES, ids=NAMES)
def test_a_claim_that_is_no_time_states_no_expiry(value: Any) -> None:
    """The other claims are read. The api and the SDK read the expiry alike."""
    token = forged(exp=value, iat=value, nbf=value)
    claims = claims_of(token)
    assert claims is not None
    assert (claims.issuer, claims.ends_at) == ("https://issuer.test", 0.0)
    assert credentials.ends_at(token) == 0.0


def test_a_token_without_an_audience_is_refused_in_plain_words() -> None:
    """The refusal says that the audience is missing, and which one is accepted."""
    assert wrong_audience((), "slipway") == "the token names no audience; it must name 'slipway'"
    assert wrong_audience(("vault", "a"), "slipway") == "the token is for 'vault, a', not for 'slipway'"


@pytest.mark.parametrize("mode", ["token", "kubernetes"])
async def test_forged_claims_are_refused(mode: str, tmp_path: Path) -> None:
    """A forged claim gets 401, with each value, in each mode, for users and for tasks."""
    async with teams_world(mode, tmp_path if mode == "token" else None) as teams:
        for claim in ("exp", "nbf", "iat"):
            for value in NO_TIMES:
                for also in ("sub", "kubernetes.io"):
                    headers = {"Authorization": f"Bearer {forged(**{claim: value, also: 'x'})}"}
                    answer = await teams.call("GET", "/allocations", headers)
                    assert answer.status_code in (401, 429), f"{claim}={value!r:.20}: {answer.text[:200]}"
