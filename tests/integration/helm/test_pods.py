"""Settings of our pods for operators: images, secrets, sizes, probes, names, containers beside; and more objects."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.helm.matrix import rendered
from tests.support import chart
from tests.support.chart import SERVICES
from tools.release.chart import packed
from tools.release.version import version

Json = dict[str, Any]
UNITS = {"Mi": 1, "Gi": 1024}
PINS: Json = yaml.safe_load((chart.CHART / "files/pins.yaml").read_text("utf-8"))
SIZES: Json = yaml.safe_load((chart.CHART / "files/sizes.yaml").read_text("utf-8"))
MEASURED = ("small", "medium", "large")
"""the rows of the table of docs/operating.md, in order"""


def _images(documents: list[Json]) -> set[str]:
    pods = [pod for pod in map(chart.pod_of, documents) if pod is not None]
    return {container["image"] for pod in pods for container in pod["containers"]}


def _mib(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def test_one_registry_serves_every_image() -> None:
    """The registry is used for our image, the Valkey, and the trial's image; every pod has each pull secret once."""
    documents = rendered("images of a mirror")
    assert {image.partition("/")[0] for image in _images(documents)} == {"mirror.example"}
    (trial,) = chart.pod_spec(documents, chart.TRIAL)["containers"]
    assert {"name": "SLIPWAY_TRIAL_IMAGE", "value": "mirror.example/python:3.12"} in trial["env"]
    wanted = [{"name": name} for name in ("one", "two", "three", "shared")]
    pods = [pod for pod in map(chart.pod_of, documents) if pod is not None]
    assert [pod["imagePullSecrets"] for pod in pods] == [wanted] * len(pods)


def test_an_image_of_its_own_registry_stays_there() -> None:
    """The registry of an image, or one in its repository, wins over the shared one."""
    ours, valkey = sorted(_images(rendered("images of two registries")), reverse=True)
    assert re.fullmatch(r"registry\.example:5000/team/slipway:[\d.]+", ours)
    assert re.fullmatch(r"mirror\.example/valkey/valkey@sha256:[0-9a-f]{64}", valkey)
    values: Json = {"global": {"imageRegistry": "mirror.example"}, "image": {"repository": "localhost:5000/slipway"}}
    assert any(image.startswith("localhost:5000/slipway:") for image in _images(chart.render(values)))


OTHER = f"sha256:{'b' * 64}"


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        pytest.param({}, f"valkey/valkey@{PINS['valkey']['digest']}", id="as the chart has it"),
        pytest.param(
            {"global": {"imageRegistry": "mirror.example"}},
            f"mirror.example/valkey/valkey@{PINS['valkey']['digest']}",
            id="of a mirror",
        ),
        pytest.param({"valkey": {"image": {"tag": "8.1"}}}, "valkey/valkey:8.1", id="another tag"),
        pytest.param(
            {"valkey": {"image": {"repository": "a.example/redis"}}},
            f"a.example/redis:{PINS['valkey']['tag']}",
            id="another image",
        ),
        pytest.param({"pinImages": False}, f"valkey/valkey:{PINS['valkey']['tag']}", id="by tags"),
        pytest.param({"valkey": {"image": {"digest": OTHER}}}, f"valkey/valkey@{OTHER}", id="a digest of one's own"),
    ],
)
def test_a_digest_belongs_to_the_tag_that_the_chart_names(values: Json, wanted: str) -> None:
    """The Valkey is pinned by digest; with another tag or another image no digest is used."""
    [container] = chart.pod_spec(chart.render(values), "valkey")["containers"]
    assert container["image"] == wanted


@pytest.mark.parametrize(
    ("image", "is_pinned"),
    [
        pytest.param({"registry": "a.example"}, True, id="as released"),
        pytest.param({"repository": "a.example/team/slipway"}, True, id="below a folder"),
        pytest.param({"registry": "a.example", "tag": "mine"}, False, id="a tag of one's own"),
        pytest.param({"allowNoRegistry": True}, False, id="imported on every node, where only its tag is known"),
        pytest.param({"pullPolicy": "Never"}, False, id="never pulled"),
    ],
)
def test_the_chart_of_a_release_names_the_image_of_the_release(image: Json, is_pinned: bool, tmp_path: Path) -> None:
    """Every pod has the digest that `make release` wrote."""
    pins = {"slipway": {"repository": "slipway", "tag": version(), "digest": OTHER}}
    released = tmp_path / "slipway.tgz"
    released.write_bytes(packed(chart.CHART, epoch_s=1, pins=pins))
    ours = {
        each
        for each in _images(chart.render({"image": {"allowNoRegistry": False, **image}}, chart=released))
        if "slipway" in each
    }
    assert len(ours) == 1
    assert ours.pop().endswith(f"@{OTHER}") is is_pinned


@pytest.mark.parametrize(
    ("image", "is_told"),
    [({"registry": "a.example"}, False), ({"repository": "a.example/slipway"}, False), ({}, True)],
)
def test_an_image_without_a_registry_is_told(image: Json, is_told: bool) -> None:
    """The notes mention it. Rendering the chart is not refused: no node has to pull the image then."""
    values = {"image": {"allowNoRegistry": False, **image}}
    assert ("names no registry" in chart.notes(values)) is is_told


