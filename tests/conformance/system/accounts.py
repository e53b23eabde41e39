"""The credentials of a service account as a process reads them: a token in a file, renewed in place.

In a pod the kubelet mounts the token and rewrites it every hour; here a TokenRequest creates it, and the kubeconfig
names the file. That kubeconfig may contain no other credential.
"""

import os
from pathlib import Path

from tests.conformance.cluster.credentials import write_kubeconfig
from tests.conformance.system.operator import Operator
from tests.conformance.system.permissions import Account

TOKEN_S = 3600


class Credentials:
    """The credentials of one account, in a separate folder."""

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
        """Replace the old token by a new one in one step, as the kubelet does; return the new token."""
        path = f"/api/v1/namespaces/{self.account.namespace}/serviceaccounts/{self.account.name}/token"
        review = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        made = self._operator.create(path, {**review, "spec": {"expirationSeconds": TOKEN_S}})
        token: str = made["status"]["token"]
        fresh = self.token.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(token, encoding="utf-8")
        os.replace(fresh, self.token)
        return token
