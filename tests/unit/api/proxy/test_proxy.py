"""The proxy: to the right place, streamed, and without what does not belong there."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from slipway.api.cluster.seen_nodes import BY_ADDRESS
from slipway.api.http.errors import ForbiddenError
from slipway.api.http.networks import parse_networks
from slipway.api.proxy.target import check_pod_address, is_own
from slipway.api.settings import Settings
from slipway.crd.meta import ObjectMeta
from slipway.kube.objects import Pod, PodSpec, PodStatus
from slipway.kube.resources import NODES, PODS
from slipway.model.ids import AllocationId, pod_name
from slipway.model.lifecycle import Event
from slipway.runtime.http_server import HttpServer
from tests.support.api_world import ApiWorld, api_world
from tests.support.clock import wait_until
from tests.unit.api.auth.test_access_tokens import audit_lines, logged

HTML = {"accept": "text/html"}


@asynccontextmanager
async def served(app: Any, stop: asyncio.Event | None = None) -> AsyncGenerator[int, None]:
    """An ASGI app with WebSockets on a free port of loopback."""
    ending = stop or asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HttpServer(app, [listener], drain_timeout_s=1.0, websockets=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(ending.wait))
            try:
                yield int(listener.getsockname()[1])
            finally:
                ending.set()


class Workload:
    """A workload that answers with the request that it got."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        methods = ["GET", "POST", "PUT", "DELETE"]
        self.app = Starlette(
            routes=[
                WebSocketRoute("/{path:path}", self.echo),
                Route("/{path:path}", self.answer, methods=methods),
            ]
        )

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        if path.endswith("/redirect"):
            return RedirectResponse("/there?x=1")
        if path.endswith("/cookie"):
            wide = {
                "strict-transport-security": "max-age=1",
                "nel": "{}",
                "report-to": "{}",
                "reporting-endpoints": 'a="https://a.example"',
            }
            response = Response("", headers={**wide, "x-own": "1"})
            response.headers.append("set-cookie", "=slipway_session=forged")
            response.headers.append("set-cookie", "slipway_session")
            response.set_cookie("session", "1", path="/", domain="localhost")
            response.set_cookie("slipway_token", "stolen")
            return response
        if path.endswith("/slow"):
            return StreamingResponse(self._slow())
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response()
        raw = request.scope["raw_path"].decode()
        seen = {"path": raw, "query": request.url.query, "size": len(body), "headers": dict(request.headers)}
        return JSONResponse(seen, status_code=201 if request.method == "POST" else 200)

    async def _slow(self) -> AsyncGenerator[bytes, None]:
        yield b"first\n"
        await self.release.wait()
        yield b"second\n"

    async def echo(self, socket: WebSocket) -> None:
        if socket.url.path.endswith("/refused"):
            await socket.close()
            return
        offered = socket.scope["subprotocols"]
        await socket.accept(subprotocol=offered[-1] if offered else None)
        async for text in socket.iter_text():
            if text == "bye":
                await socket.close(4001, "told to")
                return
            await socket.send_text(f"{socket.headers.get('x-forwarded-prefix')} {text}")


@asynccontextmanager
async def a_running_workload(world: ApiWorld, **body: Any) -> AsyncGenerator[tuple[str, Workload], None]:
    """(AllocationID, its workload)."""
    workload = Workload()
    async with served(workload.app) as port:
        answer = await world.launch(ports=[{"name": "http", "port": port}], **body)
        await world.run(answer["name"])
        yield answer["id"], workload


async def test_a_request_gets_there_and_back(world: ApiWorld) -> None:
    """The workload gets the path as it was spelled, the query and the body; the client gets the status and body of the
    answer."""
    async with a_running_workload(world) as (id_, _):
        response = await world.http.post(f"/proxy/{id_}/a%2Fb/c?x=1&x=2", content=b"z" * 100_000)
        seen = response.json()
        assert (response.status_code, seen["path"], seen["query"], seen["size"]) == (
            201,
            "/a%2Fb/c",
            "x=1&x=2",
            100_000,
        )


async def test_a_notebook_sees_the_prefix(world: ApiWorld) -> None:
    """The server of a notebook was started with the prefix as base URL."""
    async with a_running_workload(world, kind="notebook") as (id_, _):
        seen = (await world.http.get(f"/proxy/{id_}/lab")).json()
        assert seen["path"] == f"/proxy/{id_}/lab"
        assert seen["headers"]["x-forwarded-prefix"] == f"/proxy/{id_}"


