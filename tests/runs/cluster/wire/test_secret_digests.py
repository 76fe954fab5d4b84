"""Digests detect secrets in a text without revealing them."""

from __future__ import annotations

import base64
import pickle

import pytest

from agentos.pool.redaction import Masker
from agentos.runs.cluster.wire.secret_digests import SecretDigests

SECRETS = ["sk-planted-QWERTZUIOPASDFGHJK", "sk-planted/äöü-CVBNM"]


@pytest.mark.parametrize(
    "text",
    [
        SECRETS[0],
        f"Bearer {SECRETS[1]}",
        f"https://user:{SECRETS[0]}@host/",
        base64.b64encode(f"user:{SECRETS[0]}".encode()).decode(),
        SECRETS[0].lower(),
        f"Bearer {SECRETS[1].upper()}",
        SECRETS[0][:-1],
        f"{SECRETS[0][:-1]}X",
        "",
        "nothing of the kind, and longer than any of the secrets that it is looked through for",
    ],
)
def test_a_secret_is_found_where_its_owner_would_find_it(text: str) -> None:
    masker = Masker()
    for secret in SECRETS:
        masker.add(secret)

    assert SecretDigests.build(SECRETS).are_in(text) == masker.contains_secret(text)


def test_nothing_of_a_secret_can_be_read_in_its_shadow() -> None:
    assert b"planted" not in pickle.dumps(SecretDigests.build(SECRETS))


def test_without_secrets_nothing_holds_one() -> None:
    assert not SecretDigests.build([]).are_in("anything")
