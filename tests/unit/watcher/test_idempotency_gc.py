"""The claim of an Idempotency-Key is deleted after its allocation, and not while a client may still retry with it."""

import pytest

from slipway.errors import InvalidError, UnavailableError
from slipway.kube.claims import CLAIM_MAPS, KEPT_S, claim_manifest, claim_name, reclaim_patch
from slipway.kube.errors import Verb
from slipway.kube.resources import CONFIG_MAPS
from slipway.watcher.informers import Informers
from slipway.watcher.sweep import ClaimSweeper
from tests.support.clock import FakeClock
from tests.support.small_cluster import a_client, a_core, furnish, launch, refuse_one_delete

KEY, SPACE = "run-k3x7q2m5ab", "default"


class IdempotencyGcHarness:
    """A cluster with one claim, for an allocation `llm`, and a watcher that has seen nothing yet."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.kube = a_client(a_core(self.clock.now))
        self.world = Informers()
        self.sweeper = ClaimSweeper(self.kube, self.world, self.clock)

    async def claims(self) -> int:
        """The number of claims."""
        return len((await self.kube.list(CONFIG_MAPS)).items)


@pytest.fixture
async def harness() -> IdempotencyGcHarness:
    """A furnished cluster with one claim."""
    found = IdempotencyGcHarness()
    await furnish(found.kube)
    await found.kube.create(CLAIM_MAPS, claim_manifest(KEY, SPACE, "llm", found.clock.now()))
    return found


async def test_an_hour_after_it_was_written_it_goes(harness: IdempotencyGcHarness) -> None:
    """A claim is deleted an hour after it was written, not before; other ConfigMaps stay."""
    await harness.kube.create(CONFIG_MAPS, {"metadata": {"name": "mine", "namespace": SPACE}})
    harness.clock.advance(KEPT_S - 1)
    assert await harness.sweeper.sweep() == 0
    harness.clock.advance(2)
    assert [await harness.sweeper.sweep() for _ in range(2)] == [1, 0]
    assert [each.metadata.name for each in (await harness.kube.list(CONFIG_MAPS)).items] == ["mine"]


@pytest.mark.parametrize("is_seen", [True, False])
async def test_it_stays_as_long_as_its_allocation(harness: IdempotencyGcHarness, is_seen: bool) -> None:
    """A claim stays as long as its allocation exists, whether the cache shows the allocation or not."""
    found = await launch(harness.kube, "llm")
    if is_seen:
        harness.world.allocations.replace([found], 1)
    harness.clock.advance(KEPT_S * 100)
    assert (await harness.sweeper.sweep(), await harness.claims()) == (0, 1)


async def test_one_that_is_taken_anew_in_this_moment_stays(harness: IdempotencyGcHarness) -> None:
    """A claim that is written again between the LIST and the delete stays."""
    harness.clock.advance(KEPT_S + 1)
    claim = await harness.kube.get(CLAIM_MAPS, claim_name(KEY), namespace=SPACE)
    taken: list[str] = []

    async def take(verb: Verb, _plural: str) -> None:
        if verb is Verb.DELETE and not taken:
            taken.append(verb)
            patch = reclaim_patch(claim, "other", harness.clock.now())
            await harness.kube.patch(CLAIM_MAPS, claim.metadata.name, patch, namespace=SPACE)

    harness.kube.before = take
    assert (await harness.sweeper.sweep(), len(taken), await harness.claims()) == (0, 1, 1)


async def test_a_claim_whose_delete_is_refused_does_not_keep_the_others(harness: IdempotencyGcHarness) -> None:
    """A policy of the cluster may protect a claim: it stays, and the other claims are deleted."""
    await harness.kube.create(CLAIM_MAPS, claim_manifest("run-other", SPACE, "other", harness.clock.now()))
    harness.clock.advance(KEPT_S + 1)
    refuse_one_delete(harness.kube, InvalidError("ValidatingAdmissionPolicy 'keep' denied request"))
    assert (await harness.sweeper.sweep(), await harness.claims()) == (1, 1)


async def test_without_a_successful_list_nothing_is_deleted(harness: IdempotencyGcHarness) -> None:
    """Nothing is deleted when the API server does not answer whether the allocation is gone."""
    harness.clock.advance(KEPT_S + 1)

    async def away(verb: Verb, _plural: str) -> None:
        if verb is Verb.GET:
            raise UnavailableError("reset")

    harness.kube.before = away
    with pytest.raises(UnavailableError):
        await harness.sweeper.sweep()
    assert await harness.claims() == 1
