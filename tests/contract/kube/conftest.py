"""Fixtures: one server for the run, one namespace for each test."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import msgspec
import pytest

from tests.contract.kube.client import DEADLINE_S, KubeHttp
from tests.contract.kube.samples import CRDS, GROUP, PLURAL, VERSION, definition
from tests.contract.kube.target import Target, running_target
from tests.support.wait import pause_s

POLL_S = 0.01
DELETES_AT_ONCE = 16
Check = Callable[[], Awaitable[bool]]


class NamespacePaths(msgspec.Struct, frozen=True):
    """Paths inside the test's own namespace."""

    name: str

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.name}"

    def of(self, plural: str, name: str = "", sub: str = "") -> str:
        return "/".join(part for part in (f"{self.path}/{plural}", name, sub) if part)

    def widgets(self, name: str = "", sub: str = "") -> str:
        base = f"/apis/{GROUP}/{VERSION}/namespaces/{self.name}/{PLURAL}"
        return "/".join(part for part in (base, name, sub) if part)


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    with running_target() as found:
        yield found


@pytest.fixture
def controllers(target: Target) -> None:
    """Skip the test without a controller manager: it checks rules that controllers enforce."""
    if not target.has_controllers:
        pytest.skip("no controller manager beside this API server (set SLIPWAY_CONTRACT_CONTROLLERS=1)")


@pytest.fixture
async def kube(target: Target) -> AsyncIterator[KubeHttp]:
    client = KubeHttp(target)
    yield client
    await client.close()


@pytest.fixture(scope="session")
def used(target: Target) -> Iterator[list[str]]:
    """The namespaces of the run, deleted at its end: each deletion keeps a real controller manager busy for a while."""
    names = list[str]()
    yield names
    verify = target.tls or True
    with (
        httpx2.Client(
            base_url=target.url, headers=target.headers, verify=verify, timeout=60, trust_env=False
        ) as client,
        ThreadPoolExecutor(DELETES_AT_ONCE) as pool,
    ):
        list(pool.map(client.delete, [f"/api/v1/namespaces/{name}" for name in names]))


@pytest.fixture
async def ns(kube: KubeHttp, used: list[str]) -> NamespacePaths:
    name = f"contract-{uuid.uuid4().hex[:10]}"
    answer = await kube.post("/api/v1/namespaces", {"metadata": {"name": name}})
    assert answer.code == 201, answer.body
    used.append(name)
    return NamespacePaths(name)


@pytest.fixture
async def widgets(kube: KubeHttp, ns: NamespacePaths) -> NamespacePaths:
    """A namespace on a server that serves the custom kind."""
    answer = await kube.post(CRDS, definition())
    assert answer.code in (201, 409), answer.body

    async def is_served() -> bool:
        return (await kube.get(ns.widgets())).code == 200

    await eventually(is_served, "the custom kind is served")
    return ns


async def eventually(check: Check, what: str, within_s: float = DEADLINE_S) -> None:
    """Poll until `check` is true, less often the longer it takes."""
    try:
        async with asyncio.timeout(within_s):
            began = time.monotonic()
            while True:
                if await check():
                    return
                await asyncio.sleep(pause_s(time.monotonic() - began, first_s=POLL_S))
    except TimeoutError:
        pytest.fail(f"not within {within_s} s: {what}")
