"""Writes the table of the built-in kinds' fields from the Go types that Kubernetes publishes.

`python -m tests.conformance.builtin_fields` reads the modules that `kubernetes/go.mod` pins (they are in the module
cache once the servers were built) and writes the table by which the local API server decodes, merges and applies
objects. Each field has its JSON name, Go type, protobuf number, whether it is omitted when empty, and the markers of
lists and patches. Structs whose fields are in their parent's JSON, but not in its protobuf message, are in `inline`.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.conformance.cluster.binaries import MODULE, go_toolchain

TABLE = Path(__file__).parents[2] / "local/slipway/local/apiserver/fields/builtin.json"
_PACKAGES = {
    "core": ("k8s.io/api", "core/v1"),
    "coordination": ("k8s.io/api", "coordination/v1"),
    "scheduling": ("k8s.io/api", "scheduling/v1"),
    "schedulingv1alpha3": ("k8s.io/api", "scheduling/v1alpha3"),
    "schedulingv1beta1": ("k8s.io/api", "scheduling/v1beta1"),
    "rbac": ("k8s.io/api", "rbac/v1"),
    "policy": ("k8s.io/api", "policy/v1"),
    "apps": ("k8s.io/api", "apps/v1"),
    "batch": ("k8s.io/api", "batch/v1"),
    "networking": ("k8s.io/api", "networking/v1"),
    "autoscaling": ("k8s.io/api", "autoscaling/v2"),
    "discovery": ("k8s.io/api", "discovery/v1"),
    "events": ("k8s.io/api", "events/v1"),
    "storage": ("k8s.io/api", "storage/v1"),
    "scaling": ("k8s.io/api", "autoscaling/v1"),
    "authorization": ("k8s.io/api", "authorization/v1"),
    "authentication": ("k8s.io/api", "authentication/v1"),
    "meta": ("k8s.io/apimachinery", "pkg/apis/meta/v1"),
    "apiextensions": ("k8s.io/apiextensions-apiserver", "pkg/apis/apiextensions/v1"),
}
_ALIASES = {"metav1": "meta", "v1": "core", "corev1": "core", "apiv1": "core"}
KINDS = {
    "v1": ("core", ("Pod", "ConfigMap", "Secret", "Service", "Event", "Namespace", "Node", "ServiceAccount",
                    "ResourceQuota", "LimitRange", "PodTemplate", "PersistentVolumeClaim", "PersistentVolume",
                    "Binding", "Endpoints")),
    "apps/v1": ("apps", ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ControllerRevision")),
    "batch/v1": ("batch", ("Job", "CronJob")),
    "networking.k8s.io/v1": ("networking", ("NetworkPolicy", "Ingress", "IngressClass")),
    "autoscaling/v2": ("autoscaling", ("HorizontalPodAutoscaler",)),
    "discovery.k8s.io/v1": ("discovery", ("EndpointSlice",)),
    "events.k8s.io/v1": ("events", ("Event",)),
    "storage.k8s.io/v1": ("storage", ("StorageClass",)),
    "coordination.k8s.io/v1": ("coordination", ("Lease",)),
    "scheduling.k8s.io/v1": ("scheduling", ("PriorityClass",)),
    "scheduling.k8s.io/v1beta1": ("schedulingv1beta1", ("PodGroup",)),
    "rbac.authorization.k8s.io/v1": ("rbac", ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")),
    "policy/v1": ("policy", ("PodDisruptionBudget", "Eviction")),
    "autoscaling/v1": ("scaling", ("Scale",)),
    "authorization.k8s.io/v1": ("authorization", ("SubjectAccessReview", "LocalSubjectAccessReview",
                                                  "SelfSubjectAccessReview", "SelfSubjectRulesReview")),
    "authentication.k8s.io/v1": ("authentication", ("TokenRequest", "TokenReview", "SelfSubjectReview")),
    "meta.k8s.io/v1": ("meta", ("DeleteOptions",)),
    "apiextensions.k8s.io/v1": ("apiextensions", ("CustomResourceDefinition",)),
}  # fmt: skip
_PRIMITIVES = frozenset({"string", "bool", "int", "int32", "int64", "float64", "byte", "uint8"})
_SPECIAL = {
    "resource.Quantity": "Quantity",
    "intstr.IntOrString": "IntOrString",
    "types.UID": "types.UID",
    "runtime.RawExtension": "any",
    "meta.Time": "Time",
    "meta.MicroTime": "MicroTime",
    "meta.Duration": "string",
    "meta.FieldsV1": "any",
    "apiextensions.JSON": "any",
    "apiextensions.JSONSchemaPropsOrArray": "any",
    "apiextensions.JSONSchemaPropsOrBool": "any",
    "apiextensions.JSONSchemaPropsOrStringArray": "any",
}
_STRUCT = re.compile(r"^type (\w+) struct ?\{(?:\}|$(.*?)^\})", re.MULTILINE | re.DOTALL)
_ATOMIC = re.compile(r"^// \+structType=atomic\n(?://.*\n)*type (\w+) struct", re.MULTILINE)
_NAMED = re.compile(r"^type (\w+) ([\w.\[\]*]+)(?:\s*//.*)?$", re.MULTILINE)
_FIELD = re.compile(r"^\t(?:(\w+)\s+)?([\w.\[\]*]+)\s+`([^`]*)`")
_MARKER = re.compile(r"^\t// \+(listType|listMapKey|mapType|structType|default)=(.*)$")
_TAG = re.compile(r'(\w+):"([^"]*)"')


class Sources:
    """The structs and named types of the packages, found by `package.Name`."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.structs: dict[str, str] = {}
        self.named: dict[str, str] = {}
        self.atomic: set[str] = set()
        for package, folder in folders.items():
            for path in sorted(folder.glob("*.go")):
                if path.name.startswith("zz_") or path.name.endswith(("_test.go", ".pb.go")):
                    continue
                text = path.read_text("utf-8")
                self.structs.update({f"{package}.{name}": body for name, body in _STRUCT.findall(text)})
                self.atomic |= {f"{package}.{name}" for name in _ATOMIC.findall(text)}
                self.named.update({f"{package}.{name}": shape for name, shape in _NAMED.findall(text)})


