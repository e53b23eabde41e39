"""Every input of the product that can carry a secret, found in its schemas: each is planted, or is no secret, and why.

Owns which names look like a secret, and an entry for each. A new field that looks like a secret has no entry, and
`tests/unit/test_secret_inputs.py` fails until it has one: `PLANTED` names the canary that `tests/e2e/test_canaries.py`
or `tests/integration/helm/test_secret_values.py` puts there, `NO_SECRET` explains why none is needed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from slipway.api.app import ENDPOINTS
from slipway.api.http.openapi import document
from slipway.api.settings import Settings as ApiSettings
from slipway.podworker.settings import Settings as PodworkerSettings
from slipway.runtime.settings import describe
from slipway.scheduler.settings import Settings as SchedulerSettings
from slipway.watcher.settings import Settings as WatcherSettings
from tests.support.chart import ROOT

Json = dict[str, Any]
SERVICES = {
    "api": ApiSettings,
    "scheduler": SchedulerSettings,
    "podworker": PodworkerSettings,
    "watcher": WatcherSettings,
}
_LOOKS = re.compile(
    r"secret|token|passw|credential|private|refresh|cookie|session|url|key(?!e)|auth$|webhook_dir", re.IGNORECASE
)

PLANTED: Mapping[str, str] = {
    "api LaunchBody.secretValues": "secret value of a launch",
    "api WebhookBody.secret": "key of a webhook",
    "api WebhookBody.url": "query of a webhook",
    "api WebhookChange.secret": "new key of a webhook",
    "api WebhookChange.url": "new query of a webhook",
    "setting oidc_client_secret_file": "client secret of the issuer",
    "setting session_key_dir": "key of sessions",
    "setting feed_key_dir": "key of the cluster feed",
    "setting token_dir": "token of a user",
    "setting workload_token_file": "token of workloads",
    "setting redis_password": "passwords of Redis",
    "setting redis_url": "passwords of Redis",
    "setting metrics_token_file": "token of metrics",
    "setting prometheus_token_file": "token for Prometheus",
    "setting audit_webhook_dir": "key of the audit's reader",
    "setting oidc_issuer_url": "refresh token of the issuer",
    "value valkey.auth.password": "password of the Valkey",
    "value externalRedis.url": "password in the address of Redis",
}
"""{input: the canary that is planted there or derives from it}"""

_A_NAME = "the name of a Secret, not what is in it"
_AN_ADDRESS = "an address without credentials: its check refuses them, or nothing sends them"
_A_WORD = "a key of a label, or another word that is none of a secret"
NO_SECRET: Mapping[str, str] = {
    "api LaunchBody.secretVariables": "names of variables",
    "api LaunchBody.secrets": _A_NAME,
    "api TolerationSpec.key": _A_WORD,
    "api TopologySpec.key": _A_WORD,
    "api WebhookView.url": "an answer; what follows the host is not in it",
    **dict.fromkeys(
        ("api WebhookBody.pageUrl", "api WebhookChange.pageUrl", "api WebhookView.pageUrl"),
        "where people open the page, which messages show to everybody in a chat",
    ),
    "value metrics.alerts.runbookUrl": "where people read the runbooks, which alerts show",
    "api OutsideLink.url": "an address of the settings; one with credentials is refused",
    "api WebhookView.secret": "an answer: the key, once, to who made it",
    "api WebhookChange.rotateSecret": "yes or no",
    "api WorkspaceView.imagePullSecrets": _A_NAME,
    "api WorkspaceBody.imagePullSecrets": _A_NAME,
    "api WorkspaceChange.imagePullSecrets": _A_NAME,
    "api LoginLink.url": "an answer: a code that is good once, to who asked",
    "api IssuerHealth.keys": "a number",
    "api Idempotency-Key": "a name that a client makes up",
    "api ConditionView.auth": "an answer: a mode",
    "api Me.auth": "an answer: a mode",
    "setting session_s": "a time",
    "setting exec_sessions_max": "a number",
    "setting api_url": _AN_ADDRESS,
    "setting prometheus_url": _AN_ADDRESS,
    "setting logs_url_template": "an address that every reader of a workload gets; one with credentials is refused",
    "setting log_archive_url": "an address; one with credentials is refused",
    "setting token_audiences": "audiences, which stand in tokens for anybody to read",
    "value global.imagePullSecrets": _A_NAME,
    "value image.pullSecrets": _A_NAME,
    "value imagePullSecrets": _A_NAME,
    "value valkey": "what is below it has rows of its own",
    "value valkey.auth": "what is below it has rows of its own",
    "value valkey.auth.existingSecret": _A_NAME,
    "value valkey.auth.accountsSecret": _A_NAME,
    "value valkey.tls.existingSecret": _A_NAME,
    "value externalRedis.existingSecret": _A_NAME,
    "value externalRedis.existingSecretKey": _A_NAME,
    "value feedKeys": "what is below it has rows of its own",
    "value feedKeys.existingSecret": _A_NAME,
    "value externalRedis.caSecret": _A_NAME,
    "value externalRedis.accounts.existingSecret": _A_NAME,
    "value ingress.tlsSecret": _A_NAME,
    "value admissionPolicies.tokenAudiences": "audiences, which stand in tokens for anybody to read",
    "value admissionPolicies.allowedKeys": "keys of labels and annotations",
    "value api.tokenSecret": _A_NAME,
    "value api.sessionKeySecret": _A_NAME,
    "value api.oidcSecret": _A_NAME,
    "value api.tlsSecret": _A_NAME,
    "setting auth": "a mode",
    "crd ResourcePool.spec.tolerations.key": _A_WORD,
    "crd ResourcePool.spec.allowedTokenAudiences": "audiences, which stand in tokens for anybody to read",
    "crd ResourcePool.spec.extenders.urlPrefix": _AN_ADDRESS,
    "crd ResourcePool.spec.extenders.tlsConfig.keyFile": "the path of a file",
    "crd Allocation.spec.ranks.tolerations.key": _A_WORD,
    "crd Allocation.spec.ranks.topology.key": _A_WORD,
    "crd Allocation.spec.topology.key": _A_WORD,
    "crd Allocation.spec.secretVariables": "names of variables",
}
"""{input: why it contains no secret}"""


def inputs() -> set[str]:
    """Every field that looks like a secret: of the API, the settings, the chart's values, the custom resources."""
    named = {*_api(), *_settings(), *_values(), *_resources()}
    return {each for each in named if _LOOKS.search(each.rpartition(" ")[2].rpartition(".")[2])}


