"""`host:port` is read in one way, for IPv4, IPv6 and names."""

import pytest

from slipway.errors import UnavailableError
from slipway.runtime.listen import Address, bind, parse_listen


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("[::1]:80", Address("::1", 80)),
        ("localhost:0", Address("localhost", 0)),
        (":65535", Address("", 65535)),
    ],
)
def test_round_trips(text: str, address: Address):
    """Reading and writing an address are inverse."""
    assert parse_listen(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:http", "host:65536", "host:-1", "::1:80", "host:\u0663"])
def test_refuses_everything_else(text: str):
    """A port is 0 to 65535 in plain digits; IPv6 needs brackets."""
    with pytest.raises(ValueError, match=r"host:port|brackets"):
        parse_listen(text)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.64.0.9", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("10.0.0.1", False),
        ("127.evil.example", False),
    ],
)
def test_knows_loopback(host: str, expected: bool):
    """Mode `none` is allowed on loopback only."""
    assert Address(host, 1).is_loopback is expected


def test_a_taken_port_is_told_with_its_address():
    """The message names what could not be had."""
    with bind(Address("127.0.0.1", 0)) as first:
        taken = Address("127.0.0.1", first.getsockname()[1])
        with pytest.raises(UnavailableError, match=f"cannot listen on {taken}"):
            bind(taken)