def test_a_size_says_what_each_part_takes() -> None:
    """Own resources win over those of the size, field by field."""
    documents = rendered("a size")
    for part in (*SERVICES, "valkey"):
        (container,) = chart.pod_spec(documents, part)["containers"]
        wanted = {key: dict(SIZES["large"][part][key]) for key in ("requests", "limits")}
        wanted["limits"] |= {"memory": "9Gi"} if part == "api" else {}
        assert container["resources"] == wanted, part
    (valkey,) = chart.pod_spec(documents, "valkey")["containers"]
    assert {"name": "VALKEY_MAXMEMORY", "value": "1gb"} in valkey["env"]


@pytest.mark.parametrize("size", MEASURED)
def test_a_size_holds_what_was_measured(size: str) -> None:
    """Requests cover the use that docs/operating.md measured for that many allocations, limits half as much again."""
    text = (chart.ROOT / "docs/operating.md").read_text("utf-8")
    base = {
        name: (int(at), int(live), int(ended))
        for name, at, live, ended in re.findall(r"of (\w+), (\d+) MiB without \| \+(\d+) MiB \| \+(\d+) MiB", text)
    }
    rows = re.findall(r"^\| ([\d,]+) and ([\d,]+) \| [^|]+ \| ([\d,]+) MB \| ([\d,]+) MiB", text, re.M)
    live, ended, redis_mb, watcher_mib = (int(word.replace(",", "")) for word in rows[MEASURED.index(size)])
    took = {name: at + (live * more + ended * kept) / 1000 for name, (at, more, kept) in base.items()}
    took["watcher"] = watcher_mib
    assert set(took) == set(SERVICES)
    for part, mib in took.items():
        row = SIZES[size][part]
        assert _mib(row["requests"]["memory"]) >= mib, part
        assert _mib(row["limits"]["memory"]) >= 1.5 * mib, part
    valkey = SIZES[size]["valkey"]
    cap = int(valkey["maxMemory"].removesuffix("mb"))
    assert cap >= 2 * redis_mb
    assert _mib(valkey["limits"]["memory"]) >= 1.4 * cap


def test_probes_keep_what_is_not_said() -> None:
    """A field changes that field of the chart's probe; another handler replaces the chart's handler."""
    documents = rendered("other probes")
    (api,) = chart.pod_spec(documents, "api")["containers"]
    assert api["startupProbe"]["failureThreshold"] == 300
    assert api["startupProbe"]["httpGet"] == {"path": "/livez", "port": "health"}
    assert (api["readinessProbe"]["timeoutSeconds"], api["readinessProbe"]["failureThreshold"]) == (10, 2)
    (watcher,) = chart.pod_spec(documents, "watcher")["containers"]
    assert watcher["livenessProbe"]["tcpSocket"] == {"port": "health"}
    assert "httpGet" not in watcher["livenessProbe"]


def test_dns_settings_reach_every_pod() -> None:
    """Pods of Jobs and of the Valkey have the DNS settings too."""
    pods = [pod for pod in map(chart.pod_of, rendered("names in pods")) if pod is not None]
    assert len(pods) > len(SERVICES)
    for pod in pods:
        assert pod["dnsPolicy"] == "None"
        assert pod["dnsConfig"]["nameservers"] == ["10.0.0.10"]
        assert pod["hostAliases"] == [{"ip": "10.1.2.3", "hostnames": ["redis.example"]}]


def test_a_load_balancer_leads_to_the_api_alone() -> None:
    """The load balancer is a separate Service: the port for tasks stays inside, and so does the address that ranks
    use."""
    documents = rendered("a load balancer")
    outside = chart.find(documents, "Service", "slipway-api-outside")
    assert outside["metadata"]["annotations"] == {"balancer.example/internal": "true"}
    assert outside["spec"]["type"] == "LoadBalancer"
    assert outside["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    assert [(port["name"], port["port"]) for port in outside["spec"]["ports"]] == [("http", 80)]
    inside = chart.find(documents, "Service", "slipway-api")
    assert inside["spec"]["type"] == "ClusterIP"
    assert "annotations" not in inside["metadata"]
    assert {port["name"]: port["port"] for port in inside["spec"]["ports"]} == {"http": 80, "tasks": 8090}
    (rule,) = chart.find(documents, "HTTPRoute", "slipway-api")["spec"]["rules"]
    assert [each["port"] for each in rule["backendRefs"]] == [80]
    assert "get service slipway-api-outside" in chart.notes(
        {"api": {"settings": {"auth": "kubernetes", "listen": "0.0.0.0:8080"}, "service": {"type": "NodePort"}}}
    )


def test_extra_containers_are_added() -> None:
    """Additional containers are in the pods of that service only, and our container stays the first."""
    proxy, wait = {"name": "proxy", "image": "mesh.example/proxy:1"}, {"name": "wait", "image": "mesh.example/wait:1"}
    documents = chart.render({"api": {"sidecars": [proxy], "initContainers": [wait]}})
    pod = chart.pod_spec(documents, "api")
    assert [container["name"] for container in pod["containers"]] == ["api", "proxy"]
    assert (pod["containers"][1], pod["initContainers"]) == (proxy, [wait])
    assert len(chart.pod_spec(documents, "watcher")["containers"]) == 1


def test_extra_objects_are_rendered() -> None:
    """Additional objects may be YAML or text, and are rendered with the values of the release."""
    objects: list[Any] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-notes"}},
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Values.nameOverride }}-text'}\n",
    ]
    documents = chart.render({"extraObjects": objects, "nameOverride": "mine"})
    names = {item["metadata"]["name"] for item in documents if item["kind"] == "ConfigMap"}
    assert names >= {"slipway-notes", "mine-text"}
