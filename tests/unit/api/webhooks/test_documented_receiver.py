"""The code of docs/integrating.md that receivers copy: it accepts what we send, and nothing else."""

import time

import msgspec
import pytest

from slipway.api.http.cloudevents import cloud_event
from slipway.api.webhooks import hook
from slipway.api.webhooks.hook import key_text
from tests.support.receiver import PAGE, documented
from tests.support.redis import an_event

KEY = b"k" * 32
BODY = cloud_event(an_event(3))
ID = an_event(3).event_id


def headers(*, age_s: float = 0.0, key: bytes = KEY) -> dict[str, str]:
    return hook.headers(key, ID, BODY, now=time.time() - age_s)  # noqa: TID251 - as a receiver's own clock


def test_it_takes_what_we_send() -> None:
    """The event comes out as it went in; a second signature, of a key that was replaced, does no harm."""
    event = documented()(headers(), BODY, key_text(KEY))
    assert event == msgspec.json.decode(BODY)
    both = headers() | {"webhook-signature": f"v1,b3RoZXI= {headers()['webhook-signature']}"}
    assert documented()(both, BODY, key_text(KEY))["id"] == ID


@pytest.mark.parametrize(
    ("key", "age_s", "changed", "body"),
    [
        (b"x" * 32, 0.0, {}, BODY),
        (KEY, 0.0, {}, BODY + b" "),
        (KEY, 0.0, {"webhook-id": "other"}, BODY),
        (KEY, 0.0, {"webhook-signature": ""}, BODY),
        (KEY, 600.0, {}, BODY),
        (KEY, -600.0, {}, BODY),
    ],
    ids=["another key", "another body", "another id", "no signature", "too old", "from the future"],
)
def test_it_refuses_everything_else(key: bytes, age_s: float, changed: dict[str, str], body: bytes) -> None:
    """It refuses another key, another body, another id, no signature, and another time."""
    with pytest.raises(ValueError, match=r"old|signature"):
        documented()(headers(key=key, age_s=age_s) | changed, body, key_text(KEY))


def test_it_is_short() -> None:
    """A user should read it before copying it."""
    source = PAGE.read_text("utf-8").partition("def verified")[2].partition("```")[0]
    assert len(source.splitlines()) <= 15
