"""Stores log lines, for tests that read them."""

from collections.abc import Sequence

import msgspec

from slipway.model.ids import AllocationId
from slipway.streams.logpacks import EVENT, LogLine, LogPack, LogPosition
from slipway.streams.ports import Streams

SHARE_BYTES = 8 * 1024 * 1024


def a_pack(
    allocation: AllocationId, lines: Sequence[LogLine], *, after: int = 0, first: int = 0, share: int = SHARE_BYTES
) -> LogPack:
    """A pack of these lines of one log, after its line `after`; the lines between `after` and `first` are missing."""
    start = first or after + 1
    return LogPack(
        allocation=allocation,
        source=lines[0].source,
        after=_position(after),
        first=start,
        lines=[f"{line.time} {line.text}".encode() for line in lines],
        position=_position(start + len(lines) - 1),
        share_bytes=share,
    )


async def store_lines(streams: Streams, allocation: AllocationId, lines: Sequence[LogLine]) -> None:
    """Append each line to its log; a line of Kubernetes is appended as a new event."""
    for place, line in enumerate(lines):
        position = await streams.logs.position(allocation, line.source)
        pack = a_pack(allocation, [line], after=position.number)
        if line.stream == EVENT:
            pack = LogPack(
                allocation=allocation,
                source=line.source,
                after=LogPosition(),
                first=1,
                lines=pack.lines,
                position=LogPosition(),
                share_bytes=SHARE_BYTES,
                key=f"{line.time} {line.text} {place}",
                count=1,
            )
        [answer] = await streams.logs.append([pack])
        assert answer.is_appended, line


async def end_logs(streams: Streams, allocation: AllocationId) -> None:
    """Mark each log as stored to its end."""
    for source, position in (await streams.logs.positions(allocation)).items():
        pack = LogPack(
            allocation=allocation,
            source=source,
            after=position,
            first=position.number + 1,
            lines=[],
            position=msgspec.structs.replace(position, is_ended=True),
            share_bytes=SHARE_BYTES,
        )
        await streams.logs.append([pack])


def _position(number: int) -> LogPosition:
    """The position in a log of which `number` lines were read, all of one second."""
    return LogPosition(number=number, second="2026-01-02T03:04:05Z", seen=number) if number else LogPosition()
