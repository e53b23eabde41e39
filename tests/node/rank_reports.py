"""What really ran on the nodes: each rank reports it, and a collector records it.

Owns the program of the ranks (it follows a script of `tests.conformance.kubelets.script`), and the collector. A
datagram passes no kubelet and no service of ours, and a machine that is cut off may still send it (`RealNode.cut_off`).
A lost datagram is replaced by the next one, which has the same start and a later time.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.model.times import parse_time
from slipway.ops.audit.evidence import PODS, ContainerRun, PrintedOutput, Version
from tests.node.nodes import CONTROL_PLANE, WITNESS_PORT

PLAYER = f"""
import json, os, signal, socket, sys, time
play, began, printed, is_ending = json.loads(os.environ["PLAY"]), time.time(), 0, False
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def tell(code=None):
    word = {{"allocation": os.environ["SLIPWAY_ALLOCATION_ID"], "attempt": int(os.environ["SLIPWAY_ATTEMPT"]),
            "rank": int(os.environ["SLIPWAY_RANK"]), "began_at": began, "at": time.time(), "lines": printed,
            "code": code}}
    try: out.sendto(json.dumps(word).encode(), ("{CONTROL_PLANE}", {WITNESS_PORT}))
    except OSError: pass
def say(burst):
    global printed
    for _ in range(burst["lines"]):
        printed += 1
        sys.stdout.write(f"line {{printed}} ".ljust(burst.get("width", 32), ".") + chr(10))
    sys.stdout.flush()
def end(code):
    for burst in play["bursts"]:
        if burst["afterS"] < 0: say(burst)
    for _ in range(3): tell(code)
    os._exit(code)
def term(*_):
    global is_ending
    is_ending = True
signal.signal(signal.SIGTERM, term)
tell()
due, beat = [burst for burst in play["bursts"] if burst["afterS"] >= 0], 0.0
while True:
    now = time.time()
    if is_ending:
        time.sleep(play.get("termS", 0.05))
        end(143)
    while due and now - began >= due[0]["afterS"]: say(due.pop(0))
    if "runsS" in play and now - began >= play["runsS"]: end(play.get("exit", 0))
    if now - beat >= 0.2: tell(); beat = now
    time.sleep(0.02)
"""
"""A signal handler only sets a flag, so that a counted line is written first."""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """One report of a rank. Times are epoch seconds; `code` is set when it ends."""

    allocation: str
    attempt: int
    rank: int
    began_at: float
    at: float
    lines: int
    code: int | None


class RankReports(asyncio.DatagramProtocol):
    """The last report of each start of a rank."""

    def __init__(self) -> None:
        self.by_start: dict[tuple[str, int, int, float], RankReport] = {}

    async def open(self) -> asyncio.DatagramTransport:
        """Receive the reports of ranks until the returned transport is closed."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("0.0.0.0", WITNESS_PORT))
        return transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        rank_report = msgspec.json.decode(data, type=RankReport)
        start = (rank_report.allocation, rank_report.attempt, rank_report.rank, rank_report.began_at)
        known = self.by_start.get(start)
        if known is None or known.code is None:
            self.by_start[start] = rank_report

    def ran(self, versions: Sequence[Version]) -> list[ContainerRun]:
        """Every start; one that reported no end ended with its last report."""
        pods = _pods(versions)
        return [
            ContainerRun(
                allocation_uid=pods[name][-1].obj["metadata"]["labels"][LABEL_ALLOCATION_UID],
                attempt=rank_report.attempt,
                rank=rank_report.rank,
                pod_uid=pods[name][-1].uid,
                started_at=rank_report.began_at,
                ended_at=rank_report.at,
                code=rank_report.code,
            )
            for rank_report in self.by_start.values()
            if (name := _pod_of(rank_report)) in pods
        ]

    def printed(self, versions: Sequence[Version], lost: Sequence[tuple[str, float, float]]) -> list[PrintedOutput]:
        """The output of each start that reported its end. A start that was killed is omitted: its last lines are not
        known.

        `lost` has (node, from, to) for each time in which a machine was off.
        """
        pods, found = _pods(versions), list[PrintedOutput]()
        for rank_report in self.by_start.values():
            history = pods.get(_pod_of(rank_report))
            if history is None or rank_report.code is None:
                continue
            node = str(history[-1].obj["spec"].get("nodeName"))
            marked = [_marked_at(each) for each in history if "deletionTimestamp" in each.obj["metadata"]]
            found.append(
                PrintedOutput(
                    allocation=rank_report.allocation,
                    allocation_uid=history[-1].obj["metadata"]["labels"][LABEL_ALLOCATION_UID],
                    attempt=rank_report.attempt,
                    rank=rank_report.rank,
                    lines=rank_report.lines,
                    ended_at=rank_report.at,
                    ended_first=not marked or rank_report.at < marked[0],
                    is_lost=any(
                        node == name and rank_report.began_at <= to and since <= rank_report.at
                        for name, since, to in lost
                    ),
                    fits=rank_report.lines <= FITS_LINES,
                )
            )
        return found


FITS_LINES = 1_000
"""A log of no more lines is far below its share."""


def _pod_of(rank_report: RankReport) -> str:
    return f"{rank_report.allocation}-{rank_report.attempt}-{rank_report.rank}"


def _marked_at(version: Version) -> float:
    """When the API server marked a pod as deleted (epoch seconds, cut to whole ones). The version is seen later: a busy
    machine may take longer for it than the rank for its end."""
    meta = version.obj["metadata"]
    return min(version.at, parse_time(meta["deletionTimestamp"]) - meta.get("deletionGracePeriodSeconds", 0))


def _pods(versions: Sequence[Version]) -> dict[str, list[Version]]:
    """{name: the versions of the pod}; a rank of an attempt has one pod."""
    found: dict[str, list[Version]] = {}
    for version in versions:
        if version.resource == PODS and version.namespace == "default":
            found.setdefault(version.name, []).append(version)
    return found
