"""TLS certificate of one run: created by its driver and sent to its workers by the cluster."""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agentos run")])
# The clocks of the two machines need not agree: the key decides who may connect, not the validity period.
_BEFORE, _AFTER = datetime.timedelta(days=365), datetime.timedelta(days=3650)


@dataclass(frozen=True, slots=True, repr=False)
class DriverIdentity:
    """The certificate and server context by which the driver of one run proves its identity."""

    certificate: bytes  # PEM; not a secret
    server: ssl.SSLContext

    def __repr__(self) -> str:
        return "<identity of a run>"


def create_identity() -> DriverIdentity:
    """Create a key pair for this run; the private key stays in this process."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _AFTER)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The ssl module loads a key only from a file: write one that only this user can read, and delete it at once.
    descriptor, path = tempfile.mkstemp(prefix="agentos-", suffix=".pem")
    try:
        with open(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + pem)
        context.load_cert_chain(path)
    finally:
        os.unlink(path)
    return DriverIdentity(pem, context)


def build_client_context(certificate: bytes) -> ssl.SSLContext:
    """Return a worker's TLS context, which trusts only the holder of that certificate's key, at any address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate.decode("ascii"))
    return context
