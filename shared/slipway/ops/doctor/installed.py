"""Checks of the installed objects: definitions, accounts and their permissions, Deployments, policies.

This module owns the queries to the API server. It changes nothing (a review is not stored). A check that may not run
reports the missing permission.

The permissions that the accounts of the four services need are a table of the chart's roles, for reviews. The table has
no content of its own. A test compares it with the roles that the chart renders, and conformance compares those roles
with the calls of the services. Pure.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from slipway.crd.meta import API_GROUP, API_VERSION, ObjectMeta, RawObject
from slipway.crd.schema import crd_manifests
from slipway.errors import DeniedError, NotFoundError
from slipway.kube.ports import Creates, Gets, Lists
from slipway.kube.resources import CRDS, SUBJECT_ACCESS_REVIEWS, Resource
from slipway.ops.doctor.finding import Finding, failed, ok, skipped, warning
from slipway.runtime.tasks import TaskGroup


class AnyObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of any kind."""

    metadata: ObjectMeta
    spec: RawObject = {}
    status: RawObject = {}

    def condition(self, type_: str) -> str:
        """Return the status of a condition: True, False, Unknown; empty when there is none."""
        found: list[Any] = self.status.get("conditions") or []
        return next((str(each.get("status", "")) for each in found if each.get("type") == type_), "")


def _plain(group: str, plural: str, kind: str, *, namespaced: bool) -> Resource[AnyObject]:
    return Resource(group=group, version="v1", plural=plural, kind=kind, namespaced=namespaced, struct=AnyObject)