async def test_declared_ports_are_chosen_by_the_path(world: ApiWorld) -> None:
    """Another number is part of the path, so a port that was not declared cannot be reached."""
    workload = Workload()
    async with served(workload.app) as port, served(Starlette()) as other:
        ports = [{"name": "http", "port": port}, {"name": "other", "port": other}]
        answer = await world.launch(ports=ports)
        await world.run(answer["name"])
        assert (await world.http.get(f"/proxy/{answer['id']}/{port}/x")).json()["path"] == "/x"
        assert (await world.http.get(f"/proxy/{answer['id']}/{other}/x")).status_code == 404
        assert (await world.http.get(f"/proxy/{answer['id']}/22/x")).json()["path"] == "/22/x"


async def test_our_credentials_are_not_forwarded(world: ApiWorld) -> None:
    """Our headers and cookies are not forwarded; hop-by-hop fields end here; forged forwarding fields are replaced."""
    async with a_running_workload(world) as (id_, _):
        headers = {
            "authorization": "Bearer secret",
            "x-slipway-user": "ada",
            "cookie": "a=1; slipway_token=secret; b=2",
            "connection": "keep-alive, x-hop",
            "x-hop": "1",
            "te": "trailers",
            "x-forwarded-for": "6.6.6.6",
            "x-kept": "1",
        }
        seen = (await world.http.get(f"/proxy/{id_}/", headers=headers)).json()["headers"]
        assert "secret" not in str(seen)
        assert seen["cookie"] == "a=1; b=2"
        assert not {"x-hop", "te", "x-slipway-user", "authorization"} & seen.keys()
        assert seen["x-forwarded-for"] == "127.0.0.1"
        assert (seen["x-kept"], seen["host"]) == ("1", "localhost")


async def test_a_workload_cannot_set_headers_for_the_whole_origin(world: ApiWorld) -> None:
    """Cookies are confined to its path, ours cannot be set, policies of the origin are dropped."""
    async with a_running_workload(world) as (id_, _):
        response = await world.http.get(f"/proxy/{id_}/cookie")
        cookies = response.headers.get_list("set-cookie")
        assert len(cookies) == 1
        assert cookies[0].startswith("session=1")
        assert f"Path=/proxy/{id_}/" in cookies[0]
        assert "domain" not in cookies[0].lower()
        wide = {"strict-transport-security", "nel", "report-to", "reporting-endpoints"}
        assert not wide & response.headers.keys()
        assert response.headers["x-own"] == "1"


async def test_redirects_stay_below_the_prefix(world: ApiWorld) -> None:
    """A workload that knows no prefix redirects to `/there`."""
    async with a_running_workload(world) as (id_, _):
        response = await world.http.get(f"/proxy/{id_}/redirect")
        assert (response.status_code, response.headers["location"]) == (307, f"/proxy/{id_}/there?x=1")


async def test_short_ids_and_missing_slashes_are_redirected(world: ApiWorld) -> None:
    """Links and cookies of a page belong under the whole id."""
    async with a_running_workload(world, name="llm") as (id_, _):
        slash = await world.http.get(f"/proxy/{id_}?a=1")
        short = await world.http.get("/proxy/llm/x?a=1")
        assert (slash.status_code, slash.headers["location"]) == (307, f"http://localhost/proxy/{id_}/?a=1")
        assert (short.status_code, short.headers["location"]) == (307, f"http://localhost/proxy/{id_}/x?a=1")


async def test_the_page_of_a_port_gets_its_slash(world: ApiWorld) -> None:
    """Without the slash, a browser looks for `style.css` of the port at the default port."""
    async with served(Workload().app) as port:
        answer = await world.launch(ports=[{"name": "http", "port": port}])
        await world.run(answer["name"])
        id_ = answer["id"]
        page = await world.http.get(f"/proxy/{id_}/{port}?a=1", headers={"accept": "text/html"})
        assert (page.status_code, page.headers["location"]) == (307, f"http://localhost/proxy/{id_}/{port}/?a=1")
        assert (await world.http.get(f"/proxy/{id_}/{port}")).status_code == 200


