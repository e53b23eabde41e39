"""Simulated nodes by hand: `python -m tests.conformance.kubelets --kubeconfig F --nodes N`, until SIGINT or SIGTERM.

Commands on standard input (with --commands), one a line:
`lose NODE`, `recover NODE`, `shutdown NODE`, `exit NAMESPACE/POD CODE`, `show`.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from tests.conformance.kubelets.kubelets import Kubelets
from tests.conformance.kubelets.nodes import Shape
from tests.conformance.kubelets.objects import Taint
from tests.conformance.kubelets.script import Script


def main() -> int:
    """Run until a signal. Return 0 after a signal."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kubelets", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, default=os.environ.get("KUBECONFIG"), help="default: KUBECONFIG")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--prefix", default="node", help="nodes are named PREFIX-0 and so on")
    parser.add_argument("--cpu", default="16")
    parser.add_argument("--memory", default="64Gi")
    parser.add_argument("--gpus", default="0", help="nvidia.com/gpu of each node")
    parser.add_argument("--pods", type=int, default=110, help="how many pods a node takes")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--taint", action="append", default=[], metavar="KEY[=VALUE]:EFFECT")
    parser.add_argument("--script", default="{}", help='what pods do without an annotation, as JSON: {"runsS": 2}')
    parser.add_argument("--records", type=Path, help="every start and end of a container goes there, as JSON lines")
    parser.add_argument("--no-heartbeat", action="store_true", help="no leases: for a cluster without controllers")
    parser.add_argument("--no-status", action="store_true", help="write no status: for measuring the rest")
    parser.add_argument("--local", action="store_true", help="the API server is the local cluster's: how it gets logs")
    parser.add_argument("--commands", action="store_true", help="read commands from standard input")
    options = parser.parse_args()
    if not options.kubeconfig:
        parser.error("there is no kubeconfig: give --kubeconfig, or set KUBECONFIG")
    uvloop.run(_serve(options))
    return 0


async def _serve(options: argparse.Namespace) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop.set)
    began = loop.time()
    kubelets = Kubelets(
        options.kubeconfig,
        nodes=[f"{options.prefix}-{index}" for index in range(options.nodes)],
        shape=_shape(options),
        script=msgspec.json.decode(options.script, type=Script),
        heartbeat=not options.no_heartbeat,
        reports=not options.no_status,
        local=options.local,
        records=options.records,
    )
    async with kubelets:
        needed = f"; node-monitor-grace-period at least {kubelets.grace_needed_s:.0f} s"
        _say(f"{options.nodes} nodes ready after {loop.time() - began:.1f} s{needed}")
        lines = _Commands(kubelets)
        if options.commands:
            loop.add_reader(sys.stdin, lines.read)
        await stop.wait()
        if options.commands:
            loop.remove_reader(sys.stdin)
    _say(msgspec.json.encode(kubelets.count).decode())


def _shape(options: argparse.Namespace) -> Shape:
    return Shape(
        cpu=options.cpu,
        memory=options.memory,
        pods=options.pods,
        extended={} if options.gpus == "0" else {"nvidia.com/gpu": options.gpus},
        labels=dict(word.split("=", 1) for word in options.label),
        taints=[_taint(word) for word in options.taint],
    )


def _taint(word: str) -> Taint:
    pair, _, effect = word.rpartition(":")
    key, _, value = pair.partition("=")
    return Taint(key=key, value=value, effect=effect)


class _Commands:
    """The commands on standard input."""

    def __init__(self, kubelets: Kubelets) -> None:
        self._kubelets = kubelets
        self._running: set[asyncio.Future[None]] = set()

    def read(self) -> None:
        line = sys.stdin.readline()
        if not line:
            asyncio.get_running_loop().remove_reader(sys.stdin)
        elif line.strip():
            task = asyncio.ensure_future(self._do(line.split()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _do(self, words: list[str]) -> None:
        try:
            match words:
                case ["lose", node]:
                    self._kubelets.lose(node)
                case ["recover", node]:
                    await self._kubelets.recover(node)
                case ["shutdown", node]:
                    await self._kubelets.shut_down(node)
                case ["exit", pod, code]:
                    self._kubelets.exit(pod, int(code))
                case ["show"]:
                    _say(msgspec.json.encode(self._kubelets.count).decode())
                case _:
                    _say(f"not a command: {' '.join(words)}")
        except (KeyError, ValueError) as error:
            _say(f"{error}")


def _say(line: str) -> None:
    sys.stdout.write(f"kubelets: {line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
