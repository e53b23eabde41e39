"""Authorization: roles and bindings, refusals, and reviews of both."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import Json, a_config
from tests.contract.kube.target import Target

RBAC = "/apis/rbac.authorization.k8s.io/v1"
REVIEWS = "/apis/authorization.k8s.io/v1"
SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
READ_CONFIGS: Json = {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps"]}


class ServiceAccountClient:
    """A service account with a token, and a client that has no other credentials."""

    def __init__(self, kube: KubeHttp, ns: NamespacePaths, target: Target) -> None:
        self.kube = kube
        self.ns = ns
        self._target = target
        self.me = kube

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.ns.name}:robot"

    async def start(self) -> None:
        made = await self.kube.post(self.ns.of("serviceaccounts"), {"metadata": {"name": "robot"}})
        assert made.code == 201, made.body
        issued = await self.kube.post(self.ns.of("serviceaccounts", "robot", "token"), {"spec": {}})
        assert issued.code == 201, issued.body
        self.me = KubeHttp(self._target.as_bearer(issued.body["status"]["token"]))

    async def allow(self, *rules: Json, name: str = "r") -> None:
        """Create a Role with these rules, bound to the account."""
        await self.post_role(*rules, name=name)
        await self.bind("Role", name)

    async def post_role(self, *rules: Json, name: str = "r") -> Reply:
        return await self.kube.post(self.rbac("roles"), {"metadata": {"name": name}, "rules": list(rules)})

    async def bind(self, kind: str, role: str) -> Reply:
        subject = {"kind": "ServiceAccount", "name": "robot", "namespace": self.ns.name}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        body = {"metadata": {"name": f"{role}-bound"}, "roleRef": reference, "subjects": [subject]}
        return await self.kube.post(self.rbac("rolebindings"), body)

    def rbac(self, plural: str, name: str = "") -> str:
        base = f"{RBAC}/namespaces/{self.ns.name}/{plural}"
        return f"{base}/{name}" if name else base

    async def review(self, **wanted: Any) -> Json:
        """Return the status of a SubjectAccessReview about the account in its namespace."""
        attributes = {"namespace": self.ns.name, **wanted}
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{self.ns.name}", "system:authenticated"]
        spec = {"user": self.user, "groups": groups, "resourceAttributes": attributes}
        answer = await self.kube.post(f"{REVIEWS}/subjectaccessreviews", {"spec": spec})
        assert answer.code == 201, answer.body
        return answer.body["status"]

    async def wait_until(self, *, allowed: bool, **wanted: Any) -> Json:
        async def check() -> bool:
            return (await self.review(**wanted))["allowed"] is allowed

        await eventually(check, f"{wanted} is allowed: {allowed}")
        return await self.review(**wanted)


@pytest.fixture
async def service_account(kube: KubeHttp, ns: NamespacePaths, target: Target) -> AsyncIterator[ServiceAccountClient]:
    made = ServiceAccountClient(kube, ns, target)
    await made.start()
    yield made
    await made.me.close()


@pytest.fixture
async def anonymous(target: Target) -> AsyncIterator[KubeHttp]:
    client = KubeHttp(target.as_bearer(""))
    yield client
    await client.close()


async def test_without_a_role_nothing_is_allowed(service_account: ServiceAccountClient) -> None:
    """An account without a role gets 403, which names the user, the verb, the resource, its group and the namespace."""
    answer = await service_account.me.get(service_account.ns.of("pods"))
    assert (answer.code, answer.reason) == (403, "Forbidden")
    words = f'cannot list resource "pods" in API group "" in the namespace "{service_account.ns.name}"'
    assert answer.message == f'pods is forbidden: User "{service_account.user}" {words}'
    assert answer.body["details"] == {"kind": "pods"}


@pytest.mark.parametrize(
    ("method", "path", "start", "rest"),
    [
        ("GET", "/pods/p", 'pods "p" is forbidden', 'get resource "pods" in API group ""'),
        ("GET", "/pods/p/log", 'pods "p" is forbidden', 'get resource "pods/log" in API group ""'),
        ("GET", "/pods?watch=true", "pods is forbidden", 'watch resource "pods" in API group ""'),
        ("POST", "/pods", "pods is forbidden", 'create resource "pods" in API group ""'),
        ("PUT", "/pods/p/status", 'pods "p" is forbidden', 'update resource "pods/status" in API group ""'),
        ("PATCH", "/pods/p", 'pods "p" is forbidden', 'patch resource "pods" in API group ""'),
        ("DELETE", "/pods/p", 'pods "p" is forbidden', 'delete resource "pods" in API group ""'),
        ("DELETE", "/pods", "pods is forbidden", 'deletecollection resource "pods" in API group ""'),
        ("POST", "/pods/p/eviction", 'pods "p" is forbidden', 'create resource "pods/eviction" in API group ""'),
    ],
)
async def test_each_call_is_a_verb_on_a_resource(
    service_account: ServiceAccountClient, method: str, path: str, start: str, rest: str
) -> None:
    """The refusal names the verb and the resource that a role would have to allow."""
    answer = await service_account.me.send_raw(method, service_account.ns.path + path, b"", "application/json")
    assert answer.code == 403
    assert (
        answer.message
        == f'{start}: User "{service_account.user}" cannot {rest} in the namespace "{service_account.ns.name}"'
    )


async def test_cluster_scope_is_named(service_account: ServiceAccountClient) -> None:
    """The refusal names the cluster scope, also for resources of other groups that do not exist."""
    nodes = await service_account.me.get("/api/v1/nodes")
    other = await service_account.me.get("/apis/none.slipway.dev/v1/things/x")
    user = f'User "{service_account.user}" cannot'
    assert nodes.message == f'nodes is forbidden: {user} list resource "nodes" in API group "" at the cluster scope'
    words = f'{user} get resource "things" in API group "none.slipway.dev" at the cluster scope'
    assert other.message == f'things.none.slipway.dev "x" is forbidden: {words}'
    assert other.body["details"] == {"name": "x", "group": "none.slipway.dev", "kind": "things"}


async def test_role_allows_what_it_says_and_no_more(service_account: ServiceAccountClient) -> None:
    """A role allows its verbs on its resources in the namespace of the binding."""
    await service_account.kube.post(service_account.ns.of("configmaps"), a_config())
    await service_account.allow(READ_CONFIGS)
    await service_account.wait_until(allowed=True, verb="list", resource="configmaps")
    assert (await service_account.me.get(service_account.ns.of("configmaps"))).code == 200
    assert (await service_account.me.get(service_account.ns.of("configmaps", "c"))).code == 200
    assert (await service_account.me.get(service_account.ns.of("configmaps"), watch="true")).code == 403
    assert (await service_account.me.post(service_account.ns.of("configmaps"), a_config("d"))).code == 403
    assert (await service_account.me.get("/api/v1/namespaces/default/configmaps")).code == 403
    assert (await service_account.me.get("/api/v1/configmaps")).code == 403


async def test_names_limit_a_rule(service_account: ServiceAccountClient) -> None:
    """A rule with resourceNames allows to get an object by name, and to list with a selector of just that name."""
    for name in ("c", "d"):
        await service_account.kube.post(service_account.ns.of("configmaps"), a_config(name))
    await service_account.allow({**READ_CONFIGS, "resourceNames": ["c"]})
    await service_account.wait_until(allowed=True, verb="get", resource="configmaps", name="c")
    assert (await service_account.me.get(service_account.ns.of("configmaps", "c"))).code == 200
    assert (await service_account.me.get(service_account.ns.of("configmaps", "d"))).code == 403
    assert (await service_account.me.get(service_account.ns.of("configmaps"))).code == 403
    assert (
        await service_account.me.get(service_account.ns.of("configmaps"), fieldSelector="metadata.name=c")
    ).names == ["c"]


async def test_subresources_are_resources_of_their_own(service_account: ServiceAccountClient) -> None:
    """A rule for pods does not allow pods/status, one for pods/status does not allow pods, */status allows every
    status."""
    await service_account.allow({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/status"]}, name="one")
    status = await service_account.wait_until(allowed=True, verb="get", resource="pods", subresource="status")
    assert status["allowed"]
    assert not (await service_account.review(verb="get", resource="pods"))["allowed"]
    await service_account.allow({"verbs": ["patch"], "apiGroups": ["*"], "resources": ["*/status"]}, name="all")
    await service_account.wait_until(
        allowed=True, verb="patch", resource="widgets", group="w.dev", subresource="status"
    )
    assert not (await service_account.review(verb="patch", resource="widgets", group="w.dev"))["allowed"]


async def test_review_names_the_binding(service_account: ServiceAccountClient) -> None:
    """The reason of a review names the binding, its role and its subject; without a binding the reason is empty."""
    assert await service_account.review(verb="get", resource="configmaps") == {"allowed": False}
    await service_account.allow(READ_CONFIGS)
    found = await service_account.wait_until(allowed=True, verb="get", resource="configmaps")
    space = service_account.ns.name
    words = f'RBAC: allowed by RoleBinding "r-bound/{space}" of Role "r" to ServiceAccount "robot/{space}"'
    assert found == {"allowed": True, "reason": words}


async def test_binding_to_a_missing_role_says_so(service_account: ServiceAccountClient) -> None:
    """The binding allows nothing, and a review names the role that was not found."""
    await service_account.bind("Role", "none")

    async def is_told() -> bool:
        return "reason" in await service_account.review(verb="get", resource="pods")

    await eventually(is_told, "the binding is seen")
    words = 'rbac: RBAC: role.rbac.authorization.k8s.io "none" not found'
    assert await service_account.review(verb="get", resource="pods") == {"allowed": False, "reason": words}


async def test_cluster_role_bound_in_a_namespace_counts_there(service_account: ServiceAccountClient) -> None:
    """With the role `view` in one namespace, configmaps can be read, secrets cannot, and nothing can be written."""
    await service_account.bind("ClusterRole", "view")
    await service_account.wait_until(allowed=True, verb="list", resource="configmaps")
    for resource, verb, expected in (("pods/log", "get", True), ("secrets", "get", False), ("pods", "create", False)):
        plural, _, sub = resource.partition("/")
        status = await service_account.review(verb=verb, resource=plural, subresource=sub)
        assert status["allowed"] is expected, resource
    assert (await service_account.me.get("/api/v1/namespaces/default/configmaps")).code == 403


async def test_a_removed_permission_is_refused_again(service_account: ServiceAccountClient) -> None:
    """A deleted binding allows nothing."""
    await service_account.allow(READ_CONFIGS)
    await service_account.wait_until(allowed=True, verb="get", resource="configmaps")
    await service_account.kube.delete(service_account.rbac("rolebindings", "r-bound"))
    await service_account.wait_until(allowed=False, verb="get", resource="configmaps")
    assert (await service_account.me.get(service_account.ns.of("configmaps"))).code == 403


@pytest.mark.usefixtures("controllers")
async def test_aggregated_roles_gather_rules(service_account: ServiceAccountClient) -> None:
    """A role labelled for `view` widens it."""
    name = f"contract-{service_account.ns.name}"
    labels = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    rule = {"verbs": ["get"], "apiGroups": [name], "resources": ["things"]}
    await service_account.bind("ClusterRole", "view")
    await service_account.kube.post(
        f"{RBAC}/clusterroles", {"metadata": {"name": name, "labels": labels}, "rules": [rule]}
    )
    await service_account.wait_until(allowed=True, verb="get", group=name, resource="things")
    await service_account.kube.delete(f"{RBAC}/clusterroles/{name}")
    await service_account.wait_until(allowed=False, verb="get", group=name, resource="things")


async def test_accounts_may_ask_about_themselves(service_account: ServiceAccountClient) -> None:
    """Any authenticated user may review itself (who am I, may I, what may I) and read discovery."""
    who = await service_account.me.post(SELF, {})
    assert (who.code, who.body["status"]["userInfo"]["username"]) == (201, service_account.user)
    attributes = {"verb": "get", "resource": "pods", "namespace": service_account.ns.name}
    may = await service_account.me.post(
        f"{REVIEWS}/selfsubjectaccessreviews", {"spec": {"resourceAttributes": attributes}}
    )
    assert (may.code, may.body["status"]) == (201, {"allowed": False})
    rules = await service_account.me.post(
        f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {"namespace": service_account.ns.name}}
    )
    own = {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]}
    assert rules.code == 201
    assert own in rules.body["status"]["resourceRules"]
    assert rules.body["status"]["incomplete"] is False
    assert (await service_account.me.get("/apis")).code == 200


async def test_rules_review_shows_the_role(service_account: ServiceAccountClient) -> None:
    """The account's own rules are listed as they were written."""
    await service_account.allow(READ_CONFIGS)
    await service_account.wait_until(allowed=True, verb="get", resource="configmaps")
    rules = await service_account.me.post(
        f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {"namespace": service_account.ns.name}}
    )
    assert READ_CONFIGS in rules.body["status"]["resourceRules"]


