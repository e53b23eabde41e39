"""The allow-list for pod templates: each forbidden field is refused at its path, with what to do instead."""

import pytest

from slipway.crd.fielderrors import Findings
from slipway.crd.podtemplate import check_template
from slipway.crd.resolve import resolve
from tests.support.allocations import Json, a_pool, a_template, an_allocation


def refused(template: object, *, privileged: bool = False) -> list[str]:
    findings = Findings()
    check_template(template, "/template", findings, privileged=privileged)
    assert all(error.detail for error in findings.errors)
    return [error.pointer for error in findings.errors]


def with_main(**fields: object) -> Json:
    return a_template({"name": "main", "image": "x", **fields})


def test_an_ordinary_template_passes() -> None:
    """An ordinary template, as real jobs use it, passes."""
    template = a_template(
        {
            "name": "main",
            "image": "python:3.11",
            "command": ["python", "train.py"],
            "workingDir": "/work",
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            ],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data", "mountPropagation": "None"}],
            "readinessProbe": {"httpGet": {"port": 8080, "path": "/"}},
            "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}},
            "securityContext": {"readOnlyRootFilesystem": True, "capabilities": {"add": ["NET_BIND_SERVICE"]}},
        },
        initContainers=[{"name": "sidecar", "image": "x", "restartPolicy": "Always"}],
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "tmp", "emptyDir": {}}],
        nodeSelector={"a": "b"},
        affinity={},
        tolerations=[{"key": "k", "operator": "Exists"}],
        terminationGracePeriodSeconds=60,
        securityContext={"runAsUser": 1234, "fsGroup": 1234, "sysctls": [{"name": "net.ipv4.tcp_syncookies"}]},
        serviceAccountName="default",
        restartPolicy="Never",
        schedulerName="slipway",
        hostNetwork=False,
        nodeName="",
    )
    template["metadata"] = {
        "labels": {"team": "a"},
        "annotations": {"slipway.dev/main-container": "main"},
        "creationTimestamp": None,
    }
    assert refused(template) == []
    assert refused({}) == []


def test_a_folder_of_checkpoints_is_a_whole_path() -> None:
    """A folder of checkpoints, which is an annotation of the template, must be an absolute path."""
    for folder, at in (("/data/llm", []), ("llm", ["/template/metadata/annotations/slipway.dev~1checkpoint-dir"])):
        template = with_main()
        template["metadata"] = {"annotations": {"slipway.dev/checkpoint-dir": folder}}
        assert refused(template) == at


POD: list[tuple[str, object]] = [
    ("hostNetwork", True),
    ("hostPID", True),
    ("hostIPC", True),
    ("nodeName", "n1"),
    ("schedulerName", "default-scheduler"),
    ("restartPolicy", "OnFailure"),
    ("priorityClassName", "system-node-critical"),
    ("priority", 10),
    ("serviceAccountName", "admin"),
    ("serviceAccount", "admin"),
    ("automountServiceAccountToken", True),
    ("enableServiceLinks", True),
    ("hostname", "h"),
    ("subdomain", "s"),
    ("activeDeadlineSeconds", 5),
    ("schedulingGates", [{"name": "g"}]),
    ("readinessGates", [{"conditionType": "c"}]),
    ("ephemeralContainers", [{"name": "e"}]),
    ("terminationGracePeriodSeconds", -1),
    ("terminationGracePeriodSeconds", "30"),
    ("aFieldOfTheFuture", 1),
]


@pytest.mark.parametrize(("field", "value"), POD)
def test_a_pod_stays_in_our_hands_and_in_its_box(field: str, value: object) -> None:
    """Host namespaces, placement, priority, accounts and unknown fields are refused."""
    assert refused(a_template(**{field: value})) == [f"/template/spec/{field}"]


@pytest.mark.parametrize(
    ("accounts", "is_allowed"),
    [((), False), (("reader",), True), (("other", "read*"), True), (("read",), False), (("*",), True), (None, True)],
)
def test_a_service_account_is_one_that_the_workspace_allows(accounts: tuple[str, ...] | None, is_allowed: bool) -> None:
    """A service account must be one that the workspace allows, by name or prefix, in a privileged pool too; `default`
    always passes; None is checked elsewhere."""
    for privileged in (False, True):
        findings = Findings()
        template = a_template(serviceAccountName="reader")
        check_template(template, "/template", findings, privileged=privileged, accounts=accounts)
        wanted = [] if is_allowed else ["/template/spec/serviceAccountName"]
        assert [error.pointer for error in findings.errors] == wanted
        for error in findings.errors:
            assert "kubectl annotate" in error.detail
            assert "slipway.dev/service-accounts=" in error.detail
    assert refused(a_template(serviceAccountName="default")) == []


