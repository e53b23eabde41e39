"""Clients of the REST API as integrators write them: one call, retried with the same key until it is answered.

Owns the log of requests and answers. The log has every answer, and every request without an answer, with status 0. A
client uses one replica until that fails, then the next.
"""

import asyncio
import hashlib
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
import msgspec

from slipway.ops.audit.clients import CANCEL, LAUNCH
from slipway.ops.audit.evidence import ClientRequest
from slipway.runtime.clock import SystemClock
from tests.support.plain_http import NO_TLS

API = "/api/v1/allocations"
WORKSPACE = "default"
USER = "unknown"
CALL_S = 15.0
AGAIN_S = (0.1, 1.0)
SILENCE_S = 40.0
REFUSED = 422
CONFLICT = 409
_FINAL = range(400, 500)
_THROTTLED = 429
_OTHER_VERBS = {"GET": "get"}
Json = dict[str, Any]


class RefusedError(Exception):
    """The API refuses the request permanently."""


class Client:
    """One client with its own memory. All clients share `answers`."""

    def __init__(self, name: str, urls: Sequence[str], answers: list[ClientRequest], seed: int) -> None:
        self.name = name
        self.chance = random.Random(f"{seed}/{name}")
        self._urls = list(urls)
        self._turn = self.chance.randrange(len(urls))
        self._answers = answers
        self._clock = SystemClock()
        self._http = httpx2.AsyncClient(
            verify=NO_TLS,
            trust_env=False,
            timeout=httpx2.Timeout(CALL_S, connect=3.0),
            headers={"Accept": "application/json"},
        )

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    # --- calls ------------------------------------------------------------------------------------------------------

    async def launch(self, body: Json, *, key: str = "") -> Json:
        """Launch under one key, which all tries use. Raises RefusedError."""
        return await self.insist("POST", API, LAUNCH, body, key=key or uuid.uuid4().hex)

    async def kill(self, id_: str) -> Json:
        """Cancel the allocation."""
        return await self.insist("POST", f"{API}/{id_}/kill", CANCEL)

    async def preempt(self, id_: str) -> Json:
        """Ask it to save its work and end. Empty when it has ended after a try whose outcome is unknown."""
        return await self.insist("POST", f"{API}/{id_}/preempt", "preempt", {"reason": "room is needed"}, done=CONFLICT)

    async def read(self, id_: str) -> Json:
        """Read the allocation."""
        return await self.insist("GET", f"{API}/{id_}", "get")

    async def insist(
        self, method: str, path: str, verb: str, body: Json | None = None, *, key: str = "", done: int = 0
    ) -> Json:
        """Repeat the request until it is answered. Raises RefusedError when it is refused.

        `done` is the status of a repetition when an earlier try was executed and its answer lost: the result is empty
        then.
        """
        for number in itertools.count():
            answer = await self.ask(method, path, verb, body, key=key)
            if number and answer is not None and answer.status_code == done:
                return {}
            if answer is not None and answer.status_code < 300:
                found: Json = answer.json()
                return found
            if answer is not None and answer.status_code in _FINAL and answer.status_code != _THROTTLED:
                raise RefusedError(f"{method} {path}: {answer.status_code} {answer.text}")
            self._turn += 1
            await asyncio.sleep(self.chance.uniform(*AGAIN_S))
        raise AssertionError

    async def ask(
        self, method: str, path: str, verb: str, body: Json | None = None, *, key: str = ""
    ) -> httpx2.Response | None:
        """Try once and log it; None when no answer arrived."""
        url = self._urls[self._turn % len(self._urls)]
        blob = msgspec.json.encode(body) if body is not None else None
        headers = {"Idempotency-Key": key} if key else {}
        if blob is not None:
            headers["Content-Type"] = "application/json"
        asked_at = self._clock.now()
        try:
            answer = await self._http.request(method, url + path, content=blob, headers=headers)
        except httpx2.HTTPError:
            answer = None
        self._answers.append(self._logged(verb, url, path, asked_at, answer, key=key, blob=blob))
        return answer

    # --- streams ----------------------------------------------------------------------------------------------------

    async def follow(self, id_: str) -> AsyncIterator[Json]:
        """The events of an allocation, to its end, across broken connections, each once."""
        cursor, reader = "", f"{self.name}/{uuid.uuid4().hex[:6]}"
        while True:
            url = self._urls[self._turn % len(self._urls)]
            try:
                async for place, event in self._events(url, id_, cursor):
                    cursor = place
                    now = self._clock.now()
                    told = ClientRequest(
                        at=now,
                        asked_at=now,
                        client=reader,
                        replica=url,
                        workspace=WORKSPACE,
                        verb="events",
                        status=200,
                        allocation=id_,
                        seq=int(event["seq"]),
                        phase=str(event["phase"]),
                    )
                    self._answers.append(told)
                    yield event
                    if event["phase"] == "Terminated":
                        return
            except (httpx2.HTTPError, TimeoutError):
                pass
            self._turn += 1
            await asyncio.sleep(self.chance.uniform(*AGAIN_S))

    async def _events(self, url: str, id_: str, cursor: str) -> AsyncIterator[tuple[str, Json]]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": cursor} if cursor else {})
        timeout = httpx2.Timeout(CALL_S, connect=3.0, read=SILENCE_S)
        path = f"{url}{API}/{id_}/events"
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                return
            fields: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line:
                    name, _, value = line.partition(":")
                    fields[name] = value.removeprefix(" ")
                    continue
                if "data" in fields and fields.get("id"):
                    yield fields["id"], msgspec.json.decode(fields["data"])["data"]
                fields = {}

    def _logged(
        self,
        verb: str,
        url: str,
        path: str,
        asked_at: float,
        answer: httpx2.Response | None,
        *,
        key: str,
        blob: bytes | None,
    ) -> ClientRequest:
        is_view = answer is not None and answer.status_code < 300
        view: Json = answer.json() if is_view and answer is not None else {}
        return ClientRequest(
            at=self._clock.now(),
            asked_at=asked_at,
            client=self.name,
            replica=url,
            workspace=WORKSPACE,
            verb=verb,
            url=path,
            idempotency_key=key,
            body_hash=hashlib.sha256(blob).hexdigest() if blob is not None else "",
            status=answer.status_code if answer is not None else 0,
            allocation=str(view.get("id", "")) or _named(path),
            version=int(view.get("resourceVersion") or 0),
            seq=int(view.get("status", {}).get("seq", 0)),
            phase=str(view.get("phase", "")),
            desired=str(view.get("desired", "")),
            text=answer.text if answer is not None else "",
        )


def _named(path: str) -> str:
    """The AllocationID in a path; empty without one."""
    return path.removeprefix(f"{API}/").partition("/")[0] if path.startswith(f"{API}/") else ""


def with_uids(answers: Sequence[ClientRequest], uid_of: Callable[[str], str]) -> list[ClientRequest]:
    """The log with the uids of its allocations, because an answer of the API contains only the AllocationID."""
    return [msgspec.structs.replace(each, uid=uid_of(each.allocation)) for each in answers]