@pytest.mark.parametrize("path", ["a%2Fb", "50%25%20done", "what%3F", "%E6%97%A5?x=%26y"])
async def test_a_redirect_spells_the_path_as_the_client_did(world: ApiWorld, path: str) -> None:
    """A file of a notebook may have a percent sign or a slash in the name of it."""
    async with a_running_workload(world, name="llm") as (id_, _):
        answer = await world.http.get(f"/proxy/llm/{path}")
        assert answer.headers["location"] == f"http://localhost/proxy/{id_}/{path}"


async def test_answers_are_streamed(world: ApiWorld) -> None:
    """The first bytes arrive before the last are made."""
    async with (
        a_running_workload(world) as (id_, workload),
        served(world.app) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        client.stream("GET", f"/proxy/{id_}/slow") as response,
    ):
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"first\n"
        workload.release.set()
        assert await anext(chunks) == b"second\n"


async def test_a_client_that_leaves_ends_the_request(world: ApiWorld) -> None:
    """The request to the workload does not go on without its client."""
    async with (
        a_running_workload(world) as (id_, _),
        served(world.app) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        async with client.stream("GET", f"/proxy/{id_}/slow") as response:
            await anext(response.aiter_raw())
            assert world.parts.open_streams.count == 1
        await wait_until(lambda: world.parts.open_streams.count == 0, "the proxied request to end")


@pytest.mark.parametrize("sent", [0, 10])
async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_fault_of_ours(
    world: ApiWorld, caplog: pytest.LogCaptureFixture, sent: int
) -> None:
    """No traceback is logged for what every browser does when a page is closed."""
    caplog.set_level(logging.INFO)
    async with a_running_workload(world) as (id_, _), served(world.app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /proxy/{id_}/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
        writer.write(head.encode() + b"z" * sent)
        await wait_until(lambda: world.parts.open_streams.count == 1, "the request to be under way")
        writer.transport.abort()
        await wait_until(lambda: world.parts.open_streams.count == 0, "its end")
        await wait_until(lambda: "request" in caplog.messages, "its line in the log")
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_websocket_goes_both_ways(world: ApiWorld) -> None:
    """Messages go both ways; the subprotocol and the close code are those of the workload."""
    offered = [Subprotocol("a"), Subprotocol("b")]
    async with (
        a_running_workload(world) as (id_, _),
        served(world.app) as port,
        connect(f"ws://127.0.0.1:{port}/proxy/{id_}/x", subprotocols=offered, proxy=None) as ws,
    ):
        assert ws.subprotocol == "b"
        await ws.send("hello")
        assert await ws.recv() == f"/proxy/{id_} hello"
        await ws.send("bye")
        with pytest.raises(ConnectionClosed):
            await ws.recv()
        assert (ws.close_code, ws.close_reason) == (4001, "told to")


async def test_a_websocket_ends_with_its_client_and_with_the_process(world: ApiWorld) -> None:
    """The connection does not stay open without its client; a drain closes it with `going away`."""
    async with a_running_workload(world) as (id_, _), served(world.app) as port:
        url = f"ws://127.0.0.1:{port}/proxy/{id_}/x"
        async with connect(url, proxy=None):
            assert world.parts.open_streams.count == 1
        await wait_until(lambda: world.parts.open_streams.count == 0, "the first one to end")
        async with connect(url, proxy=None) as ws:
            world.stop.set()
            with pytest.raises(ConnectionClosed):
                await ws.recv()
            assert ws.close_code == 1001


@pytest.mark.parametrize(("path", "origin", "status"), [("refused", None, 403), ("x", "https://evil.example", 403)])
async def test_a_refused_websocket_is_refused_here(world: ApiWorld, path: str, origin: Any, status: int) -> None:
    """A WebSocket is refused when the workload refuses it, or when the page is of another origin."""
    async with a_running_workload(world) as (id_, _), served(world.app) as port:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{port}/proxy/{id_}/{path}", origin=origin, proxy=None):
                pass
        assert refused.value.response.status_code == status


async def test_the_audit_line_has_the_status_of_the_answer(world: ApiWorld) -> None:
    """The status is that of the workload, also where it refuses a WebSocket."""
    async with a_running_workload(world) as (id_, _), served(world.app) as port:
        with logged() as stream:
            await world.http.post(f"/proxy/{id_}/a")
            with pytest.raises(InvalidStatus):
                async with connect(f"ws://127.0.0.1:{port}/proxy/{id_}/refused", proxy=None):
                    pass
            async with connect(f"ws://127.0.0.1:{port}/proxy/{id_}/x", proxy=None):
                pass
            await wait_until(lambda: len(audit_lines(stream)) == 3, "the lines of the three calls")
    assert [(method, status) for method, _, status in audit_lines(stream)] == [
        ("POST", 201),
        ("WEBSOCKET", 403),
        ("WEBSOCKET", 101),
    ]


async def test_proxied_traffic_is_activity(world: ApiWorld) -> None:
    """A request keeps an allocation from being idle; this is noted seldom."""
    async with a_running_workload(world) as (id_, _):
        for _ in range(5):
            await world.http.get(f"/proxy/{id_}/")
        await world.parts.behind.flush()
        (activity,) = await world.streams.activity.read([id_])  # pyright: ignore[reportArgumentType]
        assert abs(activity["proxy"] - world.clock.now()) < 60


async def test_a_workload_that_is_not_there_yet(world: ApiWorld) -> None:
    """The answer is 503 with the reason: a problem for programs, a page that reloads for browsers."""
    answer = (await world.post("/notebooks", {})).json()
    await world.explain(answer["name"], "NoFit", "0 of 2 nodes <fit>")
    problem = await world.http.get(f"/proxy/{answer['id']}/")
    page = await world.http.get(f"/proxy/{answer['id']}/", headers=HTML)
    assert (problem.status_code, problem.json()["code"]) == (503, "not-running")
    assert "0 of 2 nodes <fit>" in problem.json()["detail"]
    assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert "0 of 2 nodes &lt;fit&gt;" in page.text
    assert 'http-equiv="refresh"' in page.text
    assert page.headers["retry-after"] == problem.headers["retry-after"] == "2"


async def test_a_server_that_is_still_starting(world: ApiWorld) -> None:
    """The pod runs and nothing listens: the answer is 503 too, and the target is looked up anew."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    answer = await world.launch(ports=[{"name": "http", "port": port}])
    await world.run(answer["name"])
    assert (await world.http.get(f"/proxy/{answer['id']}/")).status_code == 503
    page = await world.http.get(f"/proxy/{answer['id']}/", headers=HTML)
    assert (page.status_code, "text/html" in page.headers["content-type"]) == (503, True)


async def test_a_workload_that_has_ended(world: ApiWorld) -> None:
    """The answer is 410, because there is nothing to wait for."""
    answer = (await world.post("/notebooks", {})).json()
    await world.step(answer["name"], Event.TERMINATED)
    assert (await world.http.get(f"/proxy/{answer['id']}/")).status_code == 410
    page = await world.http.get(f"/proxy/{answer['id']}/", headers=HTML)
    assert (page.status_code, "refresh" in page.text) == (410, False)


async def test_a_pod_that_the_release_does_not_name_is_no_target(world: ApiWorld) -> None:
    """A pod is not trusted by its name alone."""
    workload = Workload()
    async with served(workload.app) as port:
        answer = await world.launch(ports=[{"name": "http", "port": port}])
        await world.step(answer["name"], Event.ASSIGNED)
        found = await world.step(answer["name"], Event.RUNNING)
        await world.a_pod(found, 0, role="worker", ip="127.0.0.1", node="n1")
        assert (await world.http.get(f"/proxy/{answer['id']}/")).status_code == 503


NO_PLACE_OF_A_POD = {
    "127.0.0.1": "own machine",
    "::1": "own machine",
    "::ffff:127.0.0.1": "own machine",
    "0.0.0.0": "own machine",
    "64:ff9b::7f00:1": "own machine",
    "169.254.169.254": "link-local",
    "fe80::1": "link-local",
    "fe80::1%lo": "which is not valid",
    "fd00:ec2::254": "metadata",
    "fd00:ec2::23": "metadata",
    "fd00:ec2::254%1": "which is not valid",
    "fd00:c1::a9fe:a9fe": "metadata",
    "fd00:42::42": "metadata",
    "fd20:ce::254": "metadata",
    "100.100.100.200": "metadata",
    "::ffff:100.100.100.200": "metadata",
    "168.63.129.16": "metadata",
    "192.0.0.192": "metadata",
    "::ffff:a9fe:a9fe": "link-local",
    "64:ff9b::a9fe:a9fe": "link-local",
    "2002:a9fe:a9fe::": "link-local",
    "64:ff9b:1::a9fe:a9fe": "a translated address",
    "::169.254.169.254": "a translated address",
    "::ffff:0:169.254.169.254": "a translated address",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": "a translated address",
    "0.0.0.1": "a multicast or reserved address",
    "224.0.0.1": "a multicast or reserved address",
    "255.255.255.255": "a multicast or reserved address",
    "10.9.9.9": "of its own node",
    "::ffff:10.9.9.9": "of its own node",
    "64:ff9b::10.9.9.9": "of its own node",
    "10.7.7.7": "that of a node",
    "::ffff:10.7.7.7": "that of a node",
    "fd07::7": "that of a node",
    "fd07:0::0:7": "that of a node",
    "10.8.8.8": "own machine",
    "::ffff:10.8.8.8": "own machine",
    "kubernetes.default": "which is not valid",
}
NODES_HAVE = ("10.7.7.7", "fd07::7")


def check(pod: Pod, *allowed: str) -> None:
    """Check a pod's address as the api at 10.8.8.8 does, with nodes at NODES_HAVE."""
    check_pod_address(
        pod,
        parse_networks(allowed),
        is_a_nodes=lambda address: address in NODES_HAVE,
        is_ours=lambda address: str(address) == "10.8.8.8",
    )


@pytest.mark.parametrize("address", NO_PLACE_OF_A_POD)
def test_the_proxy_leads_to_addresses_of_pods_only(address: str) -> None:
    """A forged address of a pod does not make the api connect to its own machine, a node or a cloud's metadata.

    This holds however the address is spelled.
    """
    status = PodStatus(phase="Running", pod_ip=address, host_ip="10.9.9.9")
    with pytest.raises(ForbiddenError, match=NO_PLACE_OF_A_POD[address]):
        check(Pod(metadata=ObjectMeta(name="p"), status=status))


def test_a_node_address_is_recognised_in_every_spelling() -> None:
    """The node's own address is refused also where the node's status spells it as IPv6 and the pod's does not."""
    status = PodStatus(phase="Running", pod_ip="10.9.9.9", host_ip="::ffff:10.9.9.9")
    with pytest.raises(ForbiddenError, match="of its own node"):
        check(Pod(metadata=ObjectMeta(name="p"), status=status))


def test_this_machine_knows_its_addresses() -> None:
    """Loopback addresses are among them; addresses for documentation are not."""
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("192.0.2.1"))
    assert not is_own(ipaddress.ip_address("198.51.100.1"))


async def test_the_proxy_leads_to_no_node_that_the_api_knows() -> None:
    """A pod whose status has another node's address is refused; nothing is connected to."""
    async with api_world(Settings(proxy_networks=("127.0.0.0/8",))) as world:
        node = await world.kube.get(NODES, "n2")
        meta = {"name": "n2", "resourceVersion": node.metadata.resource_version}
        status = {"addresses": [{"type": "Hostname", "address": "n2"}, {"type": "InternalIP", "address": "10.7.7.7"}]}
        await world.kube.replace_status(NODES, {"metadata": meta, "status": status})
        await wait_until(lambda: world.parts.nodes.store.count(BY_ADDRESS, "10.7.7.7") == 1, "the node to be known")
        answer = await world.launch(ports=[{"name": "http", "port": 8080}])
        await world.run(answer["name"], ip="::ffff:10.7.7.7")
        refused = await world.http.get(f"/proxy/{answer['id']}/x")
        assert (refused.status_code, "that of a node" in refused.json()["detail"]) == (403, True)


def test_a_pod_of_the_hosts_network_is_no_place_of_a_pod() -> None:
    """The address of such a pod is the node's, where kubelets and others listen; it is refused also where the status
    has no host address."""
    pod = Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(host_network=True), status=PodStatus(pod_ip="10.1.2.3"))
    with pytest.raises(ForbiddenError, match="of its own node"):
        check(pod)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.1.2.3", ()),
        ("fd12::7", ()),
        ("240.0.1.2", ()),
        ("100.64.1.2", ()),
        ("127.0.0.1", ("127.0.0.0/8",)),
        ("10.9.9.9", ("10.9.0.0/16",)),
        ("10.7.7.7", ("10.7.0.0/16",)),
        ("100.100.100.200", ("100.64.0.0/10",)),
    ],
)
def test_pods_and_what_an_operator_names_are_reached(address: str, allowed: tuple[str, ...]) -> None:
    """Private addresses and those of class E are where pods live; a named network is reached, whatever it is."""
    status = PodStatus(phase="Running", pod_ip=address, host_ip="10.9.9.9")
    check(Pod(metadata=ObjectMeta(name="p"), status=status), *allowed)