def _api() -> Iterator[str]:
    told = document(ENDPOINTS, "0")
    for name, schema in told["components"]["schemas"].items():
        yield from (f"api {name}.{field}" for field in schema.get("properties", {}))
    for path in told["paths"].values():
        for operation in path.values():
            yield from (f"api {each['name']}" for each in operation.get("parameters", ()) if "name" in each)


def _settings() -> Iterator[str]:
    for settings in SERVICES.values():
        yield from (f"setting {row.field}" for row in describe(settings))


def _values() -> Iterator[str]:
    """Yield every value of the chart, except those that repeat a setting of a service: the setting has the row."""
    known = {_camel(row.field) for settings in SERVICES.values() for row in describe(settings)}

    def walk(node: Any, path: str) -> Iterator[str]:
        if isinstance(node, dict):
            for name, below in node.items():  # pyright: ignore[reportUnknownVariableType]
                here = f"{path}.{name}" if path else str(name)  # pyright: ignore[reportUnknownArgumentType]
                if not (path.endswith(".settings") and name in known):
                    yield f"value {here}"
                yield from walk(below, here)

    yield from walk(yaml.safe_load((ROOT / "helm" / "values.yaml").read_text("utf-8")), "")


def _resources() -> Iterator[str]:
    def walk(schema: Json, path: str) -> Iterator[str]:
        for name, below in schema.get("properties", {}).items():
            yield f"crd {path}.{name}"
            yield from walk(below, f"{path}.{name}")
        for inner in (schema.get("items"), schema.get("additionalProperties")):
            if isinstance(inner, dict):
                yield from walk(inner, path)  # pyright: ignore[reportUnknownArgumentType]

    for file in sorted((ROOT / "helm" / "files" / "crds").glob("*.yaml")):
        spec = yaml.safe_load(file.read_text("utf-8"))["spec"]
        yield from walk(spec["versions"][0]["schema"]["openAPIV3Schema"], spec["names"]["kind"])


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
