"""Each service on a real server, with an account that has exactly the rights of the table of accounts."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slipway.errors import DeniedError
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams import accounts, keys, redis_server_health
from slipway.streams.accounts import Account, Grant
from slipway.streams.client import Command, RedisClient, RedisSettings
from slipway.streams.keys import KeyFamily
from slipway.streams.redis_streams import RedisStreams
from tests.support.redis import RedisBackend, server_binary, server_process
from tests.support.redis_accounts import WALKS, Seen, Walk, family_of, monitored
from tests.support.redis_cluster import cluster_processes

PASSWORD = "s3cret"


@pytest.fixture(scope="module", params=["valkey", "redis"])
def name(request: pytest.FixtureRequest) -> str:
    server_binary(request.param)
    return request.param


async def create(operator: RedisBackend) -> None:
    """Create every account, on each node of a cluster."""
    for account in accounts.ACCOUNTS:
        await operator.everywhere("ACL", "SETUSER", account.name, "on", f">{PASSWORD}", *account.arguments())


def login(url: str, account: Account) -> str:
    return url.replace("://", f"://{account.name}:{PASSWORD}@")


@asynccontextmanager
async def client_of(url: str, account: Account) -> AsyncGenerator[RedisClient]:
    client = RedisClient(RedisSettings(url=login(url, account), name=account.name), SystemClock(), SeededRandom(1))
    try:
        yield client
    finally:
        await client.aclose()


async def walk(url: str, operator: RedisBackend, sockets: Sequence[Path], account: Account, each: Walk) -> Seen:
    """Every command that one service's walk made the server run, with its own account and no script loaded."""
    await operator.flush()
    await operator.everywhere("SCRIPT", "FLUSH")
    async with client_of(url, account) as client, monitored(sockets) as seen:
        await each(RedisStreams(client, account=account), operator)
    return seen


def is_refused(reply: object) -> bool:
    """Whether the server's access rules refused a command; in a script the error is the script's."""
    return isinstance(reply, DeniedError) or any(words in str(reply) for words in OF_A_SCRIPT)


OF_A_SCRIPT = ("ACL failure in script", "The user executing the script can't")


def granted(account: Account) -> set[tuple[str, KeyFamily]]:
    return {(command, family) for family, commands in account.commands().items() for command in commands}


async def everything_seen(name: str, service: str) -> Seen:
    """The commands of one service's walk on one server and on a cluster."""
    account, each = WALKS[service]
    async with server_process(name) as server:
        operator = RedisBackend(server.url)
        await create(operator)
        seen = await walk(server.url, operator, [server.socket], account, each)
        await operator.aclose()
    async with cluster_processes(name) as cluster:
        operator = cluster.backend()
        await create(operator)
        seen |= await walk(cluster.url, operator, [node.server.socket for node in cluster.nodes], account, each)
        await operator.aclose()
    return seen


@pytest.mark.parametrize("service", WALKS)
async def test_the_table_is_what_the_code_sends(name: str, service: str) -> None:
    """A service can do all its work, and has no right that it does not use.

    The commands of the operator and the other services in a walk are recorded too, so that the test sees enough.
    """
    account, _ = WALKS[service]
    seen = {(command, family_of(key)) for command, key in await everything_seen(name, service)}
    unused = granted(account) - seen
    assert {f"{command} {accounts.pattern(family)}" for command, family in unused} == set()


async def test_one_account_for_all(name: str) -> None:
    """When an administrator provides one login only, it is enough for every service."""
    async with server_process(name) as server:
        operator = RedisBackend(server.url)
        for account, each in WALKS.values():
            set_user = ("ACL", "SETUSER", account.name, "on", f">{PASSWORD}")
            await operator.command(*set_user, *accounts.ONE_FOR_ALL.split())
            await walk(server.url, operator, [server.socket], account, each)
        await operator.aclose()


@pytest.mark.parametrize("service", [account.name for account in accounts.ACCOUNTS])
async def test_forbidden_commands_of_an_account_are_refused(name: str, service: str) -> None:
    """An account is refused every command of ours on key families outside its row, keys of others, and commands that
    rule the server."""
    account = accounts.BY_NAME[service]
    every = {command for each in accounts.ACCOUNTS for commands in each.commands().values() for command in commands}
    async with server_process(name) as server:
        operator = RedisBackend(server.url)
        await create(operator)
        async with client_of(server.url, account) as client:
            allowed: list[str] = []
            for family in keys.TABLE:
                refused = every - account.commands().get(family, frozenset())
                tried = redis_server_health.probes(Grant((family,), tuple(refused)), is_cluster=False)
                replies = await client.pipeline(list(tried.values()))
                allowed += [said for said, reply in zip(tried, replies, strict=True) if not is_refused(reply)]
            replies = await client.pipeline([Command("", args) for args in RULING])
            allowed += [str(args) for args, reply in zip(RULING, replies, strict=True) if not is_refused(reply)]
        await operator.aclose()
    assert allowed == []


RULING = (
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("CONFIG", "GET", "requirepass"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "default", "on", "nopass"),
    ("MONITOR",),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "NO", "ONE"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("CLIENT", "LIST"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "FLUSH"),
    ("PUBLISH", "slipway", "x"),
    ("GET", "other"),
    ("SET", "other", "1"),
    ("XADD", "other", "*", "a", "1"),
    ("RENAME", "slipway:alloc:{a}", "other"),
    ("COPY", "slipway:alloc:{a}", "slipway:webhook:{a}"),
    ("SWAPDB", "0", "1"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"),
    ("EVAL", "return redis.call('XADD', 'slipway:other', '*', 'a', '1')", "0"),
    ("EVAL", "return redis.call('GET', 'other')", "0"),
)
"""Commands that no service needs, and commands that avoid the keys of a row."""
