"""Custom resources: the strategy of a kind that a CustomResourceDefinition declares, and of the definitions themselves.

Owns the translation of a definition into `ResourceKind`s. Knows no store. Invariants: an object is never stored without
its defaults; a CEL rule without a Python twin is refused when its definition is written, not at the first use.
"""

import re
from collections.abc import Callable

import msgspec

from slipway.local.apiserver import meta, structural
from slipway.local.apiserver.admission import Strategy, carry_status
from slipway.local.apiserver.decoding import complain
from slipway.local.apiserver.objects import Json, clone, is_map, listing, mapping, maps, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.registry import ResourceKind, TableColumn, VersionView, read_path
from slipway.local.apiserver.status import FieldCause, bad_value, missing, not_allowed, unsupported
from slipway.local.apiserver.status import bad_request as refuse

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
CRD_RESOURCE = "customresourcedefinitions.apiextensions.k8s.io"


class CustomStrategy(Strategy):
    """The strategy of one version of one custom kind."""

    allows_unconditional_update = False
    counts_generation = True

    def __init__(self, entry: Json, twins: structural.RuleTwins) -> None:
        source = mapping(mapping(entry, "schema"), "openAPIV3Schema")
        self.schema = structural.compile_schema(source)
        self.has_status = is_map(mapping(entry, "subresources").get("status"))
        status = self.schema.properties.get("status")
        self.completes_late = self.has_status and status is not None and status.default is not msgspec.UNSET
        self._preserves_all = self.schema.preserve and not self.schema.properties
        self._twins = twins

    def decode(self, obj: Json, options: WriteOptions) -> None:
        unknown = structural.shape(self.schema, obj, is_root=True, keeps_nulls=options.keeps_nulls)
        complain(options, [*options.dropped, *sorted(unknown)])

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        structural.fill_defaults(self.schema, obj)

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        return structural.validate(self.schema, obj, old, self._twins)

    def broken_rules(self, obj: Json) -> list[FieldCause]:
        return structural.broken_rules(self.schema, obj, None, self._twins)

    def prepare_status(self, new: Json, old: Json) -> None:
        """Keep the metadata of `old` as well: a write to /status changes no metadata of a custom object."""
        super().prepare_status(new, old)
        version = new["metadata"].get("resourceVersion")
        new["metadata"] = clone(old["metadata"])
        if version:
            new["metadata"]["resourceVersion"] = version

    def spec_changed(self, new: Json, old: Json) -> bool:
        ignored = {"metadata", "status"} if self.has_status else {"metadata"}
        return any(new.get(field) != old.get(field) for field in (new.keys() | old.keys()) - ignored)


class DefinitionStrategy(Strategy):
    """CustomResourceDefinitions. A new definition is established at once."""

    has_status = True
    allows_unconditional_update = False
    counts_generation = True

    def __init__(self, twins: structural.RuleTwins, now_text: Callable[[], str], *, allow_unknown_rules: bool) -> None:
        self._twins = twins
        self._now_text = now_text
        self._allow_unknown_rules = allow_unknown_rules

    def decode(self, obj: Json, options: WriteOptions) -> None:
        spec = obj.get("spec")
        if not is_map(spec):
            raise refuse("json: cannot unmarshal into Go struct field CustomResourceDefinition.spec")
        names = mapping(spec, "names")
        names.setdefault("singular", str(names.get("kind", "")).lower())
        names.setdefault("listKind", f"{names.get('kind', '')}List")
        spec.setdefault("conversion", {"strategy": "None"})

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        finalizers = listing(metadata(obj), "finalizers")
        obj["metadata"]["finalizers"] = sorted({*finalizers, CLEANUP_FINALIZER})
        moment = self._now_text()
        obj["status"] = _status(obj["spec"], moment, [])

    def prepare_update(self, new: Json, old: Json) -> None:
        carry_status(new, old)
        stored = listing(mapping(old, "status"), "storedVersions")
        new["status"].update(_status(new["spec"], "", stored), conditions=old["status"]["conditions"])

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        spec = obj["spec"]
        names = mapping(spec, "names")
        causes = list[FieldCause]()
        wanted = f"{names.get('plural')}.{spec.get('group')}"
        if metadata(obj)["name"] != wanted:
            causes.append(bad_value("metadata.name", metadata(obj)["name"], 'must be spec.names.plural+"."+spec.group'))
        if spec.get("scope") not in ("Namespaced", "Cluster"):
            causes.append(unsupported("spec.scope", spec.get("scope"), ["Cluster", "Namespaced"]))
        for field in ("plural", "kind"):
            if not names.get(field):
                causes.append(missing(f"spec.names.{field}"))
        if names.get("plural") and not meta.DNS_1035.match(names["plural"]):
            causes.append(bad_value("spec.names.plural", names["plural"], meta.SERVICE_LABEL[2]))
        if old is not None:
            for field in ("group", "scope"):
                if spec.get(field) != old["spec"].get(field):
                    causes.append(bad_value(f"spec.{field}", spec.get(field), "field is immutable"))
        if old is None or spec != old["spec"]:
            causes += _stored_causes(obj)
        return causes + self._version_causes(maps(listing(spec, "versions")))

    def _version_causes(self, versions: list[Json]) -> list[FieldCause]:
        if sum(entry.get("storage") is True for entry in versions) != 1:
            return [
                bad_value("spec.versions", len(versions), "must have exactly one version marked as storage version")
            ]
        causes = list[FieldCause]()
        for index, entry in enumerate(versions):
            path = f"spec.versions[{index}].schema.openAPIV3Schema"
            source = mapping(mapping(entry, "schema"), "openAPIV3Schema")
            if source.get("type") != "object":
                causes.append(missing(path, "schemas are required, and must be of type object"))
                continue
            try:
                schema = structural.compile_schema(source)
            except (ValueError, TypeError, KeyError, re.error) as exc:
                causes.append(bad_value(path, "schema", str(exc)))
                continue
            causes += self._rule_causes(schema, path)
        return causes

    def _rule_causes(self, schema: structural.Schema, path: str) -> list[FieldCause]:
        causes = list[FieldCause]()
        for where, rule, correlated in structural.rules_of(schema):
            field = f"{path}{where}.x-kubernetes-validations"
            if rule.is_transition and not correlated:
                words = "oldSelf cannot be used on the uncorrelatable portion of the schema"
                causes.append(bad_value(field, rule.text, words))
            elif rule.text not in self._twins and not self._allow_unknown_rules:
                causes.append(not_allowed(field, f"this server does not implement the rule: {rule.text}"))
        return causes


