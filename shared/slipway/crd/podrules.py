"""The rules on what pods may request and name: one table, which all checks of pods use.

Owns the rules that a pool sets in its spec (`allowed*`), and which Secrets a workspace releases to pod templates (an
annotation of its namespace). Each rule is defined once, for three uses:

- `check` and `check_secrets` check a pod spec in Python: `slipway.crd.resolve` calls them, and so do the api at a
  launch, the scheduler, and the pod worker before it creates a pod;
- the CEL expression is the same check in the API server: `make generate` writes the admission policies
  `pools.yaml` and `released.yaml` of `helm/files/policies` from this table;
- the texts are a row of the page `docs/reference/pod-rules.md`.

Pure. Must not know how a pod is built, or what "restricted" forbids: `podsecurity.py` owns that.

Invariant: a pool that sets none of these fields, and a workspace without the annotation, allow the same as before these
fields existed. The one exception: the secret values of another allocation are never allowed.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec

from slipway.crd import images, podsecurity
from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.meta import ANNOTATION_PULL_SECRETS, ANNOTATION_SECRETS, LABEL_ALLOCATION_UID, LABEL_POOL
from slipway.crd.pools import ResourcePool, ResourcePoolSpec
from slipway.crd.roleresources import object_of, objects_of
from slipway.crd.workspacepods import ReleasedSecrets
from slipway.model.ids import VALUES_PREFIX
from slipway.model.numbers import LONG_DIGITS_MAX, number_in

Json = Mapping[str, Any]
HARMLESS_ANNOTATIONS = (
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
    "kubectl.kubernetes.io/default-container",
    "kubectl.kubernetes.io/default-logs-container",
    "prometheus.io/*",
)
"""Annotations that change neither the permissions of a container nor what it can reach. Annotations whose names contain
neither dots nor slashes are always allowed."""
SHOWN_MAX = 10
"""A refusal lists at most this number of the allowed values."""


class PodPart(msgspec.Struct, frozen=True, kw_only=True):
    """A value in a pod spec that a rule checks."""

    at: str
    """JSON pointer, below that of the pod spec"""
    value: str


class PodRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of a pool about its pods."""

    field: str
    """the field of the pool's spec, in camelCase"""
    judges: str
    """the fields of a pod that the rule checks, for the reference page"""
    says: str
    """what the field allows, for the reference page"""
    what: str
    """what is refused, as a part of a sentence: "the image" """
    allowed: Callable[[ResourcePoolSpec], list[str] | None]
    """the values that the pool allows; None: all"""
    parts: Callable[[Json], Iterator[PodPart]]
    """the values in a pod spec"""
    allows: Callable[[str, list[str]], bool]
    """whether the allowed values include or match the one in the pod"""
    variables: Mapping[str, str] = {}
    """CEL variables of `expression`: {name: expression}"""
    expression: str
    """CEL: whether the pool `params` allows the pod `object`"""


def check(spec: Json, at: str, pool: ResourcePool, findings: Findings, *, why: Mapping[str, str] | None = None) -> None:
    """Add an error for each value in the pod spec at JSON pointer `at` that the pool does not allow.

    `why` is {pointer: text}. The text explains where a refused value comes from that the request did not set.
    """
    for rule in RULES:
        allowed = rule.allowed(pool.spec)
        if allowed is None:
            continue
        for part in rule.parts(spec):
            here = at + part.at
            # The check of "restricted" may have refused it already, with its own message.
            if not rule.allows(part.value, allowed) and not findings.has(here):
                findings.refuse(here, _refusal(rule, part.value, pool, allowed) + (why or {}).get(here, ""))


