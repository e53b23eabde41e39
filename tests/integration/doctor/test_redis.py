"""The doctor's findings about a real server while one thing after another is wrong with it."""

import shlex
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slipway.local.valkey import ServerOptions
from slipway.ops.doctor.command import DoctorTarget, examine
from slipway.ops.doctor.finding import Finding, FindingState
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams import keys
from slipway.streams.accounts import OF_SERVICES, WATCHER, Account
from slipway.streams.ports import WorkHint
from tests.support.redis import RedisBackend, an_id, server_binary, server_process


@pytest.fixture(scope="module", params=["valkey", "redis"])
def name(request: pytest.FixtureRequest) -> str:
    server_binary(request.param)
    return request.param


class FastClock(SystemClock):
    """This machine's clock, a minute ahead."""

    def now(self) -> float:
        return super().now() + 60.0


@asynccontextmanager
async def a_server(name: str, *, maxmemory_mb: int = 64, **options: Any) -> AsyncGenerator[tuple[str, RedisBackend]]:
    async with server_process(name, ServerOptions(maxmemory_mb=maxmemory_mb, **options)) as server:
        operator = RedisBackend(server.url)
        try:
            yield server.url, operator
        finally:
            await operator.aclose()


async def findings(url: str, clock: SystemClock | None = None) -> dict[str, Finding]:
    found = await examine(DoctorTarget(redis_url=url), clock or SystemClock(), SeededRandom(1))
    return {each.check: each for each in found if each.check != "kubernetes"}


async def test_all_is_well(name: str) -> None:
    """A healthy server has no failed finding, and the check leaves no key behind."""
    async with a_server(name, appendonly=True) as (url, operator):
        found = await findings(url)
        assert {each.state for each in found.values()} == {FindingState.OK}, found
        assert found["redis version"].found.startswith(name)
        assert found["redis disk"].found == "append-only file"
        assert await operator.keys() == set()


async def test_a_policy_that_evicts(name: str) -> None:
    """allkeys-lru fails, with the command that corrects it; that command works."""
    async with a_server(name, extra=("--maxmemory-policy", "allkeys-lru")) as (url, operator):
        found = await findings(url)
        assert found["redis eviction"].state is FindingState.FAILED
        assert "allkeys-lru" in found["redis eviction"].found
        words = found["redis eviction"].mend.partition("   ")[0].split()
        assert words[0] == "redis-cli"
        await operator.command(*words[1:])
        assert (await findings(url))["redis eviction"].state is FindingState.OK


async def test_memory_near_its_limit_is_reported(name: str) -> None:
    """A missing limit is a warning; a nearly reached one fails."""
    async with a_server(name, maxmemory_mb=0) as (url, operator):
        assert (await findings(url))["redis memory"].state is FindingState.WARNING
        told: str = (await operator.command("INFO", "memory")).decode()
        used = next(int(line[12:]) for line in told.splitlines() if line.startswith("used_memory:"))
        await operator.command("CONFIG", "SET", "maxmemory", used + 300_000)
        found = await findings(url)
        assert found["redis memory"].state is FindingState.FAILED
        assert found["redis memory"].mend.startswith("redis-cli CONFIG SET maxmemory ")


@pytest.mark.parametrize("account", OF_SERVICES, ids=[each.name for each in OF_SERVICES])
async def test_an_account_that_may_not(name: str, account: Account) -> None:
    """The login of any service works; the finding names what it lacks, and the suggested command corrects it."""
    async with a_server(name) as (url, operator):
        set_user = ("ACL", "SETUSER", "ours")
        await operator.command(*set_user, "on", ">s3cret", *account.arguments())
        mine = url.replace("://", "://ours:s3cret@")
        found = await findings(mine)
        assert found["redis account"].state is FindingState.OK
        assert found["redis account"].found == f"has all permissions that the {account.name} needs"
        await operator.command(*set_user, "clearselectors", "(~slipway:* +@all -xadd)")
        found = await findings(mine)
        assert found["redis account"].state is FindingState.FAILED
        assert "may not: xadd slipway:" in found["redis account"].found
        said = shlex.split(found["redis account"].mend)
        assert said[:4] == ["redis-cli", *set_user[:2], "USER"]
        await operator.command(*set_user, *said[4:])
        assert (await findings(mine))["redis account"].state is FindingState.OK


async def test_an_account_that_sees_little(name: str) -> None:
    """A property that the account cannot read is skipped, with the right that would show it."""
    async with a_server(name) as (url, operator):
        await operator.command("ACL", "SETUSER", "ours", "on", ">s3cret", *WATCHER.arguments())
        mine = url.replace("://", "://ours:s3cret@")
        found = await findings(mine)
        assert found["redis eviction"].state is FindingState.SKIPPED
        assert "+info" in found["redis eviction"].mend
        await operator.command("ACL", "SETUSER", "ours", "+info", "+time")
        assert (await findings(mine))["redis eviction"].state is FindingState.OK


async def test_its_clock(name: str) -> None:
    """A machine that is a minute ahead of the server is reported."""
    async with a_server(name) as (url, _):
        found = await findings(url, FastClock())
        assert found["redis clock"].state is FindingState.FAILED
        assert "60.0 s behind this machine" in found["redis clock"].found


async def test_backlogs_are_reported(name: str) -> None:
    """Dead letters are counted; a hint that stays with one consumer for minutes, without being claimed, fails."""
    async with a_server(name) as (url, operator):
        streams = operator.connect()
        await streams.hints.send([WorkHint(namespace="ns", allocation=an_id(each)) for each in ("a", "b")])
        queue = streams.work_queue("gone")
        claimed = await queue.claim(limit=10, block_s=1)
        first, second = claimed if len(claimed) == 2 else [*claimed, *await queue.claim(limit=10, block_s=1)]
        assert (await findings(url))["consumers"].found == "none is stale; 2 hints are waiting"
        await queue.dead_letter(first, cause="x")
        key = keys.work(second.shard)
        an_hour = ("IDLE", "3600000", "JUSTID")
        await operator.command("XCLAIM", key, keys.WORK_GROUP, "gone", "0", second.entry_id, *an_hour, key=key)
        found = await findings(url)
        assert found["consumers"].state is FindingState.FAILED
        assert "logs deployment/slipway-podworker" in found["consumers"].mend
        assert found["dead letters"].state is FindingState.WARNING
        assert "slipway dead ls" in found["dead letters"].mend


async def test_an_unreachable_redis_is_reported(tmp_path: Any) -> None:
    """An unreachable server, and a name without an address, are one failure each."""
    found = await findings(f"unix://{tmp_path}/none.sock")
    assert found["redis"].state is FindingState.FAILED
    found = await findings("redis://no-such-host.invalid:6379/0")
    assert "no address for the name no-such-host.invalid" in found["redis"].found
