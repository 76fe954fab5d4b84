"""The context of an attempt and its checkpoint folder."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import CredentialCoordinator, ParallelCoordinator
from agentos.runs.context import CheckpointFolder, Context, build_file_name
from agentos.testing import FakeClock


@pytest.mark.parametrize("item_id", ["a", "item-1", "a.b_c-9", "x" * 80, "_", "2024-01-01", "a.tar.gz"])
def test_an_id_that_is_a_file_name_is_its_own(item_id: str) -> None:
    assert build_file_name(item_id) == item_id


@pytest.mark.parametrize(
    "item_id",
    [
        "",
        ".",
        "..",
        "../../etc/passwd",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "C:\\x",
        "a\0b",
        "a b",
        ".hidden",
        "-rf",
        "~root",
        "name.",
        "Report",
        "x" * 81,
        "x" * 100_000,
        "größe",
        "\ud800",
        "日本語" * 100,
        "a\nb",
    ],
)
def test_any_other_id_becomes_a_harmless_name_of_its_own(item_id: str, tmp_path: Path) -> None:
    name = build_file_name(item_id)

    assert re.fullmatch(r"([A-Za-z0-9_][A-Za-z0-9_-]{0,59})?~[0-9a-f]{16}", name)
    (tmp_path / name).write_text("kept")
    assert [found.name for found in tmp_path.iterdir()] == [name]


@given(st.text(max_size=200), st.text(max_size=200))
def test_two_ids_never_share_a_file_and_none_is_a_path(one: str, other: str) -> None:
    assert (build_file_name(one) == build_file_name(other)) is (one == other)
    assert Path(build_file_name(one)).name == build_file_name(one)
    assert len(build_file_name(one)) <= 80


def test_an_id_cannot_pose_as_the_name_made_for_another() -> None:
    made = build_file_name("../x")

    assert build_file_name(made) != made


def test_ids_that_differ_only_in_case_have_files_that_differ_otherwise() -> None:
    assert build_file_name("Report").lower() != build_file_name("report").lower()


# -- the folder ---------------------------------------------------------------------------------------------------


def test_a_folder_of_a_journal_is_made_when_it_is_used_and_keeps_what_is_not_done(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    assert not (tmp_path / "run").exists()
    folder.path_for("a").write_text("half of a")
    folder.path_for("b").write_text("half of b")

    folder.item_done("a")
    folder.on_run_end()

    again = CheckpointFolder(tmp_path / "run" / "checkpoints")
    assert not again.path_for("a").exists()
    assert again.path_for("b").read_text() == "half of b"


def test_an_empty_folder_does_not_stay(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.path_for("a").write_text("half")
    folder.item_done("a")

    folder.on_run_end()

    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_an_earlier_run_goes_when_its_item_is_done(tmp_path: Path) -> None:
    CheckpointFolder(tmp_path).path_for("a").write_text("of yesterday")

    folder = CheckpointFolder(tmp_path)
    assert folder.path_for("a").read_text() == "of yesterday"
    folder.item_done("a")

    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_may_be_a_folder(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    (folder.path_for("a") / "deep").mkdir(parents=True)
    (folder.path_for("a") / "deep" / "file").write_text("x")

    folder.item_done("a")

    assert not folder.path_for("a").exists()


def test_without_a_journal_the_folder_is_temporary_and_gone_with_the_run() -> None:
    folder = CheckpointFolder(None)
    folder.item_done("never asked")
    path = folder.path_for("a")
    path.write_text("half")
    other = folder.path_for("b")
    other.write_text("half")

    folder.item_done("a")
    assert not path.exists()
    assert other.exists()
    folder.on_run_end()

    assert not path.parent.exists()
    folder.on_run_end()


def test_a_run_that_keeps_nothing_makes_no_folder(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.item_done("a")
    folder.on_run_end()

    assert list(tmp_path.iterdir()) == []


def test_many_threads_may_ask_for_their_path_at_once(tmp_path: Path) -> None:
    folder = CheckpointFolder(None)
    together = threading.Barrier(8)
    paths: list[Path] = []

    def ask(number: int) -> None:
        together.wait(10)
        path = folder.path_for(f"item-{number}")
        path.write_text("x")
        paths.append(path)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len({path.parent for path in paths}) == 1
    assert len(set(paths)) == 8
    folder.on_run_end()


# -- the context --------------------------------------------------------------------------------------------------


def test_a_context_without_a_lease_settles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    context = Context("it/em", 2, None, threading.Event(), CheckpointFolder(None))

    assert context.settle(tokens=5) is False
    assert context.settle({"tokens": 5}) is False
    with caplog.at_level(logging.INFO, "agentos"):
        context.log.info("at %d%%", 50)
    assert caplog.messages == ["[it/em] at 50%"]
    assert caplog.records[0].name == "agentos.worker"


def test_a_percent_sign_in_an_id_does_not_break_its_log(caplog: pytest.LogCaptureFixture) -> None:
    context = Context("50%s", 1, None, threading.Event(), CheckpointFolder(None))

    with caplog.at_level(logging.INFO, "agentos"):
        context.log.info("plain")
    assert caplog.messages == ["[50%s] plain"]


# -- a lease that was lost while the process was suspended ----------------------------------------------------------


@pytest.mark.parametrize("use", ["checkpoint", "settle", "reveal"])
def test_a_lost_lease_is_reported_at_the_next_use_of_the_context_and_costs_no_try(tmp_path: Path, use: str) -> None:
    clock = FakeClock()
    pool = CredentialCoordinator(["sk-the-only-secret"], store=tmp_path / "pool.sqlite", lease_ttl=60, clock=clock)
    went_on = []

    def worker(_item: str, _key: str | None, context: Context) -> None:
        assert context.lease is not None
        if context.attempt == 1:
            clock.advance(120)  # as if the process had been suspended
        if use == "checkpoint":
            assert context.checkpoint
        elif use == "settle":
            context.settle(tokens=5)
        else:
            context.lease.reveal()
        went_on.append(context.attempt)

    _, (result,) = ParallelCoordinator(1, pool, retries=0, clock=clock).execute_parallel(["a"], worker, str)
    pool.close()

    assert (result.success, result.attempts, went_on) == (True, 2, [2])
