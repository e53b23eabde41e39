"""The logs of the simulated pods: read once, or followed for as long as the container runs.

Owns the lines that a test adds and the waking of followers.
"""

import asyncio
from collections.abc import AsyncIterator

from slipway.runtime.clock import Clock
from tests.conformance.kubelets.life import Life
from tests.conformance.kubelets.logs import (
    ContainerRun,
    Line,
    LogError,
    Query,
    lines_of,
    next_line_at,
    rendered,
    run_of,
)
from tests.conformance.kubelets.node_state import PodState
from tests.conformance.kubelets.objects import Pod
from tests.conformance.kubelets.pod_manager import PodManager
from tests.conformance.kubelets.states import HasEnded, Note, NoteKind, SimulatedContainer


class ContainerLogs:
    """A `LogSource` of the simulated pods."""

    def __init__(self, pod_manager: PodManager, clock: Clock) -> None:
        self._pod_manager = pod_manager
        self._clock = clock
        self._added: dict[tuple[str, str], list[Line]] = {}
        self._pulses: dict[str, asyncio.Event] = {}

    def write(self, pod: str, text: str, container: str = "") -> None:
        """Write a line of the container (else the first main one) now. Raises KeyError."""
        pod_state = self._pod_manager.find(pod)
        name = container or pod_state.pod.spec.containers[0].name
        self._added.setdefault((pod_state.pod.uid, name), []).append((self._clock.now(), text))
        self._wake(pod_state.pod.uid)

    def note(self, pod: Pod, note: Note) -> None:
        """Wake the followers of the pod, because something happened to a container."""
        if note.what is NoteKind.ENDED:
            self._wake(pod.uid)

    async def log(self, pod: str, container: str, query: Query) -> AsyncIterator[bytes]:
        """The log of a container (else the first main one) of a pod (uid or `namespace/name`).

        Raises: LogError, before the first chunk.
        """
        life = self._life(pod)
        container = container or life.pod.spec.containers[0].name
        box, run = run_of(life, container, previous=query.previous)
        added = self._added.setdefault((life.pod.uid, container), [])
        lines = lines_of(box, run, added, self._clock.now())
        sent = rendered(lines, query)
        yield sent
        if not query.follow:
            return
        told, left = len(lines), None if query.bytes_max is None else query.bytes_max - len(sent)
        while run.ended_at is None and left != 0:
            await self._wait(life.pod.uid, next_line_at(box, run, self._clock.now()))
            run = _renewed(box, run)
            lines = lines_of(box, run, added, self._clock.now())
            chunk = rendered(lines[told:], Query(timestamps=query.timestamps, bytes_max=left))
            told, left = len(lines), None if left is None else left - len(chunk)
            yield chunk

    def _life(self, pod: str) -> Life:
        known = self._pod_manager.pod_states.get(pod)
        pod_states = (
            [known]
            if known is not None
            else [pod_state for pod_state in self._pod_manager.pod_states.values() if pod_state.pod.key == pod]
        )
        if not pod_states:
            raise LogError(404, f'pod "{pod.partition("/")[2] or pod}" does not exist')
        pod_state: PodState = pod_states[-1]
        if pod_state.life is None:
            raise LogError(400, f'container in pod "{pod_state.pod.metadata.name}" is not available')
        return pod_state.life

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


def _renewed(box: SimulatedContainer, run: ContainerRun) -> ContainerRun:
    """The stretch with its end, if it has ended."""
    if box.is_up and box.restarts == run.number:
        return run
    end = box.state if isinstance(box.state, HasEnded) else box.last
    ended_at = run.started_at if end is None or end.finished_at is None else end.finished_at
    return ContainerRun(number=run.number, started_at=run.started_at, ended_at=ended_at)
