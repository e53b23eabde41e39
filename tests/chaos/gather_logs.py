"""The logs of a run, as evidence: the store, the api's pages, and the printed lines.

Owns the reading. It does not use the fault proxy, except for the api's pages, which it reads when no fault is active.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.ops.audit.evidence import PODS, LineRange, PrintedOutput, StoredLog, Version
from slipway.ops.audit.logs import folded
from slipway.streams import keys
from slipway.streams.logpacks import EVENT, STDOUT, LogKey, LogLine
from tests.chaos.clients import API
from tests.conformance.kubelets.logs import printed
from tests.conformance.kubelets.records import Run
from tests.conformance.kubelets.script import PLAY, Script
from tests.support.log_evidence import logs_in
from tests.support.plain_http import NO_TLS

COUNT = 500
PACKS = 50
CALL_S = 30.0
MAIN = "main"
FITS_LINES = 1_000
"""A log of no more lines is far below its share."""
LOST_AGO_S = 60.0
Span = tuple[float, float]


def stored_logs(client: Any) -> list[StoredLog]:
    """Every log in Redis."""
    names: set[str] = set()
    for prefix in (keys.LOGS.prefix, keys.LOG_STATE.prefix):
        for key in client.scan_iter(match=f"{prefix}*", count=COUNT):
            names.add(key.decode().removeprefix(prefix).strip("{}"))
    return [log for name in sorted(names) for log in _logs_of(client, name)]


def told_logs(url: str, names: Iterable[str]) -> Iterator[StoredLog]:
    """The logs of these allocations as a reader of the api gets them, page by page."""
    with httpx2.Client(
        base_url=url, timeout=CALL_S, verify=NO_TLS, trust_env=False, headers={"Accept": "application/json"}
    ) as api:
        for name in names:
            yield from _told(api, name)


def printed_on(records: Path, versions: Sequence[Version], lost: Mapping[str, Sequence[float]]) -> list[PrintedOutput]:
    """The lines that each start of a rank printed. `lost` is {node: when it was lost}."""
    scripts = {version.uid: _script_of(version.obj) for version in versions if version.resource == PODS}
    runs: dict[tuple[str, int, float], Run] = {}
    for line in records.read_bytes().splitlines():
        run = msgspec.json.decode(line, type=Run)
        if run.container == MAIN and LABEL_ALLOCATION_UID in run.labels:
            runs[run.uid, run.restarts, run.started_at] = run
    return [_printed(run, scripts.get(run.uid) or Script(), lost.get(run.node, ())) for run in runs.values()]


def _printed(run: Run, script: Script, lost: Sequence[float]) -> PrintedOutput:
    over = run.ended_at if run.ended_at is not None else float("inf")
    lines = len(printed(script, run.started_at, run.ended_at, over))
    return PrintedOutput(
        allocation=run.allocation,
        allocation_uid=run.labels[LABEL_ALLOCATION_UID],
        attempt=run.attempt,
        rank=run.rank,
        lines=lines,
        ended_at=run.ended_at,
        is_lost=any(run.started_at <= at <= over + LOST_AGO_S for at in lost),
        fits=lines <= FITS_LINES,
    )


def _script_of(pod: Mapping[str, Any]) -> Script:
    annotations: dict[str, str] = pod["metadata"].get("annotations") or {}
    text = annotations.get(PLAY)
    return msgspec.json.decode(text, type=Script) if text else Script()


def _logs_of(client: Any, name: str) -> list[StoredLog]:
    states = {key.decode(): raw for key, raw in client.hgetall(f"{keys.LOG_STATE.prefix}{{{name}}}").items()}
    return logs_in(name, _entries(client, f"{keys.LOGS.prefix}{{{name}}}"), states)


def _entries(client: Any, key: str) -> Iterator[dict[str, bytes]]:
    start = "-"
    while page := client.xrange(key, start, "+", count=PACKS):
        for _, fields in page:
            yield {name.decode(): value for name, value in fields.items()}
        start = f"({page[-1][0].decode()}"


def _told(api: httpx2.Client, name: str) -> Iterator[StoredLog]:
    items: list[Any] = []
    after = ""
    while True:
        answer = api.get(f"{API}/{name}/logs", params={"stream": STDOUT, **({"after": after} if after else {})})
        answer.raise_for_status()
        found = answer.json()
        items += found["items"]
        if not found["items"] or found["metadata"]["continue"] in ("", after):
            break
        after = found["metadata"]["continue"]
    return told_of(name, items)


def told_of(name: str, items: Iterable[Mapping[str, Any]]) -> Iterator[StoredLog]:
    """The logs of an allocation in these items of the api's pages: their lines, and the marks of holes.

    A remark about a log, such as that it is not stored to its end, is no line of it and has no position in it.
    """
    lines: dict[LogKey, list[LineRange]] = {}
    marks: dict[LogKey, list[tuple[int, int]]] = {}
    for item in items:
        line = LogLine(
            attempt=item["attempt"],
            rank=item["rank"],
            time=item["time"],
            text=item["text"],
            container=item.get("container", ""),
            number=item.get("number", 0),
            missing=item.get("missing", 0),
        )
        if line.missing:
            marks.setdefault(line.source, []).append((line.number, line.missing))
        elif item["stream"] != EVENT:
            lines[line.source] = folded([line], lines.get(line.source, ()))
    for source, passages in lines.items():
        yield StoredLog(
            allocation=name,
            attempt=source.attempt,
            rank=source.rank,
            container=source.container,
            passages=passages,
            end=passages[-1].last_number,
            is_ended=False,
            marks=marks.get(source, ()),
        )