def folders() -> dict[str, Path]:
    """{package: its folder in the module cache}"""
    go = go_toolchain()
    roots: dict[str, Path] = {}
    for module in {module for module, _ in _PACKAGES.values()}:
        words = [go, "list", "-m", "-mod=readonly", "-f", "{{.Dir}}", module]
        answer = subprocess.run(words, cwd=MODULE, capture_output=True, text=True, check=True)
        roots[module] = Path(answer.stdout.strip())
    return {package: roots[module] / path for package, (module, path) in _PACKAGES.items()}


def build(sources: Sources) -> dict[str, Any]:
    """The table: the kinds, the structs that they reach, the structs that apply treats as one value, and the named
    scalars."""
    table: dict[str, Any] = {"kinds": {}, "structs": {}, "scalars": {}, "inline": {}}
    pending: list[str] = []
    for api_version, (package, kinds) in KINDS.items():
        for kind in kinds:
            table["kinds"][f"{api_version}/{kind}"] = f"{package}.{kind}"
            pending.append(f"{package}.{kind}")
    while pending:
        name = pending.pop()
        if name not in table["structs"]:
            table["structs"][name] = _fields(sources, name, table, pending)
    table["atomic"] = sorted(sources.atomic & set(table["structs"]))
    table["structs"] = dict(sorted(table["structs"].items()))
    table["scalars"] = dict(sorted(table["scalars"].items()))
    return table


