"""Creates and deletes of pods by real processes: quotas, refusals, exhausted retries, many at once, a slow
connection."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.support.local_stack import RunningStack, running_stack
from tests.support.names import fresh
from tests.support.wait import wait_until

Json = dict[str, Any]
COUNT = 15
LATENCY_S = 0.5
QUOTA = "/api/v1/namespaces/default/resourcequotas"
QUICK = {"SLIPWAY_WORKER_PATIENCE_S": "1", "SLIPWAY_WORKER_STUCK_AFTER_S": "3"}
SLEEP = {"kind": "command", "command": ["sleep", "600"]}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    """A stack whose pod worker gives up after seconds instead of minutes."""
    with running_stack(tmp_path_factory.mktemp("quick") / "data", cpus=64, memory="64Gi", env=QUICK) as running:
        yield running


@pytest.fixture
def no_room(quick: RunningStack) -> Generator[RunningStack]:
    """A stack whose quota, if the test creates one, is deleted at the end."""
    yield quick
    with suppress(Exception):
        quick.kubernetes("DELETE", f"{QUOTA}/slipway-quota")


def launched_before_its_quota(stack: RunningStack, body: Json) -> str:
    """Launch until admitted; then create a quota of no pods in its workspace, and only then let the pods be created."""
    stack.halt("podworker")
    try:
        id_ = stack.launch(body)
        stack.wait_for(id_, "Assigned")
        quota = {"metadata": {"name": "slipway-quota"}, "spec": {"hard": {"pods": "0"}}}
        stack.kubernetes("POST", QUOTA, quota)
    finally:
        stack.resume("podworker")
    return id_


def condition(stack: RunningStack, id_: str, kind: str) -> Json | None:
    """A condition of an allocation."""
    found = stack.view(id_)["status"].get("conditions") or ()
    return next((each for each in found if each["type"] == kind), None)


def left_of(stack: RunningStack, *ids: str) -> list[str]:
    """The Kubernetes objects of these allocations that exist."""
    found: list[str] = []
    for plural in ("pods", "configmaps", "services"):
        items = stack.kubernetes("GET", f"/api/v1/{plural}?labelSelector=slipway.dev/allocation")["items"]
        names = [(item["metadata"]["name"], item["metadata"]["labels"]["slipway.dev/allocation"]) for item in items]
        found += [f"{plural}/{name}" for name, owner in names if owner in ids]
    return found


def test_a_quota_refusal_waits_is_explained_and_goes_on_when_the_quota_is_raised(no_room: RunningStack) -> None:
    """The server's message is shown; nothing has failed; when the quota is raised it runs."""
    stack = no_room
    id_ = launched_before_its_quota(stack, {"kind": "command", "command": ["true"]})
    told = wait_until(lambda: condition(stack, id_, "Stuck"), "the reason")
    assert told is not None
    assert (told["reason"], "exceeded quota: slipway-quota" in told["message"]) == ("QuotaExceeded", True)
    explained = stack.command("explain", id_).out
    assert "QuotaExceeded: the launch " in explained
    assert "exceeded quota: slipway-quota" in explained
    assert "what helps: have the ResourceQuota that the message names raised" in explained
    view = stack.view(id_)
    assert (view["phase"], view["attempt"], view["result"]) == ("Assigned", 1, None)
    stack.kubernetes("DELETE", f"{QUOTA}/slipway-quota")
    assert stack.wait_for(id_, "Terminated", timeout_s=90)["result"] == "Succeeded"
    assert stack.view(id_)["attempt"] == 1


