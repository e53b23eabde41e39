"""The logs of the pods at one desk: read once, or followed for as long as the container runs.

Owns the lines that a test adds and the waking of followers.
"""

import asyncio
from collections.abc import AsyncIterator

from slipway.runtime.clock import Clock
from tests.conformance.kubelets.desk import Desk
from tests.conformance.kubelets.hands import Hand
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.logs import (
    Line,
    LogError,
    Query,
    Stretch,
    lines_of,
    next_line_at,
    rendered,
    stretch_of,
)
from tests.conformance.kubelets.objects import Pod
from tests.conformance.kubelets.states import Box, Down, Note, What


class Logbook:
    """A `Shelf`."""

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._added: dict[tuple[str, str], list[Line]] = {}
        self._pulses: dict[str, asyncio.Event] = {}

    def write(self, pod: str, text: str, container: str = "") -> None:
        """Write a line of the container (else the first main one) now. Raises KeyError."""
        hand = self._desk.find(pod)
        name = container or hand.pod.spec.containers[0].name
        self._added.setdefault((hand.pod.uid, name), []).append((self._clock.now(), text))
        self._wake(hand.pod.uid)

    def note(self, pod: Pod, note: Note) -> None:
        """Wake the followers of the pod, because something happened to a container."""
        if note.what is What.ENDED:
            self._wake(pod.uid)

    async def log(self, pod: str, container: str, query: Query) -> AsyncIterator[bytes]:
        """The log of a container (else the first main one) of a pod (uid or `namespace/name`).

        Raises: LogError, before the first chunk.
        """
        life = self._life(pod)
        container = container or life.pod.spec.containers[0].name
        box, stretch = stretch_of(life, container, previous=query.previous)
        added = self._added.setdefault((life.pod.uid, container), [])
        lines = lines_of(box, stretch, added, self._clock.now())
        sent = rendered(lines, query)
        yield sent
        if not query.follow:
            return
        told, left = len(lines), None if query.bytes_max is None else query.bytes_max - len(sent)
        while stretch.ended_at is None and left != 0:
            await self._wait(life.pod.uid, next_line_at(box, stretch, self._clock.now()))
            stretch = _renewed(box, stretch)
            lines = lines_of(box, stretch, added, self._clock.now())
            chunk = rendered(lines[told:], Query(timestamps=query.timestamps, bytes_max=left))
            told, left = len(lines), None if left is None else left - len(chunk)
            yield chunk

    def _life(self, pod: str) -> Life:
        known = self._desk.hands.get(pod)
        hands = [known] if known is not None else [hand for hand in self._desk.hands.values() if hand.pod.key == pod]
        if not hands:
            raise LogError(404, f'pod "{pod.partition("/")[2] or pod}" does not exist')
        hand: Hand = hands[-1]
        if hand.life is None:
            raise LogError(400, f'container in pod "{hand.pod.metadata.name}" is not available')
        return hand.life

    async def _wait(self, uid: str, until: float | None) -> None:
        """Wait until a line is written, the container ends, or that time is reached."""
        pulse = self._pulses.setdefault(uid, asyncio.Event())
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - self._clock.now())):
                await pulse.wait()
        except TimeoutError:
            return

    def _wake(self, uid: str) -> None:
        pulse = self._pulses.pop(uid, None)
        if pulse is not None:
            pulse.set()


def _renewed(box: Box, stretch: Stretch) -> Stretch:
    """The stretch with its end, if it has ended."""
    if box.is_up and box.restarts == stretch.number:
        return stretch
    end = box.state if isinstance(box.state, Down) else box.last
    ended_at = stretch.started_at if end is None or end.finished_at is None else end.finished_at
    return Stretch(number=stretch.number, started_at=stretch.started_at, ended_at=ended_at)
