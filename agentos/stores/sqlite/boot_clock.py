"""Identify the monotonic clock that a file's instants belong to, and convert instants of an earlier one.

Instants are monotonic, so that setting the wall clock neither ends a cooldown early nor keeps a lease for ever. Such a
clock starts at the machine's boot, and elsewhere in each time namespace; instants of two clocks cannot be compared.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The last instant written to a file: when clock *base* showed *at*, the wall clock showed *at* + *offset*."""

    base: str
    at: float
    offset: float


def compute_shift(last: ClockReading, now: float, offset: float) -> float:
    """Return what to add to instants of *last*'s clock to convert them to ours.

    *now* is our monotonic clock, *offset* how far the wall clock is ahead of it. Only the wall clock shows how much
    time lies between the two clocks. If it shows a time before the last instant written, it was set back, and we assume
    that no time has passed: the last instant is *now*. Then a cooldown may end late, but no past instant moves into the
    future. A wall clock that was set ahead looks the same as a machine that was off for long.
    """
    return min(last.offset - offset, now - last.at)


def read_boot_id() -> str:
    """Return an id of this boot and this time namespace; "" if the system has none.

    Processes with the same id may compare their ``time.monotonic()``. Without an id, processes may that are alive at
    the same time on one machine.
    """
    if sys.platform == "linux":
        return read_linux_boot_id(Path("/proc"))
    elif sys.platform == "darwin":
        return _hash(_read_macos_boot_id())
    else:
        return ""


def read_linux_boot_id(proc: Path) -> str:
    """Return the id from the kernel's files under *proc*."""
    boot = _read_text(proc / "sys/kernel/random/boot_id")
    if not boot:
        return ""
    try:
        namespace = os.readlink(proc / "self/ns/time")
    except OSError:
        namespace = ""  # kernels before 5.6 have no time namespaces
    # Include the offsets, because the number of a deleted namespace may be reused.
    return _hash(boot, namespace, _read_text(proc / "self/timens_offsets"))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _read_macos_boot_id() -> str:
    try:
        import ctypes

        buffer, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        system = ctypes.CDLL(None)
        failed = system.sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    except (ImportError, OSError, AttributeError):
        return ""
    return "" if failed else buffer.value.decode("ascii", "replace")


def _hash(boot: str, *more: str) -> str:
    return hashlib.sha256("\n".join((boot, *more)).encode()).hexdigest()[:16] if boot else ""
