"""What the pods of a pool may request: each refusal names the field, the pool, what is allowed and the next step."""

import pytest

from slipway.crd import podrules
from slipway.crd.resolve import Resolved, resolve
from slipway.crd.workspacepods import ReleasedSecrets
from tests.support.allocations import Json, a_pool, a_template, an_allocation


def refusals(result: Resolved) -> dict[str, str]:
    return {error.pointer: error.detail for error in result.errors}


def an_image(name: str, image: str) -> Json:
    return {"name": name, "image": image, "command": ["x"]}


def test_a_pool_without_rules_allows_every_image() -> None:
    """A pool without rules, or with an empty list, allows every image."""
    for pool in (a_pool(), a_pool(allowedImages=[])):
        assert resolve(an_allocation(template=a_template()), pool).errors == ()


def test_a_pool_says_which_images_run_in_it() -> None:
    """A pool defines which images run in it; the refusal names the field, the image, the pool, the allowed images, and
    who can change them."""
    pool = a_pool(allowedImages=["reg.example/team", "python:3.11"])
    assert resolve(an_allocation(template=a_template()), pool).errors == ()
    found = refusals(resolve(an_allocation(template=a_template(an_image("main", "evil/x"))), pool))
    assert found == {
        "/template/spec/containers/0/image": "pool default does not allow the image 'evil/x'; it allows "
        "reg.example/team, python:3.11. Use one of these, or have an administrator add it to allowedImages of the pool"
    }


def test_every_image_of_a_pod_is_judged() -> None:
    """Every image of a pod is checked: of all containers, init containers, sidecars and volumes, and in each role's own
    template."""
    template = a_template(
        an_image("main", "reg.example/team/a"),
        an_image("side", "evil/a"),
        initContainers=[an_image("init", "evil/b"), {**an_image("sidecar", "evil/c"), "restartPolicy": "Always"}],
        volumes=[{"name": "v", "image": {"reference": "evil/d"}}, {"name": "w", "emptyDir": {}}],
    )
    role = {"name": "r", "template": a_template(an_image("main", "evil/e"))}
    pool = a_pool(allowedImages=["reg.example/team"])
    found = refusals(resolve(an_allocation(template=template, ranks=[{"name": "q"}, role]), pool))
    assert list(found) == [
        "/template/spec/containers/1/image",
        "/template/spec/initContainers/0/image",
        "/template/spec/initContainers/1/image",
        "/template/spec/volumes/0/image/reference",
        "/ranks/1/template/spec/containers/0/image",
    ]


def test_a_default_image_is_judged_too() -> None:
    """A default image is checked too; the refusal says where it comes from, because the user did not write it."""
    pool = a_pool(allowedImages=["reg.example/team"], defaults={"notebook": {"image": "jupyter/base"}})
    [detail] = refusals(resolve(an_allocation(kind="notebook"), pool)).values()
    assert "'jupyter/base'" in detail
    assert "defaults.notebook.image of the pool" in detail


def test_long_lists_are_shown_in_part() -> None:
    """Long lists are shown in part, because users read the refusal."""
    pool = a_pool(allowedImages=[f"r.example/{number}" for number in range(12)])
    [detail] = refusals(resolve(an_allocation(template=a_template(an_image("main", "x" * 5000))), pool)).values()
    assert "r.example/9 and 2 more" in detail
    assert len(detail) < 500


