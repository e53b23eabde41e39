"""One sequence on both servers: drawn and played on the model first, then on the real one, then compared.

Owns that order. A sequence has a namespace of its own, and a prefix for the names of cluster-wide objects, so that any
number of them can run on the real server at once. Invariant: (seed, case) alone decide the requests.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from tests.models.kubernetes.comparison import AnswerReader, are_in_step, differences
from tests.models.kubernetes.drawing import SequenceBuilder
from tests.models.kubernetes.operations import Json, KnownValues, Operation, Request
from tests.models.kubernetes.servers import Model, Real

LENGTH = 60
ARRIVE_S = 20.0
MOMENT_S = 0.1


class PlayedSequence(msgspec.Struct, kw_only=True):
    """A sequence, and the answers of one server: one entry for each operation."""

    lane: str
    operations: Sequence[Operation]
    answers: list[Any]
    reading: Any


def draw(model: Model, seed: int, case: int, lane: str) -> PlayedSequence:
    """Draw a sequence and play it on the model."""
    builder = SequenceBuilder(Random(f"{seed}/{case}"), lane)
    player = _OnModel(model, lane)
    first = builder.open()
    builder.note(first, player.play(first))
    player.prepare()
    watches = list[Operation]()
    for _ in range(LENGTH):
        operation = builder.draw()
        if operation.is_watch:
            watches.append(operation)
        else:
            builder.note(operation, player.play(operation))
    for operation in [*watches, *builder.close()]:
        player.watch(operation)
    return player.played


def replay(model: Model, operations: Sequence[Operation], lane: str) -> PlayedSequence:
    """Play given operations on the model."""
    player = _OnModel(model, lane)
    for index, operation in enumerate(operations):
        if operation.is_watch:
            player.watch(operation)
        else:
            player.play(operation)
        if index == 0:
            player.prepare()
    return player.played


async def play(real: Real, told: PlayedSequence) -> PlayedSequence:
    """Play the operations of a sequence on the real server."""
    knowledge, reading, answers = KnownValues(told.lane), AnswerReader(), list[Any]()
    watches = [operation for operation in told.operations if operation.is_watch]
    seen = {watch.number: Events() for watch in watches}
    async with asyncio.TaskGroup() as tasks:
        watching = list[asyncio.Task[None]]()
        for index, operation in enumerate(told.operations):
            if operation.is_watch:
                answers.append(reading.events(await seen[operation.number].take(len(told.answers[index]))))
                continue
            answer = await real.ask(knowledge.render(operation))
            knowledge.learn(operation, answer)
            answers.append(reading.read(operation, answer))
            if index == 0:
                await real.ask(_account(told.lane))
            begun = [watch for watch in watches if max(watch.references, default=0) == operation.number]
            watching += [
                tasks.create_task(real.watch(knowledge.render(watch), seen[watch.number].add)) for watch in begun
            ]
        for task in watching:
            task.cancel()
    return PlayedSequence(lane=told.lane, operations=told.operations, answers=answers, reading=reading)


async def clean(real: Real, lane: str) -> None:
    """Remove objects that are not deleted with a namespace; objects that are blocked stay."""
    for path in ("/api/v1/nodes", "/apis/slipway.dev/v1alpha1/resourcepools", "/apis/slipway.dev/v1alpha1/queues"):
        await real.ask(Request("DELETE", path, f"labelSelector=lane%3D{lane}", b"", "application/json"))


def compare(model: PlayedSequence, real: PlayedSequence) -> tuple[int, list[str]] | None:
    """(index of the first operation with different answers, the difference), or None."""
    for index, (one, other) in enumerate(zip(model.answers, real.answers, strict=True)):
        found = differences(one, other)
        if found:
            return index, found
    if not are_in_step(model.reading, real.reading):
        return len(model.answers) - 1, ["the versions of the two do not rise together"]
    return None


class Events:
    """The events of a watch so far."""

    def __init__(self) -> None:
        self._all = list[Json]()
        self._more = asyncio.Event()

    def add(self, event: Json) -> None:
        self._all.append(event)
        self._more.set()

    async def take(self, expected: int) -> list[Json]:
        """Return all events: wait for the expected ones, and a moment longer for unexpected ones."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVE_S):
                while len(self._all) < expected:
                    self._more.clear()
                    await self._more.wait()
        await asyncio.sleep(MOMENT_S)
        return self._all


class _OnModel:
    def __init__(self, model: Model, lane: str) -> None:
        self._model = model
        self._known_values = KnownValues(lane)
        self._operations = list[Operation]()
        self.played = PlayedSequence(lane=lane, operations=self._operations, answers=[], reading=AnswerReader())

    def play(self, operation: Operation) -> Any:
        answer = self._model.ask(self._known_values.render(operation))
        self._known_values.learn(operation, answer)
        self._operations.append(operation)
        self.played.answers.append(self.played.reading.read(operation, answer))
        return answer

    def watch(self, operation: Operation) -> None:
        events: list[Json] = self._model.watch(self._known_values.render(operation))
        self._operations.append(operation)
        self.played.answers.append(self.played.reading.events(events))

    def prepare(self) -> None:
        self._model.ask(_account(self.played.lane))


def _account(lane: str) -> Request:
    """Create the account of pods; on a real cluster a controller would create it."""
    body = msgspec.json.encode({"metadata": {"name": "default"}})
    return Request("POST", f"/api/v1/namespaces/{lane}/serviceaccounts", "", body, "application/json")
