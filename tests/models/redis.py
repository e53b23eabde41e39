"""The model of Redis beside real servers: the same random operations on all ports, every answer and state compared.

Owns the run: the sequences of a seed, each played on a model and a real server in step, the comparison, and the
shortest sequence that still differs. Half of the sequences are played with Redis 7.0, half with Valkey, if this machine
has both. A sequence begins with an empty server, so it can be replayed alone.
"""

import asyncio
import itertools
import random
import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from slipway.local.valkey import find_bundled_server
from slipway.streams.memory_server import ServerRefusal
from tests.models.redis_operations import OPERATIONS as MAIN
from tests.models.redis_player import Player, Step, is_error
from tests.models.redis_server_operations import OPERATIONS as SIDES
from tests.models.redis_servers import LateError, ModelServer, RealServer
from tests.models.report import Report, progress
from tests.support.clock import FakeClock
from tests.support.redis import server_process

TIME, REFUSED = "time", "refused"
TIMES_S = (10, 10, 20, 40, 40, 3_670, 605_010, 2_600_010)
"""Whole tens of seconds; the last ones let a gathering, a stream and an activity expire."""
TABLE = {**MAIN, **SIDES}
BY_HAND = ("flush", "lose_key", "lose_group", "remove", "poison")
WEIGHTS = {name: weight for name, (weight, _) in TABLE.items()} | {TIME: 4.0, REFUSED: 2.0}
SEQUENCE = 250
PROGRESS_EVERY = 40
"""Sequences between two progress lines."""
LOOK_EVERY = 25
"""Operations between two comparisons of the whole state, which is also compared at the end."""
TICK_S = 0.002
DIFFERENCES_MAX = 5
TRIES_MAX = 400
"""Shorter sequences that are tried before the result is printed."""


class Difference(msgspec.Struct, frozen=True):
    """The first step of a sequence with different answers."""

    place: int
    model: str
    real: str


