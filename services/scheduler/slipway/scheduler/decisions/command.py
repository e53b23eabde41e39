"""The logic of `slipway replay`: a log in, the text to print and the exit code out. Knows no files and no servers.

Exit codes: 0 all decisions were reproduced (or another policy was tried), 1 some were not. Bad input raises an error.
"""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec

from slipway import yaml_reader
from slipway.crd.v1alpha1 import PolicySpec
from slipway.errors import InvalidError
from slipway.facts.custom_resources import policy_changed
from slipway.model.facts import PoolFact
from slipway.model.times import parse_duration
from slipway.scheduler.decisions.record import Divergence, entries_of, line_of
from slipway.scheduler.decisions.replay import OtherPolicy, Replayer, ReplayReport, replay
from slipway.scheduler.plan.placement.policy import unknown_scores
from slipway.streams.decisions import DecisionEntry

SHOWN_MAX = 50
"""The most lines of one kind that are printed; the JSON has all."""

__all__ = [
    "DecisionEntry",
    "as_json",
    "as_table",
    "entries_of_file",
    "entry_of",
    "exit_code",
    "line_of",
    "policy_from",
    "run",
    "shadow",
]


def entry_of(chain: str, number: int, tick: int, data: bytes) -> DecisionEntry:
    """Return a log entry from the fields of the API."""
    return DecisionEntry(chain=chain, number=number, tick=tick, data=data)


def entries_of_file(lines: Iterable[bytes], pool: str) -> Iterator[DecisionEntry]:
    """Return the entries of a file: those of `pool`, or of the only pool in it.

    Raises:
        InvalidError: a line is damaged, or the file has several pools and `pool` is empty.
    """
    seen = pool
    for name, entry in entries_of(lines, pool):
        if seen not in ("", name):
            raise InvalidError(f"the log has the pools {seen} and {name}; select one with --pool")
        seen = name
        yield entry


def policy_from(text: str) -> OtherPolicy:
    """Return the policy in a text (YAML or JSON with any of the fields of a pool's `shadow`).

    Raises:
        InvalidError: a field is wrong; the message names it.
    """
    try:
        document = yaml_reader.parse(text, yaml_reader.MANIFEST)
    except InvalidError as exc:
        raise InvalidError(f"the policy: {exc}") from exc
    if not isinstance(document, dict):
        raise InvalidError("the policy must be a mapping such as {scores: {MostAllocated: 1}, backfill: false}")
    known = {field.encode_name for field in msgspec.structs.fields(PolicySpec)}
    for name in cast("dict[object, Any]", document):
        if name not in known:
            raise InvalidError(f"{name}: unknown field; known are {', '.join(sorted(known))}")
    try:
        change = msgspec.convert(document, PolicySpec)
        parse_duration(change.aging or "0s")
    except (msgspec.ValidationError, ValueError) as exc:
        raise InvalidError(f"the policy: {exc}") from exc
    wrong = unknown_scores(PoolFact(name="", scores=change.scores or {}))
    if wrong:
        raise InvalidError(f"scores.{wrong[0]}: there is no such score")
    return lambda pool: policy_changed(pool, change)


def shadow(pool: PoolFact) -> PoolFact | None:
    """Return the shadow policy that the pool had at that time."""
    return pool.shadow


def run(
    entries: Iterable[DecisionEntry], *, first: int | None, last: int | None, other: OtherPolicy | None = None
) -> ReplayReport:
    """Replay the entries.

    Raises:
        InvalidError: the log is damaged, or empty.
    """
    replayer = Replayer(first=first or 0, last=last, other=other)
    return replay(((entry.data, entry.tick) for entry in entries), replayer)


def exit_code(report: ReplayReport) -> int:
    """Return 1 when a decision was not reproduced, else 0."""
    return 1 if report.differences else 0


def as_json(report: ReplayReport) -> bytes:
    """Return the whole report as JSON."""
    return msgspec.json.format(msgspec.json.encode(msgspec.to_builtins(report, str_keys=True)), indent=2) + b"\n"


def as_table(report: ReplayReport, *, is_other: bool) -> str:
    """Return the report as text for users."""
    lines = [_head(report, is_other=is_other)]
    if is_other:
        lines += _cut([_difference_text(would.tick, each) for would in report.would for each in would.different])
    else:
        lines += _cut(
            [
                f"tick {each.tick}: {each.what}{f' {each.allocation}' if each.allocation else ''}: "
                f"recorded {_short(each.recorded)}, replayed {_short(each.replayed)}"
                for each in report.differences
            ]
        )
    lines += _cut([f"tick {each.tick} skipped: {each.why}" for each in report.skipped])
    return "\n".join(lines) + "\n"


def _head(report: ReplayReport, *, is_other: bool) -> str:
    if not report.ticks:
        return "no tick could be replayed"
    span = f"tick {report.first}" if report.first == report.last else f"ticks {report.first} to {report.last}"
    said = f"{span} of pool {report.pool}: {_count(report.ticks, 'tick')}, {_count(report.decisions, 'decision')}"
    by = f", recorded by {', '.join(report.planners)}" if report.planners else ""
    if is_other:
        different = sum(len(would.different) for would in report.would)
        return (
            f"{said}{by}; the other policy makes {report.same} of these decisions and decides {different} differently"
        )
    if report.differences:
        return f"{said}{by}; NOT reproduced, {_count(len(report.differences), 'difference')}"
    return f"{said}{by}; reproduced bit for bit"


def _difference_text(tick: int, each: Divergence) -> str:
    if not each.other:
        return f"tick {tick}: would not {each.kind} {each.allocation} ({_where(each.live)})"
    if not each.live:
        return f"tick {tick}: would {each.kind} {each.allocation} ({_where(each.other)})"
    return (
        f"tick {tick}: would {each.kind} {each.allocation} differently: {_where(each.other)}, not {_where(each.live)}"
    )


def _where(decision: dict[str, Any]) -> str:
    placements: dict[str, str] = decision.get("placements") or {}
    nodes = ", ".join(dict.fromkeys(placements.values()))
    return nodes or str(decision.get("by") or decision.get("reason") or "all of it")


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN_MAX
    return lines if more <= 0 else [*lines[:SHOWN_MAX], f"... and {more} more; -o json has all"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _short(value: Any) -> str:
    text = "nothing" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 300 else text[:299] + "…"