CONTAINER: list[tuple[Json, str]] = [
    ({"securityContext": {"privileged": True}}, "securityContext/privileged"),
    ({"securityContext": {"allowPrivilegeEscalation": True}}, "securityContext/allowPrivilegeEscalation"),
    ({"securityContext": {"runAsNonRoot": False}}, "securityContext/runAsNonRoot"),
    ({"securityContext": {"runAsUser": 0}}, "securityContext/runAsUser"),
    ({"securityContext": {"procMount": "Unmasked"}}, "securityContext/procMount"),
    ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "securityContext/capabilities/add/0"),
    ({"securityContext": {"capabilities": {"add": [["SYS_ADMIN"]]}}}, "securityContext/capabilities/add/0"),
    ({"securityContext": {"seLinuxOptions": {"type": ["container_t"]}}}, "securityContext/seLinuxOptions/type"),
    ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "securityContext/seccompProfile/type"),
    ({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}, "securityContext/appArmorProfile/type"),
    ({"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "securityContext/seLinuxOptions/type"),
    ({"securityContext": {"seLinuxOptions": {"user": "u"}}}, "securityContext/seLinuxOptions/user"),
    ({"securityContext": {"windowsOptions": {"hostProcess": True}}}, "securityContext/windowsOptions"),
    ({"securityContext": "root"}, "securityContext"),
    ({"ports": [{"containerPort": 80, "hostPort": 80}]}, "ports/0/hostPort"),
    ({"ports": [{"containerPort": 80, "odd": 80}]}, "ports/0/odd"),
    ({"volumeMounts": [{"name": "a", "mountPropagation": "Bidirectional"}]}, "volumeMounts/0/mountPropagation"),
    ({"volumeDevices": [{"name": "a"}]}, "volumeDevices"),
    ({"livenessProbe": {"httpGet": {"host": "10.0.0.1"}}}, "livenessProbe/httpGet/host"),
    ({"lifecycle": {"postStart": {"tcpSocket": {"host": "10.0.0.1"}}}}, "lifecycle/postStart/tcpSocket/host"),
    ({"restartPolicy": "Always"}, "restartPolicy"),
    ({"env": [{"name": "A=B", "value": "1"}]}, "env/0/name"),
    ({"env": [{"name": "A", "value": 1}]}, "env/0/value"),
    ({"command": "python train.py"}, "command"),
    ({"args": [1]}, "args/0"),
    ({"resources": {"requests": {"cpu": "lots"}}}, "resources/requests/cpu"),
    ({"resources": {"cpu": 1}}, "resources/cpu"),
    ({"aFieldOfTheFuture": 1}, "aFieldOfTheFuture"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "at"), CONTAINER)
def test_a_container_asks_for_no_more_than_restricted(fields: Json, at: str) -> None:
    """A container requests no more than "restricted" allows; each refusal points at the exact value."""
    assert refused(with_main(**fields)) == [f"/template/spec/containers/0/{at}"]


@pytest.mark.parametrize(
    ("volume", "at"),
    [
        ({"name": "v", "hostPath": {"path": "/"}}, "hostPath"),
        ({"name": "v", "nfs": {"server": "s"}}, "nfs"),
        ({"name": "slipway-files", "emptyDir": {}}, "name"),
        ({"emptyDir": {}}, "name"),
    ],
)
def test_volumes_are_of_the_restricted_kinds(volume: Json, at: str) -> None:
    """Volumes are of the restricted kinds, and their names do not collide with ours."""
    assert refused(a_template(volumes=[volume])) == [f"/template/spec/volumes/0/{at}"]


def with_claim(claim: Json) -> Json:
    return a_template(volumes=[{"name": "v", "ephemeral": {"volumeClaimTemplate": claim}}])


def test_an_ephemeral_volume_says_how_much_of_which_class() -> None:
    """An ephemeral volume states its size and class, and may have annotations of the user."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "fast"}
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "x"}}
    assert refused(with_claim({"metadata": metadata, "spec": {**spec, "volumeMode": "Filesystem"}})) == []


@pytest.mark.parametrize(
    ("claim", "at"),
    [
        ({"spec": {"volumeName": "of-others"}}, "spec/volumeName"),
        ({"spec": {"selector": {"matchLabels": {"a": "b"}}}}, "spec/selector"),
        ({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "c"}}}, "spec/dataSource"),
        ({"spec": {"dataSourceRef": {"kind": "VolumeSnapshot", "name": "s", "namespace": "n"}}}, "spec/dataSourceRef"),
        ({"spec": {"volumeMode": "Block"}}, "spec/volumeMode"),
        ({"spec": {"aFieldOfTheFuture": 1}}, "spec/aFieldOfTheFuture"),
        ({"spec": "fast"}, "spec"),
        ({"metadata": {"labels": {"slipway.dev/allocation": "a"}}}, "metadata/labels/slipway.dev~1allocation"),
        ({"metadata": {"annotations": {"slipway.dev/main-container": "a"}}},
         "metadata/annotations/slipway.dev~1main-container"),
        ({"metadata": {"name": "c"}}, "metadata/name"),
        ({"status": {}}, "status"),
    ],
)  # fmt: skip
def test_an_ephemeral_volume_holds_nothing_of_others(claim: Json, at: str) -> None:
    """An ephemeral volume must not refer to an existing volume or data, a raw device, or a name of ours, in a
    privileged pool too."""
    for privileged in (False, True):
        found = refused(with_claim(claim), privileged=privileged)
        assert found == [f"/template/spec/volumes/0/ephemeral/volumeClaimTemplate/{at}"]


@pytest.mark.parametrize(
    ("context", "at"),
    [
        ({"sysctls": [{"name": "kernel.msgmax"}]}, "sysctls/0/name"),
        ({"sysctls": [{"name": ["kernel.msgmax"]}]}, "sysctls/0/name"),
        ({"runAsUser": 0}, "runAsUser"),
        ({"windowsOptions": {}}, "windowsOptions"),
    ],
)
def test_the_pods_security_context(context: Json, at: str) -> None:
    """Unsafe sysctls and root are refused for the pod as a whole too."""
    assert refused(a_template(securityContext=context)) == [f"/template/spec/securityContext/{at}"]


@pytest.mark.parametrize(
    ("metadata", "at"),
    [
        ({"name": "p"}, "name"),
        ({"finalizers": ["x"]}, "finalizers"),
        ({"labels": {"slipway.dev/rank": "0"}}, "labels/slipway.dev~1rank"),
        ({"labels": {"app.kubernetes.io/managed-by": "me"}}, "labels/app.kubernetes.io~1managed-by"),
        ({"annotations": {"slipway.dev/user": "root"}}, "annotations/slipway.dev~1user"),
        ({"labels": {"a": 1}}, "labels/a"),
    ],
)
def test_our_labels_are_ours(metadata: Json, at: str) -> None:
    """Our labels are refused in a template: a pod with another allocation's uid would be deleted with that."""
    assert refused({"metadata": metadata}) == [f"/template/metadata/{at}"]


APPARMOR = "container.apparmor.security.beta.kubernetes.io/main"


@pytest.mark.parametrize(
    ("key", "passes"),
    [
        ("note", True),
        ("prometheus.io/scrape", True),
        ("kubectl.kubernetes.io/default-container", True),
        (APPARMOR, False),
        ("k8s.v1.cni.cncf.io/networks", False),
        ("io.kubernetes.cri-o.userns-mode", False),
        ("io.katacontainers.config.hypervisor.kernel_params", False),
        ("vault.hashicorp.com/agent-inject", False),
        ("example.com/anything", False),
    ],
)
def test_annotations_are_an_allow_list(key: str, passes: bool) -> None:
    """Annotations have an allow-list, because a kubelet or a controller may act on one: only harmless ones pass, and
    those that the pool names."""
    template = {"metadata": {"annotations": {key: "unconfined"}}}
    at = f"/template/metadata/annotations/{key.replace('/', '~1')}"
    assert refused(template) == ([] if passes else [at])
    if not passes:
        for named in {key, f"{key.partition('/')[0]}/*" if "/" in key else key}:
            findings = Findings()
            check_template(template, "/template", findings, annotations=[named])
            assert findings.errors == ()


@pytest.mark.parametrize(
    ("template", "at"),
    [
        ("team-default", ""),
        ({"spec": []}, "/spec"),
        ({"spec": {"containers": {}}}, "/spec/containers"),
        ({"spec": {"containers": ["main"]}}, "/spec/containers/0"),
        ({"apiVersion": "v1"}, "/apiVersion"),
    ],
)
def test_a_misshapen_template_is_told_so(template: object, at: str) -> None:
    """A malformed template is refused with a message, never a traceback."""
    assert refused(template)[0] == f"/template{at}"


def test_containers_have_names_of_their_own() -> None:
    """Containers have different names, across containers and init containers."""
    template = a_template({"name": "a"}, {"name": "a"}, {}, initContainers=[{"name": "a"}])
    assert refused(template) == [
        "/template/spec/containers/1/name",
        "/template/spec/containers/2/name",
        "/template/spec/initContainers/0/name",
    ]


def test_there_are_not_endless_containers() -> None:
    """The number of containers is bounded."""
    template = a_template(*({"name": f"c{index}"} for index in range(33)))
    assert refused(template) == ["/template/spec/containers"]


def test_a_privileged_pool_lifts_restricted_only() -> None:
    """A privileged pool lifts only "restricted"; placement, accounts and restarts stay under our control."""
    template = a_template(
        {"name": "main", "securityContext": {"privileged": True, "runAsUser": 0}},
        volumes=[{"name": "v", "hostPath": {"path": "/"}}],
        hostNetwork=True,
    )
    assert refused(template, privileged=True) == []
    assert refused(a_template(nodeName="n1"), privileged=True) == ["/template/spec/nodeName"]
    spec = resolve(an_allocation(template=a_template()), a_pool(privilegedTemplates=True)).spec.template["spec"]
    assert "securityContext" not in spec


def test_a_template_without_a_security_context_gets_one_that_is_restricted() -> None:
    """A template without a security context gets a restricted one, and is not refused."""
    result = resolve(an_allocation(template=a_template(initContainers=[{"name": "i", "image": "x"}])), a_pool())
    spec = result.spec.template["spec"]
    assert result.errors == ()
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "fsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in (*spec["containers"], *spec["initContainers"]):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_a_security_context_is_filled_in_not_replaced() -> None:
    """A security context is completed, not replaced: the user's settings within "restricted" stay."""
    main = {
        "name": "main",
        "image": "x",
        "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["X"]}},
    }
    template = a_template(main, securityContext={"runAsUser": 7, "fsGroup": None})
    spec = resolve(an_allocation(template=template), a_pool()).spec.template["spec"]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (7, 1000)
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}


