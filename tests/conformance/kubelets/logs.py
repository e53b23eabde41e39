"""The output of containers: the lines of one start, as a function of its script and of time; and the query for them.

Owns lines, times and the query of a log. Only the lines that a test adds by hand are stored. Pure.

Source: pkg/kubelet/kubelet_pods.go validateContainerLogStatus, PodLogOptions (behaviour and words, v1.36).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from random import Random

import msgspec

from slipway.model.times import format_time, parse_time
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.script import Script
from tests.conformance.kubelets.states import HasEnded, IsRunning, IsWaiting, SimulatedContainer

Line = tuple[float, str]
"""The time (epoch seconds) and the text without its line end."""


class LogError(Exception):
    """A query that a kubelet answers with this code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """PodLogOptions."""

    follow: bool = False
    timestamps: bool = False
    previous: bool = False
    tail: int | None = None
    since: float = 0.0
    bytes_max: int | None = None


class ContainerRun(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one container; `ended_at` is None while it runs."""

    number: int
    started_at: float
    ended_at: float | None = None


def query_of(given: Mapping[str, str], now: float) -> Query:
    """Read the parameters of a request. Raises LogError 400."""
    try:
        since = parse_time(given["sinceTime"]) if given.get("sinceTime") else 0.0
        if given.get("sinceSeconds"):
            since = now - int(given["sinceSeconds"])
        return Query(
            follow=_is_true(given, "follow"),
            timestamps=_is_true(given, "timestamps"),
            previous=_is_true(given, "previous"),
            tail=int(given["tailLines"]) if given.get("tailLines") else None,
            since=since,
            bytes_max=int(given["limitBytes"]) if given.get("limitBytes") else None,
        )
    except ValueError as error:
        raise LogError(400, f"unable to decode the request as query parameters: {error}") from error


def run_of(life: Life, container: str, *, previous: bool) -> tuple[SimulatedContainer, ContainerRun]:
    """Find the start whose log is requested. Raises LogError, in a kubelet's words."""
    pod = life.pod.metadata.name
    box = next((box for box in life.boxes if box.name == container), None)
    if box is None:
        raise LogError(404, f'container "{container}" not found in pod "{pod}"')
    if previous:
        if box.last is None or box.last.started_at is None:
            raise LogError(400, f'previous terminated container "{container}" in pod "{pod}" not found')
        return box, _run_before(box.restarts - 1, box.last)
    match box.state:
        case IsRunning(started_at=at):
            return box, ContainerRun(number=box.restarts, started_at=at)
        case HasEnded():
            if box.state.started_at is None:
                raise LogError(400, f'container "{container}" in pod "{pod}" is terminated')
            return box, _run_before(box.restarts, box.state)
        case IsWaiting(reason=reason):
            if box.last is not None and box.last.started_at is not None:
                return box, _run_before(box.restarts - 1, box.last)
            words = {
                "ErrImagePull": "image can't be pulled",
                "ImagePullBackOff": "trying and failing to pull image",
                "": "PodInitializing" if life.pod.spec.init_containers else "ContainerCreating",
            }
            raise LogError(
                400, f'container "{container}" in pod "{pod}" is waiting to start: {words.get(reason, reason)}'
            )


def lines_of(box: SimulatedContainer, run: ContainerRun, added: Iterable[Line], until: float) -> list[Line]:
    """The lines that the container had written by then, in order."""
    until = until if run.ended_at is None else min(until, run.ended_at)
    lines = [(run.started_at, text) for text in box.script.logs]
    every_s = box.script.log_every_s
    if every_s > 0:
        count = int((until - run.started_at) / every_s + 1e-6)
        lines += [(run.started_at + each * every_s, f"line {each}") for each in range(1, count + 1)]
    lines += printed(box.script, run.started_at, run.ended_at, until)
    lines += [line for line in added if run.started_at <= line[0] <= until]
    return sorted(lines, key=lambda line: line[0])


def printed(script: Script, started_at: float, ended_at: float | None, until: float) -> list[Line]:
    """The lines of the bursts that are due by then, and those of the end once the container has ended."""
    lines: list[Line] = []
    for burst in script.bursts:
        at = started_at + burst.after_s if burst.after_s >= 0 else ended_at
        if at is not None and at <= until and (ended_at is None or at <= ended_at):
            lines += [(at, text) for text in _numbered(len(lines) + 1, burst.lines, burst.width)]
    return lines


def next_line_at(box: SimulatedContainer, run: ContainerRun, now: float) -> float | None:
    """The time at which the container next writes by itself."""
    if run.ended_at is not None:
        return None
    due = [at for burst in box.script.bursts if (at := run.started_at + burst.after_s) > now and burst.after_s >= 0]
    every_s = box.script.log_every_s
    if every_s > 0:
        due.append(run.started_at + (int((now - run.started_at) / every_s + 1e-6) + 1) * every_s)
    return min(due, default=None)


def rendered(lines: list[Line], query: Query) -> bytes:
    """The lines as they are sent: the last ones, each with its time if requested."""
    chosen = [line for line in lines if line[0] >= query.since]
    if query.tail is not None:
        chosen = chosen[-query.tail :] if query.tail else []
    text = "".join(f"{stamp(at)} {words}\n" if query.timestamps else f"{words}\n" for at, words in chosen).encode()
    return text if query.bytes_max is None else text[: query.bytes_max]


@lru_cache(maxsize=64)
def stamp(at: float) -> str:
    """A time of a log line: the format has nanoseconds, our clock has microseconds."""
    return format_time(at, "microseconds").replace("Z", "000Z")


@lru_cache(maxsize=32)
def _numbered(first: int, count: int, width: int) -> tuple[str, ...]:
    """That many lines, numbered from there; their filler compresses badly, as real output does."""
    seed = Random(first)
    return tuple(
        f"line {number} {seed.getrandbits(4 * width):x}"[: max(width, 12)] for number in range(first, first + count)
    )


def _run_before(number: int, end: HasEnded) -> ContainerRun:
    began = end.started_at or 0.0
    return ContainerRun(number=number, started_at=began, ended_at=end.finished_at or began)


def _is_true(given: Mapping[str, str], name: str) -> bool:
    return given.get(name, "") in ("1", "true", "True")
