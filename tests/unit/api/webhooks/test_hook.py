"""A webhook: which events it wants, how it is stored, its key, its signature."""

import base64
from typing import Any

import msgspec
import pytest

from slipway.api.webhooks import hook
from slipway.api.webhooks.hook import CLOCKS_S, Config, Webhook, key_text, of_secret, parse_key, to_secret
from slipway.errors import InvalidError
from slipway.kube.objects import Secret
from slipway.model.lifecycle import Event
from tests.support.redis import an_event

KEY = bytes(range(32))


def a_webhook(*, created_at: float = 0.0, **config: Any) -> Webhook:
    """A webhook that wants all events, unless `config` has filters."""
    return Webhook(
        name="hook",
        config=msgspec.convert({"url": "https://a.example/in", **config}, Config),
        key=KEY,
        created_at=created_at,
    )


@pytest.mark.parametrize(
    ("config", "is_wanted"),
    [
        ({}, True),
        ({"enabled": False}, False),
        ({"events": ["terminated", "running"]}, True),
        ({"events": ["running"]}, False),
        ({"workspaces": ["default"]}, True),
        ({"workspaces": ["other"]}, False),
        ({"results": ["Failed", "Evicted"]}, True),
        ({"results": ["Succeeded"]}, False),
    ],
)
def test_filters_choose_events(config: dict[str, Any], is_wanted: bool) -> None:
    """An empty filter lets everything through; filters are joined by and."""
    event = an_event(5, type=Event.TERMINATED, data={"result": "Failed"})
    assert a_webhook(**config).wants(event) is is_wanted


def test_a_filter_of_results_is_about_ends_only() -> None:
    """What has not ended has no result, so it is not sent."""
    assert not a_webhook(results=["Failed"]).wants(an_event(3, type=Event.RUNNING))


def test_what_happened_before_the_webhook_is_not_told() -> None:
    """Streams that are built again hold old events; a new receiver is not flooded. Clocks may differ a little."""
    event = an_event(1, time="2026-01-02T03:04:05Z")
    assert a_webhook(created_at=1_767_323_045.0 + CLOCKS_S).wants(event)
    assert not a_webhook(created_at=1_767_323_046.0 + CLOCKS_S).wants(event)


def test_a_webhook_survives_its_secret() -> None:
    """Everything is stored, and the Secret carries the label that lists it."""
    webhook = a_webhook(events=["running"], description="pager")
    stored = to_secret(webhook, "slipway-system")
    assert stored["metadata"]["labels"]["slipway.dev/webhook"] == "true"
    again = of_secret(msgspec.convert(stored, Secret))
    assert again is not None
    assert (again.name, again.config, again.key) == ("hook", webhook.config, KEY)


@pytest.mark.parametrize(
    "data",
    [{}, {"config": "###", "key": "aaaa"}, {"config": base64.b64encode(b"{}").decode(), "key": "YWFhYQ=="}],
)
def test_a_secret_of_somebody_else_is_no_webhook(data: dict[str, str]) -> None:
    """A Secret that carries the label by mistake does not affect the webhooks."""
    assert of_secret(msgspec.convert({"metadata": {"name": "slipway-webhook-x"}, "data": data}, Secret)) is None


def test_nothing_secret_is_shown() -> None:
    """Neither the key nor the URL, which may contain a token, is shown."""
    webhook = a_webhook(url="https://a.example/T0KEN")
    for shown in (repr(webhook), repr(webhook.config), repr(msgspec.convert(to_secret(webhook, "ns"), Secret))):
        assert "T0KEN" not in shown
        assert base64.b64encode(KEY).decode() not in shown


def test_keys_have_the_standard_form() -> None:
    """`whsec_` and base64; a bad one is refused without being repeated."""
    assert parse_key(key_text(KEY)) == KEY
    for bad in ("whsec_", "whsec_c2hvcnQ=", base64.b64encode(KEY).decode(), "whsec_not base64 at all, but long enough"):
        with pytest.raises(InvalidError) as refused:
            parse_key(bad)
        assert bad == "whsec_" or bad not in str(refused.value)


def test_the_signature_is_that_of_the_standard() -> None:
    """The example of Standard Webhooks' own documentation gets the signature that is printed there."""
    found = hook.headers(
        parse_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        b'{"test": 2432232314}',
        now=1614265330.7,
    )
    assert found == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
