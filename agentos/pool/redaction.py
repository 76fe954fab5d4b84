"""Redact secrets in text from elsewhere: a provider's error message, a reason, a name.

There are two rules. In logs, output and errors eight characters in a row of a secret are replaced. A worker's value is
changed only where it contains sixteen, or a whole shorter secret. Characters of the public part, such as ``sk-proj-``,
do not count in either.
"""

from __future__ import annotations

import base64
import json
import string
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import AnyStr

from ..providers.key_owner import OPENAI_MARK
from ..providers.public_part import private_part
from ..util.fork_hooks import ForkSafeLocks, register_fork_hooks

MASK = "<secret>"

# Shorter pieces occur in ordinary text; a piece of a secret of this length hardly does.
SHORTEST_PIECE = 8
SHORTEST_PIECE_IN_VALUE = 16

# The first secrets of a pool, which are indexed by every piece.
FULLY_KNOWN = 50

_ASCII_LOWER = {ord(letter): letter.lower() for letter in string.ascii_uppercase}


class Masker(ForkSafeLocks):
    """Replaces pieces of a pool's secrets, of eight private characters and more, in any letter case.

    The secret that a text is *likely* to contain (of the lease it is about) and the first fifty are searched by every
    piece. Others are searched by every eighth piece, which finds any run of fifteen characters, and then in full: all
    pieces of a hundred thousand credentials would fill the memory.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: list[str] = []  # all that is redacted
        self._credentials: list[str] = []  # the credentials among them
        self._passwords: set[str] = set()
        self._marks: dict[str, str] = {}  # a folded piece -> its secret
        self._marking = threading.Lock()
        self._marked = 0  # how many secrets are indexed: only when a text is masked
        register_fork_hooks(self)
        for secret in secrets:
            self.add(secret)

    def in_forked_child(self) -> None:
        self._marking = threading.Lock()

    def add(self, secret: str) -> bool:
        """Redact *secret* from now on: raw, in base64, hex, JSON and a URL. False: it is too short."""
        if len(secret) < SHORTEST_PIECE:
            return False
        self._credentials.append(secret)
        self._secrets.append(secret)
        return True

    def add_password(self, password: str) -> bool:
        """Redact a password of the pool's store. False: it is too short.

        Unlike a credential it may occur in environment variables of commands: ``contains_secret`` ignores it.
        """
        if len(password) < SHORTEST_PIECE:
            return False
        if password not in self._passwords:
            self._passwords.add(password)
            self._secrets.append(password)
        return True

    @property
    def count(self) -> int:
        """The number of secrets."""
        return len(self._secrets)

    @property
    def credentials(self) -> Sequence[str]:
        """The secrets of credentials, without passwords of the store."""
        return self._credentials

    def secrets_from(self, number: int) -> list[str]:
        """Return the secrets in the order they were added, without the first *number*."""
        return self._secrets[number:]

    def mask(self, text: str, likely: str | None = None) -> str:
        """Return *text* with the pieces of secrets replaced."""
        found = {} if likely is None else {likely: None}
        self._mark()
        folded = fold_case(text)
        for i in range(len(folded) - SHORTEST_PIECE + 1):
            secret = self._marks.get(folded[i : i + SHORTEST_PIECE])
            if secret is not None:
                found[secret] = None
        for secret in found:
            text = _mask(text, secret)
        return text

    def contains_secret(self, text: str) -> bool:
        """Return True if *text* contains a whole secret of a credential, in any form and letter case."""
        folded = fold_case(text)
        return any(form in folded for secret in self._credentials for form in folded_forms(secret))

    def _mark(self) -> None:
        if self._marked == len(self._secrets):
            return
        with self._marking:  # a secret added meanwhile is indexed the next time
            self._mark_new()

    def _mark_new(self) -> None:
        new = self._secrets[self._marked :]
        for number, secret in enumerate(new, start=self._marked):
            step = 1 if number < FULLY_KNOWN else SHORTEST_PIECE
            for form in _output_forms(secret):
                for piece in _cut(form, step):
                    self._marks.setdefault(piece, secret)
        self._marked += len(new)


def fold_case(text: str) -> str:
    """Return *text* with its ASCII letters in lower case. The length, and so every position, stays the same."""
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)


def encoded_forms(secret: str) -> Iterator[str]:
    """Return the forms of a secret in text: raw, and as URL, JSON, hex and base64 encode it."""
    for letters in _escaped_characters(secret):
        yield "".join(letters)
    # In base64 text a secret is shifted by 0, 1 or 2 bytes, depending on what precedes it.
    raw = secret.encode()
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")[2 * shift :]
        yield text
        yield text.replace("+", "-").replace("/", "_")


def folded_forms(secret: str) -> Iterable[str]:
    """Return the distinct forms of the secret in lower case, to be searched in folded text."""
    return dict.fromkeys(map(fold_case, encoded_forms(secret)))


def output_windows(secret: str, step: int = 1) -> Iterator[bytes]:
    """Yield the folded pieces, of eight bytes each, that are redacted in logs, output and errors.

    With *step*, only every step-th of each form.
    """
    for form in _output_forms(secret):
        yield from _cut(form.encode(), step)


def value_windows(secret: str) -> Iterable[bytes]:
    """Return the folded pieces that are redacted in values: every sixteen private characters, or the whole secret.

    Each is there in every form; a piece in base64 has only the letters that its own characters decide.
    """
    private, length = private_part(secret), SHORTEST_PIECE_IN_VALUE
    if len(private) < length:
        private, length = secret, len(secret)
    windows = [
        window
        for form in dict.fromkeys(map(tuple, _escaped_characters(private)))
        for window in ("".join(form[start : start + length]) for start in range(len(form) - length + 1))
    ]
    ends = list(accumulate((len(letter.encode()) for letter in private), initial=0))
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + private.encode()).decode()
        for start, end in zip(ends, ends[length:], strict=False):
            windows.append(text[-(-8 * (shift + start) // 6) : 8 * (shift + end) // 6])
    windows += [window.replace("+", "-").replace("/", "_") for window in windows if "+" in window or "/" in window]
    return dict.fromkeys(fold_case(window).encode() for window in windows)


def _output_forms(secret: str) -> Iterable[str]:
    private = private_part(secret)
    return folded_forms(private if len(private) >= SHORTEST_PIECE else secret[-SHORTEST_PIECE:])


def _cut(form: AnyStr, step: int = 1) -> Iterator[AnyStr]:
    for start in range(0, len(form) - SHORTEST_PIECE + 1, step):
        piece = form[start : start + SHORTEST_PIECE]
        if piece not in _PUBLIC_PIECES:
            yield piece


def _escaped_characters(text: str) -> Iterator[list[str]]:
    """Yield the forms in which each character is encoded by itself, as one string for each character."""
    yield list(text)
    yield [letter.encode().hex() for letter in text]
    if urllib.parse.quote(text, safe="") == text:
        return  # letters, digits and the few signs that no encoding changes
    for safe in ("", "/"):
        yield [urllib.parse.quote(letter, safe=safe) for letter in text]
    yield [json.dumps(letter)[1:-1] for letter in text]
    shown = [repr(letter)[1:-1] for letter in text]
    yield shown
    if "'" in text:  # repr() escapes it where the text contains both kinds of quotes
        yield [letter.replace("'", "\\'") for letter in shown]


_PUBLIC_PIECES: frozenset[object] = frozenset()
_PUBLIC_PIECES = frozenset(piece for form in folded_forms(OPENAI_MARK) for piece in (*_cut(form), *_cut(form.encode())))


def _mask(text: str, secret: str) -> str:
    pieces = {piece for form in _output_forms(secret) for piece in _cut(form)}
    folded = fold_case(text)
    out: list[str] = []
    end = 0
    for i in range(len(folded) - SHORTEST_PIECE + 1):
        if folded[i : i + SHORTEST_PIECE] in pieces:
            if i > end or not out:
                out.extend((text[end:i], MASK))
            end = i + SHORTEST_PIECE
    return "".join([*out, text[end:]])
