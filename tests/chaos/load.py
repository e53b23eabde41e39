"""The load: clients that launch, follow, kill, preempt, repeat a launch or leave it alone, until `stop`.

Owns the state of each launch as its client knows it: `launches` has the acknowledged launches, and the results with
which each may end. A wrong refusal of a request is a violation.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence

import msgspec

from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import ClientRequest, InvariantViolation
from slipway.runtime.clock import SystemClock
from tests.chaos import plans
from tests.chaos.clients import API, REFUSED, Client, RefusedError
from tests.chaos.history import History
from tests.chaos.plans import Part, Plan

CLIENTS = 4
APART_S = (0.1, 0.8)
PATIENCE_S = 600.0
"""Seconds for which a client follows one launch before it reports it as stuck."""


class Launched(msgspec.Struct, kw_only=True):
    """One acknowledged launch."""

    id: str
    plan: Plan
    at: float
    killed_at: float = 0.0
    """when its cancel was acknowledged"""
    is_given_up: bool = False
    """whether its namespace or the object was deleted: then any result is right"""


class Load:
    """All clients of one run."""

    def __init__(
        self,
        urls: Sequence[str],
        seed: int,
        history: History,
        *,
        dress: Callable[[Plan], Plan] = lambda plan: plan,
        clients: int = CLIENTS,
    ) -> None:
        """`dress` makes the body of a launch for these nodes from the plan of what it does."""
        self.answers: list[ClientRequest] = []
        self.launches: dict[str, Launched] = {}
        self.violations: list[InvariantViolation] = []
        self._history = history
        self._dress = dress
        self._clock = SystemClock()
        self._stopping = asyncio.Event()
        self._clients = [Client(f"client-{index}", urls, self.answers, seed) for index in range(clients)]
        self.prober = Client("prober", urls, self.answers, seed)
        self.operator = Client("operator", urls, self.answers, seed)
        self.bystander = Client("bystander", urls, self.answers, seed)

    async def run(self) -> None:
        """Run every client, until each has finished its present launch after `stop` was called."""
        async with asyncio.TaskGroup() as tasks:
            for client in self._clients:
                tasks.create_task(self._live(client))

    def now(self) -> float:
        """The time, on the clock of the launches."""
        return self._clock.now()

    def stop(self) -> None:
        """Let no client launch any more."""
        self._stopping.set()

    async def aclose(self) -> None:
        """Close all connections."""
        for client in (*self._clients, self.prober, self.operator, self.bystander):
            await client.aclose()

    async def end_kept(self) -> None:
        """Cancel the launches that were left running."""
        for launched in self.kept():
            await self.prober.kill(launched.id)
            launched.killed_at = self._clock.now()

    def kept(self) -> list[Launched]:
        """The launches that run until the end."""
        return [item for item in self.launches.values() if item.plan.part is Part.KEEP and not item.killed_at]

    def unsettled(self, before: float) -> list[str]:
        """Launches that were acknowledged before that time and are not in their expected state: why, one line each."""
        found: list[str] = []
        for launched in self.launches.values():
            if launched.at > before:
                continue
            allocation = self._object(launched.id)
            if allocation is None:
                found.append(f"{launched.id}: not there")
                continue
            status = allocation.status
            is_over = status.phase is Phase.TERMINATED
            is_wanted = allocation.spec.desired != "Stopped"
            if not is_over and not (status.phase is Phase.RUNNING and is_wanted):
                found.append(f"{launched.id}: {status.phase}, desired {allocation.spec.desired}")
        return found

    def unfinished(self) -> list[str]:
        """At the end: launches that have not ended although they should have, and those with a wrong result."""
        found: list[str] = []
        for launched in self.launches.values():
            allocation = self._object(launched.id)
            if allocation is None:
                found.append(f"{launched.id}: not there")
                continue
            status, result = allocation.status, allocation.status.result
            is_kept = launched.plan.part is Part.KEEP and not launched.killed_at
            if is_kept and status.phase is not Phase.RUNNING and not launched.is_given_up:
                found.append(f"{launched.id}: {status.phase} {result or ''}, should be running")
            elif not is_kept and status.phase is not Phase.TERMINATED:
                found.append(f"{launched.id}: {status.phase}, should have ended as {launched.plan.results}")
            elif not is_kept and str(result) not in launched.plan.results and not launched.is_given_up:
                found.append(f"{launched.id}: {result} ({status.reason}), should have ended as {launched.plan.results}")
        return found

    # --- one client -------------------------------------------------------------------------------------------------

    async def _live(self, client: Client) -> None:
        while not self._stopping.is_set():
            plan = self._dress(plans.draw(client.chance, may_keep=len(self.kept()) < plans.KEPT_MAX))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._play(client, plan)
            except RefusedError as error:
                self._tell("API", client.name, str(error))
            except TimeoutError:
                self._tell("LIVE", client.name, f"{plan.part}: not over after {PATIENCE_S:.0f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(client.chance.uniform(*APART_S)):
                    await self._stopping.wait()

    async def _play(self, client: Client, plan: Plan) -> None:
        key = uuid.UUID(int=client.chance.getrandbits(128)).hex
        view = await client.launch(plan.body, key=key)
        launched = Launched(id=str(view["id"]), plan=plan, at=self._clock.now())
        self.launches[launched.id] = launched
        match plan.part:
            case Part.LEAVE | Part.KEEP:
                return
            case Part.TWICE:
                await self._repeat(client, launched, key)
            case Part.KILL:
                await asyncio.sleep(plan.after_s)
                await client.kill(launched.id)
                launched.killed_at = self._clock.now()
            case _:
                pass
        expected = 1
        async for event in client.follow(launched.id):
            if event["seq"] != expected and "truncated" not in event:
                self._tell("I14", launched.id, f"{client.name} was told seq {event['seq']}, after {expected - 1}")
            expected = event["seq"] + 1
            if event["phase"] == "Running" and plan.part is Part.PREEMPT and not launched.killed_at:
                await client.preempt(launched.id)
                launched.killed_at = self._clock.now()
        await client.read(launched.id)

    async def _repeat(self, client: Client, launched: Launched, key: str) -> None:
        again = await client.launch(launched.plan.body, key=key)
        if again["id"] != launched.id:
            self._tell("I2", launched.id, f"the same key again was answered with {again['id']}")
        other = {**launched.plan.body, "labels": {"example.org/other": "1"}}
        answer = await client.ask("POST", API, "launch", other, key=key)
        if answer is not None and answer.status_code < 500 and answer.status_code not in (REFUSED, 429):
            self._tell("I2", launched.id, f"another body under its key was answered with {answer.status_code}")

    def _object(self, id_: str) -> Allocation | None:
        version = self._history.last(id_)
        return msgspec.convert(version.obj, Allocation) if version is not None else None

    def _tell(self, invariant: str, subject: str, message: str) -> None:
        self.violations.append(InvariantViolation(invariant=invariant, subject=subject, message=message))
