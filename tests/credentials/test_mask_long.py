"""The quick way to take secrets out of long text finds what the thorough one finds, from fifteen characters on."""

from __future__ import annotations

import base64
import json
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.credentials.masking import MASK, Masker

CANARY = "sk-canary/0123456789+abcdef"

FORMS = [
    CANARY,
    CANARY.encode().hex(),
    CANARY.encode().hex().upper(),
    urllib.parse.quote(CANARY, safe=""),
    base64.b64encode(CANARY.encode()).decode().rstrip("="),
    base64.urlsafe_b64encode(CANARY.encode()).decode().rstrip("="),
    json.dumps(CANARY)[1:-1],
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("others", [0, 20, 200], ids=["alone", "among twenty", "among two hundred"])
def test_every_form_is_found_at_every_place_of_a_text(form: str, others: int) -> None:
    masker = Masker([f"another-secret-{i:04d}" for i in range(others)] + [CANARY])
    for before in range(17):
        masked = masker.mask_long("." * before + form + "...")

        assert masked == "." * before + MASK + "..."


@pytest.mark.parametrize("length", [15, 16, 22])
def test_any_stretch_of_fifteen_characters_is_found_at_every_place(length: int) -> None:
    masker = Masker([CANARY])
    for start in range(len(CANARY) - length + 1):
        for before in range(8):
            stretch = CANARY[start : start + length]
            assert masker.mask_long("." * before + stretch) == "." * before + MASK


def test_where_one_is_found_everything_is_looked_at_thoroughly() -> None:
    short = CANARY[:8]  # alone it might slip through
    text = f"{CANARY}, and again .{short}"

    assert Masker([CANARY]).mask_long(text) == f"{MASK}, and again .{MASK}"


def test_text_without_a_secret_is_the_very_same_object() -> None:
    text = "no secret in here, however long it is " * 100

    assert Masker([CANARY]).mask_long(text) is text
    assert Masker().mask_long(text) is text
    assert Masker(["short"]).mask_long("short") == "short"


@given(st.text(max_size=40), st.text(min_size=15, max_size=40), st.text(max_size=40))
def test_no_whole_secret_survives_anywhere(before: str, secret: str, after: str) -> None:
    assert secret not in Masker([secret]).mask_long(before + secret + after).replace(MASK, "\0")


@pytest.mark.parametrize("length", [8, 10, 14])
def test_a_secret_shorter_than_fifteen_characters_is_found_too(length: int) -> None:
    secret = CANARY[3 : 3 + length]
    for before in range(8):
        assert secret not in Masker([secret]).mask_long("." * before + secret)
