"""The stack of every task of this process, for an operator who finds that the process does not move.

This module owns the walk along a chain of awaits, and the log records. It writes one record per different stack, so
that a thousand tasks that wait at the same place are one line.
"""

import asyncio
import types
from collections import defaultdict
from typing import Any

from slipway.runtime import log

FRAMES_MAX = 20
STACKS_MAX = 200

_log = log.get_logger(__name__)


def log_stacks(why: str) -> None:
    """Log the stacks of all tasks of the running event loop."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for task in asyncio.all_tasks():
        found[stack_of(task)].append(task.get_name())
    _log.warning("task stacks follow", why=why, tasks=sum(map(len, found.values())), stacks=len(found))
    for stack, names in sorted(found.items(), key=lambda item: (len(item[1]), item[0]))[:STACKS_MAX]:
        _log.warning("task stack", task=names[0], count=len(names), stack=stack)


def stack_of(task: "asyncio.Task[Any]") -> str:
    """Return the stack of a task, the outermost frame first: `watcher.py:204 run > lease.py:150 run`."""
    frames: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < FRAMES_MAX:
        frame, awaited = _step(awaited)
        if frame is None:
            break
        code = frame.f_code
        frames.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}")
    return " > ".join(frames) or "no frame"


def _step(awaited: Any) -> tuple[types.FrameType | None, Any]:
    """Return (the frame of a coroutine or generator, the object that it awaits)."""
    for kind in ("cr", "gi", "ag"):
        if hasattr(awaited, f"{kind}_frame"):
            following = getattr(awaited, f"{kind}_await", None)
            return getattr(awaited, f"{kind}_frame"), following or getattr(awaited, "gi_yieldfrom", None)
    return None, None
