"""The public part of a key, which may be shown, and the rest, which may not."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agentos.providers.public_part import private_part


@pytest.mark.parametrize(
    ("secret", "private"),
    [
        ("sk-abc", "abc"),
        ("sk-proj-abc", "abc"),
        ("sk-ant-api03-abc", "abc"),
        ("sk-or-v1-abc", "abc"),
        ("AIzaSyabc", "abc"),
        ("ghp_abc", "abc"),
        ("hf_abc", "abc"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJzdWIiOiIxIn0.c2ln"),
        ("no-prefix-at-all", "no-prefix-at-all"),
        ("", ""),
    ],
)
def test_the_private_part_begins_after_the_prefix(secret: str, private: str) -> None:
    assert private_part(secret) == private


@pytest.mark.parametrize("kind", ["rsa", "ec", "ed25519"])
@pytest.mark.parametrize("layout", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_two_pem_keys_of_one_kind_have_no_beginning_in_common(kind: str, layout: PrivateFormat) -> None:
    make: Any = {
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "ec": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ed25519": ed25519.Ed25519PrivateKey.generate,
    }[kind]
    if kind == "ed25519":
        layout = PrivateFormat.PKCS8  # the only one it has
    pems = [make().private_bytes(Encoding.PEM, layout, NoEncryption()).decode() for _ in range(2)]

    one, other = map(private_part, pems)

    assert one[:16] != other[:16]
    assert "-----" not in one + other
    assert one in pems[0]
