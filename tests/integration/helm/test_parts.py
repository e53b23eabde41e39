"""The optional parts of the chart: scaling, scheduled runs, ingress, network policies, admission policies, monitors."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from slipway.api.settings import Settings
from slipway.runtime import redis_url
from slipway.runtime.settings import load
from slipway.streams import keys
from tests.integration.helm.matrix import SECRETS, rendered
from tests.support import chart
from tests.support.clock import FakeClock
from tests.support.mac_keys import some_keys
from tools.chart_schema import SERVICES

Json = dict[str, Any]

HOST = "slipway.example"


def _kinds(documents: list[Json]) -> set[str]:
    return {item["kind"] for item in documents}


# --- scaling ----------------------------------------------------------------------------------------------------------


def test_scalable_parts_state_their_replicas() -> None:
    """A Deployment with an autoscaler states no replicas: an upgrade would reset them."""
    for name, service, kind in (
        ("scaled api", "api", "HorizontalPodAutoscaler"),
        ("scaled by lag", "podworker", "ScaledObject"),
    ):
        documents = rendered(name)
        assert "replicas" not in chart.find(documents, "Deployment", service)["spec"]
        target = chart.find(documents, kind, service)["spec"]["scaleTargetRef"]
        assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"slipway-{service}"}
    assert chart.find(rendered("defaults"), "Deployment", "api")["spec"]["replicas"] == 2


def test_a_budget_is_made_where_there_may_be_more_than_one() -> None:
    """The budget depends on the least number of replicas that scaling allows."""

    def budgets(name: str) -> set[str]:
        found = [item for item in rendered(name) if item["kind"] == "PodDisruptionBudget"]
        return {item["metadata"]["name"].removeprefix("slipway-") for item in found}

    assert budgets("scaled api") == set(SERVICES)
    assert budgets("one api at least") == set(SERVICES) - {"api"}
    assert budgets("scaled by lag") == set(SERVICES) - {"podworker"}
    assert budgets("now and then") == {"api"}


@pytest.mark.parametrize(("name", "kind"), [("scaled by lag", "ScaledObject"), ("jobs by lag", "ScaledJob")])
def test_scaling_uses_the_lag_of_the_work_streams(name: str, kind: str) -> None:
    """Every work stream is measured, by its own key and group; the scaler connects to Redis as our services do, with
    an account of its own."""
    documents = rendered(name)
    triggers = chart.find(documents, kind, "podworker")["spec"]["triggers"]
    assert [item["metadata"]["stream"] for item in triggers] == [keys.work(shard) for shard in range(keys.SHARDS)]
    assert {item["metadata"]["consumerGroup"] for item in triggers} == {keys.WORK_GROUP}
    url = chart.service_environment(documents, "podworker")["SLIPWAY_REDIS_URL"]
    assert {item["metadata"]["address"] for item in triggers} == {url.removeprefix("rediss://").removesuffix("/0")}
    login: dict[str, str] = {}
    for each in chart.find(documents, "TriggerAuthentication", "podworker")["spec"]["secretTargetRef"]:
        secret = chart.find(documents, "Secret", each["name"])
        login[each["parameter"]] = {**secret.get("stringData", {}), **secret.get("data", {})}[each["key"]]
    assert set(login) == {"username", "password", "tls", "ca"}
    assert (login["username"], login["tls"]) == ("slipway-scaler", "enable")
    assert {item["authenticationRef"]["name"] for item in triggers} == {"slipway-podworker"}


def test_scheduled_runs_end() -> None:
    """A scheduled run has --once, the settings of the service, a deadline, and no second run beside it."""
    documents = rendered("now and then")
    for service in ("scheduler", "podworker", "watcher"):
        job = chart.find(documents, "CronJob", service)["spec"]
        assert job["concurrencyPolicy"] == "Forbid"
        assert job["jobTemplate"]["spec"]["activeDeadlineSeconds"] > 0
        assert chart.service_command(documents, service) == [f"slipway-{service}", "--once"]
        pod = chart.pod_spec(documents, service)
        assert pod["restartPolicy"] == "Never"
        wanted = chart.service_environment(rendered("defaults"), service)
        assert set(chart.service_environment(documents, service)) == set(wanted)
    running = [item["metadata"]["name"] for item in documents if item["kind"] == "Deployment"]
    assert sorted(running) == ["slipway-api", "slipway-valkey"]


# --- ends and importance ----------------------------------------------------------------------------------------------


def test_services_with_traffic_delay_their_shutdown() -> None:
    """Only the api waits before it drains: no other service gets requests."""
    waits = {
        service: chart.pod_spec(rendered("defaults"), service)["containers"][0].get("lifecycle") for service in SERVICES
    }
    assert waits == {**dict.fromkeys(SERVICES), "api": {"preStop": {"sleep": {"seconds": 5}}}}
    assert "lifecycle" not in chart.pod_spec(rendered("drains at once"), "api")["containers"][0]


def test_our_pods_take_the_class_that_is_made() -> None:
    """Except pods that name another one."""
    documents = rendered("important")
    name = chart.find(documents, "PriorityClass", "slipway")["metadata"]["name"]
    classes = {part: chart.pod_spec(documents, part)["priorityClassName"] for part in (*SERVICES, "valkey", "setup")}
    assert classes == {**dict.fromkeys(classes, name), "api": "mine"}


# --- Redis ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["redis with an authority", "redis with an authority and an option"])
def test_the_authority_of_redis_is_mounted_where_it_is_said(name: str) -> None:
    """It is mounted in every pod with the URL; an option that the URL has already stays."""
    documents = rendered(name)
    for item in documents:
        pod = chart.pod_of(item)
        for container in pod["containers"] if pod else ():
            if any(entry["name"] == "SLIPWAY_REDIS_URL" for entry in container.get("env", ())):
                folders = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "redis-ca"]
                assert folders == ["/etc/slipway/redis"], item["metadata"]["name"]
    given = chart.service_environment(documents, "api")
    assert given["SLIPWAY_REDIS_CA_FILE"] == "/etc/slipway/redis/ca.crt"
    url = redis_url.from_environment(given)
    assert url.endswith("ssl_ca_certs=/etc/slipway/redis/ca.crt")
    assert url.count("?") == 1
    assert ("ssl_check_hostname=true" in url) == ("an option" in name)


@pytest.mark.parametrize(("name", "prefix"), [("defaults", "slipway-"), ("redis with accounts", "team-a-")])
def test_each_service_has_its_own_account_on_redis(name: str, prefix: str) -> None:
    """Each service has a user of its name, and a key of the Secret that no other pod has."""
    documents = rendered(name)
    keys_of = {
        service: {
            entry["valueFrom"]["secretKeyRef"]["key"]
            for entry in chart.pod_spec(documents, service)["containers"][0]["env"]
            if entry["name"] == "SLIPWAY_REDIS_PASSWORD"
        }
        for service in SERVICES
    }
    assert keys_of == {service: {service} for service in SERVICES}
    for service in SERVICES:
        given = chart.service_environment(documents, service, secrets=SECRETS)
        assert given["SLIPWAY_REDIS_USER"] == f"{prefix}{service}"
        assert "@" not in given["SLIPWAY_REDIS_URL"]


def test_with_one_login_for_all_the_url_holds_it() -> None:
    """As in a release without accounts: no variable is set that would replace the login of the URL."""
    for name in ("redis by url", "redis cluster", "redis by secret"):
        given = chart.service_environment(rendered(name), "api", secrets=SECRETS)
        assert not {"SLIPWAY_REDIS_USER", "SLIPWAY_REDIS_PASSWORD"} & set(given), name


# --- ingress ----------------------------------------------------------------------------------------------------------


def _open(**more: Json) -> list[Json]:
    """The chart with an api that authenticates and can be reached from everywhere."""
    return chart.render({"api": {"settings": {"auth": "kubernetes", "listen": "0.0.0.0:8080"}}, **more})


def test_ingress_routes_lead_to_the_api() -> None:
    """Ingress and Gateway lead to a port of the api's Service, and the api accepts their host names."""
    documents = _open(
        ingress={"enabled": True, "hosts": [HOST], "tlsSecret": "certificate", "className": "nginx"},
        httpRoute={"enabled": True, "hostnames": ["gateway.example"], "parentRefs": [{"name": "gateway"}]},
    )
    ports = {port["name"]: port["port"] for port in chart.find(documents, "Service", "api")["spec"]["ports"]}
    ingress = chart.find(documents, "Ingress", "api")["spec"]
    (rule,) = ingress["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert (rule["host"], backend["name"], backend["port"]["name"] in ports) == (HOST, "slipway-api", True)
    assert ingress["tls"] == [{"secretName": "certificate", "hosts": [HOST]}]
    (route,) = chart.find(documents, "HTTPRoute", "api")["spec"]["rules"]
    assert route["backendRefs"] == [{"name": "slipway-api", "port": ports["http"]}]
    assert chart.service_environment(documents, "api")["SLIPWAY_HOSTS"] == f"{HOST},gateway.example"


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (
            {"api": {"settings": {"auth": "kubernetes"}}, "ingress": {"enabled": True, "hosts": [HOST]}},
            "inside of its pod",
        ),
        ({"ingress": {"enabled": True}}, "accepts every caller"),
        ({"httpRoute": {"enabled": True, "hostnames": [HOST]}}, "accepts every caller"),
    ],
)
def test_no_ingress_route_leads_to_an_unused_port(values: Json, word: str) -> None:
    """There is no ingress to an api without authentication, or to one that listens inside its pod only."""
    with pytest.raises(chart.HelmError, match=word):
        chart.render(values)


