"""Over every set of values: pods are restricted, probed and bounded, and names refer to existing objects."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from slipway.runtime.settings import load
from tests.integration.helm.matrix import LINTED, MATRIX, SECRETS, rendered
from tests.support import chart
from tools.chart_schema import SERVICES

Json = dict[str, Any]

CLUSTER_KINDS = {
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Namespace",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
VOLUMES = {"configMap", "emptyDir", "secret"}
THERE_ALREADY = {
    ("Secret", "authority"),
    ("Secret", "certificate"),
    ("Secret", "tokens"),
    ("Secret", "slipway-tls"),
    ("ConfigMap", "authorities"),
    *(("Secret", name) for name in SECRETS),
}
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@pytest.fixture(scope="module", params=MATRIX)
def documents(request: pytest.FixtureRequest) -> list[Json]:
    """The chart with one set of values."""
    return rendered(request.param)


def _pods(documents: list[Json]) -> Iterator[tuple[Json, Json]]:
    for item in documents:
        pod = chart.pod_of(item)
        if pod is not None:
            yield item, pod


def _containers(documents: list[Json]) -> Iterator[tuple[Json, Json, Json]]:
    for item, pod in _pods(documents):
        for container in pod["containers"]:
            yield item, pod, container


@pytest.mark.parametrize("name", LINTED)
def test_the_linter_finds_nothing(name: str) -> None:
    """The linter has no findings, not even advice."""
    assert chart.lint(MATRIX[name]) == []


def test_containers_are_restricted(documents: list[Json]) -> None:
    """Containers meet pod security "restricted": no root, no escalation, no capability, the default seccomp, a
    read-only root."""
    for item, pod, container in _containers(documents):
        context, own = pod["securityContext"], container["securityContext"]
        assert context["runAsNonRoot"] is True, item["metadata"]["name"]
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert {next(kind for kind in volume if kind != "name") for volume in pod.get("volumes", ())} <= VOLUMES


def test_containers_are_bounded(documents: list[Json]) -> None:
    """Containers have requests of cpu and memory, a limit of memory, and none of cpu, which would only slow them
    down."""
    for item, _, container in _containers(documents):
        resources = container["resources"]
        assert set(resources["requests"]) == {"cpu", "memory"}, item["metadata"]["name"]
        assert set(resources["limits"]) == {"memory"}


def test_containers_are_probed(documents: list[Json]) -> None:
    """Containers have all three probes, on a port of theirs; one that ends by itself has a deadline or a limit
    instead."""
    for item, _, container in _containers(documents):
        if item["kind"] != "Deployment":
            assert "readinessProbe" not in container, item["metadata"]["name"]
            continue
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            said = container[probe]
            target = said.get("httpGet") or said.get("tcpSocket")
            assert said.get("exec") or target["port"] in ports, (item["metadata"]["name"], probe)


def test_probes_reach_the_services(documents: list[Json]) -> None:
    """The kubelet connects from outside of the pod, so the probed port listens on every address."""
    for service, struct in _running(documents).items():
        (container,) = chart.pod_spec(documents, service)["containers"]
        environment = _environment(documents, service)
        settings: Any = load(struct, environment)
        listen = getattr(settings, "health_listen", "") or settings.listen
        host, _, port = listen.rpartition(":")
        assert host in ("0.0.0.0", "[::]", ""), service
        assert {item["name"]: item["containerPort"] for item in container["ports"]}["health"] == int(port)


def test_pods_end_by_themselves(documents: list[Json]) -> None:
    """Kubernetes waits longer than the wait before the drain plus the drain."""
    for service, struct in _running(documents).items():
        settings = load(struct, _environment(documents, service))
        pod = chart.pod_spec(documents, service)
        delay = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert pod["terminationGracePeriodSeconds"] >= delay + settings.drain_timeout_s + 5


def test_pods_get_no_service_environment_variables(documents: list[Json]) -> None:
    """Kubernetes sets no variables for Services in our pods, because some would look like settings."""
    assert all(pod["enableServiceLinks"] is False for _, pod in _pods(documents))


def test_images_are_named_exactly(documents: list[Json]) -> None:
    """Images have a version or a digest, never `latest`."""
    for _, _, container in _containers(documents):
        assert re.search(r":[^/:]+$|@sha256:[0-9a-f]{64}$", container["image"]), container["image"]
        assert not container["image"].endswith(":latest")


def test_selectors_never_change(documents: list[Json]) -> None:
    """A selector is immutable: it contains only labels for the release and the component, none that a value decides."""
    for item in documents:
        if item["kind"] != "Deployment":
            continue
        labels = item["spec"]["template"]["metadata"]["labels"]
        selector = item["spec"]["selector"]["matchLabels"]
        part = selector["app.kubernetes.io/component"]
        assert set(selector) == {f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")}
        assert selector["app.kubernetes.io/instance"] == chart.RELEASE
        assert selector.items() <= labels.items()
        assert item["metadata"]["name"].endswith(f"-{part}")


def test_pods_spread_over_nodes(documents: list[Json]) -> None:
    """Each constraint counts the pods of the same service."""
    for service in _running(documents):
        deployment = chart.find(documents, "Deployment", service)["spec"]
        for constraint in deployment["template"]["spec"]["topologySpreadConstraints"]:
            assert constraint["labelSelector"] == deployment["selector"]


def test_services_and_budgets_find_their_pods(documents: list[Json]) -> None:
    """A Service or a disruption budget selects exactly one Deployment, with its ports; except the Service for
    metrics."""
    pods = {item["metadata"]["name"]: item["spec"]["template"] for item in documents if item["kind"] == "Deployment"}
    for item in documents:
        if item["kind"] not in ("Service", "PodDisruptionBudget") or item["metadata"]["name"].endswith("-metrics"):
            continue
        selector = item["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        found = [pod for pod in pods.values() if wanted.items() <= pod["metadata"]["labels"].items()]
        assert len(found) == 1, item["metadata"]["name"]
        ports = {port["name"] for port in found[0]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in item["spec"].get("ports", ())} <= ports


def test_names_refer_to_what_is_there(documents: list[Json]) -> None:
    """ConfigMaps, Secrets, accounts and roles that are named are created, or are existing ones that the values name."""
    whole = {(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in documents}
    assert len(whole) == len(documents)
    made = {(kind, name) for kind, _, name in whole}
    for _, pod, container in _containers(documents):
        for volume in pod.get("volumes", ()):
            named = {("Secret", volume.get("secret", {}).get("secretName"))}
            named |= {("ConfigMap", volume.get("configMap", {}).get("name"))}
            assert {one for one in named if one[1]} <= made | THERE_ALREADY
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod.get("volumes", ())}
        if "serviceAccountName" in pod:
            assert ("ServiceAccount", pod["serviceAccountName"]) in made
        for source in container.get("envFrom", ()):
            assert ("ConfigMap", source["configMapRef"]["name"]) in made
        for entry in container.get("env", ()):
            secret = entry.get("valueFrom", {}).get("secretKeyRef")
            if secret is not None:
                assert ("Secret", secret["name"]) in made | THERE_ALREADY
    for item in documents:
        if item["kind"].endswith("RoleBinding"):
            role = item["roleRef"]
            place = item["metadata"].get("namespace") if role["kind"] == "Role" else None
            assert (role["kind"], place, role["name"]) in whole
            for subject in item["subjects"]:
                assert ("ServiceAccount", subject["namespace"], subject["name"]) in whole


def test_objects_carry_the_labels_of_the_release(documents: list[Json]) -> None:
    """Objects have valid names, the recommended labels, and a namespace if they are namespaced: ours, or a
    workspace's."""
    for item in documents:
        meta = item["metadata"]
        assert NAME.fullmatch(meta["name"]), meta["name"]
        assert len(meta["name"]) <= 63
        if item["kind"] == "CustomResourceDefinition":
            continue
        assert meta["labels"]["app.kubernetes.io/part-of"] == "slipway"
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        if item["kind"] in CLUSTER_KINDS:
            assert "namespace" not in meta
        else:
            assert meta["namespace"] == chart.NAMESPACE or item["kind"] in ("Role", "RoleBinding", "NetworkPolicy")