def test_resource_claims_pass_in_every_pool() -> None:
    """Resource claims pass in every pool, whichever scheduler binds its pods: pods with claims are left to
    kube-scheduler."""
    template = a_template(
        {"name": "main", "image": "x", "command": ["x"], "resources": {"claims": [{"name": "gpu"}]}},
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    )
    for binding in ("direct", "delegate"):
        assert resolve(an_allocation(template=template), a_pool(binding=binding)).errors == ()


def test_claims_of_a_container_are_no_amounts() -> None:
    """Claims of a container are no amounts: they are beside requests and limits. A role has none, because its resources
    are amounts."""
    template = a_template(
        {"name": "main", "image": "x", "command": ["x"], "resources": {"claims": [{"name": "c"}]}},
        resourceClaims=[{"name": "c", "resourceClaimName": "c"}],
    )
    pool = a_pool(binding="delegate")
    role: Json = {"name": "worker", "count": 1, "resources": {"cpu": "2"}}
    resolved = resolve(an_allocation(template=template, ranks=[role]), pool)
    assert resolved.errors == ()
    assert resolved.spec.ranks[0].resources == {"requests": {"cpu": "2"}}
    role["resources"] = {"claims": [{"name": "c"}]}
    [error] = resolve(an_allocation(template=template, ranks=[role]), pool).errors
    assert error.pointer == "/ranks/0/resources/claims"