async def test_an_address_that_is_no_pods_is_refused_by_every_way() -> None:
    """The answer is 403 with the setting that would allow it; nothing was connected to."""
    workload = Workload()
    async with api_world(Settings(proxy_networks=("10.0.0.0/8",))) as world, served(workload.app) as port:
        answer = await world.launch(ports=[{"name": "http", "port": port}])
        await world.run(answer["name"])
        refused = await world.http.get(f"/proxy/{answer['id']}/x")
        assert (refused.status_code, "SLIPWAY_PROXY_NETWORKS" in refused.json()["detail"]) == (403, True)
        async with served(world.app) as own:
            with pytest.raises(InvalidStatus) as told:
                async with connect(f"ws://127.0.0.1:{own}/proxy/{answer['id']}/x", proxy=None):
                    pass
            assert told.value.response.status_code == 403


async def taken_over(world: ApiWorld, id_: str, how: str) -> None:
    """Change the pod between its look-up and the connection to its address."""
    pod = await world.kube.get(PODS, pod_name(AllocationId(id_), 1, 0), namespace="default")
    if how == "gone":
        await world.kube.delete(PODS, pod.metadata.name, namespace="default", uid=pod.metadata.uid, grace_s=0)
        return
    meta = {"name": pod.metadata.name, "namespace": "default", "resourceVersion": pod.metadata.resource_version}
    ip = "127.0.0.99" if how == "elsewhere" else pod.status.pod_ip
    status = {"phase": "Succeeded" if how == "ended" else "Running", "podIP": ip}
    await world.kube.replace_status(PODS, {"metadata": meta, "status": status})