def test_no_secret_is_shown(documents: list[Json]) -> None:
    """A password is in a Secret only, and in no ConfigMap, argument or plain variable."""
    for item in documents:
        if item["kind"] == "ConfigMap":
            assert "redis://" not in str(item["data"])
    for _, _, container in _containers(documents):
        plain = [entry["value"] for entry in container.get("env", ()) if "value" in entry]
        assert not re.search(r"rediss?(\+\w+)?://[^/]*@", str([*plain, *container.get("args", ())]))


def test_definitions_are_the_generated_ones() -> None:
    """The rendered definitions equal the files, plus the annotation that keeps them."""
    folder = chart.CHART / "files" / "crds"
    generated = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in folder.iterdir()}
    for keep in (True, False):
        rendered = chart.render({"crds": {"keep": keep}})
        found = [item for item in rendered if item["kind"] == "CustomResourceDefinition"]
        assert {f"{item['metadata']['name']}.yaml": _without_notes(item) for item in found} == generated
        notes = [item["metadata"].get("annotations", {}) for item in found]
        assert all(("helm.sh/resource-policy" in note) is keep for note in notes)


def test_a_change_of_settings_replaces_pods() -> None:
    """Services read settings only at start: pods of a service whose settings change are replaced, and no others."""
    before = chart.render()
    after = chart.render({"watcher": {"settings": {"logDrainS": 11}}})
    sums = [
        {service: chart.find(found, "Deployment", service)["spec"]["template"]["metadata"] for service in SERVICES}
        for found in (before, after)
    ]
    assert {service for service in SERVICES if sums[0][service] != sums[1][service]} == {"watcher"}


