"""The credentials of a service account as a process finds them: a token in a file, renewed in place.

In a pod the kubelet mounts the token and rewrites it every hour; here a TokenRequest gives it, and the kubeconfig
names the file. Nothing else may be in that kubeconfig that could stand in for the token.
"""

import os
from pathlib import Path

from tests.conformance.cluster.credentials import write_kubeconfig
from tests.conformance.system.operator import Operator
from tests.conformance.system.permissions import Account

TOKEN_S = 3600


class Credentials:
    """One account's, in a folder of their own."""

    def __init__(self, operator: Operator, account: Account, folder: Path) -> None:
        self.account = account
        self.token = folder / f"{account.name}.token"
        self.kubeconfig = folder / f"{account.name}.kubeconfig"
        self._operator = operator
        self.renew()
        cluster = operator.cluster
        user = {"tokenFile": str(self.token)}
        write_kubeconfig(self.kubeconfig, url=cluster.url, ca=cluster.ca, user=user, namespace=account.namespace)

    def renew(self) -> str:
        """Put a new token in the place of the old one, in one step as the kubelet does; the token."""
        path = f"/api/v1/namespaces/{self.account.namespace}/serviceaccounts/{self.account.name}/token"
        review = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        made = self._operator.create(path, {**review, "spec": {"expirationSeconds": TOKEN_S}})
        token: str = made["status"]["token"]
        fresh = self.token.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(token, encoding="utf-8")
        os.replace(fresh, self.token)
        return token
