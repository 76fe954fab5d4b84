"""Worker functions that leak their credential in the way their item names."""

# ruff: noqa: T201 - what is printed is the point

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import agentos


class Opaque:
    """Shows its secret when asked what it is."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return f"Opaque({self._secret!r})"


class OwnWords(Exception):
    def __init__(self, secret: str) -> None:
        super().__init__()
        self._secret = secret

    def __str__(self) -> str:
        return f"401 for key {self._secret}"


class Refused(Exception):
    """As an SDK raises it."""

    def __init__(self, secret: str) -> None:
        super().__init__(f"Incorrect API key provided: {secret}")
        self.status_code = 429
        self.body = {"error": {"message": f"too many requests for {secret}", "type": "rate_limit", "code": secret}}
        self.headers = {"retry-after": "0.01", "x-request-id": secret}


def _raise(error: BaseException) -> NoReturn:
    raise error


def _chained(secret: str) -> None:
    try:
        _raise(LookupError(f"https://user:{secret}@example.com"))
    except LookupError as error:
        raise RuntimeError("no answer") from error


def _refuse_once(secret: str) -> None:
    try:
        Path(os.environ["LEAKS_TO"], f"refused-once-{os.getpid()}").touch(exist_ok=False)
    except FileExistsError:
        return
    raise Refused(secret)


def _with_note(secret: str) -> None:
    error = RuntimeError("no answer")
    error.add_note(f"the key was {secret}")
    raise error


def _warn(secret: str) -> None:
    warnings.warn(f"deprecated key {secret}", stacklevel=1)


def _print(secret: str) -> None:
    print("the key is", secret)
    print(json.dumps([secret]), file=sys.stderr, flush=True)
    print(secret.upper(), secret.lower(), secret.swapcase())
    for character in secret[:60]:
        print(character, end="", flush=True)
    sys.stdout.buffer.write(secret.encode())


def _log(secret: str, context: Any) -> None:
    context.log.warning("context %s", secret)
    context.log.error("%d", secret)  # what logging itself then prints has the arguments
    logging.getLogger("agentos.mine").warning("mine " + secret)
    logging.getLogger("elsewhere").error("elsewhere %s", secret)
    try:
        _raise(ValueError(secret))
    except ValueError:
        context.log.exception("it went wrong")


RETURNS: dict[str, Callable[[str], Any]] = {
    "text": lambda secret: secret,
    "capitals": lambda secret: [secret.upper(), secret.lower(), secret.swapcase()],
    "nested": lambda secret: {"a": [{"b": (secret, f"Bearer {secret}")}]},
    "key-of-a-dict": lambda secret: {secret: 1},
    "bytes": lambda secret: secret.encode(),
    "object": Opaque,
    "set": lambda secret: {secret, 1},
    "json-in-json": lambda secret: json.dumps({"key": secret}),
}
RAISES: dict[str, Callable[[str], Any]] = {
    "message": lambda secret: _raise(ValueError(f"bad key {secret}")),
    "argument": lambda secret: _raise(KeyError({"key": [secret]})),
    "own-words": lambda secret: _raise(OwnWords(secret)),
    "chained": _chained,
    "noted": _with_note,
    "group": lambda secret: _raise(ExceptionGroup(secret, [ValueError(secret), TypeError(secret)])),
    "exit": lambda secret: _raise(SystemExit(f"bad key {secret}")),
    "transient": lambda secret: _raise(agentos.Transient(f"reset while sending {secret}")),
    "refused": _refuse_once,
    "warning": _warn,
    "print": _print,
}


TRICKS = (*RETURNS, *RAISES, "log")


def leak(item: str, credential: str, context: Any) -> Any:
    trick = item.partition(".")[0]
    if trick == "log":
        return _log(credential, context)
    return {**RETURNS, **RAISES}[trick](credential)


async def leak_async(item: str, credential: str, context: Any) -> Any:
    return leak(item, credential, context)