async def test_anonymous_callers_see_only_health_and_version(anonymous: KubeHttp) -> None:
    """A client without credentials is system:anonymous, and may read health and version only."""
    assert [(await anonymous.get(path)).code for path in ("/livez", "/readyz", "/version")] == [200] * 3
    refused = await anonymous.get("/api/v1/namespaces")
    words = 'User "system:anonymous" cannot list resource "namespaces" in API group "" at the cluster scope'
    assert (refused.code, refused.message) == (403, f"namespaces is forbidden: {words}")
    path = await anonymous.get("/apis")
    assert path.message == 'forbidden: User "system:anonymous" cannot get path "/apis"'
    assert path.body["details"] == {}


async def test_an_invalid_token_is_401(target: Target) -> None:
    """An invalid token gets 401, and is not treated as anonymous."""
    client = KubeHttp(target.as_bearer("nonsense"))
    answers = [await client.get(path) for path in ("/api/v1/namespaces", "/livez")]
    await client.close()
    assert [answer.code for answer in answers] == [401, 401]
    assert (answers[0].reason, answers[0].message) == ("Unauthorized", "Unauthorized")


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({}, "spec", "exactly one of nonResourceAttributes or resourceAttributes must be specified"),
        ({"resourceAttributes": {"verb": "get"}}, "spec.user", "at least one of user or group must be specified"),
        (
            {"user": "a", "resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"path": "/", "verb": "get"}},
            "spec",
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
    ],
)
async def test_invalid_reviews(kube: KubeHttp, spec: Json, field: str, words: str) -> None:
    """An invalid review gets 422 with the field."""
    answer = await kube.post(f"{REVIEWS}/subjectaccessreviews", {"spec": spec})
    assert (answer.code, answer.reason) == (422, "Invalid")
    found = {cause["field"]: cause["message"] for cause in answer.causes}
    assert words in found[field]


