"""Locations of stores are parsed, and files are created for their user alone."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import StoreOnNetworkShare, StoreUnavailable
from agentos.stores.sqlite import location
from agentos.stores.sqlite.location import make_private, parse_location, prepare_file, state_folder

HOME = {"HOME": "/home/me"}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- which file ----------------------------------------------------------------------------------------------------


def test_memory_means_no_file() -> None:
    assert parse_location("memory", {}) is None


@pytest.mark.parametrize(
    ("store", "path"),
    [
        ("sqlite:///pools/a.sqlite", "pools/a.sqlite"),
        ("sqlite:////var/lib/a.sqlite", "/var/lib/a.sqlite"),
        ("sqlite:///C:/pools/a.sqlite", "C:/pools/a.sqlite"),
        ("sqlite:///~/a.sqlite", "/home/me/a.sqlite"),
        ("sqlite:///a~/~", "a~/~"),
        ("sqlite:///~nobody-of-this-name/a", "~nobody-of-this-name/a"),
        ("sqlite:///.", "."),
        (Path("/var/lib/a b#c?d.sqlite"), "/var/lib/a b#c?d.sqlite"),
        (Path("~/a.sqlite"), "~/a.sqlite"),
    ],
)
def test_a_url_or_a_path_means_that_file(store: Any, path: str) -> None:
    assert parse_location(store, HOME) == Path(path)


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("sqlite://me:secret@host/a.sqlite", "this sqlite:// URL"),
        ("sqlite:///", "this sqlite:// URL"),
        ("sqlite:///a.sqlite?password=secret", "this sqlite:// URL"),
        ("sqlite:///:memory:", "this sqlite:// URL"),
        ("sqlite:///a\0secret", "this sqlite:// URL"),
        ("sqlite:secret", "this text"),
        ("secret.sqlite", "this text"),
        ("", "this text"),
        (b"sqlite", "this bytes"),
        (None, "this NoneType"),
        (3, "this int"),
        (Path("a\0secret"), "this PosixPath"),
    ],
)
def test_anything_else_is_refused_without_showing_what_may_be_secret(store: Any, shown: str) -> None:
    with pytest.raises(ValueError, match=r"^store must be 'memory', 'sqlite', 'sqlite:///relative/path', ") as caught:
        parse_location(store, HOME)

    assert shown.replace("PosixPath", type(store).__name__) in str(caught.value)
    assert "secret" not in str(caught.value)


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"a.sqlite"


def test_a_path_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="this BytesPath is none of these"):
        parse_location(BytesPath(), {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("platform", "environ", "folder"),
    [
        ("linux", HOME, "/home/me/.local/state/agentos"),
        ("linux", {**HOME, "XDG_STATE_HOME": "/state"}, "/state/agentos"),
        ("linux", {**HOME, "XDG_STATE_HOME": "state"}, "/home/me/.local/state/agentos"),
        ("linux", {**HOME, "XDG_STATE_HOME": ""}, "/home/me/.local/state/agentos"),
        ("freebsd14", HOME, "/home/me/.local/state/agentos"),
        ("darwin", {**HOME, "XDG_STATE_HOME": "/state"}, "/home/me/Library/Application Support/agentos"),
        ("win32", {**HOME, "LOCALAPPDATA": "/appdata"}, "/appdata/agentos"),
        ("win32", HOME, "/home/me/AppData/Local/agentos"),
        ("linux", {**HOME, "AGENTOS_HOME": "/mine"}, "/mine"),
        ("darwin", {**HOME, "AGENTOS_HOME": "~/mine"}, "/home/me/mine"),
        ("win32", {**HOME, "AGENTOS_HOME": "/mine", "LOCALAPPDATA": "/appdata"}, "/mine"),
        ("linux", {**HOME, "AGENTOS_HOME": ""}, "/home/me/.local/state/agentos"),
    ],
)
def test_the_state_folder_is_where_each_system_wants_it(platform: str, environ: dict[str, str], folder: str) -> None:
    assert state_folder(environ, platform) == Path(folder)


def test_without_a_name_the_file_is_in_the_state_folder() -> None:
    assert parse_location("sqlite", {"AGENTOS_HOME": "/mine"}) == Path("/mine/pool.sqlite")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)

    with pytest.raises(ValueError, match="set AGENTOS_HOME"):
        parse_location("sqlite", {})


# -- making it -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_file_and_every_folder_made_for_it_are_for_this_user_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    real = prepare_file(tmp_path / "a" / "b" / "pool.sqlite")

    assert real == tmp_path / "a" / "b" / "pool.sqlite"
    assert real.read_bytes() == b""
    assert mode(real) == 0o600
    assert (mode(tmp_path / "a" / "b"), mode(tmp_path / "a"), mode(tmp_path)) == (0o700, 0o700, 0o755)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_what_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o750)
    (tmp_path / "shared" / "pool.sqlite").write_text("content")
    (tmp_path / "shared" / "pool.sqlite").chmod(0o660)

    real = prepare_file(tmp_path / "shared" / "pool.sqlite")

    assert real.read_text() == "content"
    assert (mode(real), mode(real.parent)) == (0o660, 0o750)


def test_links_are_followed_so_that_two_names_mean_one_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "name.sqlite").symlink_to(tmp_path / "real" / "pool.sqlite")

    assert prepare_file(tmp_path / "link" / "pool.sqlite") == tmp_path / "real" / "pool.sqlite"
    assert prepare_file(tmp_path / "name.sqlite") == tmp_path / "real" / "pool.sqlite"


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert prepare_file(Path("pool.sqlite")) == tmp_path / "pool.sqlite"


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="it is a folder") as caught:
        prepare_file(tmp_path)

    assert caught.value.path == str(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_its_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pool.sqlite")

    with pytest.raises(StoreUnavailable, match="it is not a regular file"):
        prepare_file(tmp_path / "pool.sqlite")


def test_a_file_where_its_folder_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")

    with pytest.raises(StoreUnavailable, match="Not a directory"):
        prepare_file(tmp_path / "a" / "b" / "pool.sqlite")


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "pool.sqlite").symlink_to(tmp_path / "pool.sqlite")

    with pytest.raises(StoreUnavailable, match="a link that leads to itself"):
        prepare_file(tmp_path / "pool.sqlite")


def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))  # by hand: root may write everywhere

    (tmp_path / "locked").mkdir()
    monkeypatch.setattr("agentos.stores.sqlite.location.os.open", refuse)

    with pytest.raises(StoreUnavailable, match="Permission denied"):
        prepare_file(tmp_path / "locked" / "pool.sqlite")


def test_on_a_network_share_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "find_network_share", lambda path: "nfs4")

    with pytest.raises(StoreOnNetworkShare) as caught:
        prepare_file(tmp_path / "a" / "pool.sqlite")

    assert caught.value.kind == "nfs4"
    assert list(tmp_path.iterdir()) == []


def test_many_threads_make_one_file(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    made = []

    def make() -> None:
        start.wait()
        made.append(prepare_file(tmp_path / "a" / "b" / "c" / "pool.sqlite"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert made == [tmp_path / "a" / "b" / "c" / "pool.sqlite"] * 8


def test_a_file_that_is_there_is_not_even_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing it would drop the locks that SQLite has on it in this process."""
    make_private(tmp_path / "pool.sqlite")
    monkeypatch.setattr(os, "close", lambda descriptor: pytest.fail("a descriptor was closed"))

    make_private(tmp_path / "pool.sqlite")
