"""Keys, certificates and kubeconfigs of one throw-away cluster, all in its own folder.

Owns the files and their names. One authority signs the certificates, and the API server trusts it for clients. A
separate key signs service accounts' tokens.
"""

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path

import msgspec
import trustme
import yaml

ADMIN = ("slipway-admin", "system:masters")
CONTROLLER_MANAGER = ("system:kube-controller-manager", "")
SCHEDULER = ("system:kube-scheduler", "")
PROXY = ("system:kube-proxy", "")
SERVICE_ADDRESS = "10.96.0.1"
"""of the service `kubernetes`, by which pods reach the API server"""
KUBELET_CLIENT = ("kube-apiserver-kubelet-client", "system:masters")


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of the files that a cluster is started with."""

    folder: Path
    ca: Path
    server: Path
    """certificate and key of the API server, one file"""
    kubelet: Path
    """certificate and key for a process that plays a kubelet, one file"""
    kubelet_client: Path
    admin: Path
    """certificate and key of an administrator with every right, one file"""
    accounts_key: Path
    """signs and checks service accounts' tokens"""

    def tls(self) -> ssl.SSLContext:
        """The TLS context with which an administrator connects to the API server."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.admin)
        return context

    def kubeconfig(self, name: str) -> Path:
        """The path of the kubeconfig of `admin`, `controller-manager`, `scheduler`, `proxy` or a node."""
        return self.folder / f"{name}.kubeconfig"

    def serving(self, node: str) -> Path:
        """The path of the certificate and key of a node's kubelet, one file."""
        return self.folder / f"{node}.pem"


def make_credentials(
    folder: Path, url: str, address: str = "127.0.0.1", nodes: Mapping[str, str] | None = None
) -> Credentials:
    """Write all files; `url` and `address` are where the API server will listen, `nodes` are {name: address}."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    made = Credentials(
        folder=folder,
        ca=folder / "ca.crt",
        server=folder / "apiserver.pem",
        kubelet=folder / "kubelet.pem",
        kubelet_client=folder / "kubelet-client.pem",
        admin=folder / "admin.pem",
        accounts_key=folder / "accounts.key",
    )
    authority.cert_pem.write_to_path(made.ca)
    names = {"127.0.0.1", address, SERVICE_ADDRESS, "localhost", "kubernetes.default.svc"}
    _write(made.server, authority.issue_cert(*sorted(names), common_name="kube-apiserver"))
    _write(made.kubelet, authority.issue_cert(*sorted(names), common_name="system:node"))
    _write(made.kubelet_client, _client(authority, KUBELET_CLIENT))
    made.accounts_key.touch(mode=0o600)
    authority.issue_cert("accounts").private_key_pem.write_to_path(made.accounts_key)
    accounts: dict[str, tuple[str, str]] = {
        "admin": ADMIN,
        "controller-manager": CONTROLLER_MANAGER,
        "scheduler": SCHEDULER,
        "proxy": PROXY,
    }
    for name, where in (nodes or {}).items():
        _write(made.serving(name), authority.issue_cert(where, name, common_name=f"system:node:{name}"))
        accounts[name] = (f"system:node:{name}", "system:nodes")
    for name, account in accounts.items():
        certificate = _client(authority, account)
        if name == "admin":
            _write(made.admin, certificate)
        user = {
            "client-certificate-data": _encoded(b"".join(blob.bytes() for blob in certificate.cert_chain_pems)),
            "client-key-data": _encoded(certificate.private_key_pem.bytes()),
        }
        write_kubeconfig(made.kubeconfig(name), url=url, ca=made.ca, user=user)
    return made


def write_kubeconfig(path: Path, *, url: str, ca: Path, user: dict[str, str], namespace: str = "default") -> None:
    """Write a kubeconfig with one cluster, one user and one context; `user` as in the file (token, tokenFile, ...)."""
    cluster = {"server": url, "certificate-authority-data": _encoded(ca.read_bytes())}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "conformance",
        "clusters": [{"name": "conformance", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [
            {"name": "conformance", "context": {"cluster": "conformance", "user": "user", "namespace": namespace}}
        ],
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


def _client(authority: trustme.CA, account: tuple[str, str]) -> trustme.LeafCert:
    name, group = account
    # Without a name a certificate would have an empty critical extension, which Go refuses.
    return authority.issue_cert("client.local", common_name=name, organization_name=group or None)


def _write(path: Path, certificate: trustme.LeafCert) -> None:
    path.touch(mode=0o600)
    certificate.private_key_and_cert_chain_pem.write_to_path(path)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
