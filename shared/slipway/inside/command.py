"""`python -m slipway.inside ready|waiting|preempted|allgather ...`: the calls of a rank to Slipway, for shells.

This module owns the arguments, the output, and the exit codes: 0 done (for `preempted`: yes), 1 no, 2 usage error, 3
refused by the API, 124 not in time. `run` ends with the exit code of its program. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
from typing import IO, Any

from slipway.inside import signals
from slipway.inside.client import MEET_S, ApiRefusedError, Client, NotInTimeError, PreemptionSignal

OK, NO, USAGE, REFUSED, NOT_IN_TIME = 0, 1, 2, 3, 124
LINE_BYTES_MAX = 65_536


def main(argv: list[str] | None = None) -> int:
    """Run the verb, and return the exit code."""
    words = _parser().parse_args(argv)
    try:
        return words.does(Client(), words)
    except ApiRefusedError as error:
        return _say(f"refused ({error.status} {error.code}): {error}", REFUSED)
    except NotInTimeError as error:
        return _say(f"not in time: {error}", NOT_IN_TIME)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slipway.inside", description="The calls of a rank to Slipway, from inside its pod."
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, does: Any, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(does=does)
        return made

    for name, text in (
        ("ready", "Report that the program is ready for use."),
        ("waiting", "Report that there is nothing to show yet."),
    ):
        verb(name, _flag(name), text).add_argument("--off", action="store_true", help="withdraw the report")
    progress = verb("progress", _progress, "Report the progress of the work, or that it has just been saved.")
    progress.add_argument("part", type=float, nargs="?", help="the progress, from 0 to 1")
    progress.add_argument("--checkpoint", action="store_true", help="the work has just been saved")
    verb("activity", _activity, "Report use: the idle timeout begins again.")
    daemon = verb("daemon", _daemon, "Mark a rank as a daemon: the gang may end without it.")
    daemon.add_argument("rank", type=int, nargs="?", help="default: this rank")
    daemon.add_argument("--off", action="store_true", help="remove the mark")
    preempted = verb("preempted", _preempted, "Ask whether the ranks must end: exit code 0 yes, 1 no.")
    preempted.add_argument("--wait", action="store_true", help="wait until the ranks must end")
    preempted.add_argument(
        "--timeout", type=float, metavar="S", help="wait at most S seconds; default: 0, or no limit with --wait"
    )
    preempted.add_argument(
        "--file", metavar="PATH", help="if the ranks must end, write the request to this file, as JSON"
    )
    verb("ack", _ack, "Acknowledge the request to end: an end with exit code 0 is then orderly.")
    gather = verb(
        "allgather", _allgather, "Exchange data with the other ranks; prints a JSON list of the data of all ranks."
    )
    gather.add_argument("data", nargs="?", default="null", help="JSON; - reads it from the standard input")
    gather.add_argument(
        "--name", default="default", help="name of the exchange; the same name gives the same result again"
    )
    gather.add_argument("--peers", type=int, help="number of peers to wait for; default: WORLD_SIZE")
    gather.add_argument("--id", default="", help="request id; default: the rank")
    gather.add_argument("--timeout", type=float, default=MEET_S, metavar="S", help="default: %(default)g")
    meet = verb("rendezvous", _rendezvous, "Wait for all ranks; prints a line `RANK HOST ROLE` for each.")
    meet.add_argument("--timeout", type=float, default=MEET_S, metavar="S", help="default: %(default)g")
    hosts = verb("hostfile", _hostfile, "Wait for all ranks; prints a line `HOST slots=N` for each, by rank.")
    hosts.add_argument("--slots", type=int, help="processes of each rank; default: its GPUs, else 1")
    hosts.add_argument("--timeout", type=float, default=MEET_S, metavar="S", help="default: %(default)g")
    run = verb("run", _run, "Run a program; report that it is ready, and pass on the request to end.")
    run.add_argument(
        "--ready-when", metavar="REGEX", help="report that the program is ready when it prints a line that matches"
    )
    run.add_argument(
        "--preempt-signal",
        metavar="SIG",
        help="when the ranks must end: acknowledge, and send the program this signal (TERM, USR1...)",
    )
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...")
    return parser


def _flag(name: str) -> Any:
    def does(client: Client, words: argparse.Namespace) -> int:
        return _told(getattr(client, name)(not words.off))

    return does


def _progress(client: Client, words: argparse.Namespace) -> int:
    return _told(client.progress(words.part, checkpoint=words.checkpoint))


def _activity(client: Client, _words: argparse.Namespace) -> int:
    return _told(client.activity())


def _daemon(client: Client, words: argparse.Namespace) -> int:
    return _told(client.daemon(words.rank, not words.off))


def _ack(client: Client, _words: argparse.Namespace) -> int:
    return _told(client.ack())


def _preempted(client: Client, words: argparse.Namespace) -> int:
    limit_s = words.timeout if words.timeout is not None else float("inf") if words.wait else 0.0
    found = client.preemption(limit_s)
    if found is None:
        return NO
    text = json.dumps(found._asdict())
    if words.file:
        fresh = f"{words.file}.{os.getpid()}"
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(fresh, words.file)
    _print(text)
    return OK


def _allgather(client: Client, words: argparse.Namespace) -> int:
    try:
        data = json.loads(sys.stdin.read() if words.data == "-" else words.data)
    except ValueError as error:
        return _say(f"the data is not JSON: {error}; quote a text twice: '\"text\"'", USAGE)
    found = client.allgather(data, name=words.name, peers=words.peers, request_id=words.id, timeout_s=words.timeout)
    _print(json.dumps(found))
    return OK


def _rendezvous(client: Client, words: argparse.Namespace) -> int:
    for peer in client.rendezvous(words.timeout):
        _print(f"{peer.rank} {peer.host} {peer.role}".rstrip())
    return OK


def _hostfile(client: Client, words: argparse.Namespace) -> int:
    slots = words.slots or os.environ.get("PET_NPROC_PER_NODE") or 1
    for peer in client.rendezvous(words.timeout):
        _print(f"{peer.host} slots={slots}")
    return OK


def _run(client: Client, words: argparse.Namespace) -> int:
    program = words.program[1:] if words.program[:1] == ["--"] else words.program
    if not program:
        return _say("run: there is no program; write it after --", USAGE)
    try:
        pattern = re.compile(words.ready_when.encode()) if words.ready_when else None
        how = _signal(words.preempt_signal) if words.preempt_signal else None
    except (re.error, KeyError) as error:
        return _say(f"run: {error}", USAGE)
    try:
        child = signals.started(
            lambda: subprocess.Popen(program, stdout=subprocess.PIPE if pattern else None),  # noqa: S603 - its purpose
            (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2),
        )
    except OSError as error:
        return _say(f"run: {program[0]}: {error.strerror}", 127)
    if how is not None:
        client.watch(lambda asked: _end_in_order(client, child, how, asked))
    if pattern is not None and child.stdout is not None:
        _copy(child.stdout, pattern, client)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _copy(source: IO[bytes], pattern: re.Pattern[bytes], client: Client) -> None:
    """Copy the program's output, and report once that it is ready."""
    is_ready = False
    while True:
        line = source.readline(LINE_BYTES_MAX)
        if not line:
            return
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        if not is_ready and pattern.search(line):
            is_ready = True
            threading.Thread(target=_try_ready, args=(client,), daemon=True).start()


def _try_ready(client: Client) -> None:
    try:
        client.ready()
    except (ApiRefusedError, NotInTimeError) as error:
        _say(f"not marked as ready: {error}", NO)


def _end_in_order(client: Client, child: subprocess.Popen[bytes], how: signal.Signals, asked: PreemptionSignal) -> None:
    try:
        client.ack(asked.n)
    except (ApiRefusedError, NotInTimeError) as error:
        _say(f"preemption not acknowledged: {error}", NO)
    child.send_signal(how)


def _signal(name: str) -> signal.Signals:
    found = getattr(signal, "SIG" + name.upper().replace("SIG", "", 1), None)
    if not isinstance(found, signal.Signals):
        raise KeyError(f"there is no signal {name}")
    return found


def _told(was_told: bool) -> int:
    return OK if was_told else _say("SLIPWAY_API and SLIPWAY_ALLOCATION_ID are not set: this is no rank", REFUSED)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"slipway.inside: {text}\n")
    return code