def read_kinds(definition: Json, twins: structural.RuleTwins) -> list[ResourceKind]:
    """Return a definition's served versions and its stored version as kinds, the stored version first.

    Conversion between versions changes only apiVersion. Without a served version the list is empty.
    """
    spec = definition["spec"]
    names = spec["names"]
    versions = maps(listing(spec, "versions"))
    stored = next(entry["name"] for entry in versions if entry.get("storage") is True)
    # Objects may have been written under another version, or before a default was declared.
    is_plain = len(versions) == 1 and metadata(definition).get("generation", 1) == 1
    found = list[ResourceKind]()
    if not any(entry.get("served") is True for entry in versions):
        return found
    for entry in sorted(versions, key=lambda entry: entry["name"] != stored):
        is_served, is_stored = entry.get("served") is True, entry["name"] == stored
        if not (is_served or is_stored):
            continue
        strategy = CustomStrategy(entry, twins)
        kind = ResourceKind(
            group=spec["group"],
            version=entry["name"],
            plural=names["plural"],
            kind=names["kind"],
            singular=names.get("singular", ""),
            list_kind=names.get("listKind", f"{names['kind']}List"),
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames", ())),
            categories=tuple(names.get("categories", ())),
            strategy=strategy,
            fields=_selectable(entry),
            columns=tuple(_column(column) for column in maps(listing(entry, "additionalPrinterColumns"))),
            schema=mapping(mapping(entry, "schema"), "openAPIV3Schema"),
            is_custom=True,
            is_stored=is_stored,
            is_served=is_served,
            view=None if is_plain else _view(strategy.schema, spec["group"], entry["name"], stored),
        )
        found.append(kind)
    return found


def _view(schema: structural.Schema, group: str, version: str, stored: str) -> VersionView:
    def show(obj: Json) -> Json:
        shown: Json = {**clone(obj), "apiVersion": f"{group}/{version}"}
        structural.shape(schema, shown, is_root=True)
        return shown

    return VersionView(show=show, keep=lambda obj: {**obj, "apiVersion": f"{group}/{stored}"})


def _selectable(entry: Json) -> dict[str, tuple[str, ...]]:
    fields: dict[str, tuple[str, ...]] = {}
    for field in maps(listing(entry, "selectableFields")):
        path = str(field.get("jsonPath", "")).lstrip(".")
        fields[path] = tuple(path.split("."))
    return fields


def _column(column: Json) -> TableColumn:
    return TableColumn(
        name=str(column.get("name", "")),
        type=str(column.get("type", "string")),
        format=str(column.get("format", "")),
        description=str(column.get("description", "")),
        priority=int(column.get("priority", 0)),
        read=read_path(str(column.get("jsonPath", ""))),
    )


def _stored_causes(definition: Json) -> list[FieldCause]:
    """Return an error for each version that objects may still be stored under and that the definition lacks."""
    stored = listing(mapping(definition, "status"), "storedVersions")
    versions = maps(listing(definition["spec"], "versions"))
    names = [entry.get("name") for entry in versions]
    words = (
        "missing from spec.versions; {0} was previously a storage version, and must remain in spec.versions until a "
        "storage migration ensures no data remains persisted in {0} and removes {0} from status.storedVersions"
    )
    causes = [
        bad_value(f"status.storedVersions[{index}]", name, words.format(name))
        for index, name in enumerate(stored)
        if name not in names
    ]
    return causes + [
        bad_value("status.storedVersions", stored, f"must have the storage version {entry['name']}")
        for entry in versions
        if entry.get("storage") is True and entry["name"] not in stored
    ]


def _status(spec: Json, moment: str, stored: list[str]) -> Json:
    conditions = [
        {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
        {
            "type": "Established",
            "status": "True",
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]
    current = [entry["name"] for entry in maps(listing(spec, "versions")) if entry.get("storage")]
    return {
        "conditions": [{**condition, "lastTransitionTime": moment} for condition in conditions],
        "acceptedNames": clone(spec["names"]),
        "storedVersions": [*stored, *(name for name in current if name not in stored)],
    }
