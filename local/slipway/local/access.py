"""Access to a local stack: the account that started the stack uses it with one token, made with the stack's folder.

Owns that token, its record for the API, and the names under which a browser reaches the stack. This module writes files
and opens no socket.

A workload listens on a loopback address too. Our own programs in a workload, and JupyterLab, answer only the proxy of
the API. The proxy and these programs share a token (`ENV_WORKLOAD_TOKEN`).

The stack's token has administrator rights at the API server, at the REST API and for `/metrics`. Only files of mode
0600 contain it. In the REST API its bearer may act as any user by name (`--user`), because the machine belongs to one
person.

A browser stores cookies by host name, not by port. It would send a cookie of 127.0.0.1 to every other program that
listens there, even to a program of another account. So the stack has its own host name below `.localhost`, which cannot
be guessed. Browsers resolve `.localhost` to the loopback address themselves. Below a second host name each workload has
its own origin.

The TLS certificate of the local API server is signed by an authority made only for it. kubectl and every other client
that is built on client-go send a token only over TLS, so the local API server uses TLS. The authority's key is
discarded as soon as it has signed the one certificate, so no other certificate can be trusted through it.
"""

import base64
import datetime
import getpass
import ipaddress
import re
import secrets
from pathlib import Path
from typing import NamedTuple

from slipway.local.layout import Layout
from slipway.model import apitokens
from slipway.model.apitokens import EVERYWHERE, Role
from slipway.model.times import format_time
from slipway.runtime import private_files

ENV_WORKLOAD_TOKEN = "SLIPWAY_WORKLOAD_TOKEN"  # noqa: S105 - the name of a variable
LIFE_S = 10 * 365 * 86_400.0
_NAME_BYTES = 8
_FALLBACK_USER = "local"
_UNFIT = re.compile(r"[^\x21-\x7e]")


class BrowserHosts(NamedTuple):
    """Host names for browsers: the host of the API and its pages, and the domain of the workloads' origins."""

    host: str
    workloads: str


def make_token(layout: Layout, now: float) -> str:
    """Return the folder's token. Creates the token and its record when one of the two is missing."""
    try:
        token = layout.token.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    id_ = apitokens.id_of(token)
    if id_ and (layout.tokens / apitokens.file_of(id_)).exists():
        return token
    token, record = apitokens.make(
        secrets.token_bytes(apitokens.ID_BYTES),
        secrets.token_bytes(apitokens.SECRET_BYTES),
        user=_user(),
        roles={EVERYWHERE: Role.ADMIN},
        names_users=True,
        created_at=format_time(now),
        expires_at=format_time(now + LIFE_S),
        description="the account that started this stack",
    )
    private_files.write(layout.tokens / apitokens.file_of(record.id), apitokens.encode(record))
    private_files.write(layout.token, token.encode())
    return token


def make_workload_token(layout: Layout) -> str:
    """Create the token by which workloads recognize the proxy.

    It differs from the stack's token, because every workload receives it.
    """
    token = secrets.token_urlsafe(32)
    private_files.write(layout.workload_token, token.encode())
    return token


def make_session_key(layout: Layout) -> None:
    """Create the key that seals browser cookies, if it is missing, so that browsers stay logged in over a restart."""
    path = layout.session_keys / "1.key"
    if not path.exists():
        private_files.write(path, base64.urlsafe_b64encode(secrets.token_bytes(32)))


def make_browser_hosts(layout: Layout) -> BrowserHosts:
    """Return the folder's host names. They are created once, so that bookmarks work after a restart."""
    path: Path = layout.names
    try:
        label = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        label = ""
    if re.fullmatch(r"[0-9a-f]{16}", label) is None:
        label = secrets.token_hex(_NAME_BYTES)
        private_files.write(path, label.encode())
    return BrowserHosts(f"slipway-{label}.localhost", f"workloads-{label}.localhost")


def _user() -> str:
    try:
        return _UNFIT.sub("", getpass.getuser())[:128] or _FALLBACK_USER
    except (KeyError, OSError):
        return _FALLBACK_USER


LIFE = datetime.timedelta(days=3650)
"""Lifetime of a certificate. A new one is made at every start of the stack, and no stack runs for ten years."""
AHEAD = datetime.timedelta(days=1)
"""The certificate is valid from this long before now, in case a clock is set back."""


class IssuedCertificate(NamedTuple):
    """PEM documents: the authority that clients trust, and the server's certificate with its key."""

    authority: bytes
    server: bytes


def issue_certificate(now: float) -> IssuedCertificate:
    """Return a certificate for the loopback addresses and `localhost`; `now` is in seconds since the epoch."""
    # These imports are slow, and only `slipway up` needs them.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    begin = datetime.datetime.fromtimestamp(now, datetime.UTC) - AHEAD
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    own_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    from_authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id)

    def builder(subject: str, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            issuer_name=named("slipway local authority"),
            subject_name=named(subject),
            public_key=public_key,
            serial_number=x509.random_serial_number(),
            not_valid_before=begin,
            not_valid_after=begin + LIFE,
        )

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=not signs_certificates,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    authority = (
        builder("slipway local authority", authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(own_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    server = (
        builder("slipway local API server", key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(from_authority, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return IssuedCertificate(authority.public_bytes(pem), server.public_bytes(pem) + private)
