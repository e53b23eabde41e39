"""A URL contains the address of Redis and our account; an invalid one is refused, and the message does not repeat
it."""

import pytest

from slipway.errors import InvalidError, UnavailableError
from slipway.streams.routes import (
    ClusterSlots,
    Login,
    RedisAddress,
    Reply,
    SentinelMaster,
    SingleServer,
    UncoveredError,
    parse,
)


class Nodes:
    """Servers that answer CLUSTER SLOTS, and the list of servers that were asked."""

    def __init__(self, **answers: Reply) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, address: RedisAddress, args: tuple[str, ...]) -> Reply:
        self.asked.append(address.host)
        if address.host not in self.answers:
            raise UnavailableError("away")
        return self.answers[address.host]


def a_range(first: int, last: int, host: str, port: int = 1) -> list[Reply]:
    return [first, last, [host.encode(), port, b"id", []]]


def test_one_server() -> None:
    """The URL of one server has its account and database."""
    route, login = parse("redis://user:p%40ss@host:7000/3", ask=Nodes())
    assert isinstance(route, SingleServer)
    assert route.address == RedisAddress("host", 7000)
    assert (login.username, login.password, login.db, login.tls) == ("user", "p@ss", 3, False)


@pytest.mark.parametrize(("scheme", "tls"), [("redis", False), ("rediss", True)])
async def test_a_cluster(scheme: str, tls: bool) -> None:
    """The URL of a cluster may name any of its nodes; a query sets options of the connections; there is no database."""
    nodes = Nodes(b=[a_range(0, 16_383, "c", 9)])
    route, login = parse(f"{scheme}+cluster://u:p@a,b:7000,[::1]:7001?ssl_ca_certs=/x", ask=nodes)
    assert isinstance(route, ClusterSlots)
    assert (login.username, login.password, login.db, login.tls) == ("u", "p", 0, tls)
    assert login.options == {"ssl_ca_certs": "/x"}
    assert await route.find("slipway:x") == RedisAddress("c", 9)
    assert nodes.asked == ["a", "b"]


def test_a_master_behind_sentinels() -> None:
    """The URL of a master behind sentinels has the service as its path, followed by the database."""
    route, login = parse("rediss+sentinel://:p@a,b:7000/main/2", ask=Nodes())
    assert isinstance(route, SentinelMaster)
    assert (login.password, login.db, login.tls) == ("p", 2, True)
    assert "p" not in repr(Login(password="p")).replace("tls", "")


@pytest.mark.parametrize("url", ["redis+cluster://a/0/1", "redis+cluster://a/main", "redis+sentinel://a", "http://a"])
def test_what_is_none_is_refused(url: str) -> None:
    """An invalid URL is refused with the valid forms."""
    with pytest.raises(InvalidError, match="redis\\+cluster"):
        parse(url, ask=Nodes())


async def test_the_slots_are_learned_once_and_corrected() -> None:
    """A MOVED corrects one slot; a node without a name is the one that was asked."""
    nodes = Nodes(a=[a_range(0, 8_000, ""), a_range(8_001, 16_383, "b")])
    route = ClusterSlots((RedisAddress("a", 1),), nodes)
    before = [await route.find(key) for key in ("b", "a")]  # slots 3300 and 15495
    assert before == [RedisAddress("a", 1), RedisAddress("b", 1)]
    route.learn(3_300, RedisAddress("c", 5))
    assert await route.find("b") == RedisAddress("c", 5)
    assert nodes.asked == ["a"]
    route.forget()
    assert not route.is_known
    assert await route.find("b") == RedisAddress("a", 1)


async def test_an_unserved_slot_is_an_error_for_that_slot_only() -> None:
    """A slot that no node serves is an error for that slot only, and is looked up again the next time."""
    nodes = Nodes(a=[a_range(0, 8_000, "a")])
    route = ClusterSlots((RedisAddress("a", 1),), nodes)
    assert await route.find("b") == RedisAddress("a", 1)
    with pytest.raises(UncoveredError):
        await route.find("a")
    assert await route.find("b") == RedisAddress("a", 1)
    assert nodes.asked == ["a", "a"]


async def test_a_node_that_is_no_cluster_is_passed_over() -> None:
    """A node that answers CLUSTER SLOTS with an error is skipped."""
    nodes = Nodes(a=UnavailableError("not enabled"), b=[a_range(0, 16_383, "b")])
    assert await ClusterSlots((RedisAddress("a", 1), RedisAddress("b", 1)), nodes).find("x") == RedisAddress("b", 1)
    with pytest.raises(UnavailableError):
        await ClusterSlots((RedisAddress("a", 1),), nodes).find("x")
