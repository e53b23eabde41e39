"""The TLS certificate of the local API server, signed by an authority made only for this certificate.

kubectl and every other client that is built on client-go send a token only over TLS, so the local API server uses TLS.
The authority's key is discarded as soon as it has signed the one certificate, so no other certificate can be trusted
through it. Owns the names in the certificate and its lifetime.
"""

import datetime
import ipaddress
from typing import NamedTuple

LIFE = datetime.timedelta(days=3650)
"""Lifetime of a certificate. A new one is made at every start of the stack, and no stack runs for ten years."""
AHEAD = datetime.timedelta(days=1)
"""The certificate is valid from this long before now, in case a clock is set back."""


class IssuedCertificate(NamedTuple):
    """PEM documents: the authority that clients trust, and the server's certificate with its key."""

    authority: bytes
    server: bytes


def issue(now: float) -> IssuedCertificate:
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
