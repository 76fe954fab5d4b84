"""Which monotonic clock the stamps in a file belong to, and how stamps of an earlier one are read.

Stamps are monotonic, so that no change of the hour ends a cooling early or keeps a lease for ever. Such a clock counts
from the boot of the machine, and from another instant in each time namespace: between those, stamps mean nothing.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The last moment written to a file: at the instant *at* of *base*, the wall clock showed *at* + *offset*."""

    base: str
    at: float
    offset: float


def compute_shift(last: ClockReading, now: float, offset: float) -> float:
    """What to add to stamps of *last*'s base to have them in ours.

    *now* is what our monotonic clock shows, *offset* how far the wall clock is ahead of it. Only the wall clock tells
    how much time lies between the two bases. If it shows an hour before the last moment written, it was set back, and
    no time is taken to have passed: the last moment is *now*. Then a cooling may end late, but nothing that was past
    comes to lie in the future. A wall clock that was set ahead cannot be told from a machine that was off for long.
    """
    return min(last.offset - offset, now - last.at)


def read_boot_id() -> str:
    """An id of this boot and this time namespace; "" if there is none to be had.

    Processes with the same id may compare what ``time.monotonic()`` gives them. Without one, those may that are alive
    at the same time on one machine.
    """
    if sys.platform == "linux":
        return read_linux_boot_id(Path("/proc"))
    elif sys.platform == "darwin":
        return _hashed(_boot_of_macos())
    else:
        return ""


def read_linux_boot_id(proc: Path) -> str:
    """The id by what the kernel says under *proc*."""
    boot = _text(proc / "sys/kernel/random/boot_id")
    if not boot:
        return ""
    try:
        namespace = os.readlink(proc / "self/ns/time")
    except OSError:
        namespace = ""  # a kernel before 5.6 has no time namespaces
    # The offsets as well: the number of a namespace that is gone may be given to another.
    return _hashed(boot, namespace, _text(proc / "self/timens_offsets"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _boot_of_macos() -> str:
    try:
        import ctypes

        buffer, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        system = ctypes.CDLL(None)
        failed = system.sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (ImportError, OSError, AttributeError):
        return ""
    return "" if failed else buffer.value.decode("ascii", "replace")


def _hashed(boot: str, *more: str) -> str:
    return hashlib.sha256("\n".join((boot, *more)).encode()).hexdigest()[:16] if boot else ""