@pytest.mark.parametrize("how", ["gone", "ended", "elsewhere"])
async def test_an_address_that_passed_to_another_pod_is_sent_nothing(world: ApiWorld, how: str) -> None:
    """By HTTP, WebSocket and tunnel: the process that listens there now gets a connection, and not one byte."""
    heard: list[bytes] = []
    connected = 0

    async def another(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        heard.append(await reader.read())
        writer.close()

    listening = await asyncio.start_server(another, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    launched = await world.launch(ports=[{"name": "http", "port": port}])
    await world.run(launched["name"])
    id_ = launched["id"]
    await world.parts.targets.find(id_, b"/", b"")  # the place is known for a second
    await taken_over(world, id_, how)
    answer = await world.http.post(f"/proxy/{id_}/", content=b"secret")
    assert (answer.status_code, answer.json()["code"]) == (503, "not-running")
    assert "nothing was sent" in answer.json()["detail"]
    async with served(world.app) as own:
        for protocol in (None, [Subprotocol("tcp.v1.slipway.dev")]):
            await world.parts.targets.find(id_, b"/", b"")
            with pytest.raises(InvalidStatus):
                async with connect(f"ws://127.0.0.1:{own}/proxy/{id_}/", subprotocols=protocol, proxy=None):
                    pass
    listening.close()
    await wait_until(lambda: len(heard) == connected, "the connections to be closed")
    assert connected >= 1
    assert b"".join(heard) == b""


async def test_a_request_names_the_pod_that_is_meant(world: ApiWorld) -> None:
    """The request has the uid of the release; a value that the client sends is not passed on."""
    async with a_running_workload(world) as (id_, _):
        seen = (await world.http.get(f"/proxy/{id_}/x", headers={"X-Slipway-Pod-Uid": "forged"})).json()
        pod = await world.kube.get(PODS, pod_name(AllocationId(id_), 1, 0), namespace="default")
        assert seen["headers"]["x-slipway-pod-uid"] == pod.metadata.uid


async def test_a_workload_without_ports_is_404(world: ApiWorld) -> None:
    """The detail says how to serve."""
    answer = await world.launch()
    response = await world.http.get(f"/proxy/{answer['id']}/")
    assert response.status_code == 404
    assert "launch it with ports" in response.json()["detail"]
