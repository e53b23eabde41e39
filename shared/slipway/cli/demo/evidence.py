"""The results that the demo shows for a launch: its entries in Redis, its placement, its trace, and the summary."""

import socket
from typing import Any, cast
from urllib.parse import urlsplit

from slipway.cli import labels, table, waterfall
from slipway.cli.demo.stage import DemoLaunch, DemoStage

Json = dict[str, Any]
READ_S = 5.0
SERVICES = {"api", "scheduler", "podworker", "watcher"}


def streams(stage: DemoStage, launched: DemoLaunch, redis_url: str) -> None:
    """Show every transition of a launch, as any Redis client can read it."""
    key = f"slipway:alloc:{{{launched.id}}}"
    items = cast("list[Json]", stage.look(launched, "events")["items"])
    entries = xrange(redis_url, key)
    stage.show(f"XRANGE {key} - +")
    for id_, fields in entries:
        kind = fields["type"].removeprefix("dev.slipway.allocation.")
        stage.show(f"{id_:<16}  {kind:<11}  {fields['data']}")
    sequence = [int(id_.partition("-")[2]) for id_, _ in entries]
    stage.check("the entries count 1, 2, 3... without a gap", sequence == list(range(1, len(items) + 1)), sequence)
    stage.check("they are CloudEvents of this launch", all(fields["subject"] == launched.id for _, fields in entries))
    same = [fields["id"] for _, fields in entries] == [str(item["id"]) for item in items]
    stage.check("the API says the same", same, len(items))
    if len(entries) > 2:
        rest = stage.api.get(f"/allocations/{launched.id}/events", {"after": entries[1][0]})["items"]
        ids = [str(item["id"]) for item in rest]
        stage.check("a reader that reconnects gets the rest", ids == [fields["id"] for _, fields in entries[2:]], ids)


def xrange(url: str, key: str) -> list[tuple[str, dict[str, str]]]:
    """Return (id, fields) of every entry of a stream, with the small part of the Redis protocol that this needs.

    Source: redis.io/docs/latest/develop/reference/protocol-spec (RESP2).
    """
    parts = urlsplit(url)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(READ_S)
            connection.connect(parts.path)
            return _entries(connection, key)
    with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout=READ_S) as connection:
        return _entries(connection, key)


def _entries(connection: socket.socket, key: str) -> list[tuple[str, dict[str, str]]]:
    command = ["XRANGE", key, "-", "+"]
    text = f"*{len(command)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in command)
    connection.sendall(text.encode())
    with connection.makefile("rb") as answer:
        found = cast("list[list[Any]]", _value(answer))
    return [(str(id_), dict(zip(flat[::2], flat[1::2], strict=True))) for id_, flat in found]


def _value(answer: Any) -> Any:
    """Read one value of the answer."""
    line: bytes = answer.readline().rstrip(b"\r\n")
    kind, rest = line[:1], line[1:]
    match kind:
        case b"*":
            return [_value(answer) for _ in range(int(rest))]
        case b"$":
            return answer.read(int(rest) + 2)[:-2].decode()
        case b"-":
            raise ConnectionError(rest.decode())
        case _:
            return rest.decode()


def placement(stage: DemoStage, launched: DemoLaunch) -> None:
    """Show which rank ran on which node."""
    ranks = labels.ranks_of(stage.view(launched))
    nodes = sorted({str(rank.get("node", "")) for rank in ranks})
    rows = [
        [node, *("█" if rank.get("node") == node else "·" for rank in ranks), str(_on(node, ranks))] for node in nodes
    ]
    stage.show(table.render(["NODE", *(f"rank {number}" for number in range(len(ranks))), "RANKS"], rows))
    stage.check("every rank has a node", all(rank.get("node") for rank in ranks), nodes)
    uids = {str(rank.get("podUID", "")) for rank in ranks}
    stage.check("and a pod of its own", len(uids) == len(ranks) and "" not in uids, uids)


def _on(node: str, ranks: list[Json]) -> int:
    return sum(rank.get("node") == node for rank in ranks)


def trace(stage: DemoStage, launched: DemoLaunch) -> None:
    """Show how long each part of the launch took."""

    def spans() -> list[waterfall.WorkSpan] | None:
        found = waterfall.spans_of(stage.look(launched, "trace"))
        names = {span.name for span in found}
        return found if {"podworker.bind", "scheduler.admit"} <= names and _services(found) >= SERVICES else None

    found = stage.until(spans) or waterfall.spans_of(stage.look(launched, "trace"))
    stage.show(waterfall.render(found, width=stage.terminal.width - 3))
    services = _services(found)
    stage.check("one trace goes through all four services", services >= SERVICES, services)


def _services(spans: list[waterfall.WorkSpan]) -> set[str]:
    return {span.service for span in spans}


def summary(stage: DemoStage) -> bool:
    """Show a table of the launches; return whether all checks passed."""
    rows: list[list[str]] = []
    for launched in stage.launches:
        view = stage.view(launched)
        codes = [str(rank["exitCode"]) for rank in labels.ranks_of(view) if "exitCode" in rank]
        rows.append([launched.id, launched.what, labels.state_of(view), ",".join(codes), str(view["status"]["seq"])])
    stage.show(table.render(["LAUNCH", "WHAT", "RESULT", "EXITS", "EVENTS"], rows))
    wrong = [check for check in stage.checks if not check.is_ok]
    for check in wrong:
        stage.say(stage.paint_bad(f"NO {check.name} (found: {check.found})"))
    count = len(stage.checks)
    said = f"{count} checks, all ok" if not wrong else f"{count} checks, {len(wrong)} failed"
    stage.say(stage.terminal.paint(said, "red" if wrong else "green", to_err=False))
    return not wrong
