"""Clients of the simulated api: they send HTTP requests, in process, and record the answers.

Owns the way to a replica and back. A replica that crashes while it answers never answers; a frozen replica answers late
or not at all. A client that does not know the outcome repeats the request at another replica, with the same
Idempotency-Key. Must not know what the routes do.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import msgspec

from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import ClientRequest
from tests.support.faults import Process
from tests.support.loop import owned
from tests.support.world import World

Json = dict[str, Any]

PATIENCE_S = 5.0
"""After this time a client stops waiting for an answer."""
PAUSE_S = 0.5
TRIES_MAX = 60
LOOKS_MAX = 240
PIECES_MAX = 400
"""The maximum number of pieces read from one stream: heartbeats never end."""
TEXT_MAX = 20_000
_EVENTS = "text/event-stream"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request; status 0 means that no answer arrived."""

    status: int
    text: str = ""

    @property
    def body(self) -> Json:
        """The decoded JSON of the answer; empty when it is no object."""
        found: Any = msgspec.json.decode(self.text) if self.text.startswith("{") else {}
        return found

    @property
    def is_unknown(self) -> bool:
        """Whether the outcome is unknown, so that the client repeats the request."""
        return self.status == 0 or self.status == 429 or self.status >= 500


class Exchange:
    """One request in flight. Pieces of the answer are added as the replica sends them."""

    def __init__(self) -> None:
        self.status = 0
        self.pieces: list[bytes] = []
        self.is_done = False
        self.moved = asyncio.Event()
        self.gone = asyncio.Event()
        """The client has hung up."""


