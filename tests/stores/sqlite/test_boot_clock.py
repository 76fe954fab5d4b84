"""Instants of one boot are converted in another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.stores.sqlite.boot_clock import ClockReading, compute_shift, read_boot_id, read_linux_boot_id

# Multiples of 2**-10 below 2**32, so that all sums are exact.
instants = st.integers(0, 2**42).map(lambda n: n / 1024)
offsets = st.integers(-(2**42), 2**42).map(lambda n: n / 1024)


@given(at=instants, before=offsets, now=instants, offset=offsets, age=instants)
def test_nothing_that_was_past_comes_to_lie_in_the_future(
    at: float, before: float, now: float, offset: float, age: float
) -> None:
    stamp = at - age

    assert stamp + compute_shift(ClockReading("a", at, before), now, offset) <= now


@given(at=instants, before=offsets, now=instants, offset=offsets, away=offsets)
def test_stamps_keep_their_distances_and_no_wait_gets_longer_than_it_was(
    at: float, before: float, now: float, offset: float, away: float
) -> None:
    moved = compute_shift(ClockReading("a", at, before), now, offset)

    assert (at + away + moved) - (at + moved) == away
    assert (at + away + moved) - now <= away


@given(at=instants, before=offsets, now=instants, off=instants)
def test_with_a_right_wall_clock_the_time_off_is_exact(at: float, before: float, now: float, off: float) -> None:
    wall_then = at + before
    wall_now = wall_then + off

    assert now - (at + compute_shift(ClockReading("a", at, before), now, wall_now - now)) == off


@given(at=instants, before=offsets, now=instants, back=instants)
def test_with_a_wall_clock_set_back_no_time_has_passed(at: float, before: float, now: float, back: float) -> None:
    wall_now = at + before - back

    assert at + compute_shift(ClockReading("a", at, before), now, wall_now - now) == now


@given(at=instants, before=offsets, passed=instants)
def test_within_one_base_nothing_moves_while_the_wall_clock_is_not_touched(
    at: float, before: float, passed: float
) -> None:
    assert compute_shift(ClockReading("a", at, before), at + passed, before) == 0


# -- the id --------------------------------------------------------------------------------------------------------


def proc(
    folder: Path, *, boot: str | None = "b1", namespace: str | None = "time:[1]", offsets: str | None = "0"
) -> str:
    for path, text in (("sys/kernel/random/boot_id", boot), ("self/timens_offsets", offsets)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).unlink(missing_ok=True)
        if text is not None:
            (folder / path).write_text(f"{text}\n")
    (folder / "self" / "ns").mkdir(exist_ok=True)
    (folder / "self" / "ns" / "time").unlink(missing_ok=True)
    if namespace is not None:
        (folder / "self" / "ns" / "time").symlink_to(namespace)
    return read_linux_boot_id(folder)


def test_another_boot_or_time_namespace_is_another_base(tmp_path: Path) -> None:
    here = proc(tmp_path)

    others = [
        proc(tmp_path, boot="b2"),
        proc(tmp_path, namespace="time:[2]"),
        proc(tmp_path, offsets="monotonic 5 0"),
        proc(tmp_path, namespace=None),
        proc(tmp_path, offsets=None),
    ]

    assert proc(tmp_path) == here
    assert len({here, *others}) == 6
    assert all(len(base) == 16 and int(base, 16) for base in (here, *others))


def test_without_an_id_of_the_boot_there_is_none(tmp_path: Path) -> None:
    assert proc(tmp_path, boot=None) == ""
    assert proc(tmp_path, boot="") == ""


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="no id elsewhere")
def test_two_processes_of_this_machine_have_one_base() -> None:
    script = "from agentos.stores.sqlite.boot_clock import read_boot_id; print(read_boot_id())"
    root = Path(__file__).parents[3]

    said = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True).stdout

    assert len(read_boot_id()) == 16
    assert said.strip() == read_boot_id()
    if sys.platform == "linux":
        assert read_boot_id() == read_linux_boot_id(Path("/proc"))
