"""The real kubectl, of every version that is on this machine, against the local cluster's API server."""

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from slipway.local.apiserver.core import ClusterCore
from tests.contract.kube.client import KubeHttp
from tests.contract.kube.samples import TWINS
from tests.contract.kube.target import Target, serving

DEADLINE_S = 30.0
ADMIN = "administrator"


def _found() -> list[str]:
    """The kubectl on PATH, and the one that was built with the conformance cluster."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slipway/conformance"
    built = sorted(cache.glob("*/kubectl"), key=lambda path: path.stat().st_mtime)[-1:]
    on_path = shutil.which("kubectl")
    return [*([on_path] if on_path else []), *(str(path) for path in built)]


class KubectlResult(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str


Kubectl = Callable[..., Awaitable[KubectlResult]]


class Command(msgspec.Struct, frozen=True):
    """One kubectl, its kubeconfig and its home."""

    binary: str
    config: Path
    home: Path

    async def start(self, *arguments: str, has_stdin: bool = False, editor: str = "") -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            self.binary,
            *arguments,
            stdin=asyncio.subprocess.PIPE if has_stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                "KUBECONFIG": str(self.config),
                "HOME": str(self.home),
                "PATH": "/usr/bin:/bin",
                "KUBE_EDITOR": editor,
            },
        )

    async def run(
        self, *arguments: str, stdin: list[Any] | None = None, code: int | None = 0, editor: str = ""
    ) -> KubectlResult:
        """Run kubectl. The documents in `stdin` are sent as YAML; `code` is the expected exit code, None for any."""
        process = await self.start(*arguments, has_stdin=stdin is not None, editor=editor)
        sent = None if stdin is None else yaml.safe_dump_all(stdin).encode()
        try:
            async with asyncio.timeout(DEADLINE_S):
                out, err = await process.communicate(sent)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        said = KubectlResult(process.returncode or 0, out.decode(), err.decode())
        assert code is None or said.code == code, said
        return said


class OneLineLogs:
    """A log endpoint for which every container has printed hello."""

    async def read(self, pod: dict[str, Any], node: dict[str, Any], query: Mapping[str, str]) -> AsyncIterator[bytes]:
        yield b""
        yield f"hello from {query.get('container', 'the first container')}\n".encode()


@pytest.fixture
def core() -> ClusterCore:
    core = ClusterCore(clock=time.time, new_uid=lambda: str(uuid.uuid4()), twins=TWINS)  # noqa: TID251
    core.bootstrap()
    return core


@pytest.fixture
def url(core: ClusterCore) -> Iterator[str]:
    with serving(core, logs=OneLineLogs()) as found:
        yield found


@pytest.fixture
async def kube(url: str) -> AsyncIterator[KubeHttp]:
    client = KubeHttp(Target(url=url))
    yield client
    await client.close()


@pytest.fixture(params=_found() or [""], ids=lambda path: Path(path).parent.name or "none")
def binary(request: pytest.FixtureRequest) -> str:
    if not request.param:
        pytest.skip("kubectl is not on PATH")
    return request.param


@pytest.fixture
def command(binary: str, url: str, tmp_path: Path) -> Command:
    return Command(binary, write_config(tmp_path / "kubeconfig", url), tmp_path)


@pytest.fixture
def kubectl(command: Command) -> Kubectl:
    return command.run


def write_config(path: Path, url: str, token: str = "", authority: Path | None = None) -> Path:
    cluster = {"server": url, **({"certificate-authority": str(authority)} if authority else {})}
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": token} if token else {}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "me"}}],
        "current-context": "local",
    }
    path.write_text(yaml.safe_dump(content))
    return path
