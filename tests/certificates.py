"""Certificates for tests: an authority that somebody may believe, and what it says of a host."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)
_SIGNS = x509.KeyUsage(  # without it Python 3.13, which checks by the letter of RFC 5280, believes no authority
    key_cert_sign=True,
    crl_sign=False,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs certificates. ``file`` has its own, for those who are to believe it."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        own = self._signed(self._name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0), _SIGNS)
        self.file.write_bytes(own.public_bytes(Encoding.PEM))

    def server(self, host: str = "127.0.0.1", *, days: int = 1) -> ssl.SSLContext:
        """For a server whose certificate says that it is *host*, and is good for so many days: yesterday's is -1."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate(host, days=days))
        return context

    def certificate(self, host: str, *, days: int = 1) -> Path:
        """A new one, in a file together with its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general(host)])
        signed = self._signed(_named(host), key.public_key(), names, days=days)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file = self._folder / f"{host}-{signed.serial_number:x}.pem"
        file.write_bytes(private + signed.public_bytes(Encoding.PEM))
        return file

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *about: x509.ExtensionType, days: int = 1
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + min(days, 0) * _DAY - _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension in about:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(self._key, SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
