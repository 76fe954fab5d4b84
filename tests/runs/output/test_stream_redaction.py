"""Secrets in a stream are redacted wherever its chunks begin and end."""

from __future__ import annotations

import base64
import random
import threading
import tracemalloc
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.pool.redaction import Masker, encoded_forms
from agentos.pool.secret import Secret
from agentos.runs.output.stream_redaction import MASK, Redaction, StreamRedactor

CANARY = "canary/0123456789+abcdef"
OTHERS = [f"{i:04d}-" + "".join(random.Random(i).choices("abcdefghijkmnpqrstuvwxyz", k=30)) for i in range(200)]


def redactor(*secrets: str, credential: str | None = None) -> StreamRedactor:
    return Redaction(Masker(secrets)).stream(credential)


def through(stream: StreamRedactor, *pieces: bytes) -> bytes:
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.flush()])


def expected(text: bytes, *secrets: str) -> bytes:
    """The same in the plainest way: mark the bytes of every window, then put one blot for each marked stretch."""
    windows = {
        f[i : i + 8].lower() for s in secrets for f in map(str.encode, encoded_forms(s)) for i in range(len(f) - 7)
    }
    out: list[bytes] = []
    end = 0
    for i in range(len(text) - 7):
        if text[i : i + 8].lower() in windows:
            if i > end or not out:
                out += [text[end:i], MASK]
            end = i + 8
    return b"".join([*out, text[end:]])


def in_pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(text) + 1) for cut in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("form", list(encoded_forms(CANARY)))
def test_every_form_is_blotted_out_wherever_it_is_split(form: str) -> None:
    text = f"before {form} after\n".encode()

    for cut in range(len(text) + 1):
        assert through(redactor(CANARY), text[:cut], text[cut:]) == b"before " + MASK + b" after\n"


@pytest.mark.parametrize(
    "shown",
    [
        base64.b64encode(b"Bearer " + CANARY.encode()),
        base64.b64encode(b"x:" + CANARY.encode()),
        urllib.parse.quote(f"key={CANARY}&x=1").encode(),
    ],
)
def test_a_secret_inside_something_encoded_is_found_byte_by_byte(shown: bytes) -> None:
    seen = through(redactor(CANARY), *(bytes([byte]) for byte in shown))

    assert MASK in seen
    assert seen == expected(shown, CANARY)


def test_any_eight_bytes_of_a_secret_are_blotted_out_at_any_place() -> None:
    raw = CANARY.encode()
    for start in range(len(raw) - 7):
        for place in range(9):
            text = b"." * place + raw[start : start + 8] + b" end"
            assert through(redactor(CANARY), text) == b"." * place + MASK + b" end"


def test_seven_bytes_are_innocent() -> None:
    text = CANARY[:7].encode() + b" and " + CANARY[-7:].encode()

    assert through(redactor(CANARY), text) == text


@pytest.mark.parametrize("change", [bytes.upper, bytes.lower, bytes.title, bytes.swapcase])
@pytest.mark.parametrize("form", list(encoded_forms("Canary/0123456789+aBcDeF")))
def test_a_secret_is_redacted_in_any_letter_case_wherever_it_is_split(
    form: str, change: Callable[[bytes], bytes]
) -> None:
    text = b"Before " + change(form.encode()) + b" After\n"

    for cut in range(0, len(text) + 1, 5):
        stream = redactor("Canary/0123456789+aBcDeF")
        assert through(stream, text[:cut], text[cut:]) == b"Before " + MASK + b" After\n"


def test_a_secret_of_a_large_pool_is_noticed_in_another_letter_case_and_then_known_wholly() -> None:
    stream = redactor(*OTHERS, CANARY)

    assert stream.feed(f"{CANARY.upper()[3:18]}\n".encode()) == MASK + b"\n"
    assert stream.feed(f"{CANARY.title()[4:12]}\n".encode()) == MASK + b"\n"


ALPHABETS = st.sampled_from(["ab", "aAbB", "abcdefgh0123", "sk-/+%\u00e9\u6f22"])


