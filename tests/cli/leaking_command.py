"""A command that leaks its credential in the way its item names."""

from __future__ import annotations

import base64
import json
import os
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path

SECRET = os.environ["HUNTED"]
RAW = SECRET.encode()
KEEPS = Path(os.environ["LEAKS_TO"])
WAYS = {
    "raw": RAW,
    "capitals": RAW.upper(),
    "small": RAW.lower(),
    "swapped": RAW.swapcase(),
    "base64": base64.b64encode(RAW),
    "base64-1": base64.b64encode(b"x" + RAW + b"yy"),
    "base64-2": base64.b64encode(b"me:"[:2] + RAW),
    "base64url": base64.urlsafe_b64encode(RAW),
    "base64 in lines": base64.encodebytes(RAW).strip(),
    "hex": RAW.hex().encode(),
    "hex in lines": RAW.hex("\n", -30).encode(),
    "HEX": RAW.hex().upper().encode(),
    "url": urllib.parse.quote(SECRET, safe="").encode(),
    "form": urllib.parse.urlencode({"key": SECRET}).encode(),
    "json": json.dumps({"key": SECRET}).encode(),
    "half": RAW[: max(8, len(RAW) // 2)],
    "piece": RAW[-8:],
}


def write(text: bytes, to: int = 1) -> None:
    while text:
        text = text[os.write(to, text) :]


def forms() -> None:
    for name, text in WAYS.items():
        write(f"{name}: ".encode() + text + b"\n")
        write(f"{name}: ".encode() + text + b" \xff\n", to=2)


def torn() -> None:
    for text in WAYS.values():
        write(b"torn " + text[: len(text) // 2])
        write(text[len(text) // 2 :] + b"\n")


def byte_by_byte() -> None:
    for byte in RAW[:60]:
        write(bytes([byte]))
        write(bytes([byte]), to=2)


def long_line() -> None:
    write(b"x" * 65_530 + RAW + b"y" * 60_000 + base64.b64encode(RAW) + b"z" * 80_000 + RAW)


def failure() -> None:
    write(b"Incorrect API key provided: " + RAW + b". Bye\n", to=2)
    sys.exit(3)


def tells(outcome: object) -> None:
    text = outcome if isinstance(outcome, str) else json.dumps(outcome)
    Path(os.environ["AGENTOS_OUTCOME"]).write_text(text)


def tells_once(outcome: dict[str, object]) -> None:
    """An item that is tried again goes well: each further key would be lost otherwise."""
    try:
        (KEEPS / f"once.{sys.argv[1]}").touch(exist_ok=False)
    except FileExistsError:
        return
    write(b"told of " + RAW)
    tells(outcome)


def hangs() -> None:
    """Wait for the end of the run, unless this is the second time."""
    forms()
    byte_by_byte()
    tells({"failed": f"cannot use {SECRET}"})
    if not (KEEPS / "go-on").exists():
        with open(KEEPS / "here", "wb") as fifo:
            fifo.write(b".")
        os.read(os.open(KEEPS / "never", os.O_RDONLY), 1)


TRICKS: dict[str, Callable[[], None]] = {
    "forms": forms,
    "torn": torn,
    "bytes": byte_by_byte,
    "long": long_line,
    "failure": failure,
    "says-failed": lambda: tells({"failed": f"cannot use {SECRET}"}),
    "says-odd": lambda: tells({SECRET: 1}),
    "says-nonsense": lambda: tells("{" + SECRET),
    "says-bad-usage": lambda: tells({"usage": {"input_tokens": SECRET}}),
    "rejected": lambda: tells_once({"rejected": f"Incorrect API key provided: {SECRET}"}),
    "limited": lambda: tells_once({"rate_limited": 0.01}),
    "hangs": hangs,
    "model": lambda: tells_once({"rate_limited": 0.01, "model": SECRET}),
    "usage": lambda: tells({"usage": {SECRET: 3}}),
}


def main() -> None:
    trick, _, number = sys.argv[1].partition(".")
    name = os.environ["AGENTOS_CREDENTIAL_NAME"]
    (KEEPS / f"environ.{name}.{trick}{number}").write_bytes(Path("/proc/self/environ").read_bytes())
    (KEEPS / f"environment-of-parent.{os.getpid()}").write_bytes(Path(f"/proc/{os.getppid()}/environ").read_bytes())
    TRICKS[trick]()


main()