NAMED: list[tuple[str, Json, str]] = [
    ("allowedCsiDrivers", {"volumes": [{"name": "v", "csi": {"driver": "vault"}}]}, "volumes/0/csi/driver"),
    ("allowedRuntimeClasses", {"runtimeClassName": "vault"}, "runtimeClassName"),
    ("allowedTolerations", {"tolerations": [{"key": "vault", "operator": "Exists"}]}, "tolerations/0"),
    (
        "allowedTokenAudiences",
        {"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"audience": "vault"}}]}}]},
        "volumes/0/projected/sources/0/serviceAccountToken/audience",
    ),
]
"""(a field of the pool, a part of a pod that names `vault`, its path)."""


@pytest.mark.parametrize(("field", "pod", "at"), NAMED, ids=[field for field, _, _ in NAMED])
def test_a_template_names_what_the_pool_lists(field: str, pod: Json, at: str) -> None:
    """A template may name what the pool lists: everything when the list is absent, nothing when it is empty."""
    wanted = an_allocation(template=a_template(**pod))
    cases: list[tuple[bool, Json]] = [
        (True, {}),
        (True, {field: ["x", "vault"]}),
        (False, {field: []}),
        (False, {field: ["x"]}),
    ]
    for is_fine, rules in cases:
        found = refusals(resolve(wanted, a_pool(**rules)))
        assert list(found) == ([] if is_fine else [f"/template/spec/{at}"])
        if not is_fine:
            assert "'vault'" in found[f"/template/spec/{at}"]
            assert field in found[f"/template/spec/{at}"]
        assert resolve(an_allocation(template=a_template()), a_pool(**rules)).errors == ()


@pytest.mark.parametrize(
    ("key", "rules", "is_fine"),
    [
        ("note", {}, True),
        ("prometheus.io/scrape", {}, True),
        ("cdi.kubevirt.io/storage.import.secretName", {}, False),
        ("cdi.kubevirt.io/storage.import.secretName", {"templateAnnotations": ["cdi.kubevirt.io/*"]}, True),
        ("volume.kubernetes.io/selected-node", {"templateAnnotations": ["volume.kubernetes.io/other"]}, False),
        ("volume.kubernetes.io/selected-node", {"privilegedTemplates": True}, True),
    ],
)
def test_annotations_of_claims_are_those_of_the_pool(key: str, rules: Json, is_fine: bool) -> None:
    """Annotations of claims are limited like those of pods, because a volume controller acts on them."""
    claim = {"metadata": {"annotations": {key: "x"}}, "spec": {}}
    template = a_template(volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": claim}}])
    found = refusals(resolve(an_allocation(template=template), a_pool(**rules)))
    at = f"/template/spec/volumes/0/ephemeral/volumeClaimTemplate/metadata/annotations/{key.replace('/', '~1')}"
    assert list(found) == ([] if is_fine else [at])
    if not is_fine:
        assert "templateAnnotations" in found[at]


def test_users_and_groups_are_within_the_ranges_of_the_pool() -> None:
    """Users and groups, of the pod and of each container, must be within the pool's ranges; a pool that limits groups
    requires an explicit primary group."""
    pool = a_pool(allowedUsers=["1000-1999", "5"], allowedGroups=["2000-2999"])
    context = {"runAsUser": 5, "runAsGroup": 2001, "supplementalGroups": [2002, 3]}
    main = {**an_image("main", "a"), "securityContext": {"runAsUser": 4, "runAsGroup": 1}}
    found = refusals(resolve(an_allocation(template=a_template(main, securityContext=context)), pool))
    assert list(found) == [
        "/template/spec/containers/0/securityContext/runAsUser",
        "/template/spec/containers/0/securityContext/runAsGroup",
        "/template/spec/securityContext/supplementalGroups/1",
    ]
    found = refusals(resolve(an_allocation(template=a_template()), pool))
    assert list(found) == ["/template/spec/securityContext/runAsGroup", "/template/spec/securityContext/fsGroup"]
    assert "needs the group to be set (allowedGroups); it allows 2000-2999" in found[next(iter(found))]


def test_a_pool_says_as_whom_pods_run() -> None:
    """The pool sets the user of pods whose template sets none, also in a pool that fills in nothing else."""
    run_as = {"user": 1001, "group": 2001, "fsGroup": 2002, "groups": [2003]}
    template = a_template(securityContext={"runAsGroup": 9})
    for privileged in (False, True):
        pool = a_pool(runAs=run_as, privilegedTemplates=privileged)
        context = resolve(an_allocation(template=template), pool).spec.template["spec"]["securityContext"]
        assert {name: context[name] for name in ("runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")} == {
            "runAsUser": 1001,
            "runAsGroup": 9,
            "fsGroup": 2002,
            "supplementalGroups": [2003],
        }


def test_a_pod_whose_image_chooses_the_user_is_not_within_a_range() -> None:
    """A pod whose image chooses the user is outside of any range: a privileged template may omit the user, but a pool
    that limits users requires one."""
    pool = a_pool(allowedUsers=["1000-1999"], privilegedTemplates=True)
    [detail] = refusals(resolve(an_allocation(template=a_template()), pool)).values()
    assert "needs the user to be set" in detail


@pytest.mark.parametrize("rule", podrules.RULES, ids=lambda rule: rule.field)
def test_each_rule_is_in_the_policy(rule: podrules.PodRule) -> None:
    """Each rule is in the policy, with its expression and a message that names the field of the pool; every variable
    that it uses exists."""
    policy = podrules.policy()
    [validation] = [item for item in policy["validations"] if rule.expression in item["expression"]]
    assert rule.field in validation["message"]
    names = [item["name"] for item in policy["variables"]]
    assert len(names) == len(set(names))
    assert {*rule.variables} <= {*names}


def test_the_policy_judges_pods_of_ours_only() -> None:
    """The policy selects our pods by their label, so that other pods never wait until the API server has loaded the
    pools: it loads them before it evaluates any condition."""
    [term] = podrules.policy()["objectSelector"]["matchExpressions"]
    assert term == {"key": "slipway.dev/allocation-uid", "operator": "Exists"}


EVERYTHING: Json = {"tolerations": [{"operator": "Exists"}]}


@pytest.mark.parametrize(
    ("rules", "is_fine"),
    [
        ({}, True),
        ({"allowedTolerations": ["*"]}, True),
        ({"allowedTolerations": ["nvidia.com/*"]}, False),
        ({"allowedTolerations": []}, False),
        ({"allowedTolerations": [], "tolerations": [{"operator": "Exists"}]}, True),
    ],
)
def test_a_toleration_of_everything_needs_a_star(rules: Json, is_fine: bool) -> None:
    """A toleration of everything requires `*`: it has no key, so no prefix allows it; the pool's own tolerations are on
    all its pods."""
    found = refusals(resolve(an_allocation(template=a_template(**EVERYTHING)), a_pool(**rules)))
    assert list(found) == ([] if is_fine else ["/template/spec/tolerations/0"])


def test_tolerations_of_roles_are_judged() -> None:
    """Tolerations of roles are checked like those of templates, by name and by prefix; those of the pool are
    allowed."""
    pool = a_pool(allowedTolerations=["spot", "nvidia.com/*"], tolerations=[{"key": "team", "operator": "Exists"}])
    named = ("spot", "nvidia.com/gpu", "team", "other")
    role = {"name": "r", "tolerations": [{"key": key, "operator": "Exists"} for key in named]}
    found = refusals(resolve(an_allocation(template=a_template(), ranks=[role]), pool))
    assert list(found) == ["/ranks/0/tolerations/3"]
    assert "the toleration of taint 'other'" in found["/ranks/0/tolerations/3"]


@pytest.mark.parametrize(
    "audience",
    [
        None,
        "",
        7,
        "https://kubernetes.default.svc",
        "https://kubernetes.default.svc.cluster.local",
        "https://Kubernetes.default.svc:443/",
        "kubernetes.default.svc",
        "kubernetes",
    ],
)
def test_a_token_needs_an_audience(audience: object) -> None:
    """A projected token requires an audience, because one without is for the Kubernetes API, which is refused in every
    pool; so are other identities."""
    sources: list[Json] = [{"serviceAccountToken": {"path": "t", "audience": audience}}, {"podCertificate": {}}]
    template = a_template(volumes=[{"name": "t", "projected": {"sources": sources}}])
    found = refusals(resolve(an_allocation(template=template), a_pool(privilegedTemplates=True)))
    at = "/template/spec/volumes/0/projected/sources"
    assert list(found) == [f"{at}/0/serviceAccountToken/audience", f"{at}/1/podCertificate"]


@pytest.mark.parametrize(
    "audience", ["slipway", "sts.amazonaws.com", "kubernetes-dashboard", "https://vault.default.svc"]
)
def test_a_token_for_others_passes(audience: str) -> None:
    """A token for another audience passes here; the policy `identities` knows the allowed audiences."""
    sources = [{"serviceAccountToken": {"path": "t", "audience": audience}}]
    template = a_template(volumes=[{"name": "t", "projected": {"sources": sources}}])
    assert refusals(resolve(an_allocation(template=template), a_pool())) == {}


def test_a_token_is_for_those_whom_the_installation_allows() -> None:
    """When the chart lists audiences, a token for another one is refused with the list and who may extend it."""
    sources = [{"serviceAccountToken": {"path": "t", "audience": name}} for name in ("slipway-api", "vault")]
    template = a_template(volumes=[{"name": "t", "projected": {"sources": sources}}])
    found = refusals(resolve(an_allocation(template=template), a_pool(), audiences=("slipway", "vault")))
    (at,) = found
    assert at == "/template/spec/volumes/0/projected/sources/0/serviceAccountToken/audience"
    for word in ("'slipway-api'", "slipway, vault", "admissionPolicies.tokenAudiences"):
        assert word in found[at]


def naming(secret: str) -> tuple[Json, list[str]]:
    """A template that names a Secret at every place, and the paths."""
    main = {
        **an_image("main", "a"),
        "env": [
            {"name": "A", "value": "x"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}},
        ],
        "envFrom": [{"configMapRef": {"name": secret}}, {"secretRef": {"name": secret}}],
    }
    attributes = {"secretName": secret, "SECRET_NAME": secret, "x.io/node-publish-secret-name": secret, "share": "s"}
    volumes = [
        {"name": "a", "secret": {"secretName": secret}},
        {"name": "b", "csi": {"driver": "d", "nodePublishSecretRef": {"name": secret}, "volumeAttributes": attributes}},
        {"name": "c", "projected": {"sources": [{"configMap": {"name": secret}}, {"secret": {"name": secret}}]}},
    ]
    init = {**an_image("init", "a"), "envFrom": [{"secretRef": {"name": secret}}]}
    template = a_template(main, initContainers=[init], volumes=volumes, imagePullSecrets=[{"name": secret}])
    return template, [
        "containers/0/env/1/valueFrom/secretKeyRef/name",
        "containers/0/envFrom/1/secretRef/name",
        "initContainers/0/envFrom/0/secretRef/name",
        "volumes/0/secret/secretName",
        "volumes/1/csi/nodePublishSecretRef/name",
        "volumes/1/csi/volumeAttributes/secretName",
        "volumes/1/csi/volumeAttributes/SECRET_NAME",
        "volumes/1/csi/volumeAttributes/x.io~1node-publish-secret-name",
        "volumes/2/projected/sources/1/secret/name",
        "imagePullSecrets/0/name",
    ]


@pytest.mark.parametrize(
    ("released", "refused"),
    [
        (None, 0),
        (ReleasedSecrets(names=("other", "tea*")), 0),
        (ReleasedSecrets(names=("team",)), 0),
        (ReleasedSecrets(names=()), 10),
        (ReleasedSecrets(names=("tea", "team-*")), 10),
        (ReleasedSecrets(names=(), for_images=("team",)), 9),
    ],
)
def test_a_template_names_secrets_that_its_workspace_releases(released: ReleasedSecrets | None, refused: int) -> None:
    """A template may name only Secrets that its workspace releases, at every place; without an annotation it may name
    all. A pull secret may be used only for pulls."""
    template, places = naming("team")
    found = refusals(resolve(an_allocation(template=template), a_pool(), secrets=released))
    assert list(found) == [f"/template/spec/{place}" for place in places[:refused]]
    for detail in found.values():
        assert "does not release Secret 'team'" in detail
        assert "kubectl annotate --overwrite namespace WORKSPACE slipway.dev/secrets=" in detail


@pytest.mark.parametrize(
    "key", ["secretNamespace", "secretnamespace", "csi.storage.k8s.io/node-publish-secret-namespace"]
)
def test_no_template_tells_a_driver_where_secrets_are(key: str) -> None:
    """A template must not give a driver a reference to Secrets, which could be in another workspace; it is refused
    whatever its workspace releases. An empty reference names none."""
    for namespace, is_fine in (("other", False), ("", True)):
        volume = {"name": "v", "csi": {"driver": "d", "volumeAttributes": {key: namespace, "share": "s"}}}
        for released in (None, ReleasedSecrets(names=("*",))):
            found = refusals(resolve(an_allocation(template=a_template(volumes=[volume])), a_pool(), secrets=released))
            at = f"/template/spec/volumes/0/csi/volumeAttributes/{key.replace('/', '~1')}"
            assert list(found) == ([] if is_fine else [at])


def test_no_template_names_secret_values_of_an_allocation() -> None:
    """No template may name the secret values of an allocation, whatever the workspace releases; each role's own
    template is checked."""
    template, places = naming("slipway-values-1234")
    role = {"name": "r", "template": template}
    allocation = an_allocation(template=a_template(), ranks=[{"name": "q"}, role])
    found = refusals(resolve(allocation, a_pool(), secrets=ReleasedSecrets(names=("*",))))
    assert list(found) == [f"/ranks/1/template/spec/{place}" for place in places]
    assert "secretValues" in found[next(iter(found))]


def a_privileged(**context: object) -> Json:
    return {"name": "main", "image": "x", "command": ["x"], "securityContext": context}


ADDED = "containers/0/securityContext/capabilities/add/0"
PRIVILEGES: list[tuple[str, Json, str]] = [
    ("hostIPC", a_template(**{"hostIPC": True}), "hostIPC"),
    ("hostNetwork", a_template(**{"hostNetwork": True}), "hostNetwork"),
    (
        "IPC_LOCK",
        a_template(a_privileged(capabilities={"add": ["IPC_LOCK"]})),
        "containers/0/securityContext/capabilities/add/0",
    ),
    ("root", a_template(a_privileged(runAsUser=0)), "containers/0/securityContext/runAsUser"),
    ("root", a_template(a_privileged(runAsNonRoot=False)), "containers/0/securityContext/runAsNonRoot"),
    ("root", a_template(**{"securityContext": {"runAsUser": 0}}), "securityContext/runAsUser"),
]
"""(a privilege, a template that uses it, its path)."""


@pytest.mark.parametrize(("privilege", "template", "at"), PRIVILEGES)
def test_a_pool_allows_privileges_by_name(privilege: str, template: Json, at: str) -> None:
    """A pool allows privileges by name, each one alone; a refusal appears once, and says who can change it."""
    wanted = an_allocation(template=template)
    assert resolve(wanted, a_pool(allowedPrivileges=[privilege])).errors == ()
    assert resolve(wanted, a_pool(privilegedTemplates=True)).errors == ()
    others = sorted({each for each, _, _ in PRIVILEGES} - {privilege})
    pools: list[Json] = [{}, {"allowedPrivileges": []}, {"allowedPrivileges": [*others, "SYS_NICE"]}]
    for rules in pools:
        found = resolve(wanted, a_pool(**rules)).errors
        assert [error.pointer for error in found] == [f"/template/spec/{at}"]
        assert f"add {privilege} to allowedPrivileges of the pool" in found[0].detail


@pytest.mark.parametrize(
    "template",
    [
        a_template(**{"hostPID": True}),
        a_template(a_privileged(privileged=True)),
        a_template(a_privileged(allowPrivilegeEscalation=True)),
        a_template(a_privileged(capabilities={"add": ["ALL"]})),
        a_template(a_privileged(capabilities={"add": ["root"]})),
        a_template(volumes=[{"name": "h", "hostPath": {"path": "/"}}]),
    ],
)
def test_no_name_allows_what_would_open_the_node(template: Json) -> None:
    """No privilege allows what would open the node, even in a pool that allows every named privilege."""
    pool = a_pool(allowedPrivileges=["root", "hostIPC", "hostNetwork", "IPC_LOCK", "SYS_ADMIN"])
    assert resolve(an_allocation(template=template), pool).errors != ()


def test_root_that_is_allowed_is_root_and_nothing_more() -> None:
    """A pod with the privilege root is root and nothing more: all capabilities are dropped, and escalation is off.
    `runAsNonRoot` is not set, so that a kubelet starts it."""
    template = a_template(a_privileged(runAsUser=0, capabilities={"add": ["IPC_LOCK"]}))
    result = resolve(an_allocation(template=template), a_pool(allowedPrivileges=["root", "IPC_LOCK"]))
    assert result.errors == ()
    assert result.spec is not None
    [container] = result.spec.template["spec"]["containers"]
    assert container["securityContext"] == {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "capabilities": {"add": ["IPC_LOCK"], "drop": ["ALL"]},
    }