@given(st.data())
def test_chunks_make_no_difference_and_what_is_no_secret_is_unchanged(data: st.DataObject) -> None:
    alphabet = data.draw(ALPHABETS)
    secrets = data.draw(st.lists(st.text(alphabet, min_size=8, max_size=20), min_size=1, max_size=3))
    forms = [form.encode() for secret in secrets for form in encoded_forms(secret)]
    noise = st.one_of(st.binary(max_size=12), st.text(alphabet, max_size=12).map(str.encode))
    parts = data.draw(st.lists(st.one_of(noise, st.sampled_from(forms)), max_size=6))
    text = b"".join(parts)
    pieces = in_pieces(text, data.draw(st.lists(st.integers(0, 1 << 16), max_size=12)))

    seen = through(redactor(*secrets), *pieces)

    assert seen == expected(text, *secrets)


@given(
    st.text("ab\n\u00e9", min_size=8, max_size=24), st.binary(max_size=20), st.lists(st.integers(0, 200), max_size=9)
)
def test_no_window_survives_of_a_secret_with_line_ends(secret: str, around: bytes, cuts: list[int]) -> None:
    forms = [form.encode() for form in encoded_forms(secret)]
    text = around + b"|".join(forms) + around

    seen = through(redactor(secret), *in_pieces(text, cuts)).replace(MASK, b"\0\0")

    assert not any(form[i : i + 8] in seen for form in forms for i in range(len(form) - 7))


def test_a_line_that_has_ended_is_shown_at_once() -> None:
    stream = redactor(CANARY, "two\nlines of a secret")

    assert stream.feed(b"step 1\n") == b"step 1\n"
    assert stream.feed(b"it ends like the secret: two\n") == b"it ends like the secret: two\n"


def test_of_an_unfinished_line_at_most_seven_bytes_are_kept_back() -> None:
    stream = redactor(CANARY)

    assert stream.feed(b"password: ") == b"pas"
    assert stream.feed(b"x") == b"s"
    assert stream.flush() == b"word: x"


def test_two_secrets_side_by_side_make_one_blot() -> None:
    assert through(redactor(CANARY, OTHERS[0]), f"<{CANARY}{OTHERS[0]}>".encode()) == b"<" + MASK + b">"


def test_binary_passes_unchanged() -> None:
    data = random.Random(3).randbytes(300_000)

    assert through(redactor(*OTHERS[:20]), data[:100_001], data[100_001:]) == data


def test_a_secret_learned_during_the_stream_is_known_from_then_on() -> None:
    masker = Masker()
    stream = Redaction(masker).stream()
    assert stream.feed(f"{CANARY}\n".encode()) == f"{CANARY}\n".encode()

    masker.add(CANARY)

    assert stream.feed(f"{CANARY}\n".encode()) == MASK + b"\n"


def test_in_a_large_pool_any_stretch_of_fifteen_is_found_wherever_it_is_split() -> None:
    redaction = Redaction(Masker([*OTHERS, CANARY]))
    raw = CANARY.encode()
    for start in range(len(raw) - 14):
        for end in (b" refused", b"\n"):
            text = b"key " + raw[start : start + 15] + end
            for cut in range(len(text)):
                assert through(redaction.stream(), text[:cut], text[cut:]) == b"key " + MASK + end


def test_in_a_large_pool_a_secret_once_seen_is_known_wholly() -> None:
    stream = redactor(*OTHERS, CANARY)
    stream.feed(f"{CANARY}\n".encode())

    assert stream.feed(f"{CANARY[3:11]}\n".encode()) == MASK + b"\n"


def test_in_a_large_pool_any_piece_of_the_items_own_secret_is_found() -> None:
    redaction = Redaction(Masker([*OTHERS, CANARY]), {"mine": Secret(CANARY)}.__getitem__)
    piece = CANARY[3:11].encode()

    assert through(redaction.stream("mine"), piece) == MASK
    assert through(redaction.stream("another"), piece) == piece


def test_threads_that_begin_together_all_know_all_secrets() -> None:
    for _ in range(20):
        redaction = Redaction(Masker(OTHERS[:30]))
        start = threading.Barrier(8)
        seen: list[bytes] = []

        def look(redaction: Redaction = redaction, start: threading.Barrier = start, seen: list[bytes] = seen) -> None:
            start.wait()
            seen.append(through(redaction.stream(), OTHERS[29].encode()))

        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert seen == [MASK] * 8


def test_a_long_stream_takes_little_memory() -> None:
    stream = redactor(CANARY)
    piece = b"no end of line " * 4096
    stream.feed(piece)
    tracemalloc.start()

    for _ in range(40):
        stream.feed(piece)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
