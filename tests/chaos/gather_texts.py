"""The text that the system has written, and the size of its state: Redis, logs, metrics, addresses; memory.

Owns the secret in the environment of every launch, and the search in every place that must not contain it.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import redis

from slipway.ops.audit.evidence import (
    LOG,
    METRIC,
    REDIS,
    RSS_BYTES,
    STREAM_BYTES,
    Canary,
    Consumer,
    EmittedText,
    SizeSample,
)
from slipway.runtime.clock import SystemClock
from slipway.streams import keys
from tests.chaos.plans import SECRET
from tests.conformance.system.process import ServiceProcess

COUNT = 500
PIECE_BYTES = 4 * 1024 * 1024
CANARIES = (Canary(text=SECRET, is_secret=True, planted="the environment of a container"),)


def redis_says(client: Any) -> Iterator[EmittedText]:
    """Every key with its whole value."""
    for key in client.scan_iter(count=COUNT):
        name = key.decode(errors="replace")
        yield EmittedText(place=REDIS, name=name, text=repr(_value(client, key)))


def logs_say(files: Sequence[Path]) -> Iterator[EmittedText]:
    """The logs of our processes, in pieces."""
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as lines:
            while piece := lines.read(PIECE_BYTES):
                yield EmittedText(place=LOG, name=file.name, text=piece)


def metrics_say(processes: Mapping[str, ServiceProcess]) -> Iterator[EmittedText]:
    """The metrics pages of our processes."""
    for name, process in processes.items():
        with contextlib.suppress(httpx2.HTTPError):
            yield EmittedText(place=METRIC, name=name, text=process.metrics())


def consumers(client: Any) -> Iterator[Consumer]:
    """The consumers of the work streams."""
    for key in keys.WORK_KEYS:
        with contextlib.suppress(redis.ResponseError):
            for each in client.xinfo_consumers(key, keys.WORK_GROUP):
                yield Consumer(
                    stream=key,
                    group=keys.WORK_GROUP,
                    name=each["name"].decode(),
                    pending=int(each["pending"]),
                    idle_s=each["idle"] / 1000.0,
                )


def stream_sizes(client: Any) -> Iterator[SizeSample]:
    """The size of each allocation's stream."""
    now = SystemClock().now()
    for key in client.scan_iter(match=f"{keys.ALLOCATION.prefix}*", count=COUNT):
        name = key.decode().removeprefix(keys.ALLOCATION.prefix).strip("{}")
        yield SizeSample(kind=STREAM_BYTES, subject=name, at=now, value=float(client.memory_usage(key, samples=0) or 0))


def memory(processes: Mapping[str, ServiceProcess]) -> Iterator[SizeSample]:
    """The memory of each process; a restarted process is another one."""
    now = SystemClock().now()
    for name, process in processes.items():
        with contextlib.suppress(OSError, IndexError, AssertionError):
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            resident = status.split("VmRSS:")[1].split()[0]
            yield SizeSample(kind=RSS_BYTES, subject=f"{name} {process.pid}", at=now, value=float(resident) * 1024.0)


def _value(client: Any, key: bytes) -> Any:
    match client.type(key):
        case b"string":
            return client.get(key)
        case b"stream":
            return client.xrange(key)
        case b"hash":
            return client.hgetall(key)
        case b"zset":
            return client.zrange(key, 0, -1, withscores=True)
        case b"set":
            return client.smembers(key)
        case b"list":
            return client.lrange(key, 0, -1)
        case _:
            return b""