def check_secrets(spec: Json, at: str, released: ReleasedSecrets | None, findings: Findings) -> None:
    """Add an error for each Secret that the pod spec of a template at JSON pointer `at` may not name.

    `released` None: the workspace allows every Secret, or the caller does not know them. A template may never name the
    Secret with the secret values of a launch: the pod worker adds the reference for its own allocation. A template may
    not name the namespace of a Secret either, because a CSI driver may read Secrets of other workspaces.
    """
    for part in _attributes(spec, _NAMESPACE_OF_SECRET):
        findings.refuse(
            at + part.at,
            "leave it out: a CSI driver may read only Secrets in the namespace of the pod",
        )
    for part in secrets_of(spec):
        if part.value.startswith(VALUES_PREFIX):
            findings.refuse(
                at + part.at,
                f"Secret {part.value[:80]!r} holds the secret values of one allocation, which no template may name; "
                "give the launch values of its own (secretValues), or name another Secret",
            )
        elif released is not None and not _is_released(part, released):
            shown = ", ".join(released.names[:SHOWN_MAX]) or "none"
            findings.refuse(
                at + part.at,
                f"the workspace does not release Secret {part.value[:80]!r} to pod templates; it releases {shown}. Use "
                f"one of these, or have an administrator release it: kubectl annotate --overwrite namespace WORKSPACE "
                f"{ANNOTATION_SECRETS}={','.join([*released.names, part.value[:80]])}",
            )


def check_audiences(spec: Json, at: str, audiences: Collection[str] | None, findings: Findings) -> None:
    """Add an error for each projected token of a template at JSON pointer `at` whose audience is not in `audiences`.

    `audiences` None: all are accepted here; the pool and the API server may still refuse one.
    """
    if audiences is None:
        return
    for part in _token_audiences(spec):
        if part.value not in audiences:
            findings.refuse(
                at + part.at,
                f"tokens of ranks may have the audience {', '.join(sorted(audiences)) or '(none)'} only, not "
                f"{part.value[:80]!r}; an administrator lists others in admissionPolicies.tokenAudiences of the chart",
            )


def is_annotation_allowed(key: str, allowed: Iterable[str]) -> bool:
    """Whether the list contains an annotation (its name, or PREFIX/*), or the annotation is a note of the user.

    A name with dots and without a slash is not a note, because container runtimes read such names.
    """
    is_note = "/" not in key and "." not in key
    return is_note or not {key, f"{key.partition('/')[0]}/*"}.isdisjoint(allowed)


def secrets_of(spec: Json) -> Iterator[PodPart]:
    """Yield every Secret that a pod spec names: in variables, volumes, attributes for CSI drivers and
    imagePullSecrets."""
    for at, container in _containers(spec):
        for index, variable in enumerate(objects_of(container.get("env"))):
            reference = object_of(object_of(variable.get("valueFrom")).get("secretKeyRef"))
            yield from _named(reference.get("name"), f"{at}/env/{index}/valueFrom/secretKeyRef/name")
        for index, source in enumerate(objects_of(container.get("envFrom"))):
            yield from _named(object_of(source.get("secretRef")).get("name"), f"{at}/envFrom/{index}/secretRef/name")
    for at, volume in _volumes(spec):
        yield from _named(object_of(volume.get("secret")).get("secretName"), f"{at}/secret/secretName")
        publish = object_of(object_of(volume.get("csi")).get("nodePublishSecretRef"))
        yield from _named(publish.get("name"), f"{at}/csi/nodePublishSecretRef/name")
        yield from _attributes_of(volume, at, _NAME_OF_SECRET)
        for index, source in enumerate(objects_of(object_of(volume.get("projected")).get("sources"))):
            name = object_of(source.get("secret")).get("name")
            yield from _named(name, f"{at}/projected/sources/{index}/secret/name")
    for index, item in enumerate(objects_of(spec.get("imagePullSecrets"))):
        yield from _named(item.get("name"), f"{_PULLING}/{index}/name")


def _attributes(spec: Json, ending: str) -> Iterator[PodPart]:
    for at, volume in _volumes(spec):
        yield from _attributes_of(volume, at, ending)


def _attributes_of(volume: Json, at: str, ending: str) -> Iterator[PodPart]:
    """Yield the CSI attributes whose key ends with `ending`, ignoring case and separators: drivers use different
    spellings."""
    for key, value in object_of(object_of(volume.get("csi")).get("volumeAttributes")).items():
        if "".join(char for char in key.lower() if char not in _BETWEEN_WORDS).endswith(ending):
            yield from _named(value, f"{at}/csi/volumeAttributes{pointer(key)}")


