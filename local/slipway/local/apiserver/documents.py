"""The server's documents that belong to no object: health, version, discovery, OpenAPI.

Owns their paths. Pure, except that it reads the registry.
"""

from slipway.local.apiserver import answers, discovery, openapi
from slipway.local.apiserver.answers import Call, HttpAnswer
from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.registry import KindRegistry

HEALTH = frozenset({"/livez", "/readyz", "/healthz"})
_VERSION: Json = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.0+slipway",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "local",
}


def find(registry: KindRegistry, call: Call) -> HttpAnswer | None:
    """Return the document at the call's path, or None when no document has this path."""
    path = call.path.rstrip("/")
    if path in HEALTH:
        return answers.text("ok")
    if call.method != "GET":
        return None
    if path == "/version":
        return answers.json(_VERSION)
    if path in ("/api", "/apis"):
        if "as=APIGroupDiscoveryList" in call.accept and "v=v2" in call.accept:
            document = discovery.aggregated(registry, is_core=path == "/api")
            return answers.json(document, content_type=discovery.AGGREGATED)
        return answers.json(discovery.core_versions() if path == "/api" else discovery.group_list(registry))
    if path == "/openapi/v3":
        return answers.json(openapi.index(registry))
    parts = path.strip("/").split("/")
    if path.startswith("/openapi/v3/"):
        group, version = ("", parts[-1]) if parts[2] == "api" else (parts[-2], parts[-1])
        if version not in discovery.versions_of(registry).get(group, ()):
            return None
        return HttpAnswer(200, openapi.document(registry, group, version))
    document = None
    if parts[0] == "api" and len(parts) == 2:
        document = discovery.resource_list(registry, "", parts[1])
    elif parts[0] == "apis" and len(parts) == 2:
        document = discovery.group(registry, parts[1])
    elif parts[0] == "apis" and len(parts) == 3:
        document = discovery.resource_list(registry, parts[1], parts[2])
    return answers.json(document) if document is not None else None
