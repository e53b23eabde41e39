"""The two servers: the model in this process, and a real kube-apiserver with etcd.

Owns how a request reaches either. No controllers run on either side: only the answers of the API itself are compared,
and nothing changes between two of them.
"""

import ssl
import tempfile
import uuid
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from yarl import URL

from slipway.crd.rules import TWINS
from slipway.local.apiserver import routes
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.http import AccessOptions, ApiServer
from slipway.local.apiserver.status import StatusError
from slipway.runtime.clock import SystemClock
from tests.conformance.cluster.servers import ClusterOptions, RealCluster, running_cluster
from tests.contract.kube.conftest import eventually
from tests.models.kubernetes.operations import Answer, Json, Request

CRDS = Path(__file__).resolve().parents[3] / "helm" / "files" / "crds"
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGENT = "sequences/1"
DEADLINE_S = 120.0
WATCH_S = 3600
SERVED_S = 30.0
_BARE = ClusterOptions(
    controller_manager=False,
    scheduler=False,
    audit=False,
    more={"etcd": ["--unsafe-no-fsync"], "apiserver": ["--disable-admission-plugins=TaintNodesByCondition"]},
)


class Model:
    """The core behind its own HTTP layer, without a socket."""

    def __init__(self) -> None:
        self.core = ClusterCore(clock=SystemClock().now, new_uid=lambda: str(uuid.uuid4()), twins=TWINS)
        self.core.bootstrap()
        for definition in definitions():
            self.core.create("customresourcedefinitions.apiextensions.k8s.io", "", definition)
        self._server = ApiServer(self.core, doors=AccessOptions())

    def ask(self, request: Request) -> Answer:
        """Make one request, answered at once; not called in a running loop, so that no controller runs."""
        sent = list[Json]()
        body = iter([{"type": "http.request", "body": request.body}])

        async def receive() -> Json:
            return next(body)

        async def send(message: Any) -> None:
            sent.append(message)

        scope: Json = {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "query_string": request.query.encode(),
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", request.media.encode()),
                (b"user-agent", AGENT.encode()),
            ],
        }
        _run_at_once(self._server(scope, receive, send))
        return Answer(sent[0]["status"], msgspec.json.decode(b"".join(part.get("body", b"") for part in sent[1:])))

    def watch(self, request: Request) -> list[Json]:
        """The events of a watch until now."""
        query = dict(URL(f"/?{request.query}", encoded=True).query)
        target = routes.resolve(self.core.registry, request.path)
        wanted = routes.list_query(query)
        try:
            events = self.core.watch_since(
                target.kind.key, wanted.version, target.namespace, labels=wanted.labels, fields=wanted.fields
            )
        except StatusError as error:
            return [{"type": "ERROR", "object": error.to_json()}]
        return [{"type": event.type, "object": msgspec.json.decode(msgspec.json.encode(event.obj))} for event in events]


class Real:
    """A kube-apiserver, called over one pool of connections."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def ask(self, request: Request) -> Answer:
        headers = {"content-type": request.media, "user-agent": AGENT}
        target = URL(f"{self._url}{request.path}?{request.query}", encoded=True)
        data = request.body or None
        async with self._session.request(request.method, target, data=data, headers=headers) as answer:
            return Answer(answer.status, msgspec.json.decode(await answer.read()))

    async def watch(self, request: Request, told: Callable[[Json], None]) -> None:
        """Yield the events of a watch until the caller ends it."""
        more = f"{request.query}&timeoutSeconds={WATCH_S}&allowWatchBookmarks=true"
        target = URL(f"{self._url}{request.path}?{more}", encoded=True)
        patience = aiohttp.ClientTimeout(total=None)
        async with self._session.get(target, headers={"user-agent": AGENT}, timeout=patience) as answer:
            if answer.status != 200:
                told({"type": "REFUSED", "object": msgspec.json.decode(await answer.read())})
                return
            async for line in answer.content:
                event: Json = msgspec.json.decode(line)
                if event["type"] != "BOOKMARK":
                    told(event)

    async def define(self) -> None:
        """Create the definitions of our kinds, and wait until they are served."""
        for definition in definitions():
            body = msgspec.json.encode(definition)
            await self.ask(Request("POST", CRD_PATH, "", body, "application/json"))
        for definition in definitions():
            spec: Json = definition["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            await eventually(lambda path=path: self._serves(path), path, within_s=SERVED_S)

    async def _serves(self, path: str) -> bool:
        return (await self.ask(Request("GET", path, "", b"", "application/json"))).code == 200


def definitions() -> list[Json]:
    """Our CRDs."""
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(CRDS.glob("*.yaml"))]


@contextmanager
def real_cluster() -> Generator[RealCluster]:
    """A control plane for the run: an API server and etcd, nothing else."""
    with (
        tempfile.TemporaryDirectory(prefix="slipway-models-") as folder,
        running_cluster(Path(folder) / "cluster", _BARE) as cluster,
    ):
        yield cluster


def session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """The HTTP client of `Real`."""
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    return aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(sock_read=DEADLINE_S), read_bufsize=2**20, trust_env=False
    )


def _run_at_once(work: Coroutine[Any, Any, None]) -> None:
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("the model waited for something")
