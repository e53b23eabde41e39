"""Two replicas of the api at one real Redis: codes can be used once, and a logout reaches the other replica, also
after a loss."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography.fernet import Fernet

from slipway.api.auth.ended_sessions import LOOK_S
from slipway.api.auth.session import LoginSession
from slipway.api.deps import ApiDeps
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams.client import RedisSettings
from slipway.streams.redis_streams import RedisStreams, connect
from tests.support.access import served_by, teams_world
from tests.support.redis import server_process
from tests.unit.api.auth.test_browser_sessions import an_editor, entered, there
from tests.unit.api.auth.test_login import BROWSER, DOMAIN, HOST, OWN, code_of, cookie_of

PATIENCE_S = 10.0


def streams_at(url: str) -> RedisStreams:
    return connect(RedisSettings(url=url, name="api"), clock=SystemClock(), random=SeededRandom(1))


async def look_until(replicas: Sequence[ApiDeps], condition: Callable[[], bool], what: str) -> None:
    """Do the work of the replicas' loops, faster, until a condition is true."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                for each in replicas:
                    await each.sessions.ended.look()
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"looked for {PATIENCE_S} s for: {what}") from None


async def test_replicas_share_what_ended(tmp_path: Path) -> None:
    """A session that one replica made works at the other, and ends at both; a third replica knows the end after
    Redis lost everything."""
    assert 2 * LOOK_S < 10.0
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "1.key").write_bytes(Fernet.generate_key())
    settings = {"proxy_domain": DOMAIN, "hosts": (HOST,), "session_key_dir": str(folder)}
    async with server_process() as server, teams_world("token", tmp_path, **settings) as teams:
        id_ = teams.ids["red"]
        _, cookie = await an_editor(teams)
        streams = [streams_at(server.url) for _ in range(3)]
        one, two, three = [await teams.replica(each) for each in streams]
        async with served_by(one) as first, served_by(two) as second, served_by(three) as third:
            step = await first.get(f"/proxy/{id_}/", headers={**cookie, **BROWSER})
            spare = code_of(await first.get(f"/proxy/{id_}/", headers={**cookie, **BROWSER}))
            answers = await asyncio.gather(*(entered(each, id_, code_of(step)) for each in (first, second, third)))
            assert sorted(answer.status_code for answer in answers) == [303, 401, 401]
            ticket = cookie_of(next(answer for answer in answers if answer.status_code == 303))
            inside = f"/api/v1/allocations/{id_}"
            for each in (first, second, third):
                assert (await each.get(inside, headers={**there(id_), **ticket})).status_code == 200
            login = one.sessions.keys.open(cookie["Cookie"].partition("=")[2], LoginSession)
            assert login is not None
            assert (await first.post("/logout", headers={**cookie, **OWN})).status_code == 303
            await look_until([two], lambda: two.sessions.ended.has(login.id), "the logout at the second")
            for each in (first, second):
                assert (await each.get("/api/v1/me", headers=cookie)).status_code == 401
                assert (await each.get(inside, headers={**there(id_), **ticket})).status_code == 401
                assert (await entered(each, id_, spare)).status_code == 401
            await server.stop()
            await server.start()
            await look_until([two, three], lambda: three.sessions.ended.has(login.id), "what the second tells again")
            assert (await third.get("/api/v1/me", headers=cookie)).status_code == 401
        for each in streams:
            await each.aclose()