DEFINITIONS = _plain(CRDS.group, CRDS.plural, CRDS.kind, namespaced=False)
DEPLOYMENTS = _plain("apps", "deployments", "Deployment", namespaced=True)
SERVICE_ACCOUNTS = _plain("", "serviceaccounts", "ServiceAccount", namespaced=True)
POLICIES = _plain(
    "admissionregistration.k8s.io", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
POLICY_BINDINGS = _plain(
    "admissionregistration.k8s.io",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)


class RightScope(StrEnum):
    """The scope in which a right is needed."""

    CLUSTER = "cluster"
    WORKSPACES = "workspaces"
    """In every workspace; a right in the whole cluster is enough."""
    OWN = "own"
    """In the namespace of the services."""
    WEBHOOKS = "webhooks"
    """In the namespace of webhooks."""


class Right(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One verb on one resource (`pods/log`). With `name`, it is limited to one object."""

    scope: RightScope
    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}{f' {self.name}' if self.name else ''}"


_LEASES = "coordination.k8s.io"
_READ, _WATCH, _FOLLOW = ("get", "list"), ("list", "watch"), ("get", "list", "watch")
Rows = tuple[tuple[RightScope, str, tuple[str, ...], tuple[str, ...]], ...]
_C, _W, _O = RightScope.CLUSTER, RightScope.WORKSPACES, RightScope.OWN

_TABLE: dict[str, Rows] = {
    "api": (
        (_C, API_GROUP, ("allocations",), _FOLLOW),
        (_C, API_GROUP, ("templates", "jobs", "resourcepools", "queues"), _READ),
        (_C, "", ("namespaces", "pods", "resourcequotas"), _READ),
        (_C, "", ("limitranges",), ("list",)),
        (_C, "", ("persistentvolumeclaims", "persistentvolumes"), ("get",)),
        (_C, "storage.k8s.io", ("storageclasses",), ("get",)),
        (_C, "", ("nodes",), ("list", "patch", "watch")),
        (_C, "authentication.k8s.io", ("tokenreviews",), ("create",)),
        (_W, API_GROUP, ("allocations", "jobs"), ("create", "delete", "patch")),
        (_W, API_GROUP, ("templates",), ("create", "delete", "update")),
        (_W, "", ("pods/log",), ("get",)),
        (_W, "", ("configmaps",), ("create", "delete", "get", "list", "patch")),
        (_W, "", ("resourcequotas",), ("create", "delete", "patch")),
        (_W, "", ("secrets",), ("create",)),
        (RightScope.WEBHOOKS, "", ("secrets",), ("create", "delete", "get", "list", "update", "watch")),
    ),
    "scheduler": (
        (_C, API_GROUP, ("allocations", "resourcepools"), _READ),
        (_C, API_GROUP, ("resourcepools/status",), ("update",)),
        (_C, API_GROUP, ("queues", "jobs"), ("list",)),
        (_C, "", ("namespaces", "nodes", "pods", "limitranges", "resourcequotas"), ("list",)),
        (_C, "", ("persistentvolumeclaims", "persistentvolumes"), ("get",)),
        (_C, "storage.k8s.io", ("storageclasses",), ("get",)),
        (_W, API_GROUP, ("allocations",), ("patch",)),
        (_W, API_GROUP, ("allocations/status",), ("update",)),
        (_O, _LEASES, ("leases",), ("create", "get", "update")),
        (_O, "", ("configmaps",), ("get",)),
    ),
    "podworker": (
        (_C, API_GROUP, ("allocations",), _READ),
        (_C, API_GROUP, ("resourcepools",), ("get",)),
        (_C, "", ("namespaces",), ("get",)),
        (_C, "", ("configmaps", "services", "pods"), ("list",)),
        (_C, "storage.k8s.io", ("storageclasses",), _READ),
        (_W, API_GROUP, ("allocations/status",), ("update",)),
        (_W, "", ("configmaps",), ("create", "delete", "get")),
        (_W, "", ("services",), ("create", "delete", "get", "patch")),
        (_W, "", ("pods",), ("create", "delete", "get", "patch")),
        (_W, "", ("pods/binding",), ("create",)),
        (_W, "", ("persistentvolumeclaims",), ("create", "get")),
        (_W, "scheduling.k8s.io", ("podgroups",), ("create", "get")),
    ),
    "watcher": (
        (_C, API_GROUP, ("allocations",), _FOLLOW),
        (_C, API_GROUP, ("resourcepools", "queues", "jobs"), _WATCH),
        (_C, "", ("pods", "nodes"), _FOLLOW),
        (_C, "", ("configmaps", "services"), _READ),
        (_C, "", ("namespaces", "events", "limitranges", "resourcequotas"), _WATCH),
        (_W, API_GROUP, ("allocations",), ("delete", "patch")),
        (_W, API_GROUP, ("allocations/status",), ("update",)),
        (_W, "", ("pods",), ("delete", "patch")),
        (_W, "", ("pods/log",), ("get",)),
        (_W, "", ("configmaps", "secrets", "services"), ("delete",)),
        (_W, "events.k8s.io", ("events",), ("create", "get", "patch")),
        (_O, _LEASES, ("leases",), ("create",)),
        (_O, "", ("configmaps",), ("create", "update")),
    ),
}
_NAMED: dict[str, tuple[Right, ...]] = {
    "watcher": tuple(
        Right(scope=_O, group=_LEASES, resource="leases", verb=verb, name="slipway-feed") for verb in ("get", "update")
    )
}
_BY_SETTING: dict[str, tuple[Right, ...]] = {
    "auth=kubernetes": (Right(scope=_C, group="authorization.k8s.io", resource="subjectaccessreviews", verb="create"),),
    "autoscaling=true": (
        *(
            Right(scope=_O, group="", resource="podtemplates", verb=verb)
            for verb in ("create", "delete", "list", "patch")
        ),
        *(Right(scope=_O, group="", resource="pods", verb=verb) for verb in ("create", "delete")),
        *(
            Right(scope=_O, group="autoscaling.x-k8s.io", resource="provisioningrequests", verb=verb)
            for verb in ("create", "delete", "list")
        ),
    ),
    "execEnabled=true": tuple(Right(scope=_W, group="", resource="pods/exec", verb=verb) for verb in ("create", "get")),
    "rbac.namespaces=[]": tuple(
        Right(scope=_C, group="", resource="namespaces", verb=verb) for verb in ("create", "delete", "patch")
    ),
}
"""Further rights of the account in `SETTING_OF`, for installations with that chart setting."""
SETTING_OF = {setting: "scheduler" if setting == "autoscaling=true" else "api" for setting in _BY_SETTING}
ACCOUNTS = tuple(_TABLE)


def rights_of(account: str) -> Iterator[Right]:
    """Yield the rights that the account always needs."""
    for scope, group, resources, verbs in _TABLE[account]:
        for resource in resources:
            for verb in verbs:
                yield Right(scope=scope, group=group, resource=resource, verb=verb)
    yield from _NAMED.get(account, ())


def optional_rights(setting: str) -> tuple[Right, ...]:
    """Return the further rights that the account needs when the chart is installed with that setting."""
    return _BY_SETTING[setting]


OURS = "app.kubernetes.io/part-of=slipway"
COMPONENT = "app.kubernetes.io/component"
INSTANCE = "app.kubernetes.io/instance"
VERSION = "app.kubernetes.io/version"
AT_ONCE = 16
WORKSPACES_ASKED_MAX = 20
SHOWN_MAX = 4
APPLY = "kubectl apply --server-side -f helm/files/crds"
_NUMBERS = re.compile(r"(\d+)\.(\d+)")


class Kube(Gets, Lists, Creates, Protocol):
    """The calls to Kubernetes."""


class InstalledRelease:
    """The installed objects of one release. `release` is known after a call of `accounts`."""

    def __init__(self, kube: Kube, namespace: str, own_version: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._own_version = own_version
        self.release = "slipway"

    async def definitions(self) -> list[Finding]:
        """Check each of our kinds: installed, served, stored, and with the schema of this version."""
        wanted = {manifest["metadata"]["name"]: manifest for manifest in crd_manifests()}
        findings: list[Finding] = []
        for name, manifest in wanted.items():
            try:
                findings.append(self._definition(name, manifest, await self._kube.get(DEFINITIONS, name)))
            except NotFoundError:
                findings.append(failed(f"crd {name}", "is not installed", f"{APPLY}/{name}.yaml"))
            except DeniedError:
                findings.append(skipped(f"crd {name}", "you have no permission to read it", _as_admin("get", "crds")))
        return findings

    def _definition(self, name: str, manifest: Mapping[str, Any], found: AnyObject) -> Finding:
        check, mend = f"crd {name}", f"{APPLY}/{name}.yaml   (or: {self._upgrade()})"
        versions = {each["name"]: each for each in found.spec.get("versions") or ()}
        ours = versions.get(API_VERSION)
        if ours is None or not ours.get("served"):
            return failed(check, f"does not serve {API_VERSION}", mend)
        if not ours.get("storage"):
            return failed(check, f"does not store {API_VERSION}", mend)
        if found.condition("Established") == "False":
            return failed(check, "is not established", f"kubectl describe crd {name}")
        others = [each for each in found.status.get("storedVersions") or () if each != API_VERSION]
        if others:
            return warning(check, f"objects may be stored as {', '.join(others)}", f"kubectl get crd {name} -o yaml")
        if _shape(ours) != _shape(manifest["spec"]["versions"][0]):
            return failed(check, "its schema is not the schema of this command", mend)
        return ok(check, f"serves and stores {API_VERSION}, schema of {self._own_version}")

    async def accounts(self) -> dict[str, str]:
        """Return {service: its account} of the existing accounts."""
        listed = await self._kube.list(SERVICE_ACCOUNTS, namespace=self._namespace, label_selector=OURS)
        for item in listed.items:
            self.release = item.metadata.labels.get(INSTANCE, self.release)
        return {item.metadata.labels.get(COMPONENT, ""): item.metadata.name for item in listed.items}

    async def rights(
        self, accounts: Mapping[str, str], workspaces: Iterable[str], settings: Iterable[str]
    ) -> list[Finding]:
        """Return one finding per account: the required permissions that it lacks. `settings` of the chart require
        more.
        """
        places, limit = list(workspaces)[:WORKSPACES_ASKED_MAX], asyncio.Semaphore(AT_ONCE)
        findings: list[Finding] = []
        for service in ACCOUNTS:
            check = f"rights of {service}"
            if service not in accounts:
                findings.append(failed(check, f"no account in namespace {self._namespace}", self._upgrade()))
                continue
            wanted = list(rights_of(service))
            own = [setting for setting in settings if SETTING_OF[setting] == service]
            wanted += [right for setting in own for right in optional_rights(setting)]
            held = await self._held(limit, accounts[service], wanted, places)
            if held is None:
                findings.append(
                    skipped(check, "you have no permission to check them", _as_admin("create", "subjectaccessreviews"))
                )
                continue
            missing = [str(right) for right, has in zip(wanted, held, strict=True) if not has]
            findings.append(self._judged(check, missing, len(wanted)))
        return findings

    async def _held(
        self, limit: asyncio.Semaphore, account: str, wanted: Iterable[Right], places: list[str]
    ) -> list[bool] | None:
        """Return for each right whether the account has it; None when we may not ask."""
        asked: list[asyncio.Task[bool]] = []
        is_refused = False
        try:
            async with TaskGroup() as tasks:
                asked += [tasks.create_task(self._has(limit, account, right, places)) for right in wanted]
        except* DeniedError:
            is_refused = True
        return None if is_refused else [task.result() for task in asked]

    def _judged(self, check: str, missing: list[str], count: int) -> Finding:
        if not missing:
            return ok(check, f"all {count}")
        more = f" and {len(missing) - SHOWN_MAX} more" if len(missing) > SHOWN_MAX else ""
        return failed(check, f"may not {', '.join(missing[:SHOWN_MAX])}{more}", self._upgrade())

    async def _has(self, limit: asyncio.Semaphore, account: str, right: Right, workspaces: list[str]) -> bool:
        own = {
            RightScope.OWN: self._namespace,
            RightScope.WEBHOOKS: f"{self._namespace[:54].removesuffix('-')}-webhooks",
        }
        where = own.get(right.scope, "")
        if await self._may(limit, account, right, where):
            return True
        if right.scope is not RightScope.WORKSPACES or not workspaces:
            return False
        for name in workspaces:
            if not await self._may(limit, account, right, name):
                return False
        return True

    async def _may(self, limit: asyncio.Semaphore, account: str, right: Right, namespace: str) -> bool:
        plural, _, subresource = right.resource.partition("/")
        asked = {
            "group": right.group,
            "resource": plural,
            "subresource": subresource,
            "verb": right.verb,
            "name": right.name,
            "namespace": namespace,
        }
        spec: RawObject = {
            "user": f"system:serviceaccount:{self._namespace}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{self._namespace}", "system:authenticated"],
            "resourceAttributes": {name: value for name, value in asked.items() if value},
        }
        async with limit:
            return (await self._kube.create(SUBJECT_ACCESS_REVIEWS, {"spec": spec})).status.allowed

    async def services(self) -> list[Finding]:
        """Check each of our Deployments: available, and of a version that works with this command."""
        listed = await self._kube.list(DEPLOYMENTS, namespace=self._namespace, label_selector=OURS)
        found = {item.metadata.labels.get(COMPONENT, ""): item for item in listed.items}
        return [self._service(name, found.get(name)) for name in ACCOUNTS]

    def _service(self, name: str, found: AnyObject | None) -> Finding:
        check, where = f"service {name}", f"--namespace {self._namespace}"
        if found is None:
            mend = f"{self._upgrade()}   (nothing to do when it runs as a CronJob)"
            return warning(check, f"no Deployment in namespace {self._namespace}", mend)
        title = f"deployment/{found.metadata.name}"
        wanted, there = int(found.spec.get("replicas", 1)), int(found.status.get("availableReplicas", 0))
        version = found.metadata.labels.get(VERSION, "")
        if not wanted:
            return failed(check, "scaled to 0 replicas", self._upgrade())
        if there < wanted:
            mend = f"kubectl {where} describe {title}; kubectl {where} logs {title}"
            return (failed if there == 0 else warning)(check, f"{there} of {wanted} available", mend)
        return judge_version(check, version, self._own_version, self._upgrade(), more=f", {there} available")

    async def policies(self) -> list[Finding]:
        """Check the admission policies that restrict our accounts to our objects."""
        try:
            found = (await self._kube.list(POLICIES, label_selector=OURS)).items
            bound = {item.spec.get("policyName") for item in (await self._kube.list(POLICY_BINDINGS)).items}
        except NotFoundError:
            return [skipped("admission policies", "this API server does not support them")]
        except DeniedError:
            return [
                skipped("admission policies", "you have no permission to list them", _as_admin("list", POLICIES.plural))
            ]
        if not found:
            mend = f"{self._upgrade()} --set admissionPolicies.enabled=true"
            return [warning("admission policies", "none: only RBAC restricts the accounts of Slipway", mend)]
        loose = [item.metadata.name for item in found if item.metadata.name not in bound]
        if loose:
            return [failed("admission policies", f"without a binding: {', '.join(loose)}", self._upgrade())]
        return [ok("admission policies", f"{len(found)}, each with its binding")]

    def _upgrade(self) -> str:
        return f"helm upgrade {self.release} ./helm --namespace {self._namespace} --reset-then-reuse-values"


def judge_version(check: str, found: str, own: str, mend: str, *, more: str = "") -> Finding:
    """Judge a version: adjacent versions work together, as `docs/install.md` promises for an upgrade."""
    theirs, ours = _NUMBERS.match(found), _NUMBERS.match(own)
    if theirs is None or ours is None:
        return warning(check, f"version {found or 'unknown'}{more}", mend)
    older, newer = sorted((int(each[1]), int(each[2])) for each in (theirs, ours))
    if older != newer and newer not in ((older[0], older[1] + 1), (older[0] + 1, 0)):
        return failed(check, f"version {found}, this command is {own}: more than one minor version apart", mend)
    if older != newer:
        return warning(check, f"version {found}, this command is {own}", mend)
    return ok(check, f"version {found}{more}")


def _shape(version: Mapping[str, Any]) -> RawObject:
    """Return the parts of a version that decide which objects it accepts."""
    return {"schema": version.get("schema"), "subresources": version.get("subresources")}


def _as_admin(verb: str, what: str) -> str:
    return f"run it as a user for whom `kubectl auth can-i {verb} {what}` says yes"