def test_whatever_changes_the_setup_makes_another_job() -> None:
    """The template of a Job is immutable; equal content gives the same Job, so that an upgrade does not run it
    again."""
    changes: list[Json] = [
        {},
        {"setup": {"workspaces": ["a"]}},
        {"setup": {"nodeSelector": {"disk": "no"}}},
        {"labels": {"team": "platform"}},
        {"priorityClass": {"create": True}},
        {"image": {"pullSecrets": ["one"]}},
    ]
    assert len({_job_name(values) for values in changes}) == len(changes)
    assert _job_name({}) == _job_name({"api": {"replicas": 3}})


def test_the_chart_has_the_version_of_the_product() -> None:
    """The default image of the chart has the same version."""
    about = yaml.safe_load((chart.CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((chart.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert about["version"] == about["appVersion"] == project["version"]


def test_commands_are_those_of_the_image() -> None:
    """Every container of ours runs a command that the package installs."""
    scripts = tomllib.loads((chart.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    documents = chart.render()
    for component in (*SERVICES, chart.SETUP):
        assert chart.service_command(documents, component)[0] in scripts


def test_notes_are_three_commands() -> None:
    """The notes show how to reach the api, launch something and look at it, and what is missing."""
    said = chart.notes({"api": {"settings": {"listen": "127.0.0.1:9090"}}})
    assert "port-forward service/slipway-api 9090:9090" in said
    assert len(re.findall(r"^\d\. ", said, re.MULTILINE)) == 3
    assert "no Redis" in chart.notes({"valkey": {"enabled": False}})
    assert "no Redis" not in said
    assert "a pool, a queue and a workspace" in chart.notes({"setup": {"enabled": False}})


def test_another_release_has_other_names() -> None:
    """Two releases can be in one namespace without a conflict of names."""
    one, two = ({(item["kind"], item["metadata"]["name"]) for item in chart.render(name=name)} for name in ("a", "b"))
    shared = {kind for kind, _ in one & two}
    assert shared == {"CustomResourceDefinition"}


def _running(documents: list[Json]) -> dict[str, Any]:
    """The services that run permanently."""
    return {
        service: struct
        for service, struct in SERVICES.items()
        if any(item["kind"] == "Deployment" and item["metadata"]["name"].endswith(f"-{service}") for item in documents)
    }


def _without_notes(item: Json) -> Json:
    meta = {key: value for key, value in item["metadata"].items() if key != "annotations"}
    return {**item, "metadata": meta}


def _job_name(values: Json) -> str:
    found = [item for item in chart.render(values) if item["kind"] == "Job"]
    return str(found[0]["metadata"]["name"])


def _environment(documents: list[Json], service: str) -> dict[str, str]:
    return chart.service_environment(documents, service, secrets=SECRETS)


def test_ranks_are_sent_to_the_tasks_door() -> None:
    """Their SLIPWAY_API is an existing port of the api's Service: the port for tasks, or the api's own port when
    there is none."""
    for values, name in (({}, "tasks"), ({"api": {"settings": {"taskListen": ""}}}, "http")):
        documents = chart.render(values)
        service = next(
            item for item in documents if item["kind"] == "Service" and item["metadata"]["name"] == "slipway-api"
        )
        ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        url = chart.service_environment(documents, "podworker")["SLIPWAY_API_URL"]
        assert url == f"http://slipway-api.{service['metadata']['namespace']}.svc:{ports[name]}"