def test_ingress_routes_are_complete() -> None:
    """An ingress without names, and a route without a gateway, are refused."""
    for more, word in (
        ({"ingress": {"enabled": True}}, "needs host names"),
        ({"httpRoute": {"enabled": True, "hostnames": [HOST]}}, "parentRefs"),
    ):
        with pytest.raises(chart.HelmError, match=word):
            _open(**more)


def test_records_of_tokens_are_where_the_api_looks() -> None:
    """An existing Secret is mounted in the api's pod and no other."""
    documents = rendered("users by token")
    folder = chart.service_environment(documents, "api")["SLIPWAY_TOKEN_DIR"]
    (mount,) = [
        one for one in chart.pod_spec(documents, "api")["containers"][0]["volumeMounts"] if one["name"] == "tokens"
    ]
    assert mount == {"name": "tokens", "mountPath": folder, "readOnly": True}
    others = [chart.pod_spec(documents, service) for service in SERVICES if service != "api"]
    assert not any(volume["name"] == "tokens" for pod in others for volume in pod["volumes"])


def test_the_client_of_the_issuer_is_a_mounted_secret() -> None:
    """Only the api mounts it, reads the client's secret from it, and gets roles and claims as JSON that it can read."""
    documents = rendered("users of an issuer")
    pod = chart.pod_spec(documents, "api")
    (volume,) = [each for each in pod["volumes"] if each["name"] == "oidc"]
    assert volume["secret"] == {"secretName": "issuer"}
    (mount,) = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "oidc"]
    settings = load(Settings, chart.service_environment(documents, "api"))
    assert settings.oidc_client_secret_file == f"{mount['mountPath']}/client-secret"
    assert settings.oidc_roles["group:ml-team"] == {"team-red": "editor"}
    assert settings.oidc_required_claims == {"hd": "example.com"}
    others = [chart.pod_spec(documents, service) for service in SERVICES if service != "api"]
    assert not any(each["name"] == "oidc" for other in others for each in other["volumes"])


