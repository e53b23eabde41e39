"""A differential run: enough sequences for the requested number of operations, many at once.

Owns the run, the shortening of a failing sequence, and the report of a difference.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from slipway.local.apiserver.objects import is_map
from tests.contract.kube.target import Target, target_of
from tests.models.kubernetes.lanes import LENGTH, PlayedSequence, clean, compare, draw, play, replay
from tests.models.kubernetes.operations import Operation
from tests.models.kubernetes.servers import Model, Real, real_cluster, session
from tests.models.report import Report, progress

AT_ONCE = 24
CASES_PER_MODEL = 48
SHOWN_MAX = 12
TRIES_MAX = 40


def differ(operations: int, seed: int, case: str) -> Report:
    """Run random operations on the model and on a real API server; `SLIPWAY_MODELS_KUBECONFIG` names a running one."""
    given = os.environ.get("SLIPWAY_MODELS_KUBECONFIG", "")
    if given:
        return asyncio.run(_differ(target_of(Path(given)), operations, seed, case))
    with real_cluster() as cluster:
        return asyncio.run(_differ(target_of(cluster.kubeconfig), operations, seed, case))


class _Run:
    def __init__(self, real: Real, seed: int, marker: str) -> None:
        self._real = real
        self._seed = seed
        self._marker = marker
        self._tries = 0
        self._spare = Model()
        self.done = 0
        self.refused = 0
        self.found: dict[str, str] = {}

    async def cases(self, cases: Sequence[int]) -> None:
        """Draw these sequences on a model, then play them on the real server."""
        told = await asyncio.to_thread(self._draw, cases)
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(case: int, drawn: PlayedSequence) -> None:
            async with gate:
                real = await play(self._real, drawn)
                await clean(self._real, drawn.lane)
            self.done += len(drawn.operations)
            self.refused += sum(is_map(answer) and answer["code"] >= 400 for answer in drawn.answers)
            await self._judge(case, drawn, real)

        async with asyncio.TaskGroup() as tasks:
            for case, drawn in zip(cases, told, strict=True):
                tasks.create_task(one(case, drawn))

    def _draw(self, cases: Sequence[int]) -> list[PlayedSequence]:
        model = Model()
        return [draw(model, self._seed, case, f"s{self._marker}-{case}") for case in cases]

    async def _judge(self, case: int, model: PlayedSequence, real: PlayedSequence) -> None:
        difference = compare(model, real)
        if difference is None:
            return
        index, found = difference
        key = _sort_of(model.operations[index], found)
        if key in self.found or len(self.found) >= SHOWN_MAX:
            return
        self.found[key] = ""
        shortest = await self._shorten(model.operations[: index + 1], found[0])
        again = await self._differing(shortest)
        told = [f"DIFFERENCE in case {case} of seed {self._seed} (--seed {self._seed} --case {case}):"]
        told += [f"    {operation.told()}" for operation in shortest]
        told += [f"  {line}" for line in (again or found)[:SHOWN_MAX]]
        self.found[key] = "\n".join(told)
        progress(told[0])

    async def _shorten(self, operations: Sequence[Operation], wanted: str) -> Sequence[Operation]:
        """Remove the operations that the difference does not need: halves first, then ever smaller parts."""
        kept, size, tries = list(operations), max(1, len(operations) // 2), 0
        while size and tries < TRIES_MAX:
            at = 1
            while at < len(kept) - 1 and tries < TRIES_MAX:
                fewer = _without(kept, kept[at : min(at + size, len(kept) - 1)])
                tries += 1
                found = await self._differing(fewer) if fewer[-1] is kept[-1] else None
                if found is not None and found[0].partition(":")[0] == wanted.partition(":")[0]:
                    kept = fewer
                else:
                    at += size
            size //= 2
        return kept

    async def _differing(self, operations: Sequence[Operation]) -> list[str] | None:
        self._tries += 1
        lane = f"s{self._marker}-again-{self._tries}"
        model = await asyncio.to_thread(lambda: replay(self._spare, operations, lane))
        real = await play(self._real, model)
        await clean(self._real, lane)
        difference = compare(model, real)
        return difference[1] if difference is not None and difference[0] == len(operations) - 1 else None


async def _differ(target: Target, operations: int, seed: int, case: str) -> Report:
    async with session(target.tls) as connections:
        real = Real(connections, target.url)
        await real.define()
        run = _Run(real, seed, os.urandom(3).hex())
        wanted = [int(case)] if case else list(range(max(1, operations // LENGTH)))
        for start in range(0, len(wanted), CASES_PER_MODEL):
            await run.cases(wanted[start : start + CASES_PER_MODEL])
            progress(f"kubernetes: {run.done} operations, {len(run.found)} differences")
    notes = [f"{run.refused} of the operations were refused, by both"]
    return Report(operations=run.done, differences=list(run.found.values()), notes=notes)


def _without(operations: Sequence[Operation], dropped: Sequence[Operation]) -> list[Operation]:
    """The other operations, without those that refer to removed ones."""
    gone = {operation.number for operation in dropped}
    rest = list[Operation]()
    for operation in operations:
        if operation.number in gone or operation.references & gone:
            gone.add(operation.number)
        else:
            rest.append(operation)
    return rest


def _sort_of(operation: Operation, found: Sequence[str]) -> str:
    plural = operation.path.split("/")[-2 if operation.path.count("/") % 2 else -1]
    return f"{operation.method} {plural} {operation.media} {found[0]}"
