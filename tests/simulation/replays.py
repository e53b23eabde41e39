"""The decision log of a run, replayed as it grows.

Owns the position up to which the log was replayed. A process calls `follow` before it forks, so that no child replays
the earlier decisions again. A log that lost or changed an entry is replayed from its beginning, so the answer is the
same as when all of it is replayed at the end.
"""

from slipway.errors import InvalidError
from slipway.ops.audit.evidence import InvariantViolation
from slipway.scheduler.decisions.replay import Replayer
from slipway.streams import codec, keys
from slipway.streams.memory_server import Fields
from tests.support.world import World


class Replays:
    """The replay of one world's log."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._restart()

    def follow(self) -> None:
        """Replay the added entries. Raises nothing: faults of the log are reported at the end."""
        if self._why:
            return
        stream = self._world.server.stream(keys.decisions("default"))
        entries = list(stream.entries.values()) if stream is not None else []
        is_longer = len(entries) >= len(self._taken) and all(map(_is_same, entries, self._taken))
        if not is_longer:
            self._restart()
        try:
            for fields in entries[len(self._taken) :]:
                self._taken.append(fields)
                entry = codec.decode_decision(fields)
                self._replayer.replay_entry(entry.data, entry.tick)
        except InvalidError as error:
            self._why = str(error)

    def violations(self) -> list[InvariantViolation]:
        """Ticks whose record does not give the same decisions again, also when their writer has died."""
        if self._why:
            self._restart()
        self.follow()
        if self._why:
            return [InvariantViolation(invariant="REPLAY", subject="decision log", message=self._why)]
        return [
            InvariantViolation(
                invariant="REPLAY", subject=f"tick {each.tick}", message=f"{each.what} {each.allocation}"
            )
            for each in self._replayer.report.differences
        ]

    def _restart(self) -> None:
        self._replayer, self._why = Replayer(), ""
        self._taken: list[Fields] = []


def _is_same(one: Fields, other: Fields) -> bool:
    return one is other
