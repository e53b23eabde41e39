"""The allow-list for pod templates: which fields a template may set, and what to do instead of the others.

Owns the fields of pod, container and volume; `podsecurity.py` owns the security contexts. Only listed fields are
accepted: a new field of Kubernetes is refused until we have reviewed it. Every refusal has a JSON pointer and states
what to change.

Source: Pod Security Standards, "restricted"; architecture: only Slipway places, binds and stops ranks.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from slipway.crd import podrules, podsecurity
from slipway.crd.fielderrors import Findings, pointer
from slipway.crd.meta import (
    ANNOTATION_CHECKPOINTS,
    ANNOTATION_MAIN_CONTAINER,
    ANNOTATION_SERVICE_ACCOUNTS,
    API_GROUP,
    LABEL_MANAGED_BY,
)
from slipway.crd.roleresources import object_of, objects_of
from slipway.crd.validate import check_container_resources, check_env_name

OUR_SCHEDULER = "slipway"
OUR_VOLUME_PREFIX = "slipway-"
DEFAULT_ACCOUNT = "default"
"""The service account that every namespace has."""
CONTAINERS_MAX = 32
GRACE_DEFAULT_S = 30
"""Grace period in seconds of a pod that sets none. Source: Kubernetes, PodSpec.terminationGracePeriodSeconds."""
GRACE_MAX_S = 86_400
_GRACE = "terminationGracePeriodSeconds"
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")

_POD_FIELDS = frozenset(
    {
        "containers",
        "initContainers",
        "volumes",
        "nodeSelector",
        "affinity",
        "tolerations",
        "topologySpreadConstraints",
        "terminationGracePeriodSeconds",
        "securityContext",
        "imagePullSecrets",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "resourceClaims",
        "runtimeClassName",
        "serviceAccountName",
        "shareProcessNamespace",
        "os",
    }
)
_POD_ONLY: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "restartPolicy": (("Never",), "must be Never: Slipway restarts ranks itself, see maxRestarts"),
    "schedulerName": ((OUR_SCHEDULER,), "leave it out: Slipway places the pods"),
    "serviceAccount": (("default",), "is the old name of serviceAccountName; write that"),
    "automountServiceAccountToken": ((False,), "must be false: ranks get a token of their own"),
    "enableServiceLinks": ((False,), "must be false; leave it out"),
    "setHostnameAsFQDN": ((False,), "leave it out"),
}
"""Fields that are accepted only with these values."""
_POD_REFUSED: Mapping[str, str] = {
    "nodeName": "leave it out: Slipway places the pods; use nodeSelector or affinity",
    "hostname": "leave it out: Slipway names the pods",
    "subdomain": "leave it out: Slipway names the pods",
    "priorityClassName": "leave it out: use the allocation's priority",
    "priority": "leave it out: use the allocation's priority",
    "preemptionPolicy": "leave it out: Slipway preempts by queue and priority",
    "activeDeadlineSeconds": "use the allocation's maxRuntime",
    "schedulingGates": "leave it out: Slipway places the pods",
    "schedulingGroup": "leave it out: the ranks are the gang, see minAvailable",
    "readinessGates": "leave it out: a rank reports its readiness through the API",
    "resources": "set resources on the ranks or on the containers",
    "overhead": "leave it out: the runtime class sets it",
    "ephemeralContainers": "leave it out: they belong to running pods",
}
_CONTAINER_FIELDS = frozenset(
    {
        "name",
        "image",
        "imagePullPolicy",
        "command",
        "args",
        "workingDir",
        "env",
        "envFrom",
        "ports",
        "resources",
        "volumeMounts",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "securityContext",
        "stdin",
        "stdinOnce",
        "tty",
        "terminationMessagePath",
        "terminationMessagePolicy",
    }
)
_CONTAINER_REFUSED: Mapping[str, str] = {
    "volumeDevices": "raw block devices are not supported; mount a file system with volumeMounts",
    "resizePolicy": "leave it out: ranks are not resized in place",
    "restartPolicyRules": "leave it out: Slipway restarts ranks itself, see maxRestarts",
}
_PROJECTED = ("clusterTrustBundle", "configMap", "downwardAPI", "secret", "serviceAccountToken")
_OF_KUBERNETES = re.compile(r"(https?://)?kubernetes([.]default([.]svc([.][a-z0-9.-]+)?)?)?(:[0-9]+)?/?", re.IGNORECASE)
"""Names of the Kubernetes API inside a cluster; one of them is usually the token audience that it accepts."""
_CLAIM_FIELDS = ("accessModes", "resources", "storageClassName", "volumeMode")
"""The allowed fields of the claim of an ephemeral volume: size and class. It may name no volume and no data source."""
VOLUME_TYPES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
"""The kinds of volumes that a pod may have: those of Pod Security "restricted". An image volume is read-only; its name
is checked like the image names of containers. The admission policy `pods` is generated from this table
(`volumes_in_cel`)."""


def volumes_in_cel(volumes: str) -> str:
    """Return the CEL expression that checks whether each volume in the list `volumes` is of an allowed kind."""
    kinds = " || ".join(f"has(volume.{kind})" for kind in sorted(VOLUME_TYPES))
    return f"{volumes}.all(volume, {kinds})"


def check_template(
    template: Any,
    at: str,
    findings: Findings,
    *,
    privileged: bool = False,
    annotations: Collection[str] = (),
    grace_max_s: int = GRACE_MAX_S,
    accounts: Collection[str] | None = (),
    grants: podsecurity.Grants = (),
) -> None:
    """Add an error for each part of the pod template at JSON pointer `at` that is not allowed.

    With `privileged` (a pool's `privilegedTemplates`), fields that only "restricted" forbids are accepted; fields that
    would let others place or stop the pod are not. `grants` are the privileges that the pool allows by name. An
    annotation can give orders to a kubelet or a controller, so only harmless ones and those that the pool names are
    accepted. `grace_max_s` is the longest time in seconds that a pod may take to end. `accounts` are the service
    accounts (names, or PREFIX*) that the workspace allows besides `default`. None: they are not known here, and are
    checked where the pod is created.
    """
    for field, value in findings.mapping(template, at).items():
        if field == "metadata":
            metadata = findings.mapping(value, f"{at}/metadata")
            passes = (ANNOTATION_MAIN_CONTAINER, ANNOTATION_CHECKPOINTS)
            _check_metadata(metadata, f"{at}/metadata", findings, passes=passes)
            _check_checkpoints(metadata, f"{at}/metadata/annotations", findings)
            if not privileged:
                _check_annotations(metadata, f"{at}/metadata/annotations", findings, annotations)
        elif field == "spec":
            spec = findings.mapping(value, f"{at}/spec")
            _check_pod(spec, f"{at}/spec", findings, grants, privileged=privileged)
            _check_graces(spec, f"{at}/spec", findings, grace_max_s)
            _check_account(spec.get("serviceAccountName"), f"{at}/spec/serviceAccountName", findings, accounts)
        else:
            findings.refuse(at + pointer(field), "a pod template has metadata and spec only")


def named_account(template: Any) -> str:
    """Return the service account that a template names; empty: the `default` account of its namespace."""
    name = object_of(object_of(template).get("spec")).get("serviceAccountName")
    return "" if name in (None, DEFAULT_ACCOUNT) else str(name)


def _check_account(name: Any, at: str, findings: Findings, accounts: Collection[str] | None) -> None:
    if name in (None, "", DEFAULT_ACCOUNT) or (accounts is None and isinstance(name, str)):
        return
    for allowed in accounts or ():
        if name == allowed or (allowed.endswith("*") and str(name).startswith(allowed[:-1])):
            return
    findings.refuse(
        at,
        f"the workspace does not allow the service account {str(name)[:80]!r}; leave it out, or have an administrator "
        f"allow it: kubectl annotate --overwrite namespace WORKSPACE {ANNOTATION_SERVICE_ACCOUNTS}="
        f"{','.join([*(accounts or ()), str(name)[:80]])}",
    )


def _check_metadata(metadata: Mapping[str, Any], at: str, findings: Findings, *, passes: Collection[str] = ()) -> None:
    """Check labels and annotations. Of the names with our prefix only the annotations in `passes` are accepted."""
    for field, value in metadata.items():
        here = at + pointer(field)
        if field not in ("labels", "annotations"):
            if value not in (None, "", {}, []):
                findings.refuse(here, "set labels and annotations only: Slipway names pods and claims")
            continue
        for key, text in findings.mapping(value, here).items():
            is_ours = key.split("/")[0].endswith(API_GROUP) or key == LABEL_MANAGED_BY
            if is_ours and not (field == "annotations" and key in passes):
                findings.refuse(here + pointer(key), "is set by Slipway; leave it out")
            elif not isinstance(text, str):
                findings.refuse(here + pointer(key), "must be a string; put it in quotes")


def _check_checkpoints(metadata: Mapping[str, Any], at: str, findings: Findings) -> None:
    folder = object_of(metadata.get("annotations")).get(ANNOTATION_CHECKPOINTS)
    if isinstance(folder, str) and not folder.startswith("/"):
        findings.refuse(at + pointer(ANNOTATION_CHECKPOINTS), "must be an absolute path, such as /checkpoints/llm")


def _check_annotations(metadata: Mapping[str, Any], at: str, findings: Findings, named: Collection[str]) -> None:
    for key in object_of(metadata.get("annotations")):
        is_ours = key.partition("/")[0].endswith(API_GROUP)  # checked already
        if not is_ours and not podrules.is_annotation_allowed(key, [*podrules.HARMLESS_ANNOTATIONS, *named]):
            findings.refuse(
                at + pointer(key), "is not an annotation that a template may set here: its pool does not name it "
                "(templateAnnotations); leave it out, or use a name without dots and slashes for a note of your own",
            )  # fmt: skip


def _check_pod(
    spec: Mapping[str, Any], at: str, findings: Findings, grants: podsecurity.Grants, *, privileged: bool
) -> None:
    for field, value in spec.items():
        here = at + pointer(field)
        if field in _POD_FIELDS:
            continue
        if field in _POD_ONLY:
            allowed, hint = _POD_ONLY[field]
            if value not in (*allowed, None, ""):
                findings.refuse(here, hint)
        elif field in podsecurity.HOST_SWITCHES:
            podsecurity.check_host_switch(field, value, here, findings, privileged=privileged, grants=grants)
        elif field in _POD_REFUSED:
            if value not in (None, "", [], {}):
                findings.refuse(here, _POD_REFUSED[field])
        else:
            findings.refuse(here, "is not a field that a pod template may set")
    at_context = f"{at}/securityContext"
    podsecurity.check_pod(spec.get("securityContext"), at_context, findings, privileged=privileged, grants=grants)
    _check_volumes(findings.items(spec.get("volumes"), f"{at}/volumes"), f"{at}/volumes", findings, privileged)
    names: set[str] = set()
    for group in ("containers", "initContainers"):
        containers = findings.items(spec.get(group), f"{at}/{group}")
        if len(containers) > CONTAINERS_MAX:
            findings.refuse(f"{at}/{group}", f"has {len(containers)} containers; at most {CONTAINERS_MAX} are allowed")
        for index, item in enumerate(containers[:CONTAINERS_MAX]):
            here = f"{at}/{group}/{index}"
            container = findings.mapping(item, here)
            _check_name(container.get("name"), here, names, findings)
            _check_container(
                container, here, findings, grants, privileged=privileged, is_init=group == "initContainers"
            )


def _check_graces(spec: Mapping[str, Any], at: str, findings: Findings, most: int) -> None:
    """Check the grace periods of the pod and of its probes: a probe's own period replaces the pod's when that probe
    fails."""
    graces = {f"{at}/{_GRACE}": spec.get(_GRACE)}
    for group in ("containers", "initContainers"):
        for index, container in enumerate(objects_of(spec.get(group))[:CONTAINERS_MAX]):
            for probe in _PROBES:
                graces[f"{at}/{group}/{index}/{probe}/{_GRACE}"] = object_of(container.get(probe)).get(_GRACE)
    for where, value in graces.items():
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= GRACE_MAX_S:
            findings.refuse(where, f"must be whole seconds from 0 to {most}")
        elif value > most:
            findings.refuse(where, f"must be at most {most}: this is the limit of the pool (terminationGraceMax)")


def _check_name(name: Any, at: str, names: set[str], findings: Findings) -> None:
    if not isinstance(name, str) or not name:
        findings.refuse(f"{at}/name", "each container needs a name, such as main")
    elif name in names:
        findings.refuse(f"{at}/name", f"another container is named {name} already")
    else:
        names.add(name)


def _check_container(
    container: Mapping[str, Any],
    at: str,
    findings: Findings,
    grants: podsecurity.Grants,
    *,
    privileged: bool,
    is_init: bool,
) -> None:
    for field, value in container.items():
        here = at + pointer(field)
        if field == "restartPolicy":
            if not is_init or value != "Always":
                findings.refuse(here, "leave it out; only Always is allowed, on an init container that is a sidecar")
        elif field in _CONTAINER_REFUSED:
            findings.refuse(here, _CONTAINER_REFUSED[field])
        elif field not in _CONTAINER_FIELDS:
            findings.refuse(here, "is not a field that a container of a pod template may set")
    for field in ("command", "args"):
        for index, item in enumerate(findings.items(container.get(field), f"{at}/{field}")):
            if not isinstance(item, str):
                findings.refuse(f"{at}/{field}/{index}", "must be a string; put it in quotes")
    podsecurity.check_container(
        container.get("securityContext"), f"{at}/securityContext", findings, privileged=privileged, grants=grants
    )
    check_container_resources(container.get("resources"), f"{at}/resources", findings)
    _check_ports(container, at, findings, privileged=privileged)
    _check_mounts(container, at, findings)
    _check_environment(container, at, findings)
    if not privileged:
        _check_hooks(container, at, findings)


def _check_ports(container: Mapping[str, Any], at: str, findings: Findings, *, privileged: bool) -> None:
    for index, item in enumerate(findings.items(container.get("ports"), f"{at}/ports")):
        here = f"{at}/ports/{index}"
        for field, value in findings.mapping(item, here).items():
            if field in ("hostPort", "hostIP"):
                if value and not privileged:
                    findings.refuse(
                        f"{here}/{field}", "leave it out: host ports are not allowed; use ports and the proxy"
                    )
            elif field not in ("containerPort", "name", "protocol"):
                findings.refuse(here + pointer(field), "is not a field of a container port")


def _check_mounts(container: Mapping[str, Any], at: str, findings: Findings) -> None:
    for index, item in enumerate(findings.items(container.get("volumeMounts"), f"{at}/volumeMounts")):
        here = f"{at}/volumeMounts/{index}"
        if findings.mapping(item, here).get("mountPropagation") not in (None, "None"):
            findings.refuse(f"{here}/mountPropagation", "must be None; leave it out")


def _check_environment(container: Mapping[str, Any], at: str, findings: Findings) -> None:
    for index, item in enumerate(findings.items(container.get("env"), f"{at}/env")):
        here = f"{at}/env/{index}"
        variable = findings.mapping(item, here)
        check_env_name(variable.get("name"), f"{here}/name", findings)
        value = variable.get("value")
        if value is not None and not isinstance(value, str):
            findings.refuse(f"{here}/value", "must be a string; put it in quotes")


def _check_hooks(container: Mapping[str, Any], at: str, findings: Findings) -> None:
    probes = {name: container.get(name) for name in _PROBES}
    lifecycle = findings.mapping(container.get("lifecycle"), f"{at}/lifecycle")
    hooks = {f"lifecycle/{name}": lifecycle.get(name) for name in ("postStart", "preStop")}
    for name, hook in {**probes, **hooks}.items():
        for action in ("httpGet", "tcpSocket"):
            call = findings.mapping(findings.mapping(hook, f"{at}/{name}").get(action), f"{at}/{name}/{action}")
            if call.get("host"):
                findings.refuse(f"{at}/{name}/{action}/host", "leave it out: probes go to the pod itself")


def _check_volumes(volumes: list[Any], at: str, findings: Findings, privileged: bool) -> None:
    for index, item in enumerate(volumes):
        here = f"{at}/{index}"
        volume = findings.mapping(item, here)
        name = volume.get("name")
        if not isinstance(name, str) or not name:
            findings.refuse(f"{here}/name", "each volume needs a name")
        elif name.startswith(OUR_VOLUME_PREFIX):
            findings.refuse(f"{here}/name", f"names that begin with {OUR_VOLUME_PREFIX} are Slipway's own")
        _check_projected(volume.get("projected"), f"{here}/projected", findings)
        _check_ephemeral(volume.get("ephemeral"), f"{here}/ephemeral", findings)
        for source in volume:
            if source == "hostPath":
                if not privileged:
                    findings.refuse(f"{here}/hostPath", "host paths are not allowed; use emptyDir or a volume claim")
            elif source != "name" and source not in VOLUME_TYPES:
                kinds = ", ".join(sorted(VOLUME_TYPES))
                findings.refuse(here + pointer(source), f"is not an allowed kind of volume; use one of {kinds}")


def _check_ephemeral(ephemeral: Any, at: str, findings: Findings) -> None:
    """Check the claim that Kubernetes creates for the pod: an empty volume of a class. `podrules` checks its
    annotations."""
    claim = findings.mapping(ephemeral, at).get("volumeClaimTemplate")
    at = f"{at}/volumeClaimTemplate"
    for field, value in findings.mapping(claim, at).items():
        if field == "metadata":
            _check_metadata(findings.mapping(value, f"{at}/metadata"), f"{at}/metadata", findings)
        elif field == "spec":
            for name, said in findings.mapping(value, f"{at}/spec").items():
                here = f"{at}/spec{pointer(name)}"
                if name == "volumeMode" and said not in (None, "", "Filesystem"):
                    findings.refuse(here, "must be Filesystem: raw block devices are not supported")
                elif name not in _CLAIM_FIELDS and said not in (None, ""):
                    findings.refuse(
                        here,
                        f"an ephemeral volume begins empty; set {', '.join(_CLAIM_FIELDS)} only, or create a claim in "
                        "the workspace and use persistentVolumeClaim",
                    )
        else:
            findings.refuse(at + pointer(field), "a volume claim template has metadata and spec only")


def _check_projected(projected: Any, at: str, findings: Findings) -> None:
    """Refuse projected tokens for the Kubernetes API itself; a token without an audience is one of them."""
    sources = findings.items(findings.mapping(projected, at).get("sources"), f"{at}/sources")
    for index, item in enumerate(sources):
        here = f"{at}/sources/{index}"
        source = findings.mapping(item, here)
        for kind in source:
            if kind not in _PROJECTED:
                findings.refuse(here + pointer(kind), f"cannot be projected; use one of {', '.join(_PROJECTED)}")
        token = source.get("serviceAccountToken")
        if token is None:
            continue
        audience = findings.mapping(token, f"{here}/serviceAccountToken").get("audience")
        if not audience:
            findings.refuse(
                f"{here}/serviceAccountToken/audience",
                "must name the audience of the token: without it, the token would be valid for the Kubernetes API",
            )
        elif not isinstance(audience, str) or _OF_KUBERNETES.fullmatch(audience):
            findings.refuse(
                f"{here}/serviceAccountToken/audience",
                "must not be the Kubernetes API: no rank gets a token for it; name another audience",
            )
