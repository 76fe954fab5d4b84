"""Stand-in for a call with a key: while it runs it records, every few milliseconds, which key it is using.

As a command: ``python use_key.py FILE ITEM``, with the key in AGENTOS_CREDENTIAL. Functions import ``record_use``. Each
record is one line, appended by one write, so that lines of several processes never mix. A process that is stopped or
killed records nothing, which is all that the reader of the file needs to know.
"""

import os
import signal
import sys
import time
import zlib

EVERY = 0.004
_SHORT = 0.08
_LONG = 5.0  # longer than a lease lives without being renewed


def seconds_of(item: str) -> float:
    """How long an item takes: always the same for the same item, and long for one in five."""
    return _LONG if zlib.crc32(item.encode()) % 5 == 0 else _SHORT


def is_stubborn(item: str) -> bool:
    """Whether the item's command ignores a request to end: every third does."""
    return zlib.crc32(item.encode()) % 3 == 0


def record_use(file: int, kind: str, item: str, secret: str) -> None:
    """Append one record: when, who (process and item), and which key."""
    who = f"{os.getpid()}/{item}"
    os.write(file, f"{time.monotonic():.6f} {kind} {who} {secret}\n".encode())


def main(path: str, item: str) -> None:
    """Use the key for the item's seconds, counted in running time: suspensions are not made up for."""
    if is_stubborn(item):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    secret = os.environ["AGENTOS_CREDENTIAL"]
    for _ in range(max(1, int(seconds_of(item) / EVERY))):
        record_use(file, "command", item, secret)
        time.sleep(EVERY)
    sys.stdout.write(f"answer to {item}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
