"""Scenarios of users of the api: they launch, read, cancel and follow over HTTP.

Owns only the scenarios. A client retries while it does not know the outcome of its request. Its answers are judged
afterwards (I1, I2, I13, I19, I22, I23), whatever happened to the replicas.
"""

import asyncio
from collections.abc import Callable

from slipway.crd.meta import LABEL_WORKSPACE
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.resources import NAMESPACES
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Result
from slipway.ops.audit.clients import KEY_REUSED
from slipway.ops.audit.evidence import Canary
from tests.simulation.scenario import DONE, GONE, RUNS_S, STOPPED, Ending, Scenario, Story, has_ended, is_running
from tests.support.api_clients import Client
from tests.support.kubelet import Script
from tests.support.world import Setup, World

ONE = Setup(replicas={"api": 1})
TWO = Setup(replicas={"api": 2})
SECRET = "s3cret-of-ada-7f1c"
OTHER = "team-b"
STARTED_S = 1.0
"""Every replica answers after this time, if no fault has struck."""


async def _launch(world: World) -> None:
    """Launch, follow the events, and read it now and then; a secret is in its environment."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    world.canaries.append(Canary(text=SECRET, is_secret=True, planted="env of job"))
    ada, reader = Client(world, "ada"), Client(world, "reader", user="bob")
    made = await ada.launch(key="first", env={"PASSWORD": SECRET})
    allocation = str(made.body["id"])
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ada.follow(allocation))
        tasks.create_task(reader.watch(allocation))
    await world.when(has_ended)


async def _retry(world: World) -> None:
    """Send the same key to two replicas at once, later again, and with another body."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    ada, twin = Client(world, "ada"), Client(world, "twin")
    await asyncio.gather(ada.launch(key="same", role="api"), twin.launch(key="same", role="api2"))
    await ada.launch(key="same")
    await twin.launch(key="same", priority=90)
    await world.when(has_ended)
    await ada.launch(key="same")