def test_keys_of_the_cluster_feed_are_for_who_writes_and_who_reads_it(tmp_path: Path) -> None:
    """The chart makes a key that watchers and schedulers can use, and mounts it in their pods only; or it uses
    another Secret, or none, and makes none without Redis."""
    documents = chart.render({})
    places: dict[str, Path] = {}
    for service in SERVICES:
        folder = chart.service_environment(documents, service).get("SLIPWAY_FEED_KEY_DIR")
        mounts = chart.service_mounts(documents, service, tmp_path)
        assert (folder in mounts) is (service in ("scheduler", "watcher")), service
        if folder is not None:
            places[service] = mounts[folder]
    signing, reading = (some_keys(places[service], FakeClock()) for service in ("watcher", "scheduler"))
    reading.check(signing.sign(b"place", b"value"), b"place", b"value")

    named = chart.render({"feedKeys": {"existingSecret": "mine"}})
    volumes = [each for each in chart.pod_spec(named, "watcher")["volumes"] if each["name"] == "feed-keys"]
    assert [each["secret"] for each in volumes] == [{"secretName": "mine"}]
    for without in (
        named,
        chart.render({"feedKeys": {"enabled": False}}),
        chart.render({"valkey": {"enabled": False}}),
    ):
        assert not any(item["metadata"]["name"].endswith("feed-keys") for item in without)


