"""Manifests: names, env, merge of template, role and pool, and the hash that adoption compares."""

from typing import Any

import msgspec
import pytest

from slipway.crd.resolve import resolve
from slipway.crd.v1alpha1 import Allocation, Placement, RoleSpec
from slipway.errors import InvalidError
from slipway.pods.manifest import Manifests, build, hash_of
from slipway.pods.podspec import TaskOptions
from tests.support.allocations import a_pool, a_template
from tests.support.builders import NAMESPACE, an_allocation

TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
OPTIONS = TaskOptions(api_url="http://api:8080")

DEFAULTS = {"cpu": "100m", "memory": "256Mi"}
"""the default requests of a rank of this kind"""


def made(
    ranks: int = 1,
    *,
    roles: list[dict[str, Any]] | None = None,
    pool: dict[str, Any] | None = None,
    options: TaskOptions = OPTIONS,
    **spec: Any,
) -> Manifests:
    """The objects of an admitted allocation of `ranks` equal ranks, or of `roles`."""
    spec.setdefault("template", a_template())
    wanted = roles or [{"name": "worker", "count": ranks}]
    story = an_allocation(**spec).with_spec(ranks=msgspec.convert(wanted, list[RoleSpec]))
    return manifests_of(story.assigned().it, pool=pool, options=options)


def manifests_of(
    allocation: Allocation, *, pool: dict[str, Any] | None = None, options: TaskOptions = OPTIONS, trace: str = TRACE
) -> Manifests:
    resources = a_pool(**(pool or {}))
    resolved = resolve(allocation, resources)
    assert resolved.errors == ()
    return build(allocation, resolved.spec, resources, options=options, traceparent=trace)


def env_of(manifests: Manifests, rank: int = 0, container: int = 0) -> dict[str, Any]:
    """{name: value or source} of a container; a repeated name fails."""
    listed = manifests.pods[rank].manifest["spec"]["containers"][container]["env"]
    assert len({item["name"] for item in listed}) == len(listed)
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in listed}


def test_names_follow_from_id_attempt_and_rank() -> None:
    """The names are `<id>-<attempt>` for shared objects and `<id>-<attempt>-<rank>` for the pods."""
    manifests = made(2)
    assert manifests.configmap["metadata"]["name"] == "run-0123abcd-1"
    assert manifests.service is not None
    assert manifests.service["metadata"]["name"] == "run-0123abcd-1"
    assert [pod.name for pod in manifests.pods] == ["run-0123abcd-1-0", "run-0123abcd-1-1"]


