"""Every place where the product stores, shows or writes data, as text that a test searches for secrets."""

import contextlib
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx2
import redis

from slipway.errors import ControlPlaneError
from tests.support.local_stack import RunningStack
from tests.support.plain_http import NO_TLS

Json = dict[str, Any]
OF_ONE = (
    *("", "/events?follow=false", "/logs", "/explain", "/pods", "/timeline", "/trace", "/rendezvous"),
    "/signals/preemption?wait=0",
)
OF_ALL = (
    *("/allocations", "/trainings", "/queues", "/queue-stats", "/pools", "/pools/default/decisions", "/nodes", "/jobs"),
    *("/templates", "/workspaces", "/history", "/usage", "/usage/raw", "/condition", "/dead", "/webhooks", "/me"),
    *("/tokens", "/allocations?sort=name"),
)
KINDS = (
    *("/api/v1/configmaps", "/api/v1/pods", "/api/v1/events", "/api/v1/services", "/api/v1/namespaces"),
    *(f"/apis/slipway.dev/v1alpha1/{each}" for each in ("allocations", "resourcepools", "queues", "jobs", "templates")),
)


def in_redis(stack: RunningStack) -> Iterator[tuple[str, str]]:
    """Yield every key and all its data, as text."""
    raw: Any = redis.Redis.from_url(stack.stack.redis_url)  # pyright: ignore[reportUnknownMemberType]
    with contextlib.closing(raw) as client:
        for key in client.scan_iter():
            match client.type(key).decode():
                case "string":
                    held = client.get(key)
                case "hash":
                    held = client.hgetall(key)
                case "list":
                    held = client.lrange(key, 0, -1)
                case "set":
                    held = client.smembers(key)
                case "zset":
                    held = client.zrange(key, 0, -1)
                case _:
                    held = client.xrange(key)
            yield f"Redis {key}", f"{key} {held} {[_inflated(each) for each in _bytes_in(held)]}"


def _bytes_in(held: Any) -> Iterator[bytes]:
    """Every value of bytes in an answer of Redis."""
    match held:
        case bytes():
            yield held
        case dict():
            yield from _bytes_in(list(cast("Json", held).values()))
        case list() | tuple() | set():
            for each in cast("list[Any]", held):
                yield from _bytes_in(each)
        case _:
            pass


def _inflated(value: bytes) -> bytes:
    """Return the decompressed value; empty when it is not compressed as log lines are."""
    try:
        return zlib.decompress(value)
    except zlib.error:
        return b""


def all_places(stack: RunningStack, id_: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (place, text) of all data that Slipway stores, shows and writes."""
    yield from in_redis(stack)
    for path in (*(f"/allocations/{id_}{rest}" for rest in OF_ONE), *OF_ALL):
        try:
            yield path, stack.ask(lambda api, path=path: api.call("GET", path).body.decode())
        except ControlPlaneError as error:
            yield path, str(error)
    for path in KINDS:
        yield path, json.dumps(stack.kubernetes("GET", path))
    for child in stack.stack.children.values():
        if child.url.startswith("http://"):
            address = f"{child.url}/metrics"
            yield address, httpx2.get(address, headers=stack.headers, verify=NO_TLS, trust_env=False).text
    for log in sorted((stack.folder / "logs").iterdir()):
        yield str(log), log.read_text(errors="replace")
    file = folder / "backup.gz"
    done = stack.command("backup", "-o", str(file), "--kubeconfig", stack.stack.kubeconfig)
    assert done.code == 0, done.err
    yield "backup", gzip.decompress(file.read_bytes()).decode()
    for words in (("training", "config", id_), ("explain", id_), ("history",), ("events", id_), ("trace", id_)):
        ran = stack.command(*words)
        yield " ".join(words), ran.out + ran.err