def test_keys_of_sessions_are_shared_by_all_replicas() -> None:
    """The chart makes a key that the api can use, in a Secret that is mounted in the api's pod; or it uses another
    Secret."""
    documents = rendered("users by token")
    folder = chart.service_environment(documents, "api")["SLIPWAY_SESSION_KEY_DIR"]
    pod = chart.pod_spec(documents, "api")
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "session-keys"]
    assert mount == {"name": "session-keys", "mountPath": folder, "readOnly": True}
    (volume,) = [one for one in pod["volumes"] if one["name"] == "session-keys"]
    (secret,) = [
        item
        for item in documents
        if item["kind"] == "Secret" and item["metadata"]["name"] == volume["secret"]["secretName"]
    ]
    (key,) = secret["data"].values()
    assert Fernet(base64.b64decode(key))
    others = [chart.pod_spec(documents, service) for service in SERVICES if service != "api"]
    assert not any(each["name"] == "session-keys" for other in others for each in other["volumes"])
    by_token = {"settings": {"auth": "token", "listen": "0.0.0.0:8080"}, "tokenSecret": "tokens"}
    named = chart.render({"api": {**by_token, "sessionKeySecret": "mine"}})
    assert [each["secret"] for each in chart.pod_spec(named, "api")["volumes"] if each["name"] == "session-keys"] == [
        {"secretName": "mine"}
    ]
    assert not any(item["metadata"]["name"].endswith("session-keys") for item in named)


# --- network policies and admission policies --------------------------------------------------------------------------


def test_every_pod_has_a_network_policy() -> None:
    """Each pod has one network policy, by the labels of its Deployment."""
    documents = rendered("walled")
    deployments = {item["metadata"]["name"]: item for item in documents if item["kind"] == "Deployment"}
    walls = {item["metadata"]["name"]: item for item in documents if item["kind"] == "NetworkPolicy"}
    assert set(walls) == set(deployments)
    for name, wall in walls.items():
        assert wall["spec"]["podSelector"] == deployments[name]["spec"]["selector"]
        assert wall["spec"]["policyTypes"] == ["Ingress"]


def test_network_policies_allow_the_needed_traffic() -> None:
    """Ports are allowed by the names in the containers; the api's own port is closed while it does not authenticate."""

    def open_to(documents: list[Json], name: str) -> set[str]:
        rules = chart.find(documents, "NetworkPolicy", name)["spec"]["ingress"]
        return {port["port"] for rule in rules for port in rule["ports"]}

    documents = rendered("walled in")
    assert open_to(documents, "api") == {"health", "tasks"}
    assert open_to(_open(networkPolicy={"enabled": True}), "api") == {"health", "tasks", "http"}
    for service in ("scheduler", "podworker", "watcher"):
        assert open_to(documents, service) == {"health"}
    assert open_to(documents, "valkey") == {"redis"}
    (rule,) = chart.find(documents, "NetworkPolicy", "valkey")["spec"]["ingress"]
    assert len(rule["from"]) == 2