def _fields(sources: Sources, name: str, table: dict[str, Any], pending: list[str]) -> dict[str, Any]:
    package = name.partition(".")[0]
    found: dict[str, Any] = {}
    markers: dict[str, list[str]] = {}
    for line in sources.structs[name].splitlines():
        if marker := _MARKER.match(line):
            markers.setdefault(marker[1], []).append(marker[2])
        elif field := _FIELD.match(line):
            tags = dict(_TAG.findall(field[3]))
            json_name, _, options = tags.get("json", "").partition(",")
            shape = _qualify(field[2], package)
            if "inline" in options or (not field[1] and not json_name):
                inner = _fields(sources, shape.lstrip("*"), table, pending)
                found.update({field: _unnumbered(entry) for field, entry in inner.items()})
                if number := _number(tags):
                    table["inline"].setdefault(name, {})[str(number)] = shape.lstrip("*")
                    pending.append(shape.lstrip("*"))
            elif json_name and json_name != "-":
                entry = _entry(tags, markers, empty_goes="omit" in options)
                found[json_name] = [_resolve(sources, shape, table["scalars"], pending), *([entry] if entry else [])]
            markers = {}
    return found


def _entry(tags: dict[str, str], markers: dict[str, list[str]], *, empty_goes: bool) -> dict[str, Any]:
    """n: number in protobuf. omit: omitted when empty. list, keys, map: how apply merges. patch, key: how a strategic
    patch does.
    """
    entry: dict[str, Any] = {"omit": 1} if empty_goes else {}
    if number := _number(tags):
        entry["n"] = number
    if "listType" in markers:
        entry["list"] = markers["listType"][0]
    if "listMapKey" in markers:
        entry["keys"] = markers["listMapKey"]
    if "mapType" in markers or "structType" in markers:
        entry["map"] = (markers.get("mapType") or markers["structType"])[0]
    if "default" in markers:
        entry["default"] = (
            msgspec.json.decode(markers["default"][0]) if markers["default"][0][0] in '"0123456789' else 0
        )
    if "patchStrategy" in tags:
        entry["patch"] = tags["patchStrategy"]
    if "patchMergeKey" in tags:
        entry["key"] = tags["patchMergeKey"]
    return entry


def _number(tags: dict[str, str]) -> int:
    parts = tags.get("protobuf", "").split(",")
    return int(parts[1]) if len(parts) > 1 else 0


def _unnumbered(entry: list[Any]) -> list[Any]:
    marks = {name: mark for name, mark in entry[1].items() if name != "n"} if len(entry) > 1 else {}
    return [entry[0], marks] if marks else [entry[0]]


def _qualify(shape: str, package: str) -> str:
    """`[]Container` inside core is `[]core.Container`."""
    prefix, name = re.match(r"^((?:\*|\[\]|map\[[\w.]+\])*)(.*)$", shape).groups()  # pyright: ignore[reportOptionalMemberAccess]
    prefix = re.sub(r"map\[[\w.]+\]", "map[string]", prefix)
    if "." in name:
        alias, _, rest = name.partition(".")
        return f"{prefix}{_ALIASES.get(alias, alias)}.{rest}"
    return prefix + (name if name in _PRIMITIVES else f"{package}.{name}")


def _resolve(sources: Sources, shape: str, scalars: dict[str, str], pending: list[str]) -> str:
    """The shape with its named lists and maps written out; named scalars keep their name."""
    prefix, name = re.match(r"^((?:\*|\[\]|map\[string\])*)(.*)$", shape).groups()  # pyright: ignore[reportOptionalMemberAccess]
    if prefix.endswith("[]") and name in ("byte", "uint8"):
        return prefix[:-2] + "bytes"
    if name in _SPECIAL:
        return prefix + _SPECIAL[name]
    if name in _PRIMITIVES:
        return shape
    if name in sources.structs:
        pending.append(name)
        return shape
    package = name.partition(".")[0]
    target = _qualify(sources.named[name], package)
    if target in _PRIMITIVES:
        scalars[name] = target
        return shape
    return prefix + _resolve(sources, target, scalars, pending)


def main() -> int:
    table = build(Sources(folders()))
    TABLE.write_bytes(msgspec.json.encode(table) + b"\n")
    sys.stdout.write(f"{TABLE}: {len(table['structs'])} structs, {TABLE.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
