"""Fixtures: one node for the run; pods for each test, deleted at its end."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import eventually
from tests.contract.kube.samples import Json
from tests.contract.nodes.target import NodeTarget, running_node

WITHIN_S = 60.0
FOLLOW_S = 60.0
FINALIZER = "contract.slipway.dev/kept"


class Pods:
    """The pods of a test: each gets a unique name."""

    def __init__(self, kube: KubeHttp, target: NodeTarget) -> None:
        self._kube, self._target = kube, target
        self._suffix = uuid.uuid4().hex[:6]
        self.names = list[str]()

    async def start(
        self,
        command: Sequence[str] = ("true",),
        *,
        container: Json | None = None,
        meta: Json | None = None,
        **spec: Any,
    ) -> str:
        """Start a pod on the node and return its name. `container` are fields of its one container, `spec` fields of
        its spec."""
        name = f"p{len(self.names)}-{self._suffix}"
        body = {
            "metadata": {"name": name, **(meta or {})},
            "spec": {
                "nodeName": self._target.node,
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": [self.container("main", command, **(container or {}))],
                **spec,
            },
        }
        made = await self._kube.post("/api/v1/namespaces/default/pods", body)
        assert made.code == 201, made.body
        self.names.append(name)
        return name

    async def run(self, command: Sequence[str], **more: Any) -> str:
        """Start a pod, wait until it has ended and return its name."""
        name = await self.start(command, **more)
        await self.ended(name)
        return name

    def container(self, name: str, command: Sequence[str], **more: Any) -> Json:
        return {"name": name, "image": self._target.image, "command": list(command), **more}

    async def pod(self, name: str) -> Json:
        """Return the pod; empty when it is gone."""
        answer = await self._kube.get(_path(name))
        return answer.body if answer.code == 200 else {}

    async def ended(self, name: str) -> Json:
        """Wait until the pod has ended and return its status."""
        return await self.until(name, lambda status: status.get("phase") in ("Succeeded", "Failed"), "it has ended")

    async def running(self, name: str) -> Json:
        return await self.until(name, lambda status: status.get("phase") == "Running", "it runs")

    async def waits(self, name: str, reason: str) -> Json:
        """Wait until the main container waits for that reason and return its status."""

        def is_waiting(status: Json) -> bool:
            return main_of(status).get("state", {}).get("waiting", {}).get("reason") == reason

        return main_of(await self.until(name, is_waiting, f"it waits: {reason}"))

    async def until(self, name: str, check: Callable[[Json], object], what: str) -> Json:
        """Wait until the status meets the condition and return it."""
        found: Json = {}

        async def is_so() -> bool:
            found.clear()
            found.update((await self.pod(name)).get("status", {}))
            return bool(check(found))

        try:
            await eventually(is_so, f"{name}: {what}", WITHIN_S)
        except pytest.fail.Exception as error:
            pytest.fail(f"{error}: {found}")
        return found

    async def gone(self, name: str) -> None:
        async def is_gone() -> bool:
            return not await self.pod(name)

        await eventually(is_gone, f"{name} is gone", WITHIN_S)

    async def confirmed(self, name: str) -> Json:
        """Wait until the node has confirmed that nothing of the pod runs and return the pod; a finalizer keeps it."""

        async def is_confirmed() -> bool:
            return (await self.pod(name))["metadata"].get("deletionGracePeriodSeconds") == 0

        await eventually(is_confirmed, f"the end of {name} is confirmed", WITHIN_S)
        return await self.pod(name)

    async def logged(self, name: str, text: str) -> None:
        """Wait until the pod's log is this text."""

        async def is_there() -> bool:
            return (await self.log(name))[1] == text

        await eventually(is_there, f"the log of {name} is {text!r}", WITHIN_S)

    async def log(self, name: str, **query: Any) -> tuple[int, str]:
        """Return the code and the text; of a refusal its message."""
        return await self._kube.text(_path(name, "log"), **query)

    async def follow(self, name: str, **query: Any) -> str:
        """Return the whole log, up to the end of the stream."""
        code, text = await self._kube.text(_path(name, "log"), timeout_s=FOLLOW_S, follow="true", **query)
        assert code == 200, text
        return text

    async def delete(self, name: str, **options: Any) -> Json:
        """Delete the pod and return the server's answer: a later read might show what its node has written since."""
        answer = await self._kube.delete(_path(name), options or None)
        assert answer.code in (200, 202), answer.body
        return answer.body

    async def release(self, name: str) -> None:
        """Remove the pod's finalizers."""
        answer = await self._kube.patch(_path(name), {"metadata": {"finalizers": None}})
        assert answer.code in (200, 404), answer.body

    async def remove(self) -> None:
        """Remove all pods, with their finalizers."""
        for name in self.names:
            if await self.pod(name):
                await self.release(name)
                await self._kube.delete(_path(name), {"gracePeriodSeconds": 0})


def main_of(status: Json) -> Json:
    """The status of the main container."""
    each: list[Json] = [each for each in status.get("containerStatuses", []) if each["name"] == "main"]
    return each[0] if each else {}


def init_of(status: Json) -> Json:
    """The status of the first init container."""
    each: list[Json] = status.get("initContainerStatuses", [])
    return each[0] if each else {}


def terminated(status: Json) -> Json:
    """The end of the main container."""
    return main_of(status)["state"]["terminated"]


def condition(status: Json, type_: str) -> tuple[str, str]:
    """The status and the reason of a condition."""
    found: list[Json] = [each for each in status["conditions"] if each["type"] == type_]
    return (found[0].get("status", ""), found[0].get("reason", "")) if found else ("", "")


def _path(name: str, sub: str = "") -> str:
    return f"/api/v1/namespaces/default/pods/{name}" + (f"/{sub}" if sub else "")


@pytest.fixture(scope="session")
def target() -> Iterator[NodeTarget]:
    with running_node() as found:
        yield found


@pytest.fixture
async def kube(target: NodeTarget) -> AsyncIterator[KubeHttp]:
    client = KubeHttp(target.api)
    yield client
    await client.close()


@pytest.fixture
async def pods(kube: KubeHttp, target: NodeTarget) -> AsyncIterator[Pods]:
    found = Pods(kube, target)
    yield found
    await found.remove()


@pytest.fixture
def real(target: NodeTarget) -> None:
    """Skip a test that needs a container runtime."""
    if not target.is_real:
        pytest.skip("the local cluster's node has processes, no images and no control groups")