async def test_review_of_paths_and_of_masters(kube: KubeHttp) -> None:
    """nonResourceAttributes review a path; the group system:masters may do everything."""
    path = {"path": "/apis", "verb": "get"}
    stranger = {"user": "contract-stranger", "nonResourceAttributes": path}
    assert (await kube.post(f"{REVIEWS}/subjectaccessreviews", {"spec": stranger})).body["status"] == {"allowed": False}
    known = {**stranger, "groups": ["system:authenticated"]}
    words = 'RBAC: allowed by ClusterRoleBinding "system:discovery" of ClusterRole "system:discovery" to Group '
    answer = await kube.post(f"{REVIEWS}/subjectaccessreviews", {"spec": known})
    assert answer.body["status"] == {"allowed": True, "reason": words + '"system:authenticated"'}
    master = {"groups": ["system:masters"], "resourceAttributes": {"verb": "delete", "resource": "nodes"}}
    answer = await kube.post(f"{REVIEWS}/subjectaccessreviews", {"spec": master})
    assert answer.body["status"] == {"allowed": True}


async def test_local_review_stays_in_its_namespace(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A local review with another namespace in its body gets 422."""
    path = f"{REVIEWS}/namespaces/{ns.name}/localsubjectaccessreviews"
    attributes = {"verb": "get", "resource": "pods", "namespace": ns.name}
    spec = {"user": "contract-stranger", "resourceAttributes": attributes}
    right = await kube.post(path, {"metadata": {"namespace": ns.name}, "spec": spec})
    assert (right.code, right.body["status"]) == (201, {"allowed": False})
    wrong = await kube.post(path, {"spec": {**spec, "resourceAttributes": {**attributes, "namespace": "default"}}})
    assert (wrong.code, wrong.causes[0]["field"]) == (422, "spec.resourceAttributes.namespace")


async def test_rules_review_needs_a_namespace(kube: KubeHttp) -> None:
    """A rules review without a namespace gets 400."""
    answer = await kube.post(f"{REVIEWS}/selfsubjectrulesreviews", {"spec": {}})
    assert (answer.code, answer.message) == (400, "no namespace on request")


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"apiGroups": [""], "resources": ["pods"]}, "rules[0].verbs"),
        ({"verbs": ["get"], "resources": ["pods"]}, "rules[0].apiGroups"),
        ({"verbs": ["get"], "apiGroups": [""]}, "rules[0].resources"),
        ({"verbs": ["get"], "nonResourceURLs": ["/x"]}, "rules[0].nonResourceURLs"),
    ],
)
async def test_invalid_rules(service_account: ServiceAccountClient, rule: Json, field: str) -> None:
    """An invalid rule gets 422 with the field."""
    answer = await service_account.post_role(rule)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert field in [cause["field"] for cause in answer.causes]


async def test_binding_keeps_its_role(service_account: ServiceAccountClient) -> None:
    """roleRef cannot change; a role of another kind is refused."""
    await service_account.allow(READ_CONFIGS)
    path = service_account.rbac("rolebindings", "r-bound")
    changed = await service_account.kube.patch(path, {"roleRef": {"name": "other"}})
    assert (changed.code, changed.causes[0]["field"]) == (422, "roleRef")
    assert "field is immutable" in changed.message
    strange = await service_account.bind("Pod", "x")
    assert (strange.code, strange.causes[0]["field"]) == (422, "roleRef.kind")


async def test_role_names_may_hold_colons(service_account: ServiceAccountClient) -> None:
    """A role may have any name that fits into a path."""
    assert (await service_account.post_role(READ_CONFIGS, name="team:Read_only")).code == 201


async def test_administrators_may_impersonate(service_account: ServiceAccountClient, target: Target) -> None:
    """An administrator may impersonate another user and is then treated as that user; accounts without a role may
    not."""
    headers = {**target.headers, "impersonate-user": "alice", "impersonate-group": "devs"}
    alice = KubeHttp(_with_headers(target, headers))
    who = await alice.post(SELF, {})
    assert who.body["status"]["userInfo"] == {"username": "alice", "groups": ["devs", "system:authenticated"]}
    refused = await alice.get("/api/v1/nodes")
    await alice.close()
    assert (refused.code, 'User "alice" cannot list resource "nodes"' in refused.message) == (403, True)
    account = KubeHttp(_with_headers(target, {**target.headers, "impersonate-user": service_account.user}))
    groups = (await account.post(SELF, {})).body["status"]["userInfo"]["groups"]
    await account.close()
    assert groups == [
        "system:serviceaccounts",
        f"system:serviceaccounts:{service_account.ns.name}",
        "system:authenticated",
    ]


def _with_headers(target: Target, headers: dict[str, str]) -> Target:
    return Target(url=target.url, headers=headers, tls=target.tls)
