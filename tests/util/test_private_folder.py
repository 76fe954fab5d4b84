"""A folder of our own files: what lies in it under our names is used only if it is an ordinary file of ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentos.util import private_folder
from agentos.util.private_folder import PrivateFolder, UnsafePath, make_folders

from ..runs.hostile_files import a_folder, a_link, a_link_to_nothing, a_pipe, a_second_name


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("mine")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PrivateFolder]:
    (tmp_path / "run").mkdir(mode=0o700)
    with PrivateFolder.at(tmp_path / "run", accept=lambda _: False) as opened:
        yield opened


PLANTED = [a_link, a_link_to_nothing, a_second_name, a_pipe, a_folder]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("flags", [os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_APPEND])
def test_only_an_ordinary_file_with_one_name_is_opened_to_write(
    folder: PrivateFolder, precious: Path, plant: Callable[[Path, Path], None], flags: int
) -> None:
    plant(folder.path / "file", precious)

    with pytest.raises(UnsafePath, match=r"run/file is (a link|a pipe|a folder|one of 2 names)"):
        folder.open("file", flags)

    assert precious.read_text() == "mine"
    assert not precious.with_name("new").exists()


@pytest.mark.parametrize("plant", [a_link, a_link_to_nothing, a_pipe, a_folder])
def test_reading_follows_no_link_and_waits_for_no_pipe(
    folder: PrivateFolder, precious: Path, plant: Callable[[Path, Path], None]
) -> None:
    plant(folder.path / "file", precious)

    with pytest.raises(UnsafePath):
        folder.read("file", 100)
    with pytest.raises(UnsafePath):
        folder.check("file", to_write=False)


@pytest.mark.parametrize("plant", [a_link, a_link_to_nothing, a_second_name, a_pipe])
def test_a_file_that_is_made_anew_replaces_what_had_its_name(
    folder: PrivateFolder, precious: Path, plant: Callable[[Path, Path], None]
) -> None:
    plant(folder.path / "file.new", precious)  # the draft
    folder.write("file", b"ours")

    assert (folder.path / "file").read_bytes() == b"ours"
    assert (folder.path / "file").stat().st_mode & 0o777 == 0o600
    assert os.listdir(folder.path) == ["file"]
    assert precious.read_text() == "mine"
    assert not precious.with_name("new").exists()


def test_files_are_reached_through_the_open_folder_whatever_its_path_leads_to_now(
    folder: PrivateFolder, tmp_path: Path
) -> None:
    folder.path.rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    folder.path.symlink_to(tmp_path / "other")

    folder.write("file", b"ours")

    assert (tmp_path / "moved" / "file").read_bytes() == b"ours"
    assert list((tmp_path / "other").iterdir()) == []


def test_a_file_longer_than_expected_is_not_read(folder: PrivateFolder) -> None:
    (folder.path / "file").write_bytes(b"0123456789")

    assert folder.read("file", 10) == b"0123456789"
    with pytest.raises(UnsafePath, match="is longer than 9 bytes"):
        folder.read("file", 9)


def test_a_file_of_another_user_is_not_used(folder: PrivateFolder) -> None:
    (folder.path / "file").write_text("theirs")
    folder.owners = frozenset({os.geteuid() + 1})

    with pytest.raises(UnsafePath, match=r"run/file belongs to user \d+"):
        folder.open("file", os.O_RDWR)


def test_errors_of_the_system_name_the_whole_path(folder: PrivateFolder) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        folder.open("file", os.O_RDWR)

    assert caught.value.filename == str(folder.path / "file")


# -- folders --------------------------------------------------------------------------------------------------------


def test_a_folder_behind_a_link_is_entered_only_if_it_is_accepted(folder: PrivateFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder.path / "logs").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(UnsafePath, match=r"run/logs is a link to .*/elsewhere") as caught:
        folder.enter("logs")
    assert caught.value.is_link

    folder.accept = lambda unsafe: unsafe.what == caught.value.what
    with folder.enter("logs") as logs:
        logs.write("a.log", b"")
    assert (tmp_path / "elsewhere" / "a.log").exists()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_may_write_is_not_entered(folder: PrivateFolder, mode: int) -> None:
    (folder.path / "logs").mkdir()
    (folder.path / "logs").chmod(mode)

    with pytest.raises(UnsafePath, match="run/logs may be written by other users"):
        folder.enter("logs")


def test_a_folder_of_another_user_is_not_entered(folder: PrivateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.make("logs")
    monkeypatch.setattr(private_folder, "current_user", lambda: os.geteuid() + 1)

    with pytest.raises(UnsafePath, match=r"run/logs belongs to user \d+, not to user \d+"):
        folder.enter("logs")


def test_a_folder_that_the_user_named_may_be_a_shared_one_with_a_sticky_bit(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with PrivateFolder.at(shared, accept=lambda _: False) as opened:
        shared.chmod(0o1777)
        opened.require_own(chosen=True)
        shared.chmod(0o777)
        with pytest.raises(UnsafePath):
            opened.require_own(chosen=True)


def test_new_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        make_folders(tmp_path / "a" / "b")
        with PrivateFolder.at(tmp_path / "a" / "b") as folder:
            assert folder.make("c")
            assert not folder.make("c")
    finally:
        os.umask(before)

    assert [(tmp_path / each).stat().st_mode & 0o777 for each in ("a", "a/b", "a/b/c")] == [0o700] * 3
