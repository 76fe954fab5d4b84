"""Secrets are redacted in text that comes from elsewhere."""

from __future__ import annotations

import base64
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import CredentialCoordinator
from agentos.pool.redaction import MASK, SHORTEST_PIECE, Masker

CANARY = "canary/0123456789+abcdef"


@pytest.mark.parametrize(
    "form",
    [
        CANARY,
        CANARY[3:15],
        CANARY.encode().hex(),
        CANARY.encode().hex().upper(),
        base64.urlsafe_b64encode(CANARY.encode()).decode(),
        urllib.parse.quote(CANARY, safe=""),
        base64.b64encode(CANARY.encode()).decode(),
        base64.b64encode(b"Bearer " + CANARY.encode()).decode(),
        base64.b64encode(b"x:" + CANARY.encode()).decode(),
    ],
)
def test_every_form_of_a_secret_is_blotted_out(form: str) -> None:
    masked = Masker([CANARY]).mask(f"Incorrect API key provided: {form}. Check it.", CANARY)

    assert MASK in masked
    assert masked.startswith("Incorrect API key provided: ")
    assert not any(form[i : i + 12] in masked for i in range(len(form) - 11))


MIXED = "Canary/0123456789+aBcDeF"


@pytest.mark.parametrize("change", [str.upper, str.lower, str.title, str.swapcase])
@pytest.mark.parametrize("encode", [str, lambda secret: base64.b64encode(secret.encode()).decode(), urllib.parse.quote])
def test_a_secret_is_masked_in_any_letter_case(encode: Callable[[str], str], change: Callable[[str], str]) -> None:
    text = change(encode(MIXED))

    assert Masker([MIXED]).mask(f"key {text} refused") == f"key {MASK} refused"
    assert Masker([MIXED]).contains_secret(f"key {text} refused")


def test_letters_that_change_their_length_with_their_case_do_not_shift_the_mask() -> None:
    text = "\u0130\u0130\ufb03 \u00df: "  # lower(), upper() and casefold() make them longer

    assert Masker([MIXED]).mask(f"{text}{MIXED.upper()}{text}") == f"{text}{MASK}{text}"


@pytest.mark.parametrize("length", [15, 20, len(CANARY)])
def test_a_stretch_of_anothers_secret_is_found_too(length: int) -> None:
    masker = Masker([f"another-secret-{i:04d}" for i in range(200)] + [CANARY])
    for start in range(len(CANARY) - length + 1):
        masked = masker.mask(f"key {CANARY[start : start + length]} refused")
        assert masked == f"key {MASK} refused"


def test_in_a_pool_of_the_usual_size_any_piece_of_any_secret_is_found() -> None:
    masker = Masker([f"another-secret-{i:04d}" for i in range(20)] + [CANARY])
    for start in range(len(CANARY) - SHORTEST_PIECE + 1):
        assert masker.mask(f"key {CANARY[start : start + SHORTEST_PIECE]} refused") == f"key {MASK} refused"


def test_a_password_of_the_store_is_masked_and_is_no_credential() -> None:
    masker = Masker([CANARY])

    assert masker.add_password("planted/password")
    assert not masker.add_password("short")
    assert masker.mask("redis://me:PLANTED%2fPASSWORD@host, planted/password") == f"redis://me:{MASK}@host, {MASK}"
    assert not masker.contains_secret("planted/password")
    assert masker.credentials == [CANARY]


def test_text_without_a_secret_stays_as_it_is() -> None:
    assert Masker([CANARY]).mask("rate limit reached for requests") == "rate limit reached for requests"


def test_a_secret_that_is_too_short_to_be_masked_is_logged() -> None:
    masker = Masker()

    assert not masker.add("abc")
    assert masker.mask("abc") == "abc"


@given(st.text(max_size=60), st.text(min_size=SHORTEST_PIECE, max_size=40), st.text(max_size=60))
def test_no_piece_of_eight_survives_anywhere(before: str, secret: str, after: str) -> None:
    masked = Masker([secret]).mask(before + secret + after, secret).replace(MASK, "\0")

    assert not any(secret[i : i + SHORTEST_PIECE] in masked for i in range(len(secret) - SHORTEST_PIECE + 1))


def test_the_reason_of_a_rejection_is_masked_in_log_and_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    pool = CredentialCoordinator([CANARY])
    with pool.lease() as lease:
        lease.rejected(f"401 Incorrect API key provided: {CANARY}")

    row = pool.snapshot()[0]
    assert row.state == "dead"
    assert row.why == f"401 Incorrect API key provided: {MASK}"
    assert CANARY[:8] not in caplog.text


# -- the public part ------------------------------------------------------------------------------------------------

PROJECT_KEY = "sk-proj-Qm7vTz2LxWb9RkYd4Hs6T3BlbkFJJn3cPf8GuEa5VoMx1Zt7"


@pytest.mark.parametrize(
    "text", ["OPENAI_API_KEY=sk-proj-...", "sk-proj-Qm7vTz2 is no key", "T3BlbkFJ", "it begins with c2stcHJvai0"]
)
def test_the_public_part_of_a_key_is_not_replaced(text: str) -> None:
    assert Masker([PROJECT_KEY]).mask(text, PROJECT_KEY) == text


def test_eight_characters_after_the_public_part_are_replaced_and_the_public_part_stays() -> None:
    masker = Masker([PROJECT_KEY])

    assert masker.mask(f"key {PROJECT_KEY} refused") == f"key sk-proj-{MASK} refused"
    for start in range(len("sk-proj-"), len(PROJECT_KEY) - 7):
        piece = PROJECT_KEY[start : start + 8]
        assert masker.mask(f"key {piece} refused") == f"key {piece if piece == 'T3BlbkFJ' else MASK} refused"


def test_of_a_key_with_fewer_than_eight_private_characters_the_last_eight_are_replaced() -> None:
    assert Masker(["sk-abcd12"]).mask("sk-abcd12 sk-abc") == f"s{MASK} sk-abc"
