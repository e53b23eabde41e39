"""Credentials that are not valid: a limit for each client address, and no second review for the same one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx2
import pytest
from starlette.requests import HTTPConnection

from slipway.api.auth.rate_limit import FORWARDED, KNOWN_S, REFUSED_S, RefusalLimiter
from slipway.api.http.errors import UnauthorizedError
from slipway.api.http.networks import parse_networks
from slipway.errors import ThrottledError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.resources import TOKEN_REVIEWS
from slipway.runtime.tasks import TaskGroup
from tests.support.access import Teams, bearer, teams_world
from tests.support.clock import FakeClock
from tests.support.slow_load import SlowLoad, outcome, turns

BURST = 3


@pytest.fixture
async def teams() -> AsyncGenerator[Teams]:
    async with teams_world("kubernetes", refusals_burst=BURST, trusted_proxies=("127.0.0.0/8",)) as world:
        yield world


class TokenReviewCounter:
    """Counts the TokenReviews that an api asks for."""

    def __init__(self, teams: Teams) -> None:
        self.count = 0
        teams.world.kube.before = self._note

    async def _note(self, verb: Verb, plural: str) -> None:
        self.count += (verb, plural) == (Verb.CREATE, TOKEN_REVIEWS.plural)
        await asyncio.sleep(0)


async def call(teams: Teams, token: str, *, client: str = "203.0.113.7") -> httpx2.Response:
    """A read by a client behind a trusted proxy."""
    return await teams.call("GET", "/me", {**bearer(token), FORWARDED: client})


async def test_a_flood_of_one_bad_token_costs_one_review(teams: Teams) -> None:
    """Each call is refused with the same words, whether the calls come at once or one by one."""
    reviews = TokenReviewCounter(teams)
    answers = await asyncio.gather(*(call(teams, "garbage") for _ in range(20)))
    answers += [await call(teams, "garbage") for _ in range(20)]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.json()["detail"] for answer in answers}) == 1
    assert reviews.count == 1


async def test_an_address_with_many_bad_tokens_is_refused_before_any_review(teams: Teams) -> None:
    """429 names the address, the limit and its settings; another address is not held up."""
    reviews = TokenReviewCounter(teams)
    answers = await asyncio.gather(*(call(teams, f"garbage-{number}") for number in range(20)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [401] * BURST + [429] * (20 - BURST)
    assert reviews.count == BURST
    refused = next(answer for answer in answers if answer.status_code == 429)
    detail = refused.json()["detail"]
    assert all(part in detail for part in ("203.0.113.7", "SLIPWAY_REFUSALS_BURST", "SLIPWAY_TRUSTED_PROXIES"))
    assert int(refused.headers["retry-after"]) >= 1
    assert (await call(teams, "garbage-99", client="198.51.100.1")).status_code == 401


async def test_who_is_known_passes_from_an_address_that_is_refused(teams: Teams) -> None:
    """Users behind one NAT are not locked out by one of them."""
    token = (await teams.account("ada"))["Authorization"].removeprefix("Bearer ")
    assert (await call(teams, token)).status_code == 200
    for number in range(BURST + 2):
        await call(teams, f"garbage-{number}")
    assert (await call(teams, token)).status_code == 200
    assert (await call(teams, "garbage-99")).status_code == 429


async def test_a_login_page_says_it_too(teams: Teams) -> None:
    """The answer to a form of a browser is the login page."""
    for number in range(BURST):
        await call(teams, f"garbage-{number}")
    headers = {"Origin": "http://localhost", FORWARDED: "203.0.113.7"}
    answer = await teams.world.http.post("/login", data={"token": "x"}, headers=headers)
    assert (answer.status_code, "SLIPWAY_REFUSALS_BURST" in answer.text) == (429, True)


def a_connection(peer: str, forwarded: Sequence[str] = ()) -> HTTPConnection:
    headers = [(FORWARDED.encode(), each.encode()) for each in forwarded]
    scope: dict[str, Any] = {"type": "http", "client": (peer, 1), "headers": headers}
    return HTTPConnection(scope)


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1, 10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["not an address"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1, "], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
    ],
)
def test_the_address_is_the_nearest_that_is_no_trusted_proxy(peer: str, forwarded: list[str], expected: str) -> None:
    """What a client writes into the field by itself is never believed."""
    refusals = RefusalLimiter(FakeClock(), per_s=1, burst=1, trusted=parse_networks(["10.0.0.0/8"]))
    assert refusals.address_of(a_connection(peer, forwarded)) == expected


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    """A machine may have 2^64 of them."""
    refusals = RefusalLimiter(FakeClock(), per_s=1, burst=1)
    one, other = [refusals.address_of(a_connection(f"2001:db8::{end}")) for end in ("1", "2")]
    assert one == other


async def test_refusals_are_forgotten_with_time_and_failures_are_none() -> None:
    """The bucket fills again; an error that is not about the credential does not count."""
    clock, caller = FakeClock(), a_connection("203.0.113.7")
    refusals = RefusalLimiter(clock, per_s=1, burst=1)

    async def check(secret: str, error: Exception | None = None) -> None:
        async with refusals.tried(caller, secret):
            if error is not None:
                raise error

    for _ in range(3):
        with pytest.raises(UnavailableError):
            await check("a", UnavailableError("away"))
    with pytest.raises(UnauthorizedError, match="no"):
        await check("a", UnauthorizedError("no"))
    with pytest.raises(ThrottledError):
        await check("b")
    clock.advance(REFUSED_S)
    await check("a")
    for _ in range(3):
        await check("c")
    clock.advance(KNOWN_S)
    await check("c")


async def test_one_credential_counts_once() -> None:
    """A program that repeats an expired token does not use up the refusals of its neighbours."""
    clock, caller = FakeClock(), a_connection("203.0.113.7")
    refusals = RefusalLimiter(clock, per_s=1, burst=2)
    for _ in range(5):
        with pytest.raises(UnauthorizedError):
            async with refusals.tried(caller, "expired", is_remembered=False):
                raise UnauthorizedError("no")
    async with refusals.tried(caller, "another"):
        pass


async def test_one_credential_is_checked_once_at_a_time() -> None:
    """After a check that could not be made, a new caller waits for the next check of the same credential."""
    refusals, caller, check = RefusalLimiter(FakeClock(), per_s=1, burst=1), a_connection("203.0.113.7"), SlowLoad()

    async def call() -> None:
        async with refusals.tried(caller, "token"):
            await check()

    async with TaskGroup() as group:
        tasks = [group.create_task(outcome(call())) for _ in range(2)]
        await turns()
        check.ends[0].set_exception(UnavailableError("away"))
        await asyncio.wait(tasks[:1])
        tasks.append(group.create_task(outcome(call())))
        await turns()
        assert check.running == 1
        check.ends[1].set_exception(UnauthorizedError("no"))
    outcomes = [type(task.result()).__name__ for task in tasks]
    assert outcomes == ["UnavailableError", "UnauthorizedError", "UnauthorizedError"]