class RedisComparison:
    """One real server, and models beside it."""

    def __init__(self, url: str, *, model: Callable[[FakeClock], ModelServer] = ModelServer) -> None:
        self._url, self._model = url, model
        self.answers: Counter[str] = Counter()

    async def play(self, steps: Sequence[Step]) -> Difference | None:
        """Play both sides in step, from empty; return the first difference."""
        while True:
            try:
                return await self._play(steps)
            except LateError:
                self.answers["late"] += 1

    async def _play(self, steps: Sequence[Step]) -> Difference | None:
        clock = FakeClock()
        real = RealServer(self._url, clock)
        try:
            await real.prepare()
            await real.flush()
            return await self._compare(steps, clock, Player(self._model(clock)), Player(real), real)
        finally:
            await real.aclose()

    async def _compare(
        self, steps: Sequence[Step], clock: FakeClock, model: Player, real: Player, server: RealServer
    ) -> Difference | None:
        for place, step in enumerate(steps):
            clock.advance(TICK_S)
            server.check_time()
            if step.name == TIME:
                seconds = step.chance().choice(TIMES_S)
                clock.advance(seconds)
                await real.compared_server.pass_time(seconds)
                continue
            asked = [step]
            if step.name == REFUSED:
                why, asked = _refused(step)
                await model.compared_server.refuse(why)
                await real.compared_server.refuse(why)
            for each in asked:
                said, answered = [
                    await compared_server.play(each, TABLE[each.name][1]) for compared_server in (model, real)
                ]
                self.answers["errors" if is_error(said) else "values"] += 1
                if said != answered:
                    return Difference(place, f"{each.name}: {said}", f"{each.name}: {answered}")
            if step.name == REFUSED:
                await model.compared_server.refuse(None)
                await real.compared_server.refuse(None)
            if (place + 1) % LOOK_EVERY == 0 or place + 1 == len(steps):
                one, other = (
                    await model.compared_server.state(model.label),
                    await real.compared_server.state(real.label),
                )
                if one != other:
                    keys = [key for key in sorted({*one, *other}) if one.get(key) != other.get(key)]
                    return Difference(
                        place,
                        "\n    ".join(f"{key}: {one.get(key)}" for key in keys),
                        "\n    ".join(f"{key}: {other.get(key)}" for key in keys),
                    )
        return None

    async def shorten(self, steps: Sequence[Step]) -> list[Step]:
        """A sequence in which every step is needed for the difference; or the shortest one found in time."""
        found = await self.play(steps)
        kept = list(steps[: found.place + 1] if found else steps)
        size, tries = max(1, len(kept) // 2), 0
        while size and tries < TRIES_MAX:
            start = 0
            while start < len(kept) and tries < TRIES_MAX:
                shorter = kept[:start] + kept[start + size :]
                tries += 1
                if (found := await self.play(shorter)) is not None:
                    kept = shorter[: found.place + 1]
                else:
                    start += size
            size //= 2
        return kept


def _refused(step: Step) -> tuple[ServerRefusal, list[Step]]:
    """The reason for which a server refuses for a while, and the operations that are tried meanwhile."""
    chance = step.chance()
    names = [name for name in TABLE if name not in BY_HAND]
    asked = [Step(name, chance.getrandbits(32)) for name in chance.choices(names, k=chance.randrange(1, 6))]
    return chance.choice((ServerRefusal.OOM, ServerRefusal.READONLY)), asked


def steps_of(seed: int, number: int, count: int) -> list[Step]:
    """The sequence of that number, which only the seed decides."""
    chance = random.Random(f"{seed}/{number}")
    names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return [Step(name, chance.getrandbits(32)) for name in names]


def servers() -> list[str]:
    """The kinds of server on this machine."""
    found = ["valkey"] if find_bundled_server() is not None else []
    return [*found, "redis"] if shutil.which("redis-server") else found


def differ(operations: int, seed: int, case: str) -> Report:
    """Run that many operations; `case` is `<number>@<server>`, as in the report of a difference."""
    return asyncio.run(_differ(operations, seed, case))


async def _differ(operations: int, seed: int, case: str) -> Report:
    done, differences = 0, list[str]()
    async with _benches(case.partition("@")[2]) as benches:
        if case:
            cases = [(int(case.partition("@")[0]), *benches[0])]
        else:
            cases = [(number, *benches[number % len(benches)]) for number in range(-(-operations // SEQUENCE))]
        for number, kind, redis_comparison in cases:
            steps = steps_of(seed, number, SEQUENCE if case else min(SEQUENCE, operations - done))
            found = await redis_comparison.play(steps)
            done += len(steps) if found is None else found.place + 1
            if (number + 1) % PROGRESS_EVERY == 0:
                progress(f"redis: {done} operations, {len(differences)} differences")
            if found is not None:
                differences.append(await _told(redis_comparison, steps, f"{number}@{kind}", seed))
                if len(differences) == DIFFERENCES_MAX:
                    break
        notes = [
            f"{kind}: {redis_comparison.answers['values'] + redis_comparison.answers['errors']} answers compared"
            for kind, redis_comparison in benches
        ]
        raised = sum(redis_comparison.answers["errors"] for _, redis_comparison in benches)
        notes.append(f"{len(WEIGHTS)} kinds of operation, {raised} answers were errors of ours, the same on both")
    return Report(operations=done, differences=differences, notes=notes)


async def _told(redis_comparison: RedisComparison, steps: Sequence[Step], case: str, seed: int) -> str:
    short = await redis_comparison.shorten(steps)
    found = await redis_comparison.play(short)
    lines = [f"redis: model and server differ (seed {seed}, case {case}), shortest sequence found:"]
    lines += [f"  {step.name} {step.salt}" for step in short]
    if found is not None:
        lines += [f"  model: {found.model}", f"  real:  {found.real}"]
    lines.append(f"  replay: python -m tests.models redis --seed {seed} --case {case}")
    return "\n".join(lines)


@asynccontextmanager
async def _benches(wanted: str) -> AsyncGenerator[list[tuple[str, RedisComparison]]]:
    kinds = [kind for kind in servers() if wanted in ("", kind)]
    if not kinds:
        raise SystemExit("there is no Valkey and no Redis server on this machine")
    async with server_process(kinds[0]) as first, server_process(kinds[-1]) as second:
        urls: list[str] = [first.url, second.url]
        yield [
            (kind, RedisComparison(url)) for kind, url in zip(kinds, itertools.islice(urls, len(kinds)), strict=True)
        ]
