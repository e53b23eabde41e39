"""The objects that the doctor reads and the services do not, as plain JSON."""

from typing import Any

import msgspec

from slipway.crd.meta import ObjectMeta, RawObject
from slipway.kube.resources import CRDS, Resource


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
ACCOUNTS = _plain("", "serviceaccounts", "ServiceAccount", namespaced=True)
POLICIES = _plain(
    "admissionregistration.k8s.io", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
POLICY_BINDINGS = _plain(
    "admissionregistration.k8s.io",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
