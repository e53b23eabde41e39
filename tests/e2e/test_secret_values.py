"""A secret value of a launch reaches its ranks in each attempt, and is found nowhere else: a canary is looked for."""

import base64
import contextlib
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from slipway.errors import ControlPlaneError
from tests.support.local_stack import ALLOCATION, RunningStack
from tests.support.names import fresh
from tests.support.wait import wait_until

Json = dict[str, Any]
CANARY = "canary-5f1c9b7e2a"
FORMS = (CANARY, base64.b64encode(CANARY.encode()).decode().rstrip("="), hashlib.sha256(CANARY.encode()).hexdigest())
"""A plain hash of it would let others guess it, so that is looked for too."""
PROGRAM = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
fresh = folder / f".{os.environ['RANK']}"
fresh.write_text(os.environ["THE_TOKEN"])
fresh.rename(folder / f"attempt-{os.environ['SLIPWAY_ATTEMPT']}-{os.environ['RANK']}")
print("it has", len(os.environ["THE_TOKEN"]), "characters", flush=True)
while not (folder / "end").exists():
    time.sleep(0.05)
"""
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


def value_secrets(stack: RunningStack) -> list[Json]:
    """The Secrets that hold secret values of launches."""
    items: list[Json] = stack.kubernetes("GET", "/api/v1/secrets")["items"]
    return [each for each in items if each["metadata"]["name"].startswith("slipway-values-")]


def in_redis(stack: RunningStack) -> Iterator[tuple[str, str]]:
    """Every key with all that it holds."""
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
    """What was packed, as lines of logs are."""
    try:
        return zlib.decompress(value)
    except zlib.error:
        return b""


def all_places(stack: RunningStack, id_: str, folder: Path) -> Iterator[tuple[str, str]]:
    """(place, text) of all that Slipway keeps, shows and writes."""
    yield from in_redis(stack)
    for path in (*(f"/allocations/{id_}{rest}" for rest in OF_ONE), *OF_ALL):
        try:
            yield path, stack.ask(lambda api, path=path: api.call("GET", path).body.decode())
        except ControlPlaneError as error:
            yield path, str(error)
    for path in KINDS:
        yield path, json.dumps(stack.kubernetes("GET", path))
    for log in sorted((stack.folder / "logs").iterdir()):
        yield str(log), log.read_text(errors="replace")
    file = folder / "backup.gz"
    done = stack.command("backup", "-o", str(file), "--kubeconfig", stack.stack.kubeconfig)
    assert done.code == 0, done.err
    yield "backup", gzip.decompress(file.read_bytes()).decode()
    for words in (("training", "config", id_), ("explain", id_), ("history",), ("events", id_), ("trace", id_)):
        ran = stack.command(*words)
        yield " ".join(words), ran.out + ran.err


def assert_nowhere(stack: RunningStack, id_: str, folder: Path) -> None:
    """The canary is in none of these places, and they are not empty."""
    seen = 0
    for place, text in all_places(stack, id_, folder):
        seen += bool(text)
        assert not any(form in text for form in FORMS), f"{place} holds the secret value"
    assert seen > 40


def test_a_secret_value_reaches_each_attempt_and_nothing_else(stack: RunningStack, marks: Path, tmp_path: Path) -> None:
    """Two ranks in two attempts have it. While they run, and after the end, it is found nowhere; then its Secret is
    gone."""
    body: Json = {
        "kind": "training",
        "name": fresh("secret"),
        "image": "local",
        "command": ["python", "-c", PROGRAM, str(marks)],
        "ranks": [{"name": "worker", "count": 2, "resources": {"cpu": "50m", "memory": "64Mi"}}],
        "preemptible": True,
        "preemptionGrace": "1s",
        "secretValues": {"THE_TOKEN": CANARY},
    }
    id_ = stack.launch(body)
    wait_until(lambda: len(list(marks.glob("attempt-1-*"))) == 2, "both ranks run")
    [secret] = value_secrets(stack)
    allocation = stack.kubernetes("GET", f"{ALLOCATION}/{body['name']}")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == allocation["metadata"]["uid"]
    assert_nowhere(stack, id_, tmp_path)
    paused = stack.command("pause", id_)
    assert paused.code == 0, paused.err
    wait_until(lambda: stack.view(id_)["phase"] == "Pending", "it was preempted")
    assert len(value_secrets(stack)) == 1
    resumed = stack.command("resume", id_)
    assert resumed.code == 0, resumed.err
    wait_until(lambda: len(list(marks.glob("attempt-2-*"))) == 2, "both ranks run again", timeout_s=90)
    assert {each.read_text() for each in marks.glob("attempt-*")} == {CANARY}
    (marks / "end").touch()
    stack.wait_for(id_, "Terminated")
    wait_until(lambda: not value_secrets(stack), "its Secret is gone")
    assert_nowhere(stack, id_, tmp_path)
    refused = stack.command("rerun", id_)
    assert "add --secret THE_TOKEN" in refused.err


def test_the_command_takes_it_from_its_environment(
    stack: RunningStack, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--secret NAME`, and the log of the rank as its exit code tell of the end."""
    (marks / "end").touch()
    monkeypatch.setenv("THE_TOKEN", CANARY)
    done = stack.command("run", "--image", "local", "--secret", "THE_TOKEN", "--", "python", "-c", PROGRAM, str(marks))
    assert done.code == 0, done.err
    assert f"it has {len(CANARY)} characters" in done.out
    assert CANARY not in done.out + done.err
    assert (marks / "attempt-1-0").read_text() == CANARY