def test_exhausted_retries_end_in_a_dead_letter_a_stuck_condition_and_an_admin_replay(no_room: RunningStack) -> None:
    """The letter is found with `slipway dead ls` and over REST; only its replay finishes the launch, because no
    other hint arrives."""
    stack = no_room
    id_ = launched_before_its_quota(stack, SLEEP)

    def letter() -> str:
        listed = stack.command("dead", "ls", "--source", "work").out
        return next((line.split()[0] for line in listed.splitlines() if id_ in line), "")

    found = wait_until(letter, "the dead letter", timeout_s=120)
    assert found
    stuck = condition(stack, id_, "Stuck")
    assert stuck is not None
    assert (stuck["status"], stuck["reason"]) == ("True", "QuotaExceeded")
    stack.halt("watcher")
    try:
        shown: Json = stack.ask(lambda api: api.get(f"/dead/{found}"))
        assert "exceeded quota: slipway-quota" in shown["cause"]
        stack.kubernetes("DELETE", f"{QUOTA}/slipway-quota")
        assert stack.view(id_)["status"].get("release") is None
        replayed = stack.command("dead", "replay", found)
        assert (replayed.code, replayed.out) == (0, f"{found} is sent again\n")
        wait_until(lambda: stack.view(id_)["status"].get("release"), "the release")
    finally:
        stack.resume("watcher")
    stack.wait_for(id_, "Running")
    assert letter() == ""
    assert stack.command("dead", "replay", found).code == 3
    stack.command("kill", id_, "--wait")


def test_an_invalid_answer_ends_with_the_servers_message(quick: RunningStack) -> None:
    """An error that only the server finds is shown in the server's words; created objects are deleted."""
    name = fresh("wrong")
    manifest: Json = {
        "apiVersion": "slipway.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "kind": "command",
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "python:3.11",
                            "command": ["true"],
                            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
                        }
                    ]
                }
            },
        },
    }
    made = quick.kubernetes("POST", "/apis/slipway.dev/v1alpha1/namespaces/default/allocations", manifest)
    id_ = f"{name}-{made['metadata']['uid'][:8]}"
    ended = quick.wait_for(id_, "Terminated")
    assert ended["result"] == "Invalid", ended
    assert "limit" in ended["message"], ended["message"]
    wait_until(lambda: left_of(quick, id_) == [], "nothing left")


def create_and_delete(stack: RunningStack, *, timeout_s: float) -> None:
    """Launch fifteen and kill each right away; nothing is left, and each is Canceled."""
    ids: list[str] = []
    for _ in range(COUNT):
        id_ = stack.launch(SLEEP)
        ids.append(id_)
        stack.ask(lambda api, id_=id_: api.post(f"/allocations/{id_}/kill"))
    for id_ in ids:
        assert stack.wait_for(id_, "Terminated", timeout_s=timeout_s)["result"] == "Canceled"
    wait_until(lambda: left_of(stack, *ids) == [], "nothing left", timeout_s=timeout_s)


def test_fifteen_creates_and_fifteen_immediate_deletes_leave_nothing(stack: RunningStack) -> None:
    """Fifteen launches and immediate kills on real processes leave nothing."""
    create_and_delete(stack, timeout_s=60)


def test_fifteen_creates_and_deletes_through_half_a_second_of_latency_leave_nothing(
    stack: RunningStack, tmp_path: Path
) -> None:
    """The pod worker's connection to the API server delays every answer by half a second."""
    config: Json = yaml.safe_load(Path(stack.stack.kubeconfig).read_text("utf-8"))
    server = urlsplit(str(config["clusters"][0]["cluster"]["server"]))
    with slow_line(server.hostname or "", server.port or 0, LATENCY_S) as port:
        config["clusters"][0]["cluster"]["server"] = f"{server.scheme}://127.0.0.1:{port}"
        slow = tmp_path / "kubeconfig"
        slow.write_text(yaml.safe_dump(config))
        stack.halt("podworker")
        env = {**stack.environment(), "KUBECONFIG": str(slow), "SLIPWAY_LISTEN": "127.0.0.1:0"}
        argv = [sys.executable, "-m", "slipway.podworker.main"]
        with (tmp_path / "log").open("w") as log:
            worker = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
            try:
                create_and_delete(stack, timeout_s=120)
                done = stack.launch({"kind": "command", "command": ["true"]})
                assert stack.wait_for(done, "Terminated")["result"] == "Succeeded"
                assert worker.poll() is None
            finally:
                worker.terminate()
                worker.wait(30)
                stack.resume("podworker")


@contextmanager
def slow_line(host: str, port: int, latency_s: float) -> Generator[int]:
    """A port of this machine that forwards to another, with a delay on the way back."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="slow-line")
    thread.start()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                await asyncio.sleep(delay_s)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        await asyncio.gather(forward(reader, back, 0), forward(there, writer, latency_s))

    async def end() -> None:
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(serve, "127.0.0.1", 0), loop).result(10)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
