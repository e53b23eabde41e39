"""Every version of every object in etcd, with which everything else is compared.

Owns the recording. It reads etcd's own watch, by revision, so that nothing is missed when the API server restarts or
drops history; etcd does not compact. It records what the API server stored (as JSON); the revision is the
resourceVersion. It must not use the fault proxy.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.ops.audit.evidence import ALLOCATIONS, CONFIG_MAPS, NODES, PODS, POOLS, SERVICES, Version
from slipway.ops.audit.rest import OURS, leftovers
from slipway.runtime.clock import SystemClock
from tests.support.plain_http import NO_TLS

PREFIX = "/registry/"
RESOURCES = {
    "slipway.dev/allocations": ALLOCATIONS,
    "slipway.dev/resourcepools": POOLS,
    "pods": PODS,
    "minions": NODES,
    "configmaps": CONFIG_MAPS,
    "services/specs": SERVICES,
    "events": "events",
    "namespaces": "namespaces",
}
"""{path in etcd: resource}; of leases only the holders are recorded."""
LEASES = "leases/"
AGAIN_S = 0.2
SILENCE_S = 600.0
CAUGHT_UP_S = 120.0
Json = dict[str, Any]


class History:
    """Records the versions while `run` runs. `versions` are in the order of their revisions."""

    def __init__(self, etcd_url: str, file: Path) -> None:
        self.versions: list[Version] = []
        self.revision = 0
        self.allocations: dict[str, Version] = {}
        """{uid: its last version}, also of deleted allocations"""
        self.by_id: dict[str, str] = {}
        """{AllocationID: uid}"""
        self.breaks = 0
        self._holders: dict[str, str] = {}
        self._url = etcd_url
        self._file = file.open("wb")
        self._clock = SystemClock()
        self._last: dict[str, Version] = {}
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Record until cancelled."""
        while True:
            with contextlib.suppress(httpx2.HTTPError, msgspec.DecodeError):
                async with httpx2.AsyncClient(
                    verify=NO_TLS, trust_env=False, timeout=httpx2.Timeout(5.0, read=SILENCE_S)
                ) as http:
                    async for batch in self._watch(http):
                        for event in batch:
                            self._take(event)
                        self._moved.set()
            self.breaks += 1
            await asyncio.sleep(AGAIN_S)

    def close(self) -> None:
        """Write nothing more to the file."""
        self._file.close()

    async def moved(self, timeout_s: float) -> None:
        """Wait until something new is recorded, at most that long."""
        self._moved.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()

    def last(self, id_: str) -> Version | None:
        """The last version of an AllocationID."""
        uid = self.by_id.get(id_)
        return self.allocations.get(uid) if uid else None

    def holders(self) -> list[int]:
        """The ids of the processes that hold leases of ours."""
        pids = (holder.rpartition("-")[2] for holder in self._holders.values())
        return [int(pid) for pid in pids if pid.isdigit()]

    def leftovers(self) -> list[str]:
        """Objects of ours that belong to no living allocation."""
        owners = [
            msgspec.convert(version.obj, Allocation)
            for version in self._last.values()
            if version.resource == ALLOCATIONS
        ]
        objects = [
            (version.resource, version.obj["metadata"]) for version in self._last.values() if version.resource in OURS
        ]
        return [f"{name}: {why}" for name, why in leftovers(owners, objects)]

    def beyond(self, count: int) -> list[str]:
        """Ended allocations that are torn down, beyond that many in their workspace: retention has to delete them;
        oldest first."""
        ended: dict[str, list[tuple[str, str]]] = {}
        for version in self._last.values():
            if version.resource != ALLOCATIONS:
                continue
            allocation = msgspec.convert(version.obj, Allocation)
            meta, status = allocation.metadata, allocation.status
            if status.phase is Phase.TERMINATED and TEARDOWN_FINALIZER not in meta.finalizers:
                ended.setdefault(meta.namespace, []).append((status.ended_at or "", meta.name))
        return [f"{namespace}/{name}" for namespace, found in ended.items() for _, name in sorted(found)[:-count]]

    async def begin_now(self) -> None:
        """Use the present objects as the first version of each, instead of the history before."""
        async with httpx2.AsyncClient(verify=NO_TLS, trust_env=False, timeout=30.0) as http:
            body = {"key": _encoded(PREFIX), "range_end": _encoded(_after(PREFIX))}
            answer = msgspec.json.decode((await http.post(f"{self._url}/v3/kv/range", json=body)).content)
        for entry in sorted(answer["kvs"], key=lambda entry: int(entry["mod_revision"])):
            self._take({"kv": entry})
        self.revision = int(answer["header"]["revision"])

    async def catch_up(self) -> None:
        """Wait until everything stored now is recorded. Raises TimeoutError."""
        async with httpx2.AsyncClient(verify=NO_TLS, trust_env=False, timeout=10.0) as http:
            body = {"key": _encoded(PREFIX), "range_end": _encoded(_after(PREFIX)), "count_only": True}
            answer = await http.post(f"{self._url}/v3/kv/range", json=body)
            wanted = int(answer.json()["header"]["revision"])
        async with asyncio.timeout(CAUGHT_UP_S):
            while self.revision < wanted:
                await self.moved(0.2)

    async def _watch(self, http: httpx2.AsyncClient) -> AsyncIterator[list[Json]]:
        body = {
            "create_request": {
                "key": _encoded(PREFIX),
                "range_end": _encoded(_after(PREFIX)),
                "start_revision": str(self.revision + 1),
                "progress_notify": True,
            }
        }
        async with http.stream("POST", f"{self._url}/v3/watch", json=body) as answer:
            async for line in answer.aiter_lines():
                result: Json = msgspec.json.decode(line).get("result", {})
                yield result.get("events", [])

    def _take(self, event: Json) -> None:
        entry: Json = event["kv"]
        path = base64.b64decode(entry["key"]).decode()
        number = int(entry["mod_revision"])
        if number < self.revision:
            return
        self.revision = number
        if path.startswith(f"{PREFIX}{LEASES}") and entry.get("value"):
            lease: Json = msgspec.json.decode(base64.b64decode(entry["value"]))
            self._holders[path] = str(lease["spec"].get("holderIdentity") or "")
        place = _place(path)
        if place is None:
            return
        resource, namespace, name = place
        before = self._last.get(path)
        is_deletion = event.get("type") == "DELETE"
        if is_deletion:
            if before is None:
                return
            obj: Mapping[str, Any] = before.obj
            del self._last[path]
        else:
            obj = msgspec.json.decode(base64.b64decode(entry["value"]))
            obj["metadata"]["resourceVersion"] = str(number)
            obj["metadata"].pop("managedFields", None)
        version = Version(
            number=number,
            at=self._clock.now(),
            writer="",
            resource=resource,
            namespace=namespace,
            name=name,
            is_deletion=is_deletion,
            obj=obj,
            before=before.obj if before is not None else None,
        )
        if not is_deletion:
            self._last[path] = version
        self.versions.append(version)
        self._file.write(msgspec.json.encode(version) + b"\n")
        if resource == ALLOCATIONS:
            self.allocations[version.uid] = version
            self.by_id[f"{name}-{version.uid[:8]}"] = version.uid


def _place(path: str) -> tuple[str, str, str] | None:
    """(resource, namespace, name) of a key of etcd; None for keys that are not recorded."""
    for where, resource in RESOURCES.items():
        if path.startswith(f"{PREFIX}{where}/"):
            namespace, _, name = path.removeprefix(f"{PREFIX}{where}/").rpartition("/")
            return resource, namespace, name
    return None


def _after(prefix: str) -> str:
    """The end of the range of all keys with that prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