def test_ranks_are_reached_by_the_proxy_and_by_ranks() -> None:
    """In each workspace, the proxy and other ranks reach the ranks; with closed egress ranks reach the port for
    tasks, DNS, each other, and the listed addresses."""
    documents = rendered("ranks walled in")
    walls = [item for item in documents if item["kind"] == "NetworkPolicy"]
    assert {item["metadata"]["namespace"] for item in walls} == {"team-a", "team-b"}
    for wall in walls:
        (sources,) = (rule["from"] for rule in wall["spec"]["ingress"])
        assert len(sources) == 2
        api = next(one for one in sources if "namespaceSelector" in one)
        assert api["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": chart.NAMESPACE}
        assert api["podSelector"] == chart.find(documents, "Deployment", "api")["spec"]["selector"]
        assert wall["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert {"port": "tasks"} in [port for rule in wall["spec"]["egress"] for port in rule.get("ports", ())]


OF_USERS = ("-policy-limits", "-policy-forget")
"""The validating policies that judge users, not our accounts."""


@pytest.mark.parametrize(("right", "field"), [("limits", "spec.?maxRuntimeOverride"), ("forget", "?lostNodes")])
def test_the_policy_of_a_right_applies_to_all_accounts_but_the_api(right: str, field: str) -> None:
    """The api checks by itself whether its caller may write the field; every other writer needs the right."""
    documents = rendered("defaults")
    spec = chart.find(documents, "ValidatingAdmissionPolicy", f"policy-{right}")["spec"]
    conditions = {item["name"]: item["expression"] for item in spec["matchConditions"]}
    [account] = [
        item["metadata"]["name"]
        for item in documents
        if item["kind"] == "ServiceAccount" and item["metadata"]["name"].endswith("-api")
    ]
    assert conditions["not-by-the-api"].endswith(f'"system:serviceaccount:{chart.NAMESPACE}:{account}"')
    assert f".subresource('{right}')" in spec["validations"][0]["expression"]
    assert any(field in expression for name, expression in conditions.items() if name != "not-by-the-api")


def test_admission_policies_apply_only_to_our_accounts() -> None:
    """Each policy applies to our accounts by name, is bound, and fails closed for them."""
    documents = rendered("defaults")
    accounts = {item["metadata"]["name"] for item in documents if item["kind"] == "ServiceAccount"}
    policies = [item for item in documents if item["kind"] == "ValidatingAdmissionPolicy"]
    bound = {item["spec"]["policyName"] for item in documents if item["kind"] == "ValidatingAdmissionPolicyBinding"}
    assert {item["metadata"]["name"] for item in policies} == bound
    policies = [item for item in policies if not item["metadata"]["name"].endswith(OF_USERS)]
    assert len(policies) == len(list((chart.CHART / "files" / "policies").iterdir()))
    for policy in policies:
        said = policy["spec"]["matchConditions"][0]["expression"]
        users = json.loads(said.removeprefix("request.userInfo.username in "))
        assert {user.removeprefix(f"system:serviceaccount:{chart.NAMESPACE}:") for user in users} <= accounts
        assert policy["spec"]["failurePolicy"] == "Fail"


def test_the_policy_of_users_applies_to_all_accounts_but_the_api(tmp_path: Path) -> None:
    """It is made when the API server has such policies, and sets the user of an object that was not created through
    the api."""
    path = tmp_path / "helm"
    shutil.copytree(chart.CHART, path)
    template = path / "templates" / "policies" / "user.yaml"
    asked = '(.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")'
    assert asked in template.read_text("utf-8")
    template.write_text(template.read_text("utf-8").replace(asked, "true"), "utf-8")
    documents = chart.render(chart=path)
    found = [item for item in documents if item["kind"] == "MutatingAdmissionPolicy"]
    conditions = {item["name"]: item["expression"] for item in found[0]["spec"]["matchConditions"]}
    [account] = [
        item["metadata"]["name"]
        for item in documents
        if item["kind"] == "ServiceAccount" and item["metadata"]["name"].endswith("-api")
    ]
    assert conditions["not-by-the-api"].endswith(f'"system:serviceaccount:{chart.NAMESPACE}:{account}"')
    [bound] = [item for item in documents if item["kind"] == "MutatingAdmissionPolicyBinding"]
    assert bound["spec"]["policyName"] == found[0]["metadata"]["name"]


def expressions(documents: list[Json], policy: str) -> str:
    """Every text of a policy."""
    return json.dumps(chart.find(documents, "ValidatingAdmissionPolicy", f"policy-{policy}")["spec"])


def test_the_policy_of_the_recorded_user_has_no_exemption() -> None:
    """A workspace that may have privileged pods is still limited to its allowed accounts."""
    documents = chart.render({"admissionPolicies": {"privilegedWorkspaces": ["*"]}})
    conditions = {
        name: [
            each["name"]
            for each in chart.find(documents, "ValidatingAdmissionPolicy", f"policy-{name}")["spec"]["matchConditions"]
        ]
        for name in ("pods", "identities", "priorities", "workspaces", "secrets")
    }
    assert conditions == {
        "pods": ["ours", "not-privileged"],
        "identities": ["ours"],
        "priorities": ["ours"],
        "workspaces": ["ours", "no-book"],
        "secrets": ["ours"],
    }


def test_parameters_of_the_policies() -> None:
    """The policies get our own two namespaces, and those that the values add."""
    documents = chart.render(
        {
            "admissionPolicies": {
                "protectedNamespaces": ["vault"],
                "tokenAudiences": ["sts.example"],
                "priorityClasses": ["usual"],
                "allowedKeys": ["example.com/team"],
            }
        }
    )
    own = [chart.NAMESPACE, f"{chart.NAMESPACE}-webhooks", "vault"]
    for policy in ("namespaces", "quotas", "workspaces"):
        assert json.dumps(json.dumps(own, separators=(",", ":"))) in expressions(documents, policy)
    assert json.dumps('["slipway","sts.example"]') in expressions(documents, "identities")
    assert json.dumps('["usual"]') in expressions(documents, "priorities")
    for policy in ("allocations", "books", "namespaces", "nodes", "objects", "owners", "secrets"):
        assert json.dumps('["example.com/team"]') in expressions(documents, policy)
    assert json.dumps(json.dumps([f"{chart.NAMESPACE}-webhooks"])) in expressions(documents, "secrets")
    assert chart.service_environment(documents, "api")["SLIPWAY_TOKEN_AUDIENCES"] == "slipway,sts.example"


def test_a_policy_of_several_accounts_knows_each() -> None:
    """A policy distinguishes accounts by their names in this release: the watcher may not change what the api may."""
    documents = chart.render({"fullnameOverride": "other"})
    variables = chart.find(documents, "ValidatingAdmissionPolicy", "policy-allocations")["spec"]["variables"]
    known = {each["name"]: each["expression"] for each in variables}
    for component in ("api", "scheduler", "watcher"):
        account = f"system:serviceaccount:{chart.NAMESPACE}:other-{component}"
        assert known[f"by{component.title()}"] == f'request.userInfo.username == "{account}"'


def test_without_tokens_of_tasks_no_token_is_projected() -> None:
    """An empty audience would be that of the API server."""
    documents = chart.render({service: {"settings": {"taskAudience": ""}} for service in ("api", "podworker")})
    policy = chart.find(documents, "ValidatingAdmissionPolicy", "policy-identities")["spec"]
    assert {"name": "audiences", "expression": "['']"} in policy["variables"]
    assert "has(source.serviceAccountToken.audience)" in str(policy["validations"])


def test_policies_are_left_out_where_they_are_not_wanted() -> None:
    """The rest of the chart is the same, and the api does not refuse what no policy would."""
    documents = rendered("no policies")
    assert "ValidatingAdmissionPolicy" not in _kinds(documents)
    assert "SLIPWAY_TOKEN_AUDIENCES" not in chart.service_environment(documents, "api")


# --- monitoring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [("pods monitored", "PodMonitor"), ("services monitored", "Service")])
def test_monitors_find_every_pod_with_metrics(name: str, kind: str) -> None:
    """Monitors select the pods with a port named health."""
    documents = rendered(name)
    selector = chart.find(documents, kind, "metrics")["spec"]["selector"]
    labels = selector.get("matchLabels", selector)
    found: set[str] = set()
    for item in documents:
        if item["kind"] == "Deployment" and labels.items() <= item["spec"]["template"]["metadata"]["labels"].items():
            (container,) = item["spec"]["template"]["spec"]["containers"]
            found |= {item["metadata"]["name"] for port in container["ports"] if port["name"] == "health"}
    assert found >= {f"slipway-{service}" for service in SERVICES}


def test_alerts_and_dashboards_are_what_stands_in_the_files(tmp_path: Path) -> None:
    """Each file of alerts is a group, and each dashboard file is a ConfigMap, unchanged."""
    path = tmp_path / "helm"
    shutil.copytree(chart.CHART, path)
    for folder in ("alerts", "dashboards"):
        shutil.rmtree(path / "files" / folder, ignore_errors=True)
        (path / "files" / folder).mkdir()
    rule = (
        '{alert: Away, expr: "up == 0", labels: {severity: page}, annotations: {summary: "{{ $labels.pod }} is away"}}'
    )
    (path / "files" / "alerts" / "one.yaml").write_text(f"name: one\nrules:\n  - {rule}\n", "utf-8")
    board = '{"title": "One", "panels": [{"legend": "{{pod}}"}]}\n'
    (path / "files" / "dashboards" / "one.json").write_text(board, "utf-8")
    wanted = {"metrics": {"alerts": {"enabled": True}, "dashboards": {"enabled": True}}}
    documents = chart.render(wanted, chart=path)
    (group,) = chart.find(documents, "PrometheusRule", "alerts")["spec"]["groups"]
    assert group["rules"][0]["annotations"]["summary"] == "{{ $labels.pod }} is away"
    kept = chart.find(documents, "ConfigMap", "dashboard-one")
    assert json.loads(kept["data"]["one.json"]) == json.loads(board)
    assert kept["metadata"]["labels"]["grafana_dashboard"] == "1"
