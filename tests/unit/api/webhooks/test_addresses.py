"""Webhooks reach the public internet and what an operator names, and nothing else."""

import ipaddress

import pytest

from slipway.api.http.networks import parse_networks
from slipway.api.webhooks.addresses import (
    ForbiddenTargetError,
    Resolver,
    check_address,
    check_literal,
    parse_target,
)
from slipway.errors import InvalidError, UnavailableError

LOOPBACK = parse_networks(("127.0.0.0/8", "::1/128"))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.3.4",
        "192.168.1.1",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "192.0.2.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::1",
        "2001:db8::1",
        "2001::1",
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    """An IPv6 address that leads to such an IPv4 address is refused too: mapped, 6to4, NAT64."""
    with pytest.raises(ForbiddenTargetError, match="SLIPWAY_WEBHOOK_NETWORKS"):
        check_address(ipaddress.ip_address(address), ())


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101"])
def test_public_addresses_are_taken(address: str) -> None:
    """Public addresses need no setting."""
    check_address(ipaddress.ip_address(address), ())


def test_an_operator_can_allow_networks() -> None:
    """Exactly those networks are allowed: where loopback is, the metadata service is not."""
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        check_address(ipaddress.ip_address(address), LOOPBACK)
    with pytest.raises(ForbiddenTargetError):
        check_address(ipaddress.ip_address("169.254.169.254"), LOOPBACK)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "a.localhost", "10.1.2.3"])
def test_an_address_that_stands_in_the_url_is_refused_when_it_is_written(host: str) -> None:
    """Names are resolved and checked when something is sent, each time again."""
    with pytest.raises(ForbiddenTargetError):
        check_literal(parse_target(f"http://{host}:8080/in"), ())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "absolute URL"),
        ("/in", "https://"),
        ("ftp://a.example", "https://"),
        ("https://", "name a host"),
        ("https://user:pw@a.example/", "a user and password"),
        ("https://a.example/#x", "fragment"),
        ("https://a.example:99999/", "is not a URL"),
        ("https://[::1/", "is not a URL"),
        ("https://a.example/a b", "printable ASCII"),
        ("https://a.example/\r\nX: y", "printable ASCII"),
        ("https://a.example/" + "x" * 2048, "at most"),
    ],
)
def test_what_is_no_url_of_a_receiver_is_refused(url: str, said: str) -> None:
    """The error states what is wrong with it."""
    with pytest.raises(InvalidError, match=said):
        parse_target(url)


def test_a_url_is_taken_apart() -> None:
    """The query stays; the port stands in the Host header when it is not the usual one."""
    target = parse_target("https://Hooks.example:8443/in?x=1")
    assert (target.scheme, target.host, target.port, target.path) == ("https", "hooks.example", 8443, "/in?x=1")
    assert target.authority == "hooks.example:8443"
    assert parse_target("http://[2606:4700::1111]").authority == "[2606:4700::1111]"


async def test_every_address_of_a_name_is_checked() -> None:
    """A name that leads inside is refused; one that leads nowhere may lead somewhere later."""
    resolver = Resolver()
    try:
        assert set(await resolver.resolve(parse_target("http://localhost/"), LOOPBACK)) <= {"127.0.0.1", "::1"}
        with pytest.raises(ForbiddenTargetError):
            await resolver.resolve(parse_target("http://localhost/"), ())
        with pytest.raises(UnavailableError, match="does not resolve"):
            await resolver.resolve(parse_target("http://no-such-host.invalid/"), ())
    finally:
        resolver.close()
