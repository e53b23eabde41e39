"""Clients of the REST API as integrators write them: one call, made again with the same key until it is answered.

Owns the log of what was asked and answered. Every answer that came is in the log, and every request that was never
answered, with status 0. A client asks one replica until that fails, then the next.
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
from slipway.ops.audit.evidence import Answered
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
    """The API says that it will never do that."""


class Client:
    """One client with one memory. `answers` is shared by all."""

    def __init__(self, name: str, urls: Sequence[str], answers: list[Answered], seed: int) -> None:
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
        """Launch under one key, however often it is tried. Raises RefusedError."""
        return await self.insist("POST", API, LAUNCH, body, key=key or uuid.uuid4().hex)

    async def kill(self, id_: str) -> Json:
        """Cancel."""
        return await self.insist("POST", f"{API}/{id_}/kill", CANCEL)

    async def preempt(self, id_: str) -> Json:
        """Ask it to save its work and end. Empty when it has ended after a try that nobody answered for certain."""
        return await self.insist("POST", f"{API}/{id_}/preempt", "preempt", {"reason": "room is needed"}, done=CONFLICT)

    async def read(self, id_: str) -> Json:
        """The allocation."""
        return await self.insist("GET", f"{API}/{id_}", "get")

    async def insist(
        self, method: str, path: str, verb: str, body: Json | None = None, *, key: str = "", done: int = 0
    ) -> Json:
        """The first answer that is one. Raises RefusedError when it is no.

        `done` is the status that a repetition gets when an earlier try was carried out and its answer lost: empty then.
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
        """One try, which is in the log; None when no answer came."""
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
        """What the events of an allocation say, to its end, across broken connections, each once."""
        cursor, reader = "", f"{self.name}/{uuid.uuid4().hex[:6]}"
        while True:
            url = self._urls[self._turn % len(self._urls)]
            try:
                async for place, event in self._events(url, id_, cursor):
                    cursor = place
                    now = self._clock.now()
                    told = Answered(
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
    ) -> Answered:
        is_view = answer is not None and answer.status_code < 300
        view: Json = answer.json() if is_view and answer is not None else {}
        return Answered(
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


def with_uids(answers: Sequence[Answered], uid_of: Callable[[str], str]) -> list[Answered]:
    """The log with the uids of what it is about: an answer of the API says the AllocationID only."""
    return [msgspec.structs.replace(each, uid=uid_of(each.allocation)) for each in answers]
