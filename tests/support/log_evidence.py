"""The stored logs and the printed output, as evidence for the audit.

Owns the translation from the model of Redis and from the kubelets.
"""

from collections.abc import Iterable, Mapping

from slipway.ops.audit.evidence import LineRange, PrintedOutput, StoredLog
from slipway.ops.audit.logs import folded
from slipway.streams import keys, logpacks
from slipway.streams.logpacks import EVENT, SHARE_BYTES_MIN, LogKey, LogPosition
from slipway.streams.memory_server import MemoryServer
from slipway.streams.pages import ZERO
from tests.support.kubelet import Kubelets

ENTRIES_MAX = 100_000
UNREAD = "could not be read from its node"


def stored_logs(server: MemoryServer) -> list[StoredLog]:
    """Every log that the model of Redis stores."""
    found: list[StoredLog] = []
    there = server.keys()
    names = {
        key.removeprefix(prefix).strip("{}")
        for key in there
        for prefix in (keys.LOGS.prefix, keys.LOG_STATE.prefix)
        if key.startswith(prefix)
    }
    for name in sorted(names):
        found += _logs_of(server, name)
    return found


def printed_by(kubelets: Kubelets) -> list[PrintedOutput]:
    """The output of each start of a rank."""
    return [
        PrintedOutput(
            allocation=item.allocation,
            allocation_uid=item.allocation_uid,
            attempt=item.attempt,
            rank=item.rank,
            lines=item.simulated.count,
            states=item.simulated.states,
            ended_at=item.ended_at,
            ended_first=item.ended_first,
            is_lost=item.is_lost or item.node in kubelets.away,
            fits=item.simulated.size < SHARE_BYTES_MIN,
        )
        for item in kubelets.containers
        if item.allocation_uid
    ]


def logs_in(name: str, entries: Iterable[Mapping[str, bytes]], states: Mapping[str, bytes]) -> list[StoredLog]:
    """Every log of an allocation, from the entries of its stream and the fields of its positions."""
    passages: dict[LogKey, list[LineRange]] = {}
    unread: set[tuple[int, int]] = set()
    for fields in entries:
        lines = logpacks.decode_pack(fields)
        source = lines[0].source
        if source.stream == EVENT:
            unread |= {(line.attempt, line.rank) for line in lines if UNREAD in line.text}
        else:
            passages[source] = folded(lines, passages.get(source, ()))
    positions = {
        source: logpacks.decode_position(raw)
        for key, raw in states.items()
        if (source := logpacks.source_of(key)) is not None and source.stream != EVENT
    }
    return [
        StoredLog(
            allocation=name,
            attempt=source.attempt,
            rank=source.rank,
            container=source.container,
            passages=passages.get(source, ()),
            end=position.number,
            is_ended=position.is_ended,
            is_unread=(source.attempt, source.rank) in unread,
        )
        for source in sorted(passages.keys() | positions.keys())
        for position in [positions.get(source, LogPosition())]
    ]


def _logs_of(server: MemoryServer, name: str) -> list[StoredLog]:
    entries = (fields for _, fields in server.after(f"{keys.LOGS.prefix}{{{name}}}", ZERO, ENTRIES_MAX))
    return logs_in(name, entries, server.hash_get(f"{keys.LOG_STATE.prefix}{{{name}}}"))
