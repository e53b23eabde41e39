"""Records what really ran: every start of every container, with its end.

Owns the records and the counters. Tests compare a control plane's own reports with them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from slipway.crd.meta import ANNOTATION_ADDED, LABEL_ALLOCATION, LABEL_ATTEMPT, LABEL_RANK
from tests.conformance.kubelets.objects import Pod

REFUSALS_MAX = 1000
_LABELS = "slipway.dev/"


class Run(msgspec.Struct, kw_only=True):
    """One start of one container. `ended_at` is None while it runs."""

    pod: str
    """namespace/name"""
    uid: str
    node: str
    container: str
    restarts: int
    labels: Mapping[str, str]
    """the pod's labels that Slipway sets"""
    started_at: float
    ended_at: float | None = None
    code: int | None = None
    is_adopted: bool = False
    """whether an earlier process started it"""
    added: str = ""
    """for a rank that was added to a running gang: the number of the growth or of the restart that added it"""

    @property
    def allocation(self) -> str:
        """The AllocationID; empty when the pod belongs to no allocation."""
        return self.labels.get(LABEL_ALLOCATION, "")

    @property
    def attempt(self) -> int:
        return int(self.labels.get(LABEL_ATTEMPT, 0))

    @property
    def rank(self) -> int:
        return int(self.labels.get(LABEL_RANK, 0))


class Counters(msgspec.Struct, kw_only=True):
    """How often each thing happened since the start."""

    pods: int = 0
    """admitted pods"""
    rejected: int = 0
    started: int = 0
    """started containers"""
    ended: int = 0
    status_writes: int = 0
    deletions: int = 0
    """confirmed deletions"""
    refused: int = 0
    """writes that the API server refused, except those about pods that were gone"""
    relists: int = 0
    events: int = 0
    renewals: int = 0


class Records:
    """The runs, in the order of their starts; with a `file`, each start and each end is a line of JSON there too."""

    def __init__(self, file: Path | None = None) -> None:
        self.runs: list[Run] = []
        self.count = Counters()
        self.refusals: deque[str] = deque(maxlen=REFUSALS_MAX)
        self._live: dict[tuple[str, str], Run] = {}
        self._watchers: list[Callable[[Run], object]] = []
        self._file = file.open("ab") if file else None

    def start(self, pod: Pod, container: str, restarts: int, at: float) -> None:
        """Record that the container runs now."""
        run = self._add(pod, container, restarts, at)
        self.count.started += 1
        self._tell(run)

    def adopt(self, pod: Pod, container: str, restarts: int, at: float) -> None:
        """Record a container that already ran before this process; it is not a start of this process."""
        run = self._add(pod, container, restarts, at)
        run.is_adopted = True
        self._tell(run)

    def _add(self, pod: Pod, container: str, restarts: int, at: float) -> Run:
        labels = {key: value for key, value in pod.metadata.labels.items() if key.startswith(_LABELS)}
        run = Run(
            pod=pod.key,
            uid=pod.uid,
            node=pod.spec.node_name,
            container=container,
            restarts=restarts,
            labels=labels,
            started_at=at,
            added=pod.metadata.annotations.get(ANNOTATION_ADDED, ""),
        )
        self.runs.append(run)
        self._live[pod.uid, container] = run
        return run

    def end(self, uid: str, container: str, code: int, at: float) -> None:
        """Record the end of the container."""
        run = self._live.pop((uid, container), None)
        if run is not None:
            run.ended_at, run.code = at, code
            self.count.ended += 1
            self._tell(run)

    def live(self) -> list[Run]:
        """The runs that have not ended."""
        return list(self._live.values())

    def of(self, pod: str) -> list[Run]:
        """The runs of pods of that `namespace/name` or uid."""
        return [run for run in self.runs if pod in (run.pod, run.uid)]

    def of_allocation(self, allocation: str) -> list[Run]:
        """The runs of an AllocationID."""
        return [run for run in self.runs if run.allocation == allocation]

    def watch(self, take: Callable[[Run], object]) -> None:
        """Call `take` at each start and each end."""
        self._watchers.append(take)

    def close(self) -> None:
        """Write nothing more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _tell(self, run: Run) -> None:
        for take in self._watchers:
            take(run)
        if self._file is not None:
            self._file.write(msgspec.json.encode(run) + b"\n")
            self._file.flush()


def doubles(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Pairs of runs of which only one should exist: of one rank of one attempt, in different pods or twice in one pod.

    A rank that was restarted in place on purpose is another rank each time.
    """
    seen: dict[tuple[str, int, int, str, str, int], Run] = {}
    found: list[tuple[Run, Run]] = []
    for run in runs:
        key = (run.allocation or run.uid, run.attempt, run.rank, run.added, run.container, run.restarts)
        if key in seen:
            found.append((seen[key], run))
        seen[key] = run
    return found
