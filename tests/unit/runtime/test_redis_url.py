"""The URL of Redis, composed of one address for all services and a login for each."""

import pytest

from slipway.errors import InvalidError
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.runtime.redis_url import from_environment, whole_url
from slipway.streams.client import RedisClient, RedisSettings
from slipway.streams.routes import Login, parse


def login_of(url: str) -> Login:
    return parse(url, ask=RedisClient(RedisSettings(url=url), SystemClock(), SeededRandom(1))._ask)[1]  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://host:6379/1", "redis://api:s%2Fx@host:6379/1"),
        ("redis://old:gone@host", "redis://api:s%2Fx@host"),
        ("unix:///run/valkey.sock?db=2", "unix://api:s%2Fx@/run/valkey.sock?db=2"),
        ("redis+cluster://:old@a:1,b:2", "redis+cluster://api:s%2Fx@a:1,b:2"),
        ("redis+sentinel://a:1,b:2/main/3", "redis+sentinel://api:s%2Fx@a:1,b:2/main/3"),
    ],
)
def test_a_login_takes_the_place_of_the_one_in_the_url(url: str, whole: str) -> None:
    """The login replaces the one in the URL, with any kind of URL and any characters in the password."""
    assert whole_url(url, user="api", password="s/x") == whole
    assert (login_of(whole).username, login_of(whole).password) == ("api", "s/x")


def test_an_authority() -> None:
    """The certificate authority replaces the one in the URL, and other options stay."""
    whole = whole_url("rediss://host/0?ssl_ca_certs=/old&ssl_check_hostname=false", ca_file="/run/new ca.crt")
    assert whole == "rediss://host/0?ssl_check_hostname=false&ssl_ca_certs=/run/new%20ca.crt"
    assert login_of(whole).options["ssl_ca_certs"] == "/run/new ca.crt"


def test_what_is_not_given_stays() -> None:
    """Without a login the URL does not change; without a URL there is no Redis, whatever else is set."""
    assert whole_url("redis://u:p@host/1?a=b") == "redis://u:p@host/1?a=b"
    assert from_environment({"SLIPWAY_REDIS_USER": "api", "SLIPWAY_REDIS_PASSWORD": "x"}) == ""
    assert whole_url("redis://host", password="p") == "redis://:p@host"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"user": "api"}, "SLIPWAY_REDIS_PASSWORD is missing"),
        ({"ca_file": "/ca.crt"}, "begin it with rediss"),
    ],
)
def test_parts_that_do_not_fit(given: dict[str, str], words: str) -> None:
    """Parts that do not fit are refused with the variable and the next step."""
    with pytest.raises(InvalidError, match=words):
        whole_url("redis://host", **given)