def _attributes_in_cel(ending: str) -> str:
    """Return the CEL expression for the values that `_attributes` yields, as one list for each volume."""
    key = "k.lowerAscii()" + "".join(f".replace('{char}', '')" for char in _BETWEEN_WORDS)
    return f"variables.attributes.map(a, a.filter(k, {key}.endsWith('{ending}')).map(k, a[k]))"


def _named(name: Any, at: str) -> Iterator[PodPart]:
    if isinstance(name, str) and name:
        yield PodPart(at=at, value=name)


def _is_released(part: PodPart, released: ReleasedSecrets) -> bool:
    return _matches(part.value, released.names) or (part.at.startswith(_PULLING) and part.value in released.for_images)


def _matches(value: str, allowed: Iterable[str]) -> bool:
    """Whether `allowed` contains the value, or a PREFIX* that it starts with."""
    return any(value == each or (each.endswith("*") and value.startswith(each[:-1])) for each in allowed)


def _matches_in_cel(value: str, allowed: str) -> str:
    return f"{allowed}.exists(a, {value} == a || (a.endsWith('*') && {value}.startsWith(a.substring(0, a.size() - 1))))"


def workspace_policy() -> dict[str, Any]:
    """Return the admission policy for Secrets that workspaces release, as a file of `helm/files/policies`."""
    listed = "namespaceObject.metadata.?annotations[?'{}'].orValue('').split(',').map(part, part.trim())"
    source = "map(s, s.?name.orValue(''))"
    return {
        "accounts": ["podworker"],
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "variables": [
            {"name": "containers", "expression": _SHARED["containers"]},
            {"name": "volumes", "expression": _SHARED["volumes"]},
            {
                "name": "attributes",
                "expression": (
                    "variables.volumes.filter(v, has(v.csi) && has(v.csi.volumeAttributes)).map(v, "
                    "v.csi.volumeAttributes)"
                ),
            },
            {
                "name": "isLimited",
                "expression": f"namespaceObject.metadata.?annotations[?'{ANNOTATION_SECRETS}'].hasValue()",
            },
            # An empty annotation releases nothing; without the filter it would be one empty name.
            {"name": "released", "expression": listed.format(ANNOTATION_SECRETS) + ".filter(part, part != '')"},
            {"name": "forImages", "expression": listed.format(ANNOTATION_PULL_SECRETS)},
            {
                "name": "ownValues",
                "expression": f"'{VALUES_PREFIX}' + object.metadata.?labels[?'{LABEL_ALLOCATION_UID}'].orValue('')",
            },
            {
                "name": "named",
                "expression": (
                    "[variables.volumes.filter(v, has(v.secret)).map(v, v.secret.?secretName.orValue('')), "
                    "variables.volumes.filter(v, has(v.csi) && has(v.csi.nodePublishSecretRef)).map(v, "
                    "v.csi.nodePublishSecretRef.?name.orValue(''))] + "
                    "variables.containers.map(c, c.?env.orValue([]).filter(e, has(e.valueFrom) && "
                    "has(e.valueFrom.secretKeyRef)).map(e, e.valueFrom.secretKeyRef.?name.orValue(''))) + "
                    "variables.containers.map(c, c.?envFrom.orValue([]).filter(e, has(e.secretRef)).map(e, "
                    "e.secretRef.?name.orValue(''))) + variables.volumes.filter(v, has(v.projected)).map(v, "
                    f"v.projected.?sources.orValue([]).filter(s, has(s.secret)).map(s, s.secret).{source}) + "
                    + _attributes_in_cel(_NAME_OF_SECRET)
                ),
            },
            {"name": "pulling", "expression": f"object.spec.?imagePullSecrets.orValue([]).{source}"},
        ],
        "validations": [
            {
                "expression": f"{_attributes_in_cel(_NAMESPACE_OF_SECRET)}.all(some, some.all(n, n == ''))",
                "message": "it sets the namespace in which a CSI driver looks for a Secret",
                "reason": "Forbidden",
            },
            {
                "expression": (
                    "(variables.named + [variables.pulling]).all(some, some.all(n, "
                    f"!n.startsWith('{VALUES_PREFIX}') || n == variables.ownValues))"
                ),
                "message": "it names the secret values of another allocation",
                "reason": "Forbidden",
            },
            {
                "expression": (
                    "!variables.isLimited || (variables.named.all(some, some.all(n, n == '' || n == "
                    f"variables.ownValues || {_matches_in_cel('n', 'variables.released')})) && "
                    "variables.pulling.all(n, n == '' || n in variables.forImages || "
                    f"{_matches_in_cel('n', 'variables.released')}))"
                ),
                "message": f"it names a Secret that its workspace does not release (annotation {ANNOTATION_SECRETS})",
                "reason": "Forbidden",
            },
        ],
    }


