"""A value is changed only where it contains a whole secret, or sixteen characters of one beyond its public part."""

from __future__ import annotations

import base64
import json
import random
import string
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.pool.redaction import MASK, Masker, value_windows
from agentos.providers.public_part import PUBLIC_PREFIXES, private_part
from agentos.runs.output.stream_redaction import Redaction

PREFIXES = st.sampled_from(["", *PUBLIC_PREFIXES])
LETTERS = string.ascii_letters + string.digits + "-_"
KEYS = st.builds(str.__add__, PREFIXES, st.text(LETTERS, min_size=24, max_size=60))
ODD_KEYS = st.text(min_size=24, max_size=40).filter(lambda key: key == key.strip() and len(set(key)) > 8)
OTHERS = [f"{i:04d}-" + "".join(random.Random(i).choices(string.ascii_lowercase, k=30)) for i in range(60)]


def urlsafe(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "upper case": lambda text: text.upper() if text.isascii() else text,
    "hex": lambda text: text.encode().hex(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 after one byte": lambda text: base64.b64encode(b"x" + text.encode()).decode(),
    "base64 after two bytes": lambda text: base64.b64encode(b"xy" + text.encode()).decode(),
    "base64 for URLs": urlsafe,
    "URL": lambda text: urllib.parse.quote(text, safe=""),
    "URL path": urllib.parse.quote,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "repr": lambda text: repr(text)[1:-1],
}
each_encoding = pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)


IN_LARGE_POOL = Redaction(
    Masker([*OTHERS, "sk-proj-Zm9vYmFyYmF6cXV4LWZvb2JhcmJhenF1eA", "hf_short-15"]), windows=value_windows
)


@each_encoding
def test_in_a_large_pool_the_rule_is_the_same(encode: Callable[[str], str]) -> None:
    private = "Zm9vYmFyYmF6cXV4LWZvb2JhcmJhenF1eA"

    for start in range(len(private) - 15):
        assert MASK in IN_LARGE_POOL.masked(f"{encode(private[start : start + 16])} refused")
        short = f"{encode(private[start : start + 14])} refused"
        assert IN_LARGE_POOL.masked(short) == short
    assert MASK in IN_LARGE_POOL.masked(encode("hf_short-15"))
    assert IN_LARGE_POOL.masked(encode("hf_short-1")) == encode("hf_short-1")


def masked(text: str, *secrets: str) -> str:
    return Redaction(Masker(secrets), windows=value_windows).masked(text)


@each_encoding
@settings(max_examples=25)
@given(key=KEYS | ODD_KEYS, at=st.integers(0, 99), length=st.integers(16, 60), before=st.text("{}!\n", max_size=9))
def test_any_sixteen_private_characters_are_replaced(
    encode: Callable[[str], str], key: str, at: int, length: int, before: str
) -> None:
    private = private_part(key)
    at %= max(1, len(private) - 15)
    run = private[at : at + length]
    if len(run) < 16:
        return
    before = "".join(character for character in before if character not in key)  # or it could continue the run

    text = masked(f"{before}{encode(run)}.{before}", key)

    assert text.startswith(before)
    assert text.endswith(before)
    assert MASK in text
    rest = text.replace(MASK, "\0").encode("utf-8", "surrogatepass").lower()
    assert not any(window in rest for window in value_windows(key))


@each_encoding
@settings(max_examples=25)
@given(key=KEYS, at=st.integers(0, 99), length=st.integers(0, 14))
def test_fewer_than_sixteen_private_characters_stay_as_they_are(
    encode: Callable[[str], str], key: str, at: int, length: int
) -> None:
    private = private_part(key)
    public = key.removesuffix(private)
    at %= len(private)
    for run in (public + private[:length], private[at : at + length], f"{public}*{private[at : at + length]}"):
        assert masked(f"KEY={encode(run)}", key) == f"KEY={encode(run)}"


@given(st.text(), KEYS, st.integers(0, 99))
def test_a_text_without_sixteen_characters_of_the_secret_is_the_same_object(text: str, key: str, at: int) -> None:
    text = f"{text}{private_part(key)[at : at + 15]}{text}"
    runs = {private_part(key)[i : i + 16].lower() for i in range(len(key))} - {""}
    if not any(run in text.lower() for run in runs if len(run) == 16):
        assert masked(text, key) is text


@pytest.mark.parametrize(
    "text",
    [
        "OPENAI_API_KEY=sk-proj-... and ANTHROPIC_API_KEY=sk-ant-api03-...",
        "keys begin with sk-proj-, sk-ant-api03-, AIzaSy or ghp_",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
    ],
)
def test_answers_about_keys_are_not_changed(text: str) -> None:
    keys = [
        "sk-proj-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4",
        "sk-ant-api03-Qm7vTz2LxWb9RkYd4Hs6Jn3cPf8G",
        "AIzaSyD3x4mpl3K3yF0rT3st1ngPurp0s3s0n",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJub2JvZHkifQ.c2lnbmF0dXJl",
        "-----BEGIN PRIVATE KEY-----\nQm7vTz2LxWb9RkYd4Hs6Jn3cPf8GuEa5VoMx1Zt7\n-----END PRIVATE KEY-----\n",
    ]

    assert masked(text, *keys) == text


def test_a_replaced_key_keeps_its_public_part() -> None:
    key = "sk-proj-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4"

    assert masked(f"OPENAI_API_KEY={key};", key) == f"OPENAI_API_KEY=sk-proj-{MASK};"


@each_encoding
@pytest.mark.parametrize("key", ["hf_short-key-15", "pa55word", "sk-ant-api03-abc", "tiny/key+0"])
def test_of_a_short_secret_only_the_whole_is_replaced(encode: Callable[[str], str], key: str) -> None:
    assert MASK in masked(f"<{encode(key)}.>", key)
    for part in (key[:-1], key[1:]):
        assert masked(f"<{encode(part)}.>", key) == f"<{encode(part)}.>"
