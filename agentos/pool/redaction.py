"""Taking secrets out of text that comes from elsewhere: an error message of a provider, a reason, a name."""

from __future__ import annotations

import base64
import json
import string
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Sequence

from ..util.fork_hooks import ForkSafeLocks, register_fork_hooks

MASK = "<secret>"

# Shorter pieces occur in innocent text; a piece of this many characters of a secret does not.
SHORTEST_PIECE = 8

# So many secrets of a pool are known piece by piece.
FULLY_KNOWN = 50

_ASCII_LOWER = {ord(letter): letter.lower() for letter in string.ascii_uppercase}


class Masker(ForkSafeLocks):
    """Knows the secrets of a pool and blots out pieces of them, of eight characters and more, in any letter case.

    The secret a text is *likely* to hold (that of the lease it is about) is looked for piece by piece, and so are all
    of the first fifty. Others are looked for by every eighth piece, which finds any stretch of fifteen characters, and
    then wholly: all pieces of a hundred thousand credentials would fill the memory.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: list[str] = []  # all that is blotted out
        self._credentials: list[str] = []  # those of them that are credentials
        self._passwords: set[str] = set()
        self._marks: dict[str, str] = {}  # a folded piece -> its secret
        self._marking = threading.Lock()
        self._marked = 0  # how many secrets that is done for: only when a text is to be masked
        register_fork_hooks(self)
        for secret in secrets:
            self.add(secret)

    def in_forked_child(self) -> None:
        self._marking = threading.Lock()

    def add(self, secret: str) -> bool:
        """Blot out *secret* from now on: as it is, in base64, hex, JSON and a URL. False: it is too short for that."""
        if len(secret) < SHORTEST_PIECE:
            return False
        self._credentials.append(secret)
        self._secrets.append(secret)
        return True

    def add_password(self, password: str) -> bool:
        """Blot out a password of the pool's store as well. False: it is too short for that.

        Unlike a credential it may stand in environment variables of commands: ``contains_secret`` does not know it.
        """
        if len(password) < SHORTEST_PIECE:
            return False
        if password not in self._passwords:
            self._passwords.add(password)
            self._secrets.append(password)
        return True

    @property
    def count(self) -> int:
        """How many secrets it knows."""
        return len(self._secrets)

    @property
    def credentials(self) -> Sequence[str]:
        """The secrets of credentials: what is a password of the store only is not among them."""
        return self._credentials

    def secrets_from(self, number: int) -> list[str]:
        """The secrets it knows, in the order they were added, without the first *number* of them."""
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
        """Whether a whole secret of a credential stands in *text*, in any form and letter case."""
        folded = fold_case(text)
        return any(form in folded for secret in self._credentials for form in folded_forms(secret))

    def _mark(self) -> None:
        if self._marked == len(self._secrets):
            return
        with self._marking:  # a secret that comes meanwhile is marked the next time
            self._mark_new()

    def _mark_new(self) -> None:
        new = self._secrets[self._marked :]
        for number, secret in enumerate(new, start=self._marked):
            step = 1 if number < FULLY_KNOWN else SHORTEST_PIECE
            for form in folded_forms(secret):
                for i in range(0, len(form) - SHORTEST_PIECE + 1, step):
                    self._marks.setdefault(form[i : i + SHORTEST_PIECE], secret)
        self._marked += len(new)


def fold_case(text: str) -> str:
    """Return *text* with its ASCII letters in lower case. The length, and so every position, stays the same."""
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)


def encoded_forms(secret: str) -> Iterator[str]:
    """The secret as it may stand in a text: raw, and as URL, JSON, hex and base64 write it."""
    raw = secret.encode()
    yield secret
    for safe in ("", "/"):
        yield urllib.parse.quote(secret, safe=safe)
    yield json.dumps(secret)[1:-1]
    yield repr(secret)[1:-1]
    yield raw.hex()
    # A base64 text shows a secret shifted by 0, 1 or 2 bytes, depending on what stands before it.
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")[2 * shift :]
        yield text
        yield text.replace("+", "-").replace("/", "_")


def folded_forms(secret: str) -> Iterable[str]:
    """The different forms of the secret, in lower case: to be looked for in a text that is folded as well."""
    return dict.fromkeys(map(fold_case, encoded_forms(secret)))


def _mask(text: str, secret: str) -> str:
    pieces = {
        form[i : i + SHORTEST_PIECE] for form in folded_forms(secret) for i in range(len(form) - SHORTEST_PIECE + 1)
    }
    folded = fold_case(text)
    out: list[str] = []
    end = 0
    for i in range(len(folded) - SHORTEST_PIECE + 1):
        if folded[i : i + SHORTEST_PIECE] in pieces:
            if i > end or not out:
                out.extend((text[end:i], MASK))
            end = i + SHORTEST_PIECE
    return "".join([*out, text[end:]])