def policy() -> dict[str, Any]:
    """Return the admission policy of the table, as a file of `helm/files/policies`."""
    variables = dict(_SHARED)
    for rule in RULES:
        variables |= rule.variables
    return {
        "accounts": ["podworker"],
        "parameters": {"apiVersion": "slipway.dev/v1alpha1", "kind": "ResourcePool"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        # Requests for pods that are not Slipway's must not wait until the API server has loaded the pools.
        "objectSelector": {"matchExpressions": [{"key": LABEL_ALLOCATION_UID, "operator": "Exists"}]},
        "variables": [{"name": name, "expression": expression} for name, expression in variables.items()],
        "validations": [
            {
                "expression": f"!variables.isJudged || ({rule.expression})",
                "message": f"its pool does not allow {rule.what} ({rule.field})",
                "messageExpression": "'the pool ' + string(params.metadata.name) + "
                f"' does not allow {rule.what} ({rule.field})'",
                "reason": "Forbidden",
            }
            for rule in RULES
        ],
    }


def _refusal(rule: PodRule, value: str, pool: ResourcePool, allowed: list[str]) -> str:
    more = f" and {len(allowed) - SHOWN_MAX} more" if len(allowed) > SHOWN_MAX else ""
    shown = f"it allows {', '.join(allowed[:SHOWN_MAX])}{more}" if allowed else "it allows none"
    if not value:
        return f"pool {pool.metadata.name} needs {rule.what} to be set ({rule.field}); {shown}"
    return (
        f"pool {pool.metadata.name} does not allow {rule.what} {value[:160]!r}; {shown}. Use one of these, or have an "
        f"administrator add it to {rule.field} of the pool"
    )


def _containers(spec: Json) -> Iterator[tuple[str, Json]]:
    for group in ("containers", "initContainers"):
        for index, container in enumerate(objects_of(spec.get(group))):
            yield f"/{group}/{index}", container


def _volumes(spec: Json) -> Iterator[tuple[str, Json]]:
    for index, volume in enumerate(objects_of(spec.get("volumes"))):
        yield f"/volumes/{index}", volume


_PULLING = "/imagePullSecrets"
_NAME_OF_SECRET, _NAMESPACE_OF_SECRET = "secretname", "secretnamespace"
_BETWEEN_WORDS = "-_."
"""secretName, secret_name and csi.storage.k8s.io/node-publish-secret-name are keys with the same meaning."""
_SHARED = {
    "pool": f"object.metadata.?labels[?'{LABEL_POOL}'].orValue('')",
    # An earlier release created pods without the label; every pool checks them.
    "isJudged": "variables.pool == '' || variables.pool == params.metadata.name",
    "containers": "object.spec.containers + object.spec.?initContainers.orValue([])",
    "volumes": "object.spec.?volumes.orValue([])",
}


# --- images -----------------------------------------------------------------------------------------------------------


def _images(spec: Json) -> Iterator[PodPart]:
    for at, container in _containers(spec):
        if isinstance(image := container.get("image"), str) and image:
            yield PodPart(at=f"{at}/image", value=image)
    for at, volume in _volumes(spec):
        reference = object_of(volume.get("image")).get("reference")
        if isinstance(reference, str) and reference:
            yield PodPart(at=f"{at}/image/reference", value=reference)


def _has_registry(name: str) -> str:
    """Return the CEL expression that is true when the image name in the variable `name` begins with a registry."""
    first = f"{name}.split('/')[0]"
    return (
        f"{name}.contains('/') && ({first}.contains('.') || {first}.contains(':') || {first} == 'localhost' || "
        f"{first} != {first}.lowerAscii())"
    )


_NAME = "i.split('@')[0]"
_IMAGE_VARIABLES = {
    "images": (
        "(variables.containers.filter(c, has(c.image)).map(c, c.image) + variables.volumes.filter(v, has(v.image) && "
        "has(v.image.reference)).map(v, v.image.reference)).filter(i, !(i in variables.contextImages))"
    ),
    # The host name is written in two parts; `images.HUB` states why.
    "hub": "'{}' + '.{}'".format(*images.HUB.split(".")),
    "withRegistry": (
        f"variables.images.map(i, i.startsWith('index.' + variables.hub + '/') ? i.substring(6) : "
        f"{_has_registry('i')} ? i : variables.hub + '/' + i)"
    ),
    "withPath": (
        "variables.withRegistry.map(i, i.startsWith(variables.hub + '/') && !i.substring(10).contains('/') ? "
        "variables.hub + '/library/' + i.substring(10) : i)"
    ),
    "imageNames": (
        f"variables.withPath.map(i, i.contains('@') ? ({_NAME}.lastIndexOf(':') > {_NAME}.lastIndexOf('/') ? "
        f"{_NAME}.substring(0, {_NAME}.lastIndexOf(':')) : {_NAME}) + i.substring(i.indexOf('@')) : "
        "i.lastIndexOf(':') > i.lastIndexOf('/') ? i : i + ':latest')"
    ),
    "imagePatterns": (
        "params.?spec.?allowedImages.orValue([]).map(q, string(q)).map(p, p == '*' ? '.*' : '^' + "
        f"({_has_registry('p')} ? p : variables.hub + (p.contains('/') ? '/' : '/library/') + p)"
        ".replace('.', '[.]').replace('*', '[^/:@]*') + "
        "(p.endsWith('/') ? '.+$' : p.contains('@') || p.lastIndexOf(':') > p.lastIndexOf('/') ? '$' : "
        "'(/.+|[:@][^/]+)?$'))"
    ),
}

# --- what a template names --------------------------------------------------------------------------------------------


def _csi_drivers(spec: Json) -> Iterator[PodPart]:
    for at, volume in _volumes(spec):
        if isinstance(driver := object_of(volume.get("csi")).get("driver"), str):
            yield PodPart(at=f"{at}/csi/driver", value=driver)


def _runtime_classes(spec: Json) -> Iterator[PodPart]:
    if isinstance(name := spec.get("runtimeClassName"), str) and name:
        yield PodPart(at="/runtimeClassName", value=name)


def _privileges(spec: Json) -> Iterator[PodPart]:
    for at, privilege in podsecurity.privileges_of(spec):
        yield PodPart(at=at, value=privilege)


def _is_one_of(value: str, allowed: list[str]) -> bool:
    return value in allowed


def _listed(field: str) -> str:
    """Return the CEL expression for membership in a list field of the pool; `%s` is the value."""
    return f"params.spec.{field}.exists(a, a == %s)"


def _unless_absent(field: str, condition: str) -> str:
    """Return the CEL expression that requires the condition only if the pool sets the field."""
    return f"!has(params.spec) || !has(params.spec.{field}) || {condition}"


def _token_audiences(spec: Json) -> Iterator[PodPart]:
    for at, volume in _volumes(spec):
        for index, source in enumerate(objects_of(object_of(volume.get("projected")).get("sources"))):
            token = source.get("serviceAccountToken")
            if token is not None:
                value = str(object_of(token).get("audience") or "")
                yield PodPart(at=f"{at}/projected/sources/{index}/serviceAccountToken/audience", value=value)


EVERY_TAINT = "*"
_GIVEN_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Tolerations that the API server itself adds to pods (DefaultTolerationSeconds)."""


def _tolerations(spec: Json) -> Iterator[PodPart]:
    for index, item in enumerate(objects_of(spec.get("tolerations"))):
        yield PodPart(at=f"/tolerations/{index}", value=str(item.get("key") or EVERY_TAINT))


def _allowed_tolerations(pool: ResourcePoolSpec) -> list[str] | None:
    """Return the allowed keys, including the pool's own tolerations, which all its pods have."""
    if pool.allowed_tolerations is None:
        return None
    own = [item.key or EVERY_TAINT for item in pool.tolerations]
    return list(dict.fromkeys([*pool.allowed_tolerations, *own, *_GIVEN_TOLERATIONS]))


def _claim_annotations(spec: Json) -> Iterator[PodPart]:
    for at, volume in _volumes(spec):
        claim = object_of(object_of(volume.get("ephemeral")).get("volumeClaimTemplate"))
        for key in object_of(object_of(claim.get("metadata")).get("annotations")):
            here = f"{at}/ephemeral/volumeClaimTemplate/metadata/annotations{pointer(key)}"
            yield PodPart(at=here, value=key)


# --- users and groups -------------------------------------------------------------------------------------------------


def _users(spec: Json) -> Iterator[PodPart]:
    return _ids(spec, "runAsUser")


def _groups(spec: Json) -> Iterator[PodPart]:
    yield from _ids(spec, "runAsGroup")
    context = object_of(spec.get("securityContext"))
    if (group := context.get("fsGroup")) is not None:
        yield PodPart(at="/securityContext/fsGroup", value=str(group))
    groups = context.get("supplementalGroups")
    for index, group in enumerate(cast("list[Any]", groups) if isinstance(groups, list) else []):
        yield PodPart(at=f"/securityContext/supplementalGroups/{index}", value=str(group))


def _ids(spec: Json, field: str) -> Iterator[PodPart]:
    """Yield the ids of the pod and of its containers; an empty value when a container would use the id of its image."""
    own = object_of(spec.get("securityContext")).get(field)
    found = {at: object_of(container.get("securityContext")).get(field) for at, container in _containers(spec)}
    if own is not None or None in found.values():
        yield PodPart(at=f"/securityContext/{field}", value="" if own is None else str(own))
    for at, value in found.items():
        if value is not None:
            yield PodPart(at=f"{at}/securityContext/{field}", value=str(value))


def _is_in_ranges(value: str, ranges: list[str]) -> bool:
    number = number_in(value, LONG_DIGITS_MAX)
    if number is None:
        return False
    ends = [[int(end) for end in each.split("-")] for each in ranges]
    return any(each[0] <= number <= each[-1] for each in ends)


def _of_contexts(field: str) -> str:
    """Return the CEL expression for the ids in a field of all securityContexts."""
    return (
        f"(has(object.spec.securityContext) && has(object.spec.securityContext.{field}) ? "
        f"[object.spec.securityContext.{field}] : []) + variables.containers.filter(c, has(c.securityContext) && "
        f"has(c.securityContext.{field})).map(c, c.securityContext.{field})"
    )


def _is_set(field: str) -> str:
    """Return the CEL expression that is true when no container would use the id of its image."""
    return (
        f"((has(object.spec.securityContext) && has(object.spec.securityContext.{field})) || "
        f"variables.containers.all(c, has(c.securityContext) && has(c.securityContext.{field})))"
    )


def _ranges(field: str) -> str:
    """Return the CEL expression for the list of ranges, each as [first, last], or [only]."""
    return f"params.?spec.?{field}.orValue([]).map(q, string(q).split('-').map(n, int(n)))"


def _all_in(ids: str, ranges: str) -> str:
    return f"variables.{ids}.all(i, variables.{ranges}.exists(r, r[0] <= i && i <= r[r.size() - 1]))"


RULES: tuple[PodRule, ...] = (
    PodRule(
        field="allowedImages",
        judges="`image` of containers, init containers and sidecars; `image.reference` of volumes",
        says="patterns of image names; empty or absent: every image",
        what="the image",
        allowed=lambda pool: pool.allowed_images or None,
        parts=_images,
        allows=images.is_allowed,
        variables=_IMAGE_VARIABLES,
        expression=(
            "variables.imagePatterns.size() == 0 || variables.imageNames.all(i, variables.imagePatterns.exists(p, "
            "i.matches(p)))"
        ),
    ),
    PodRule(
        field="allowedCsiDrivers",
        judges="`csi.driver` of volumes",
        says="CSI drivers of inline volumes; absent: every one; empty: none. Volume claims are not affected",
        what="the CSI driver",
        allowed=lambda pool: pool.allowed_csi_drivers,
        parts=_csi_drivers,
        allows=_is_one_of,
        expression=_unless_absent(
            "allowedCsiDrivers",
            f"variables.volumes.all(v, !has(v.csi) || {_listed('allowedCsiDrivers') % 'v.csi.driver'})",
        ),
    ),
    PodRule(
        field="allowedRuntimeClasses",
        judges="`runtimeClassName`",
        says="runtime classes; absent: every one; empty: none, so that pods run in the default one",
        what="the runtime class",
        allowed=lambda pool: pool.allowed_runtime_classes,
        parts=_runtime_classes,
        allows=_is_one_of,
        expression=_unless_absent(
            "allowedRuntimeClasses",
            "!has(object.spec.runtimeClassName) || object.spec.runtimeClassName == '' || "
            f"{_listed('allowedRuntimeClasses') % 'object.spec.runtimeClassName'}",
        ),
    ),
    PodRule(
        field="allowedPrivileges",
        judges="`hostIPC`, `hostNetwork`, `runAsUser: 0`, `runAsNonRoot: false`, and `capabilities.add` of containers",
        says="`root`, `hostIPC`, `hostNetwork`, and capabilities such as `IPC_LOCK`; empty or absent: none. With "
        "`privilegedTemplates`: every one. [More](#privileges)",
        what="the privilege",
        allowed=lambda pool: None if pool.privileged_templates else pool.allowed_privileges,
        parts=_privileges,
        allows=_is_one_of,
        variables={
            "askedPrivileges": (
                "(object.spec.?hostIPC.orValue(false) ? ['hostIPC'] : []) + (object.spec.?hostNetwork.orValue(false) ? "
                "['hostNetwork'] : []) + (object.spec.?securityContext.?runAsUser.orValue(1) == 0 || "
                "!object.spec.?securityContext.?runAsNonRoot.orValue(true) || variables.containers.exists(c, "
                "c.?securityContext.?runAsUser.orValue(1) == 0 || !c.?securityContext.?runAsNonRoot.orValue(true)) ? "
                "['root'] : [])"
            ),
            "addedCapabilities": (
                "variables.containers.map(c, c.?securityContext.?capabilities.?add.orValue([]).filter(n, "
                "n != 'NET_BIND_SERVICE'))"
            ),
        },
        expression=(
            "params.?spec.?privilegedTemplates.orValue(false) || variables.unjudged.exists(n, n == '*' || "
            "n == request.namespace) || ([variables.askedPrivileges] + variables.addedCapabilities).all(some, "
            "some.all(p, params.?spec.?allowedPrivileges.orValue([]).exists(a, string(a) == p)))"
        ),
    ),
    PodRule(
        field="allowedTokenAudiences",
        judges="`audience` of projected `serviceAccountToken` sources of volumes. It must be set",
        says="audiences; absent: every one that `admissionPolicies.tokenAudiences` of the chart lists; empty: none. "
        "It does not apply to Slipway's own token",
        what="the audience of a token",
        allowed=lambda pool: pool.allowed_token_audiences,
        parts=_token_audiences,
        allows=_is_one_of,
        expression=_unless_absent(
            "allowedTokenAudiences",
            # Volumes whose names have Slipway's prefix are not from a template.
            "variables.volumes.filter(v, has(v.projected) && !v.name.startsWith('slipway-')).all(v, "
            "v.projected.?sources.orValue([]).all(s, !has(s.serviceAccountToken) || "
            + _listed("allowedTokenAudiences") % "s.serviceAccountToken.?audience.orValue('')"
            + "))",
        ),
    ),
    PodRule(
        field="allowedTolerations",
        judges="`tolerations` of pod templates and of roles",
        says="keys of taints: names, `PREFIX*`, or `*`, which also allows tolerations without a key: they tolerate "
        "every taint. Absent: every one; empty: none. What `tolerations` of the pool names is always allowed",
        what="the toleration of taint",
        allowed=_allowed_tolerations,
        parts=_tolerations,
        allows=_matches,
        variables={
            "tolerated": "object.spec.?tolerations.orValue([]).map(t, has(t.key) && t.key != '' ? t.key : '*')",
            "tolerable": (
                "params.?spec.?allowedTolerations.orValue([]).map(q, string(q)) + "
                "params.?spec.?tolerations.orValue([]).map(t, has(t.key) && string(t.key) != '' ? string(t.key) : "
                "'*') + " + str(list(_GIVEN_TOLERATIONS))
            ),
        },
        expression=_unless_absent(
            "allowedTolerations",
            f"variables.tolerated.all(t, {_matches_in_cel('t', 'variables.tolerable')})",
        ),
    ),
    PodRule(
        field="templateAnnotations",
        judges="annotations of the claims of volumes (`ephemeral.volumeClaimTemplate`). Annotations of pods are "
        "checked too, but not by the API server",
        says="annotations beyond a few harmless ones and names without dots and slashes: names, or `PREFIX/*`. With "
        "`privilegedTemplates`: every one",
        what="the annotation of a claim",
        allowed=lambda pool: None if pool.privileged_templates else [*HARMLESS_ANNOTATIONS, *pool.template_annotations],
        parts=_claim_annotations,
        allows=is_annotation_allowed,
        variables={
            "claimAnnotations": (
                "variables.volumes.filter(v, has(v.ephemeral) && has(v.ephemeral.volumeClaimTemplate) && "
                "has(v.ephemeral.volumeClaimTemplate.metadata) && "
                "has(v.ephemeral.volumeClaimTemplate.metadata.annotations)).map(v, "
                "v.ephemeral.volumeClaimTemplate.metadata.annotations)"
            ),
            "annotationsAllowed": (
                f"{list(HARMLESS_ANNOTATIONS)} + params.?spec.?templateAnnotations.orValue([]).map(q, string(q))"
            ),
        },
        expression=(
            "params.?spec.?privilegedTemplates.orValue(false) || variables.claimAnnotations.all(some, some.all(k, "
            "!(k.contains('/') || k.contains('.')) || variables.annotationsAllowed.exists(a, a == k || "
            "a == k.split('/')[0] + '/*')))"
        ),
    ),
    PodRule(
        field="allowedUsers",
        judges="`runAsUser` of the pod and of its containers. It must be set",
        says="uids, or ranges such as `1000-1999`; empty or absent: every uid. Root also needs `allowedPrivileges`",
        what="the user",
        allowed=lambda pool: pool.allowed_users or None,
        parts=_users,
        allows=_is_in_ranges,
        variables={"users": _of_contexts("runAsUser"), "userRanges": _ranges("allowedUsers")},
        expression=(
            f"variables.userRanges.size() == 0 || ({_is_set('runAsUser')} && {_all_in('users', 'userRanges')})"
        ),
    ),
    PodRule(
        field="allowedGroups",
        judges="`runAsGroup` of the pod and of its containers, which must be set; `fsGroup`; `supplementalGroups`",
        says="groups, or ranges such as `2000-2999`; empty or absent: every group",
        what="the group",
        allowed=lambda pool: pool.allowed_groups or None,
        parts=_groups,
        allows=_is_in_ranges,
        variables={
            "groups": (
                f"{_of_contexts('runAsGroup')} + (has(object.spec.securityContext) && "
                "has(object.spec.securityContext.fsGroup) ? [object.spec.securityContext.fsGroup] : []) + "
                "(has(object.spec.securityContext) && has(object.spec.securityContext.supplementalGroups) ? "
                "object.spec.securityContext.supplementalGroups : [])"
            ),
            "groupRanges": _ranges("allowedGroups"),
        },
        expression=(
            f"variables.groupRanges.size() == 0 || ({_is_set('runAsGroup')} && {_all_in('groups', 'groupRanges')})"
        ),
    ),
)
"""The rules in the order in which they are checked."""
