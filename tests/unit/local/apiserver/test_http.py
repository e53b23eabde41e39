"""What only the HTTP side does: bookmarks, expiry inside a stream, tokens, logs, shutdown."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.logs import LOG_ENDPOINT
from slipway.local.apiserver.status import bad_request
from tests.contract.kube.client import KubeHttp
from tests.contract.kube.samples import a_config, a_pod
from tests.contract.kube.target import Target, serving
from tests.unit.local.apiserver.support import a_core

Json = dict[str, Any]
CONFIGS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


class FewLines:
    """A log of two chunks; container `none` is refused."""

    async def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        if query.get("container") == "none":
            raise bad_request(f"container none is not valid for pod {pod['metadata']['name']}")
        yield b""
        yield b"one\n"
        yield f"two on {node['metadata']['name']} tail={query.get('tailLines', '')}\n".encode()


@pytest.fixture
def core() -> ClusterCore:
    return a_core(history_limit=4)


@pytest.fixture
def url(core: ClusterCore) -> Iterator[str]:
    with serving(core, logs=FewLines(), bookmark_interval_s=0.05) as found:
        yield found


@pytest.fixture
async def kube(url: str) -> AsyncIterator[KubeHttp]:
    client = KubeHttp(Target(url=url))
    yield client
    await client.close()


async def test_bookmarks_tell_how_far_the_watch_is(kube: KubeHttp) -> None:
    """With allowWatchBookmarks an idle watch receives the newest version of all resources."""
    version = (await kube.get(CONFIGS)).version
    async with kube.watch(CONFIGS, resourceVersion=version, allowWatchBookmarks="true") as events:
        other = await kube.post(PODS, a_pod())
        while True:
            event = await events.next()
            assert event["type"] == "BOOKMARK"
            assert event["object"]["kind"] == "ConfigMap"
            if event["object"]["metadata"]["resourceVersion"] == other.version:
                break


async def test_expired_version_is_an_error_event(kube: KubeHttp) -> None:
    """A watch of an expired version gets HTTP 200, one ERROR event with a 410 Status, and the end."""
    version = (await kube.post(CONFIGS, a_config())).version
    for number in range(20):
        await kube.patch(f"{CONFIGS}/c", {"data": {"a": str(number)}})
    async with kube.watch(CONFIGS, resourceVersion=version) as events:
        found = await events.rest()
    assert [(event["type"], event["object"]["code"], event["object"]["reason"]) for event in found] == [
        ("ERROR", 410, "Expired")
    ]


async def test_watch_as_a_table(kube: KubeHttp) -> None:
    """For `kubectl get -w` each event contains a Table of one row."""
    version = (await kube.get(CONFIGS)).version
    await kube.post(CONFIGS, a_config(data={"a": "1"}))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    answer = await kube.get(CONFIGS, accept=accept, watch="true", resourceVersion=version, timeoutSeconds="1")
    assert answer.body["type"] == "ADDED"
    assert answer.body["object"]["rows"][0]["cells"][:2] == ["c", 1]


async def test_token_is_demanded(core: ClusterCore) -> None:
    """With a token set, a call without it is 401; health stays open."""
    with serving(core, token="secret") as url:
        stranger = KubeHttp(Target(url=url))
        friend = KubeHttp(Target(url=url, headers={"authorization": "Bearer secret"}))
        codes = [
            (await stranger.get(CONFIGS)).code,
            (await friend.get(CONFIGS)).code,
            (await stranger.get("/livez")).code,
        ]
        await stranger.close()
        await friend.close()
    assert codes == [401, 200, 200]


async def _bound_pod(kube: KubeHttp) -> None:
    node = {"metadata": {"name": "n", "annotations": {LOG_ENDPOINT: "http://127.0.0.1:1"}}}
    assert (await kube.post("/api/v1/nodes", node)).code == 201
    assert (await kube.post(PODS, a_pod())).code == 201
    assert (await kube.post(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"name": "n"}})).code == 201


async def test_log_is_read_from_the_pods_node(kube: KubeHttp) -> None:
    """A log is read from the pod's node with the query; a refusal before the first chunk has its own status."""
    await _bound_pod(kube)
    answer = await kube.get(f"{PODS}/p/log", tailLines="2")
    refused = await kube.get(f"{PODS}/p/log", container="none")
    assert refused.code == 400
    assert answer.body["text"] == "one\ntwo on n tail=2\n"
    assert answer.headers["content-type"] == "text/plain"