async def _names(world: World) -> None:
    """Send one key with two names to two replicas at once, then again with either name and with none."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    ada, twin = Client(world, "ada"), Client(world, "twin")
    await asyncio.sleep(STARTED_S)
    await asyncio.gather(
        ada.launch("one", key="same", role="api"),
        twin.launch("two", key="same", role="api2"),
    )
    told = await asyncio.gather(ada.launch("one", key="same"), twin.launch("two", key="same"))
    await ada.launch(None, key="same")
    name = next(str(reply.body["name"]) for reply in told if reply.status < KEY_REUSED)
    await world.when(has_ended, name=name)
    await twin.launch("two", key="same")


def _cancel_when(condition: Callable[[Allocation], object], *, ranks: int = 2) -> Story:
    async def story(world: World) -> None:
        ada = Client(world, "ada")
        made = await ada.launch(key="first", ranks=_ranks(ranks))
        allocation = str(made.body["id"])
        if condition is not _exists:
            await world.when(condition)
        await asyncio.sleep(world.random.random() * 0.003)
        await ada.cancel(allocation)
        await ada.watch(allocation)
        await world.when(has_ended)

    return story


async def _two_read_the_cancel(world: World) -> None:
    """One replica stores the cancel; both users read it from the other one at that moment."""
    ada, bob = Client(world, "ada"), Client(world, "bob", user="bob")
    made = await ada.launch(key="first", role="api")
    allocation = str(made.body["id"])
    await bob.get(allocation, role="api2")
    await world.when(is_running)
    await ada.cancel(allocation, role="api")
    for _ in range(3):
        await asyncio.gather(ada.get(allocation, role="api2"), bob.get(allocation, role="api2"), ada.list())
    await asyncio.gather(ada.watch(allocation), bob.follow(allocation))
    await world.when(has_ended)


async def _delete(world: World) -> None:
    """Delete it while it runs; then its id is unknown."""
    ada = Client(world, "ada")
    made = await ada.launch(key="first")
    allocation = str(made.body["id"])
    await world.when(is_running)
    await ada.delete(allocation)
    await ada.watch(allocation)


async def _pause(world: World) -> None:
    """Pause it while it runs, and resume it: the second attempt ends."""
    world.kubelets.script = lambda attempt, _rank: Script(runs_s=RUNS_S if attempt > 1 else None)
    ada = Client(world, "ada")
    made = await ada.launch(key="first", preemptible=True, preemptionGrace="2s")
    allocation = str(made.body["id"])
    await world.when(is_running)
    await ada.act("hold", allocation)
    await world.when(lambda found: found.status.phase is Phase.PENDING)
    await ada.act("resume", allocation)
    await asyncio.gather(ada.follow(allocation), ada.watch(allocation))
    await world.when(has_ended)


async def _two_tenants(world: World) -> None:
    """Two workspaces on one cluster; each user reads everything of their own that they may."""
    world.kubelets.script = lambda _attempt, _rank: Script(runs_s=RUNS_S)
    await world.kube.create(NAMESPACES, {"metadata": {"name": OTHER, "labels": {LABEL_WORKSPACE: "true"}}})
    people = {"default": Client(world, "ada"), OTHER: Client(world, "bea", workspace=OTHER, user="bea")}

    async def live(workspace: str, client: Client, name: str) -> None:
        canary = f"canary-of-{workspace}"
        world.canaries.append(Canary(text=canary, workspace=workspace, planted="a label, the environment, the name"))
        world.canaries.append(Canary(text=f"{SECRET}-{workspace}", is_secret=True, planted=f"env of {name}"))
        env = {"CANARY": canary, "PASSWORD": f"{SECRET}-{workspace}"}
        made = await client.launch(name, key="first", labels={"canary": canary}, env=env)
        allocation = str(made.body["id"])
        await client.list()
        for part in ("explain", "timeline", "pods"):
            await client.ask(part, "GET", f"/allocations/{allocation}/{part}", allocation=allocation)
        await client.follow(allocation)
        await client.watch(allocation)
        await client.list()

    async with asyncio.TaskGroup() as tasks:
        for (workspace, client), name in zip(people.items(), ("job", "other"), strict=True):
            tasks.create_task(live(workspace, client, name))


def _exists(_found: Allocation) -> bool:
    return True


def _is_assigned(found: Allocation) -> bool:
    """Whether it is or was assigned: a late answer to the launch finds it further on."""
    return found.status.admission is not None


def _is_released(found: Allocation) -> bool:
    return found.status.release is not None


def _ranks(count: int) -> list[dict[str, object]]:
    return [{"name": "worker", "count": count, "resources": {"cpu": "1"}}]


CLIENTS = (
    Scenario(name="api-launch", story=_launch, ends=DONE, setup=ONE),
    Scenario(name="api-retry", story=_retry, ends=DONE, setup=TWO),
    Scenario(name="api-names", story=_names, ends={}, setup=TWO),
    Scenario(name="api-cancel-waiting", story=_cancel_when(_exists, ranks=9), ends=STOPPED, setup=ONE),
    Scenario(name="api-cancel-pending", story=_cancel_when(_exists), ends=STOPPED, setup=ONE),
    Scenario(name="api-cancel-assigned", story=_cancel_when(_is_assigned), ends=STOPPED, setup=ONE),
    Scenario(name="api-cancel-released", story=_cancel_when(_is_released), ends=STOPPED, setup=ONE),
    Scenario(name="api-cancel-running", story=_cancel_when(is_running), ends=STOPPED, setup=ONE),
    Scenario(name="api-two-read", story=_two_read_the_cancel, ends=STOPPED, setup=TWO),
    Scenario(name="api-delete", story=_delete, ends=GONE, setup=ONE),
    Scenario(name="api-pause", story=_pause, ends={"job": Ending(result=Result.SUCCEEDED, attempt=2)}, setup=ONE),
    Scenario(
        name="api-two-tenants",
        story=_two_tenants,
        ends={name: Ending(result=Result.SUCCEEDED, attempt=1) for name in ("job", "other")},
        setup=TWO,
    ),
)