def test_a_rank_is_told_who_it_is() -> None:
    """A rank gets its identity in variables, which are a contract with the programs inside."""
    env = env_of(made(2), rank=1)
    assert env["SLIPWAY_ALLOCATION_ID"] == "run-0123abcd"
    assert (env["SLIPWAY_ATTEMPT"], env["SLIPWAY_RANK"], env["SLIPWAY_ROLE"]) == ("1", "1", "worker")
    assert env["SLIPWAY_API"] == "http://api:8080"
    assert env["SLIPWAY_PROXY_PREFIX"] == "/proxy/run-0123abcd"
    assert env["SLIPWAY_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env["TRACEPARENT"] == TRACE


def test_the_main_container_is_told_where_its_checkpoints_are() -> None:
    """The main container gets the path of its checkpoints from the annotation of its role's template; other containers,
    and ranks without the annotation, get none."""
    noted = {"metadata": {"annotations": {"slipway.dev/checkpoint-dir": "/checkpoints/$(SLIPWAY_ALLOCATION_ID)"}}}
    template = {**noted, "spec": {"containers": [{"name": "main", "image": "a"}, {"name": "side", "image": "b"}]}}
    roles = [{"name": "a", "template": template}, {"name": "b"}]
    manifests = made(roles=roles)
    env = list(env_of(manifests))
    assert env_of(manifests)["SLIPWAY_CHECKPOINT_DIR"] == "/checkpoints/$(SLIPWAY_ALLOCATION_ID)"
    assert env.index("SLIPWAY_ALLOCATION_ID") < env.index("SLIPWAY_CHECKPOINT_DIR")
    assert "SLIPWAY_CHECKPOINT_DIR" not in env_of(manifests, container=1)
    assert "SLIPWAY_CHECKPOINT_DIR" not in env_of(manifests, rank=1)
    assert "slipway.dev/checkpoint-dir" not in manifests.pods[0].manifest["metadata"]["annotations"]


def test_autoscalers_leave_ranks_alone_that_cannot_be_preempted() -> None:
    """Ranks that cannot be preempted are marked as not evictable for autoscalers, which would evict a rank to remove
    its node and so lose the work of its gang. A template may override the mark."""
    evict, disrupt = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"

    def said(**spec: Any) -> tuple[str | None, str | None]:
        annotations = made(1, **spec).pods[0].manifest["metadata"]["annotations"]
        return annotations.get(evict), annotations.get(disrupt)

    assert said() == ("false", "true")
    assert said(preemptible=True) == (None, None)
    container = {"name": "main", "image": "a"}
    template = {"metadata": {"annotations": {evict: "true"}}, "spec": {"containers": [container]}}
    assert said(roles=[{"name": "a", "template": template}]) == ("true", "true")
    assert made(1).pods[0].spec_hash == made(1, preemptible=True).pods[0].spec_hash


def test_a_rank_that_serves_is_told_which_pod_it_is() -> None:
    """A rank with ports gets the name of its pod, because a request of the proxy names the pod."""
    serving = env_of(made(1, ports=[{"name": "http", "port": 8080}]))
    assert serving["SLIPWAY_POD_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert "SLIPWAY_POD_UID" not in env_of(made(1))


def test_torchrun_style_rendezvous_works_out_of_the_box() -> None:
    """Rank 0 is found by its name below the headless service; a single rank finds itself."""
    gang, alone = env_of(made(3), rank=2), env_of(made(1))
    assert gang["MASTER_ADDR"] == f"run-0123abcd-1-0.run-0123abcd-1.{NAMESPACE}.svc"
    assert (gang["MASTER_PORT"], gang["RANK"], gang["WORLD_SIZE"]) == ("29500", "2", "3")
    assert (gang["NODE_RANK"], gang["LOCAL_RANK"]) == ("2", "0")
    assert (alone["MASTER_ADDR"], alone["WORLD_SIZE"]) == ("127.0.0.1", "1")
    spec = made(3).pods[2].manifest["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("run-0123abcd-1-2", "run-0123abcd-1")


def test_users_may_set_everything_but_our_own_variables() -> None:
    """Users may set every variable except ours; theirs follow ours, so that they may refer to them."""
    container = {"name": "main", "image": "i", "command": ["c"], "env": [{"name": "A", "value": "template"}]}
    manifests = made(1, template=a_template(container), env={"A": "spec", "B": "$(SLIPWAY_RANK)", "MASTER_PORT": "1"})
    env = env_of(manifests)
    assert (env["A"], env["B"], env["MASTER_PORT"]) == ("template", "$(SLIPWAY_RANK)", "1")
    names = [item["name"] for item in manifests.pods[0].manifest["spec"]["containers"][0]["env"]]
    assert names.index("SLIPWAY_RANK") < names.index("B")


def test_sidecars_and_init_containers_know_their_rank_too() -> None:
    """Sidecars and init containers get the variables of the rank, but only the main container gets the resources, the
    files in its working directory and the user's variables."""
    main, side = {"name": "main", "image": "i", "command": ["c"]}, {"name": "side", "image": "s"}
    manifests = made(
        template=a_template(side, main, initContainers=[{"name": "init", "image": "x"}]),
        env={"A": "1"},
        roles=[{"name": "worker", "count": 1, "resources": {"cpu": "2"}}],
        files=[{"path": "a.py", "content": ""}],
    )
    spec = manifests.pods[0].manifest["spec"]
    sidecar, worker = spec["containers"]
    assert worker["resources"]["requests"] == {"cpu": "2", "memory": "256Mi"}
    assert [mount["mountPath"] for mount in sidecar["volumeMounts"]] == ["/run/slipway/files"]
    assert "resources" not in sidecar
    assert env_of(manifests, container=0)["SLIPWAY_RANK"] == "0"
    assert "A" not in env_of(manifests, container=0)
    assert {"name": "SLIPWAY_RANK", "value": "0"} in spec["initContainers"][0]["env"]
    assert manifests.pods[0].manifest["metadata"]["annotations"]["slipway.dev/main-container"] == "main"


def test_the_pod_is_ours_to_place_and_never_restarts() -> None:
    """The pod has our scheduler and is never restarted, whatever the template says."""
    spec = made(1).pods[0].manifest["spec"]
    assert spec["schedulerName"] == "slipway"
    assert "nodeName" not in spec
    assert spec["restartPolicy"] == "Never"
    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False


def test_selectors_and_tolerations_of_pool_template_and_role_come_together() -> None:
    """Node selectors and tolerations of pool, template and role are merged; for one label the role wins."""
    toleration = {"key": "gpu", "operator": "Exists"}
    manifests = made(
        pool={"nodeSelector": {"pool": "a", "zone": "p"}, "tolerations": [toleration]},
        template=a_template(nodeSelector={"zone": "t", "disk": "ssd"}),
        roles=[
            {"name": "worker", "count": 1, "nodeSelector": {"zone": "r"}, "tolerations": [{"key": "x", "value": "y"}]}
        ],
    )
    spec = manifests.pods[0].manifest["spec"]
    assert spec["nodeSelector"] == {"pool": "a", "zone": "r", "disk": "ssd"}
    assert sorted(item["key"] for item in spec["tolerations"]) == ["gpu", "x"]


def test_roles_have_templates_and_ranks_of_their_own() -> None:
    """Roles have their own templates; ranks are numbered through the roles in order."""
    other = a_template({"name": "main", "image": "other", "command": ["c"]})
    manifests = made(
        roles=[{"name": "launcher", "count": 1, "template": other}, {"name": "worker", "count": 2}],
        template=a_template(),
    )
    images = [pod.manifest["spec"]["containers"][0]["image"] for pod in manifests.pods]
    assert images == ["other", "python:3.11", "python:3.11"]
    assert [pod.manifest["metadata"]["labels"]["slipway.dev/role"] for pod in manifests.pods] == [
        "launcher",
        "worker",
        "worker",
    ]


def test_files_appear_below_a_writable_working_directory() -> None:
    """Files appear below a writable working directory, unless the template sets its own directory."""
    files = [{"path": "train.py", "content": "x", "mode": 0o755}]
    main = made(1, files=files).pods[0].manifest["spec"]["containers"][0]
    assert main["workingDir"] == "/run/slipway/work"
    own = a_template({"name": "main", "image": "i", "command": ["c"], "workingDir": "/app"})
    spec = made(1, files=files, template=own).pods[0].manifest["spec"]
    assert spec["containers"][0]["workingDir"] == "/app"
    assert {item["mountPath"] for item in spec["containers"][0]["volumeMounts"]} == {
        "/run/slipway/files",
        "/app/train.py",
        "/run/slipway/home",
    }
    volume = next(volume for volume in spec["volumes"] if volume["name"] == "slipway-files")
    assert volume["configMap"]["name"] == "run-0123abcd-1"


def test_every_container_has_the_files_that_it_is_told_of() -> None:
    """Every container has the files that its variables name, init containers and sidecars too; a container that mounts
    its own folder there keeps it."""
    main = {"name": "main", "image": "a", "command": ["b"]}
    own = {"name": "own", "mountPath": "/run/slipway/files"}
    others = {"name": "beside", "image": "a"}, {"name": "keeps", "image": "a", "volumeMounts": [own]}
    template = a_template(main, *others, initContainers=[{"name": "first", "image": "a"}])
    manifests = made(1, template=template, files=[{"path": "train.py", "content": "x"}])
    spec = manifests.pods[0].manifest["spec"]
    found: dict[str, list[str]] = {}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert {item["name"]: item.get("value") for item in container["env"]}["SLIPWAY_FILES"] == "/run/slipway/files"
        mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"] == "/run/slipway/files"]
        found[container["name"]] = [mount["name"] for mount in mounts]
    assert found == {name: ["slipway-files"] for name in ("first", "main", "beside")} | {"keeps": ["own"]}


def test_an_allocation_without_files_is_told_of_none() -> None:
    assert "SLIPWAY_FILES" not in env_of(made(1))


def test_a_token_is_projected_only_when_an_audience_is_set() -> None:
    """A token is projected only when an audience is set, because an API without authentication needs none."""
    assert "SLIPWAY_TOKEN_FILE" not in env_of(made(1))
    manifests = made(1, options=TaskOptions(token_audience="slipway"))
    assert env_of(manifests)["SLIPWAY_TOKEN_FILE"] == "/run/slipway/token/token"
    volumes = {volume["name"]: volume for volume in manifests.pods[0].manifest["spec"]["volumes"]}
    volume = volumes["slipway-token"]
    assert "slipway-token" not in {volume["name"] for volume in made(1).pods[0].manifest["spec"]["volumes"]}
    assert volume["projected"]["sources"][0]["serviceAccountToken"]["audience"] == "slipway"


def test_every_container_has_the_token_that_it_is_told_of() -> None:
    """Every container has the token that its variables name, init containers and sidecars too, beside their own
    mounts."""
    own = {"name": "scratch", "mountPath": "/scratch"}
    main = {"name": "main", "image": "a", "command": ["b"]}
    beside = {"name": "beside", "image": "a", "volumeMounts": [own]}
    template = a_template(main, beside, initContainers=[{"name": "first", "image": "a"}])
    spec = made(1, template=template, options=TaskOptions(token_audience="slipway")).pods[0].manifest["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert {item["name"]: item.get("value") for item in container["env"]}["SLIPWAY_TOKEN_FILE"]
        assert "/run/slipway/token" in [mount["mountPath"] for mount in container["volumeMounts"]], container["name"]
    assert own in spec["containers"][1]["volumeMounts"]


def on_devices(*device: int, **resources: Any) -> Manifests:
    """The objects of one rank with the devices `device`; its template sets the visible devices itself."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    template = a_template({"name": "main", "image": "python:3.11", "command": ["python"], "env": env})
    story = an_allocation(template=template).with_spec(ranks=[RoleSpec(name="worker", resources=resources)]).assigned()
    admission = story.it.status.admission
    assert admission is not None
    placement = {"rank": 0, "node": "n0", "device": list(device)}
    changed = msgspec.structs.replace(admission, placements=[msgspec.convert(placement, Placement)])
    return manifests_of(story.with_status(admission=changed).it)


def test_the_first_rank_of_those_that_run_stands_behind_the_service() -> None:
    """The Service of MASTER_ADDR selects the first placed rank, also when rank 0 was not placed; pods of two Services
    differ in their hash."""
    story = an_allocation(3, template=a_template(), minAvailable=1, service={"name": "llm", "port": 80}).assigned()
    assert story.it.status.admission is not None
    placed = story.it.status.admission.placements[1:]
    part = story.with_status(admission=msgspec.structs.replace(story.it.status.admission, placements=placed))
    pods = manifests_of(part.it).pods
    assert [pod.manifest["metadata"]["labels"].get("slipway.dev/service") for pod in pods] == ["llm", None]
    assert made(service={"name": "a", "port": 1}).pods[0].spec_hash != made().pods[0].spec_hash


def test_devices_reach_the_pod() -> None:
    """The containers see exactly the devices that the scheduler chose, and request none from the device plugin."""
    manifests = on_devices(1, 3, **{"cpu": 1, "nvidia.com/gpu": 2})
    assert env_of(manifests)["SLIPWAY_DEVICES"] == "1,3"
    assert env_of(manifests)["NVIDIA_VISIBLE_DEVICES"] == "1,3"
    (pod,) = manifests.pods
    assert pod.manifest["metadata"]["annotations"]["slipway.dev/devices"] == "1,3"
    assert "slipway.dev/gpu-milli" not in pod.manifest["metadata"]["annotations"]
    assert pod.manifest["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "1", "memory": "256Mi"}}


def test_a_part_of_a_device_reaches_the_pod() -> None:
    """A part of a device reaches the pod without a request, because no node offers parts."""
    manifests = on_devices(2, **{"slipway.dev/gpu-milli": 300})
    (pod,) = manifests.pods
    assert env_of(manifests)["NVIDIA_VISIBLE_DEVICES"] == "2"
    assert pod.manifest["metadata"]["annotations"]["slipway.dev/devices"] == "2"
    assert pod.manifest["metadata"]["annotations"]["slipway.dev/gpu-milli"] == "300"
    assert pod.manifest["spec"]["containers"][0]["resources"] == {"requests": DEFAULTS}


def test_where_the_device_plugin_chooses_it_is_asked() -> None:
    manifests = on_devices(**{"nvidia.com/gpu": 2})
    assert env_of(manifests)["NVIDIA_VISIBLE_DEVICES"] == "all"
    gpus = {"nvidia.com/gpu": "2"}
    found = manifests.pods[0].manifest["spec"]["containers"][0]["resources"]
    assert found == {"requests": {**DEFAULTS, **gpus}, "limits": gpus}


def test_the_hash_tells_content_and_not_the_trace() -> None:
    """The hash covers the content without the trace, so that two replicas adopt each other's pods."""
    allocation = an_allocation(2, template=a_template()).assigned().it
    one, two = manifests_of(allocation), manifests_of(allocation, trace="")
    assert [pod.spec_hash for pod in one.pods] == [pod.spec_hash for pod in two.pods]
    assert hash_of(one.configmap) == hash_of(two.configmap) != ""
    other = made(2, env={"A": "1"})
    assert other.pods[0].spec_hash != one.pods[0].spec_hash


def test_an_admission_for_ranks_that_do_not_exist_is_invalid() -> None:
    """A damaged status must not stop the process that reads it."""
    allocation = an_allocation(1, template=a_template()).assigned("n0").it
    two = an_allocation(2, template=a_template()).assigned("n0", "n1").with_spec(ranks=allocation.spec.ranks).it
    with pytest.raises(InvalidError):
        manifests_of(two)


def test_shared_memory_is_a_bounded_volume_in_memory() -> None:
    """Shared memory is a bounded volume in memory for all containers, which share it without a volume too; a rank
    without a memory limit has the default of the runtime."""
    limited = {"requests": {"memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    side = {"name": "side", "image": "s"}
    own = {"name": "own", "image": "o", "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/"}]}
    main = {"name": "main", "image": "i", "command": ["c"]}

    def shm_of(resources: dict[str, Any], **spec: Any) -> tuple[list[Any], list[int]]:
        roles = [{"name": "worker", "count": 1, "resources": resources}]
        template = a_template(
            main, side, own, initContainers=[{**side, "name": "first"}], volumes=[{"name": "mine", "emptyDir": {}}]
        )
        options = TaskOptions(token_audience="slipway")
        pod = made(roles=roles, template=template, options=options, **spec).pods[0].manifest["spec"]
        mounts = [item.get("volumeMounts") or () for item in (*pod["initContainers"], *pod["containers"])]
        at = [sum(each["mountPath"] == "/dev/shm" for each in one) for one in mounts]
        return [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "slipway-shm"], at

    everywhere = [1, 1, 1, 0]
    assert shm_of(limited) == ([{"medium": "Memory", "sizeLimit": "2Gi"}], everywhere)
    assert shm_of(limited, shmSize="3Gi") == ([{"medium": "Memory", "sizeLimit": "3Gi"}], everywhere)
    assert shm_of(limited, pool={"shmSize": "25%"}) == ([{"medium": "Memory", "sizeLimit": "1Gi"}], everywhere)
    assert shm_of({"memory": "4Gi"}) == ([], [0, 0, 0, 0])


def test_a_working_directory_in_shared_memory_is_mounted_once() -> None:
    """A working directory in shared memory is mounted once, because a pod with two volumes at one path is refused."""
    limited = {"requests": {"memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    container = {"name": "main", "image": "i", "command": ["c"], "workingDir": "/dev/shm"}
    roles = [{"name": "worker", "count": 1, "resources": limited}]
    pod = made(roles=roles, template=a_template(container), context="a" * 64).pods[0].manifest["spec"]
    paths = [item["mountPath"] for item in pod["containers"][0]["volumeMounts"]]
    assert paths.count("/dev/shm") == 1


def test_secret_values_are_references_to_the_secret_of_the_allocation() -> None:
    """Secret values are references in the main container only, before any value that may refer to them; they replace
    other variables of their name."""
    main = {"name": "main", "image": "i", "command": ["c"], "env": [{"name": "TOKEN", "value": "old"}]}
    template = a_template(main, {"name": "side", "image": "s"}, initContainers=[{"name": "first", "image": "a"}])
    manifests = made(1, template=template, env={"TOKEN": "older", "URL": "$(TOKEN)"}, secretVariables=["TOKEN"])
    pod = manifests.pods[0].manifest
    uid = pod["metadata"]["labels"]["slipway.dev/allocation-uid"]
    env = pod["spec"]["containers"][0]["env"]
    reference = {"secretKeyRef": {"name": f"slipway-values-{uid}", "key": "TOKEN"}}
    assert [item for item in env if item["name"] == "TOKEN"] == [{"name": "TOKEN", "valueFrom": reference}]
    names = [item["name"] for item in env]
    assert names.index("TOKEN") < names.index("URL")
    assert "TOKEN" not in str(pod["spec"]["containers"][1]) + str(pod["spec"]["initContainers"])
