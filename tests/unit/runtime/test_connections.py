"""Connections are counted in total and by address; of half-open ones the oldest is dropped."""

import pytest

from slipway.runtime.connections import ListenerConnection, ListenerConnections, ListenerLimits


def arrive(
    book: ListenerConnections, host: str = "192.0.2.1", dropped: list[str] | None = None, name: str = ""
) -> ListenerConnection:
    """Admit a connection; its name is added to `dropped` when it is dropped."""
    visit = book.admit(host)
    assert visit is not None
    told = [] if dropped is None else dropped
    visit.drop = lambda: told.append(name)
    return visit


def test_what_is_above_the_total_is_not_admitted():
    """A connection above the total is not admitted; one that ends makes room, once."""
    book = ListenerConnections(ListenerLimits(connections=2))
    first = arrive(book, "192.0.2.1")
    arrive(book, "192.0.2.2")
    assert book.admit("192.0.2.3") is None
    first.closed()
    first.closed()
    arrive(book, "192.0.2.3")
    assert book.admit("192.0.2.4") is None


def test_one_address_cannot_take_everything():
    """One address is limited, and others are still admitted."""
    book = ListenerConnections(ListenerLimits(connections_per_address=2))
    for _ in range(2):
        arrive(book, "192.0.2.1")
    assert book.admit("192.0.2.1") is None
    arrive(book, "192.0.2.2")


@pytest.mark.parametrize("other", ["2001:db8:0:1::2", "2001:db8:0:1:ffff::", "2001:db8:0:1::1%eth0"])
def test_an_ipv6_machine_is_its_network(other: str):
    """IPv6 addresses are counted by their /64 network, because a machine may choose any address in it."""
    book = ListenerConnections(ListenerLimits(connections_per_address=1))
    arrive(book, "2001:db8:0:1::1")
    assert book.admit(other) is None
    arrive(book, "2001:db8:0:2::1")


def test_an_ipv4_address_within_ipv6_is_that_address():
    """An IPv4 address within IPv6 counts as that IPv4 address, because listeners for both report it in this form."""
    book = ListenerConnections(ListenerLimits(connections_per_address=1))
    arrive(book, "::ffff:192.0.2.1")
    assert book.admit("192.0.2.1") is None
    arrive(book, "::ffff:192.0.2.2")


def test_the_oldest_half_open_connection_goes():
    """The oldest half-open connection is dropped, of its address or of all; one with a complete head stays."""
    dropped: list[str] = []
    book = ListenerConnections(ListenerLimits(heads=3, heads_per_address=2))
    arrive(book, "192.0.2.1", dropped, "whole").head_done()
    arrive(book, "192.0.2.1", dropped, "a")
    arrive(book, "192.0.2.1", dropped, "b")
    assert dropped == []
    arrive(book, "192.0.2.1", dropped, "c")
    assert dropped == ["a"]
    arrive(book, "192.0.2.2", dropped, "d")
    arrive(book, "192.0.2.3", dropped, "e")
    assert dropped == ["a", "b"]


def test_a_later_head_counts_again():
    """A kept connection is half open again from the first byte of its next request."""
    dropped: list[str] = []
    book = ListenerConnections(ListenerLimits(heads_per_address=1))
    kept = arrive(book, dropped=dropped, name="kept")
    kept.head_done()
    arrive(book, dropped=dropped, name="new")
    kept.head_begun()
    assert dropped == ["new"]


def test_what_is_closed_is_forgotten():
    """A closed connection is forgotten: it is neither dropped later nor half open again."""
    dropped: list[str] = []
    book = ListenerConnections(ListenerLimits(heads_per_address=1))
    gone = arrive(book, dropped=dropped, name="gone")
    gone.closed()
    gone.head_begun()
    arrive(book, dropped=dropped, name="new")
    assert dropped == []
