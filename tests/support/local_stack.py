"""A whole local stack for a test: its processes, supervised on a loop of its own, a client of its API, and its folder.

Owns the thread that the stack's supervisor runs on. Tests are plain functions without a loop.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec
import redis

from slipway.cli.http import Api
from slipway.local.process import Child
from slipway.local.stack import Stack, StackOptions
from slipway.sdk.address import parse
from slipway.sdk.credentials import fixed
from tests.contract.kube.target import target_of
from tests.support import patience
from tests.support.cli import CommandResult
from tests.support.wait import wait_until

T = TypeVar("T")
Json = dict[str, Any]
CALL_S = 90.0
READY_S = 5.0
ALLOCATION = "/apis/slipway.dev/v1alpha1/namespaces/default/allocations"


class RunningStack:
    """A running stack. `said` are the messages of its supervisor (restarts)."""

    def __init__(self, options: StackOptions) -> None:
        self.said: list[str] = []
        self.stack = Stack(options, say=self.said.append)
        self.folder = options.folder
        self._halted: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stack")
        self._thread.start()

    def start(self) -> None:
        """Start everything and wait until it answers."""
        self._call(self.stack.start())

    def stop(self) -> None:
        """Stop everything; nothing runs any more."""
        try:
            self._call(self.stack.stop())
        finally:
            self._call(_end_other_tasks())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    @property
    def url(self) -> str:
        """The URL of the API."""
        return self.stack.api_url

    def api(self) -> Api:
        """A client of the API, for one thread."""
        opened = parse(self.url, "test")._replace(credential=fixed(self.stack.token))
        return Api(opened, user="tester")

    @property
    def headers(self) -> dict[str, str]:
        """The headers that every listener of the stack accepts."""
        return {"Authorization": f"Bearer {self.stack.token}"}

    def link(self, path: str, *, allocation: str = "") -> str:
        """Return a one-time link that opens a page of ours, or a page of an allocation, in a browser."""
        body = {"path": path, "allocation": allocation}
        return str(self.ask(lambda api: api.post("/login-links", body)["url"]))

    def pid(self, name: str) -> int:
        """The process id of a part."""
        return self.stack.children[name].pid

    def kill(self, name: str) -> int:
        """kill -9; the supervisor starts it again."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def halt(self, *names: str) -> None:
        """End parts and leave them ended."""
        for name in names:
            self._halted.add(name)
            self._call(self.stack.halt(name))

    def resume(self, *names: str) -> None:
        """Start halted parts again."""
        for name in names:
            self._call(self.stack.resume(name))
            self._halted.discard(name)

    def await_ready(self) -> None:
        """Wait until every part that a test has killed works again; halted parts stay halted."""
        for name, child in self.stack.children.items():
            if name not in self._halted:
                wait_until(lambda child=child: self._is_ready(child), f"{name} can do its work")

    def _is_ready(self, child: Child) -> bool:
        return child.is_running and (not child.url or self._call(child.why_not("/readyz", READY_S)) is None)

    def stop_redis(self) -> None:
        """End the Redis server."""
        assert self.stack.valkey is not None
        self._call(self.stack.valkey.stop())

    def start_redis(self) -> None:
        """Start it again, empty."""
        assert self.stack.valkey is not None
        self._call(self.stack.valkey.start())

    @contextmanager
    def redis(self) -> Generator[Any]:
        """A connection to the Redis server."""
        url = self.stack.redis_url
        client: Any = redis.Redis.from_url(url, decode_responses=True)  # pyright: ignore[reportUnknownMemberType]
        try:
            yield client
        finally:
            client.close()

    def refused_by_redis(self) -> list[str]:
        """Return the commands that Redis refused to the account of a service, except those of `/condition`, which may
        be refused."""
        if self.stack.valkey is None or self.stack.valkey.pid is None:
            return []
        with self.redis() as redis:
            refused = [each for each in redis.acl_log() if each["object"] != "config|get"]
            return [f"{each['username']}: {each['object']} ({each['reason']})" for each in refused]

    def environment(self, service: str = "") -> dict[str, str]:
        """The environment of a service of this stack."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        env |= {"KUBECONFIG": self.stack.kubeconfig, "SLIPWAY_NAMESPACE": "slipway-system"}
        env |= {"SLIPWAY_WORKLOAD_TOKEN_FILE": str(self.stack.layout.workload_token)}
        if self.stack.redis_url:
            env["SLIPWAY_REDIS_URL"] = self.stack.redis_url
        return env | self.stack.redis_login(service)

    def once(self, service: str, *, timeout_s: float = 60.0) -> CommandResult:
        """Run a service with `--once`, to its end."""
        argv = [sys.executable, "-m", f"slipway.{service}.main", "--once"]
        env = {**self.environment(service), "SLIPWAY_LISTEN": "127.0.0.1:0"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def command(self, *words: str, timeout_s: float = 60.0) -> CommandResult:
        """Run `slipway ...` as a process, against this stack."""
        env, argv = self.cli_environment(), cli_words(*words)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def cli_environment(self) -> dict[str, str]:
        """The environment with which the command finds this stack."""
        return {**os.environ, "SLIPWAY_SERVER": self.url, "NO_COLOR": "1"}

    def ask(self, call: Callable[[Api], T]) -> T:
        """Return the answer of a call, which is repeated while the API is down."""
        return patience.ask(self.api, call)

    def pods(self, allocation: str) -> list[Json]:
        """The pods of an allocation, as the API lists them."""
        items: list[Json] = self.ask(lambda api: api.get(f"/allocations/{allocation}/pods")["items"])
        return items

    def view(self, allocation: str) -> Json:
        """The allocation."""
        view: Json = self.ask(lambda api: api.get(f"/allocations/{allocation}"))
        return view

    def launch(self, body: Json) -> str:
        """Launch, with one idempotency key for all tries; return the id."""
        key = uuid.uuid4().hex
        return str(self.ask(lambda api: api.launch(body, key=key))["id"])

    def wait_for(self, allocation: str, *phases: str, timeout_s: float = 60.0) -> Json:
        """Wait until the allocation is in one of `phases`; return it."""

        def reached() -> Json | None:
            view = self.view(allocation)
            return view if view["phase"] in phases else None

        found = wait_until(reached, f"{allocation} in {phases}", timeout_s=timeout_s)
        assert found is not None
        return found

    def end_everything(self) -> None:
        """Kill every allocation that has not ended, and wait until all have ended."""
        listed: list[Json] = self.ask(lambda api: api.get("/allocations")["items"])
        live = [item["id"] for item in listed if item["phase"] != "Terminated"]
        for id_ in live:
            self.ask(lambda api, id_=id_: api.post(f"/allocations/{id_}/kill"))
        for id_ in live:
            self.wait_for(id_, "Terminated")

    def clear(self) -> None:
        """End and delete all allocations, so that each name is free again."""
        self.end_everything()
        while listed := self.ask(lambda api: api.get("/allocations")["items"]):
            for item in listed:
                self.ask(lambda api, id_=item["id"]: api.call("DELETE", f"/allocations/{id_}"))
            gone = {item["id"] for item in listed}
            wait_until(
                lambda gone=gone: (
                    not gone & {each["id"] for each in self.ask(lambda api: api.get("/allocations")["items"])}
                ),
                "what was deleted is gone",
            )

    def pods_of_uid(self, view: Json) -> list[Json]:
        """Return the pods of an allocation, which may have been deleted itself."""
        selector = f"slipway.dev/allocation={view['id']}"
        items: list[Json] = self.kubernetes("GET", f"/api/v1/pods?labelSelector={selector}")["items"]
        return items

    def stream_of(self, allocation: str) -> list[Json]:
        """The data of every entry of an allocation's stream."""
        with self.redis() as client:
            entries: Any = client.xrange(f"slipway:alloc:{{{allocation}}}")
        return [data_of(fields["data"]) for _, fields in entries]

    def kubernetes(self, method: str, path: str, body: Json | None = None) -> Json:
        """One call of the Kubernetes API; a PATCH is a merge patch."""
        cluster = target_of(Path(self.stack.kubeconfig))
        media = {"content-type": "application/merge-patch+json"} if method == "PATCH" else {}
        verify = cluster.tls if cluster.tls is not None else True
        answer = httpx2.request(
            method, cluster.url + path, json=body, headers=cluster.headers | media, verify=verify, trust_env=False
        )
        answer.raise_for_status()
        found: Json = answer.json()
        return found

    def log_tail(self, name: str) -> str:
        """The end of the log of a part, for messages of failed assertions."""
        return self.stack.children[name].tail()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        called = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return called.result(CALL_S)
        except TimeoutError:
            called.cancel()  # a start that continues during the stop would leave processes behind
            raise


async def _end_other_tasks() -> None:
    """End the tasks of this loop: a process that one of them waits for is not dropped as the loop closes."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def running_stack(folder: Path, **options: Any) -> Generator[RunningStack]:
    """A stack in `folder`, which is stopped at the end in any case. Asserts that its Redis has refused no command of a
    service."""
    running = RunningStack(StackOptions(folder=folder, port=options.pop("port", 0), **options))
    try:
        running.start()
        yield running
        refused = running.refused_by_redis()
        assert not refused, refused
    finally:
        running.stop()


def cli_words(*words: str) -> list[str]:
    """The words of `slipway ...` in this environment."""
    return [sys.executable, "-m", "slipway.cli.main", *words]


def processes_of(text: str) -> list[str]:
    """The processes that name `text` in their environment or on their command line."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            told = (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in line or text in told:
            found.append(f"{folder.name} {line}")
    return found


def data_of(raw: str) -> Json:
    """The data of a stream entry."""
    return msgspec.json.decode(raw, type=Json)
