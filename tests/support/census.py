"""The memory of a simulated process: every container that can be reached from its tasks, with its length.

Owns the walk. The walk ends at objects that are not the process's own: the models of the world, the loop, modules and
classes. A container is named by its owner (`Relay._held`), so that the name of a growing container shows where it
grows.
"""

import asyncio
import contextvars
import gc
from collections import Counter, deque
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from tests.support.world import World

_OUTSIDE = ("tests.", "slipway.local.apiserver", "slipway.streams.memory")
"""modules whose objects are the world's"""
_PLAIN = (str, bytes, int, float, bool, type(None), type, ModuleType, CodeType, asyncio.AbstractEventLoop)
_CONTEXT = (contextvars.Context, contextvars.ContextVar, contextvars.Token)
_SIZED = (dict, list, set, frozenset, deque)
TYPE = "type "


def census(world: World, role: str) -> Counter[str]:
    """{`Class.attribute`: how many entries such containers hold; `type Name`: how many such objects there are}"""
    name = world.processes[role].name
    tasks = [task for task in asyncio.all_tasks(world.loop) if task.get_name() == name]
    gc.collect()
    found: Counter[str] = Counter()
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [(role, task) for task in tasks]
    keep: list[Any] = []
    while stack:
        path, thing = stack.pop()
        if isinstance(thing, asyncio.Task):
            stack.append((path, cast("Any", thing).get_coro()))
            continue
        if id(thing) in seen or isinstance(thing, _PLAIN + _CONTEXT) or _is_outside(thing):
            continue
        seen.add(id(thing))
        # Frames and coroutines create some of the objects that they refer to on request. Keep each object, so that no
        # address is used twice.
        keep.append(thing)
        found[TYPE + type(thing).__qualname__] += 1
        if isinstance(thing, _SIZED):
            found[path] += len(cast("Any", thing))
        stack += _held_by(path, thing)
    return found


def _is_outside(thing: Any) -> bool:
    module = type(thing).__module__ or ""
    return module.startswith(_OUTSIDE)


def _held_by(path: str, thing: Any) -> list[tuple[str, Any]]:
    """Return (name, object) of each object that `thing` refers to."""
    if isinstance(thing, FunctionType):
        return [(path, part) for part in (thing.__closure__, thing.__defaults__, thing.__kwdefaults__) if part]
    if isinstance(thing, (*_SIZED, tuple)):
        return [(f"{path}[]", part) for part in gc.get_referents(thing)]
    name = type(thing).__qualname__
    named: dict[int, str] = {}
    own: dict[str, Any] = getattr(thing, "__dict__", {})
    slots = [slot for kind in type(thing).__mro__ for slot in _slots_of(kind)]
    for attribute, value in [*own.items(), *((slot, getattr(thing, slot, None)) for slot in slots)]:
        named[id(value)] = f"{name}.{attribute}"
    held = [(f"{name}.{attribute}", value) for attribute, value in own.items()]
    rest = [part for part in gc.get_referents(thing) if part is not own]
    return held + [(named.get(id(part), name), part) for part in rest]


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
