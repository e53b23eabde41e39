"""`host:port` is read in one way, for IPv4, IPv6 and names."""

import pytest

from slipway.errors import UnavailableError
from slipway.runtime.listen import ListenAddress, bind, bind_all, parse_listen


def _has_ipv6() -> bool:
    try:
        bind(ListenAddress("::1", 0)).close()
    except UnavailableError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ListenAddress("127.0.0.1", 8080)),
        ("[::1]:80", ListenAddress("::1", 80)),
        ("localhost:0", ListenAddress("localhost", 0)),
        (":65535", ListenAddress("", 65535)),
    ],
)
def test_round_trips(text: str, address: ListenAddress):
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
    """Loopback addresses are recognized, because mode `none` is allowed on them only."""
    assert ListenAddress(host, 1).is_loopback is expected


def test_a_taken_port_is_told_with_its_address():
    """The message of a port in use names the address."""
    with bind(ListenAddress("127.0.0.1", 0)) as first:
        taken = ListenAddress("127.0.0.1", first.getsockname()[1])
        with pytest.raises(UnavailableError, match=f"cannot listen on {taken}"):
            bind(taken)


def test_localhost_is_both_loopback_addresses():
    """`localhost` is both loopback addresses with one port, so that no other program answers at the other address;
    without IPv6 it is one address."""
    listeners = bind_all(ListenAddress("localhost", 0))
    try:
        port = listeners[0].getsockname()[1]
        assert [each.getsockname()[:2] for each in listeners] == [("127.0.0.1", port), ("::1", port)][: len(listeners)]
    finally:
        for each in listeners:
            each.close()


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")
def test_half_of_localhost_is_not_enough():
    """A port that another program uses at one of the two addresses is not used."""
    with bind(ListenAddress("::1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"cannot listen on \[::1\]:{port}"):
            bind_all(ListenAddress("localhost", port))
        bind(ListenAddress("127.0.0.1", port)).close()