async def test_log_of_an_unbound_pod_is_no_content(kube: KubeHttp) -> None:
    """The log of an unbound pod is 204, because it runs on no node."""
    await kube.post(PODS, a_pod())
    assert (await kube.get(f"{PODS}/p/log")).code == 204


async def test_log_endpoint_that_is_away_is_a_server_error(core: ClusterCore) -> None:
    """When the log endpoint of a node is away the answer is 502, not an empty log."""
    with serving(core) as url:
        kube = KubeHttp(Target(url=url))
        await _bound_pod(kube)
        answer = await kube.get(f"{PODS}/p/log")
        await kube.close()
    assert answer.code == 502


async def test_objects_as_metadata_only(kube: KubeHttp) -> None:
    """Objects are returned as metadata with as=PartialObjectMetadataList."""
    await kube.post(CONFIGS, a_config(data={"a": "1"}))
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    answer = await kube.get(CONFIGS, accept=accept)
    assert answer.body["kind"] == "PartialObjectMetadataList"
    assert [sorted(item) for item in answer.body["items"]] == [["apiVersion", "kind", "metadata"]]


async def test_yaml_bodies_are_read(kube: KubeHttp) -> None:
    """Bodies with application/yaml are read."""
    body = b"metadata:\n  name: y\ndata:\n  a: '1'\n"
    answer = await kube.send_raw("POST", CONFIGS, body, "application/yaml")
    assert (answer.code, answer.body["data"]) == (201, {"a": "1"})


async def test_unknown_method_is_not_allowed(kube: KubeHttp) -> None:
    """An unknown method gets 405 with a Status."""
    answer = await kube.send_raw("OPTIONS", CONFIGS, b"", "application/json")
    assert (answer.code, answer.reason) == (405, "MethodNotAllowed")


async def test_a_command_in_a_container_needs_a_websocket(kube: KubeHttp) -> None:
    """A command in a container requires a WebSocket: a client with only SPDY gets the refusal of a real API server at
    once."""
    await kube.post(PODS, a_pod())
    name = a_pod()["metadata"]["name"]
    for answer in (await kube.get(f"{PODS}/{name}/exec"), await kube.post(f"{PODS}/{name}/exec", {})):
        assert (answer.code, answer.body["message"]) == (400, "Upgrade request required")


@pytest.mark.parametrize("way", ["attach", "portforward"])
async def test_there_is_no_other_way_into_a_container(kube: KubeHttp, way: str) -> None:
    """Other ways into a container are refused at once, as docs/local-cluster.md says, and do not wait."""
    await kube.post(PODS, a_pod())
    name = a_pod()["metadata"]["name"]
    for answer in (await kube.get(f"{PODS}/{name}/{way}"), await kube.post(f"{PODS}/{name}/{way}", {})):
        assert answer.code in (404, 405)


async def test_bad_numbers_are_refused(kube: KubeHttp) -> None:
    """Values of limit, timeoutSeconds and resourceVersion that are no numbers are refused."""
    for name in ("limit", "resourceVersion"):
        assert (await kube.get(CONFIGS, **{name: "x"})).code == 400
    assert (await kube.get(CONFIGS, watch="1", timeoutSeconds="x")).code == 400
    assert (await kube.post(CONFIGS, a_config(), dryRun="Some")).code == 422