class Client:
    """One user in one workspace. It sends its requests to the replicas of the api in turn."""

    def __init__(self, world: World, name: str, *, workspace: str = "default", user: str = "ada") -> None:
        self._world = world
        self._name = name
        self._workspace = workspace
        self._user = user
        self._turn = 0

    # --- what users do ---------------------------------------------------------------------------------------------

    async def launch(self, name: str | None = "job", *, key: str = "", role: str = "", **body: Any) -> Reply:
        """Send a launch; repeat it while its outcome is unknown, if an idempotency key makes that safe."""
        wanted = {**_JOB, **({"name": name} if name else {}), "workspace": self._workspace, **body}
        return await self._until_known(
            lambda: self.ask("launch", "POST", "/allocations", body=wanted, key=key, role=role), is_once=not key
        )

    async def cancel(self, allocation: str, *, role: str = "") -> Reply:
        """Kill the allocation; repeat until the api answers."""
        return await self._change("cancel", f"/allocations/{allocation}/kill", allocation, role)

    async def act(self, verb: str, allocation: str, body: Json | None = None) -> Reply:
        """Send any other verb: hold, resume, preempt..."""
        return await self._change(verb, f"/allocations/{allocation}/{verb}", allocation, "", body)

    async def delete(self, allocation: str) -> Reply:
        """Delete the allocation; repeat until the api answers."""
        path = f"/allocations/{allocation}"
        return await self._until_known(lambda: self.ask("delete", "DELETE", path, allocation=allocation))

    async def get(self, allocation: str, *, role: str = "") -> Reply:
        """Read the allocation once."""
        return await self.ask("get", "GET", f"/allocations/{allocation}", role=role, allocation=allocation)

    async def watch(self, allocation: str, until: Phase = Phase.TERMINATED) -> None:
        """Poll the allocation, at one replica after the other, until its phase is `until` or it is gone, or LOOKS_MAX
        times."""
        for _ in range(LOOKS_MAX):
            reply = await self.get(allocation)
            if reply.status == 404 or reply.body.get("phase") == until:
                return
            await asyncio.sleep(PAUSE_S)

    async def list(self) -> Reply:
        """List the allocations of the workspace."""
        return await self.ask("list", "GET", f"/allocations?workspace={quote(self._workspace)}")

    async def follow(self, allocation: str) -> None:
        """Read the events of the allocation to the end; a broken stream is resumed where it broke, at another
        replica."""
        after = ""
        for _ in range(TRIES_MAX):
            headers = {"accept": _EVENTS, **({"last-event-id": after} if after else {})}
            async for entry_id, event in self._events(f"/allocations/{allocation}/events", headers, allocation):
                after = entry_id
                if str(event.get("type", "")).endswith(".terminated"):
                    return
            if await self._is_over(allocation, after):
                return
            await asyncio.sleep(PAUSE_S)

    # --- the way to a replica
    # ------------------------------------------------------------------------------------------

    async def ask(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        key: str = "",
        role: str = "",
        allocation: str = "",
    ) -> Reply:
        """Send one request to one replica, and record the answer."""
        world, asked_at = self._world, self._world.clock.now()
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {"idempotency-key": key} if key else {}
        role = role or self._next_role()
        exchange, process = self._open(role, method, path, headers, content)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not exchange.is_done:
                    exchange.moved.clear()
                    await exchange.moved.wait()
        except TimeoutError:
            exchange.status = 0
        exchange.gone.set()
        reply = Reply(status=exchange.status, text=b"".join(exchange.pieces).decode() if exchange.status else "")
        hashed = hashlib.sha256(content).hexdigest()[:16]
        self._note(
            reply,
            verb=verb,
            asked_at=asked_at,
            url=f"/api/v1{path}",
            replica=process.name if process is not None else role,
            idempotency_key=key,
            body_hash=hashed,
            allocation=allocation,
        )
        if exchange.status == 0:
            await asyncio.sleep(world.injector.latency_s)
        return reply

    async def _events(self, path: str, headers: dict[str, str], allocation: str) -> AsyncIterator[tuple[str, Json]]:
        """Yield (cursor, event) of one stream until it ends, breaks, or is silent for too long."""
        role = self._next_role()
        asked_at = self._world.clock.now()
        exchange, process = self._open(role, "GET", path, headers, b"")
        rest = ""
        try:
            for _ in range(PIECES_MAX):
                async with asyncio.timeout(4 * PATIENCE_S):
                    while not exchange.pieces and not exchange.is_done:
                        exchange.moved.clear()
                        await exchange.moved.wait()
                rest += b"".join(exchange.pieces).decode()
                exchange.pieces.clear()
                *blocks, rest = rest.split("\n\n")
                for block in blocks:
                    fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
                    if "data" not in fields or "id" not in fields:
                        continue
                    event: Json = msgspec.json.decode(fields["data"])
                    self._note_event(fields["data"], event, asked_at, process, allocation)
                    yield fields["id"], event
                if exchange.is_done:
                    return
        except TimeoutError:
            return
        finally:
            exchange.gone.set()

    def _open(
        self, role: str, method: str, path: str, headers: dict[str, str], content: bytes
    ) -> tuple[Exchange, Process | None]:
        """Start a request; a replica that does not run refuses the connection."""
        exchange = Exchange()
        world = self._world
        process, app = world.apps.get(role, (None, None))
        if process is None or process.is_dead or app is None or world.processes.get(role) is not process:
            exchange.is_done = True
            return exchange, None
        bare, _, query = path.partition("?")
        sent = {"host": "localhost", "x-slipway-user": self._user, "content-type": "application/json", **headers}
        scope: Json = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": f"/api/v1{bare}",
            "raw_path": f"/api/v1{bare}".encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        world.loop.create_task(_serve(world, app, scope, content, exchange), context=owned(process))
        return exchange, process

    async def _change(self, verb: str, path: str, allocation: str, role: str, body: Json | None = None) -> Reply:
        return await self._until_known(
            lambda: self.ask(verb, "POST", path, body=body, role=role, allocation=allocation)
        )

    async def _until_known(self, call: Callable[[], Awaitable[Reply]], *, is_once: bool = False) -> Reply:
        for _ in range(TRIES_MAX):
            reply = await call()
            if not reply.is_unknown or is_once:
                return reply
            await asyncio.sleep(PAUSE_S)
        raise TimeoutError

    async def _is_over(self, allocation: str, after: str) -> bool:
        """Whether the stream need not be resumed: its last event is the end of the allocation, or the allocation is
        gone."""
        reply = await self.get(allocation)
        seq = int(after.rpartition("-")[2] or 0)
        if reply.status != 200:
            return reply.status == 404
        told = int(reply.body["status"].get("seq") or 0)
        return reply.body.get("phase") == Phase.TERMINATED and told == seq

    def _next_role(self) -> str:
        roles = sorted(role for role in self._world.processes if role.rstrip("0123456789") == "api")
        self._turn += 1
        return roles[self._turn % len(roles)]

    def _note(self, reply: Reply, *, allocation: str, **known: Any) -> None:
        body = reply.body if 200 <= reply.status < 300 else {}
        for item in body.get("items") or ():
            if "phase" in item and "status" in item:
                self._note(Reply(status=reply.status, text=msgspec.json.encode(item).decode()), allocation="", **known)
        status: Json = body.get("status") or {}
        self._world.answers.append(
            ClientRequest(
                at=self._world.clock.now(),
                client=self._name,
                user=self._user,
                workspace=self._workspace,
                status=reply.status,
                allocation=str(body.get("id") or allocation),
                version=int(body.get("resourceVersion") or 0),
                seq=int(status.get("seq") or 0),
                phase=str(body.get("phase") or ""),
                desired=str(body.get("desired") or ""),
                text=reply.text[:TEXT_MAX],
                **known,
            )
        )

    def _note_event(self, text: str, event: Json, asked_at: float, process: Process | None, allocation: str) -> None:
        self._world.answers.append(
            ClientRequest(
                at=self._world.clock.now(),
                asked_at=max(asked_at, self._world.clock.now()),
                client=f"{self._name}/events",
                user=self._user,
                replica=process.name if process is not None else "",
                workspace=self._workspace,
                verb="events",
                status=200,
                allocation=allocation,
                seq=int(str(event.get("id", "/0")).rpartition("/")[2]),
                text=text,
            )
        )


async def _serve(world: World, app: Any, scope: Json, content: bytes, exchange: Exchange) -> None:
    """Run the replica's side of the request, which ends when the replica dies."""
    is_read = False

    async def receive() -> Json:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": content, "more_body": False}
        await exchange.gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Json) -> None:
        if message["type"] == "http.response.start":
            exchange.status = int(message["status"])
        elif message["type"] == "http.response.body":
            exchange.pieces.append(message.get("body", b""))
            exchange.is_done = not message.get("more_body", False)
        exchange.moved.set()

    await world.injector.latency()
    try:
        await app(scope, receive, send)
    finally:
        exchange.is_done = True
        exchange.moved.set()


_JOB: Json = {
    "kind": "command",
    "image": "python:3.11",
    "command": ["true"],
    "ranks": [{"name": "worker", "count": 1, "resources": {"cpu": "1"}}],
}
