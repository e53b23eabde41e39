"""One Idempotency-Key is one allocation, whatever names are sent with it, when, and to which replica."""

import asyncio
from typing import Any

import pytest

from slipway.api.http.errors import KeyReusedError
from slipway.api.launch.launcher import IdempotencyClaims
from slipway.crd.meta import LABEL_LAUNCH_KEY
from slipway.errors import DeadlineError, TransientError
from slipway.kube.claims import STANDS_S
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.runtime.clock import SeededRandom
from tests.support.api_world import COMMAND, ApiWorld
from tests.support.clock import FakeClock
from tests.support.kube_core import CoreKube
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish

KEY = "run-k3x7q2m5ab"
"""The name that follows from the key of these tests."""
SPACE = "default"


class Replicas:
    """Two replicas of the api before one cluster."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        core = a_core(self.clock.now)
        self.kubes = [a_client(core, seed) for seed in (1, 2)]
        self.claims = [IdempotencyClaims(kube, clock=self.clock, random=SeededRandom(3)) for kube in self.kubes]

    async def settle(self, replica: int, name: str) -> bool:
        """Whether that replica gives the key to the name."""
        try:
            await self.claims[replica].settle(KEY, SPACE, name)
        except KeyReusedError:
            return False
        return True

    async def launch(self, name: str) -> None:
        """Create the allocation, as a launch does after its claim."""
        manifest = a_manifest(name)
        manifest["metadata"]["labels"] = {LABEL_LAUNCH_KEY: KEY}
        await self.kubes[0].create(ALLOCATIONS, manifest)


@pytest.fixture
async def replicas() -> Replicas:
    """Two replicas before a furnished cluster."""
    found = Replicas()
    await furnish(found.kubes[0])
    return found


def _key(key: str = "k") -> dict[str, str]:
    return {"idempotency-key": key}


def _codes(answers: list[Any]) -> list[tuple[int, str]]:
    return sorted((answer.status_code, str(answer.json().get("code", ""))) for answer in answers)


async def test_many_names_at_once_are_one_launch(world: ApiWorld) -> None:
    """One name is launched, and all other callers are told that the key was used."""
    bodies = [{**COMMAND, "name": f"llm-{number}"} for number in range(8)]
    answers = await asyncio.gather(*(world.post("/allocations", body, **_key()) for body in bodies))
    assert _codes(answers) == [(201, ""), *[(422, "idempotency-key-reused")] * 7]
    assert len(await world.names()) == 1


async def test_with_a_name_and_without_at_once_are_one_launch(world: ApiWorld) -> None:
    """Launches with one key take turns at one replica."""
    bodies = [COMMAND, {**COMMAND, "name": "llm"}] * 3
    answers = await asyncio.gather(*(world.post("/allocations", body, **_key()) for body in bodies))
    assert {answer.status_code for answer in answers} == {200, 201, 422}
    assert len(await world.names()) == 1
    other = await world.post("/allocations", COMMAND, **_key("other"))
    assert other.status_code == 201


@pytest.mark.parametrize("first", [{}, {"name": "llm"}], ids=["unnamed-first", "named-first"])
async def test_a_second_caller_is_refused_and_a_repeated_call_is_not(world: ApiWorld, first: dict[str, str]) -> None:
    """The second launch is refused whichever of the two had a name; a repeated first launch gets its allocation."""
    second = {} if first else {"name": "llm"}
    made = await world.post("/allocations", {**COMMAND, **first}, **_key())
    for _ in range(2):
        refused = await world.post("/allocations", {**COMMAND, **second}, **_key())
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency-key-reused")
        assert made.json()["name"] in refused.json()["detail"]
        again = await world.post("/allocations", {**COMMAND, **first}, **_key())
        assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
    assert await world.names() == [made.json()["name"]]


async def test_replicas_agree_on_one_name(replicas: Replicas) -> None:
    """The replicas share nothing but the claim."""
    asked = [(number % 2, f"llm-{number}") for number in range(6)]
    got = await asyncio.gather(*(replicas.settle(replica, name) for replica, name in asked))
    assert sum(got) == 1
    name = asked[got.index(True)][1]
    assert [await replicas.settle(replica, name) for replica in (0, 1)] == [True, True]


async def test_a_claim_whose_answer_was_lost_is_recognised(replicas: Replicas) -> None:
    """The repeated create finds the claim, with its own name."""
    lost: list[Verb] = []

    async def lose_first(verb: Verb, _plural: str) -> None:
        if verb is Verb.CREATE and not lost:
            lost.append(verb)
            raise DeadlineError("no answer")

    replicas.kubes[0].after = lose_first
    assert await replicas.settle(0, "llm")
    assert lost


async def test_a_claim_stands_while_its_allocation_may_still_come(replicas: Replicas) -> None:
    """A create whose caller no longer waits may be carried out late; no other name gets the key before that."""
    await replicas.settle(0, "llm")
    replicas.clock.advance(STANDS_S - 1)
    assert not await replicas.settle(1, "other")
    assert not await replicas.settle(1, KEY)


async def test_a_claim_stands_as_long_as_its_allocation(replicas: Replicas) -> None:
    """The age of the claim does not matter; an allocation that another launch made under the name does not count."""
    await replicas.settle(0, "llm")
    await replicas.launch("llm")
    replicas.clock.advance(STANDS_S * 100)
    assert [await replicas.settle(1, name) for name in ("other", KEY, "llm")] == [False, False, True]


@pytest.mark.parametrize("name", ["other", "llm", KEY])
async def test_a_claim_without_a_launch_expires(replicas: Replicas, name: str) -> None:
    """The launch was refused, or its allocation is long gone: the key may be used again, with any name."""
    await replicas.settle(0, "llm")
    replicas.clock.advance(STANDS_S + 1)
    assert await replicas.settle(1, name)


async def test_of_several_callers_one_takes_over_an_expired_claim(replicas: Replicas) -> None:
    """The others are asked to try again, and are refused then."""
    await replicas.settle(0, "llm")
    replicas.clock.advance(STANDS_S + 1)
    names = [(0, "one"), (1, "two"), (0, "three")]
    told = await asyncio.gather(
        *(replicas.claims[replica].settle(KEY, SPACE, name) for replica, name in names), return_exceptions=True
    )
    assert told.count(None) == 1
    assert all(isinstance(error, TransientError | KeyReusedError) for error in told if error is not None)
    winner = names[told.index(None)][1]
    assert [await replicas.settle(1, name) for _, name in names] == [name == winner for _, name in names]


def _counted(kube: CoreKube) -> list[Verb]:
    calls: list[Verb] = []

    async def note(verb: Verb, _plural: str) -> None:
        calls.append(verb)

    kube.before = note
    return calls


@pytest.mark.parametrize(("name", "cost"), [(KEY, [Verb.GET]), ("llm", [Verb.CREATE, Verb.GET])])
async def test_the_cost_of_a_key_does_not_grow_with_the_number_of_keys(
    replicas: Replicas, name: str, cost: list[Verb]
) -> None:
    """A key costs one read without a name, a create and a read with a name, and never a LIST."""
    calls = _counted(replicas.kubes[0])
    assert await replicas.settle(0, name)
    assert calls == cost
