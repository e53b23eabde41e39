"""Health, version, discovery, OpenAPI, reviews."""

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import eventually
from tests.contract.kube.samples import GROUP, VERSION


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
async def test_health(kube: KubeHttp, path: str) -> None:
    """Health checks return 200 `ok`."""
    answer = await kube.get(path)
    assert (answer.code, answer.body.get("text")) == (200, "ok")


async def test_version(kube: KubeHttp) -> None:
    """The version is a Kubernetes version of major 1."""
    answer = await kube.get("/version")
    assert answer.body["major"] == "1"
    assert answer.body["gitVersion"].startswith("v1.")


@pytest.mark.usefixtures("widgets")
async def test_groups_and_resources(kube: KubeHttp) -> None:
    """Custom groups and their resources are discovered, with status subresource and verbs."""
    groups = (await kube.get("/apis")).body["groups"]
    assert GROUP in [group["name"] for group in groups]
    found = (await kube.get(f"/apis/{GROUP}/{VERSION}")).body["resources"]
    by_name = {resource["name"]: resource for resource in found}
    assert by_name["widgets"]["kind"] == "Widget"
    assert set(by_name["widgets"]["verbs"]) >= {"create", "delete", "get", "list", "patch", "update", "watch"}
    assert "widgets/status" in by_name


async def test_core_resources(kube: KubeHttp) -> None:
    """The core group lists what the system uses."""
    names = {resource["name"] for resource in (await kube.get("/api/v1")).body["resources"]}
    assert names >= {"pods", "pods/binding", "pods/log", "pods/status", "configmaps", "namespaces", "events", "nodes"}


async def test_aggregated_discovery(kube: KubeHttp) -> None:
    """Aggregated discovery returns one document for all groups, when the client accepts it."""
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    answer = await kube.get("/apis", accept=accept)
    assert answer.body["kind"] == "APIGroupDiscoveryList"
    assert "coordination.k8s.io" in [item["metadata"]["name"] for item in answer.body["items"]]


@pytest.mark.usefixtures("widgets")
async def test_openapi_has_the_custom_kind(kube: KubeHttp) -> None:
    """/openapi/v3 leads to a document whose schema names the group, version and kind."""
    path = f"apis/{GROUP}/{VERSION}"

    async def is_there() -> bool:
        return path in (await kube.get("/openapi/v3")).body["paths"]

    # A server describes a new kind some time after it begins to serve it.
    await eventually(is_there, f"{path} described")
    index = (await kube.get("/openapi/v3")).body["paths"]
    document = (await kube.get(index[path]["serverRelativeURL"])).body
    kinds = [
        entry["kind"]
        for schema in document["components"]["schemas"].values()
        for entry in schema.get("x-kubernetes-group-version-kind", [])
    ]
    assert "Widget" in kinds


async def test_access_review(kube: KubeHttp) -> None:
    """SelfSubjectAccessReview returns whether the caller may do it."""
    spec = {"resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    answer = await kube.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert (answer.code, answer.body["status"]["allowed"]) == (201, True)


@pytest.mark.parametrize(
    "path",
    [
        "/apis/apps/v1/namespaces",
        "/apis/authorization.k8s.io/v1/namespaces",
        "/apis/authorization.k8s.io/v1/namespaces/default",
        "/apis/authorization.k8s.io/v9/subjectaccessreviews",
        "/apis/authorization.k8s.io/v1/other/default/subjectaccessreviews",
    ],
)
async def test_create_at_a_path_of_no_resource_is_404(kube: KubeHttp, path: str) -> None:
    """Namespaces belong to the core group only; a review has one version, and one path."""
    assert (await kube.post(path, {"spec": {"user": "u", "nonResourceAttributes": {"path": "/"}}})).code == 404
