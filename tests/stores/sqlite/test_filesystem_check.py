"""Folders on network shares are detected."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentos.stores.sqlite.filesystem_check import find_network_share, is_unc, parse_share_kind


def mount(point: str, kind: str, *, root: str = "/", source: str = "source", optional: str = "shared:1 ") -> str:
    return f"36 35 98:0 {root} {point} rw,noatime {optional}- {kind} {source} rw,errors=continue\n"


LOCAL = mount("/", "ext4") + mount("/proc", "proc", optional="") + mount("/tmp", "tmpfs")


@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "virtiofs", "vboxsf", "fuse.sshfs", "fuse.s3fs", "NFS"],
)
def test_a_network_file_system_is_named(kind: str) -> None:
    assert parse_share_kind(Path("/net/pool.sqlite"), LOCAL + mount("/net", kind)) == kind


@pytest.mark.parametrize(
    "kind",
    [
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "overlay",
        "tmpfs",
        "autofs",
        "fuse",
        "fuseblk",
        "fuse.ntfs-3g",
        "fuse.fuse-overlayfs",
        "fuse.nfs",
        "sshfs",
    ],
)
def test_a_local_file_system_is_let_in(kind: str) -> None:
    assert parse_share_kind(Path("/data/pool.sqlite"), LOCAL + mount("/data", kind)) is None


def test_the_nearest_mount_above_the_file_counts() -> None:
    nested = LOCAL + mount("/net/local", "ext4") + mount("/net", "nfs4") + mount("/net/local/far", "cifs")

    assert parse_share_kind(Path("/net/pool.sqlite"), nested) == "nfs4"
    assert parse_share_kind(Path("/net/local/pool.sqlite"), nested) is None
    assert parse_share_kind(Path("/net/local/far/a/b/pool.sqlite"), nested) == "cifs"


def test_of_two_mounts_on_one_folder_the_later_counts() -> None:
    assert parse_share_kind(Path("/home/me/a"), LOCAL + mount("/home", "autofs") + mount("/home", "nfs4")) == "nfs4"
    assert parse_share_kind(Path("/home/me/a"), LOCAL + mount("/home", "nfs4") + mount("/home", "tmpfs")) is None


def test_a_folder_is_not_taken_for_one_whose_name_only_begins_like_it() -> None:
    assert parse_share_kind(Path("/network/pool.sqlite"), LOCAL + mount("/net", "nfs4")) is None


def test_a_folder_that_does_not_exist_yet_is_where_its_path_leads() -> None:
    assert parse_share_kind(Path("/net/not/there/yet/pool.sqlite"), LOCAL + mount("/net", "nfs4")) == "nfs4"


def test_a_file_that_is_itself_a_mount_point_is_found() -> None:
    """Containers are given single files like this."""
    assert parse_share_kind(Path("/state/pool.sqlite"), LOCAL + mount("/state/pool.sqlite", "virtiofs")) == "virtiofs"


def test_a_bind_mount_is_of_the_type_of_what_is_bound() -> None:
    bound = LOCAL + mount("/net", "nfs4") + mount("/state", "nfs4", root="/export/state") + mount("/net/own", "ext4")

    assert parse_share_kind(Path("/state/pool.sqlite"), bound) == "nfs4"
    assert parse_share_kind(Path("/net/own/pool.sqlite"), bound) is None


@pytest.mark.parametrize(
    ("escaped", "folder"),
    [
        ("/my\\040files", "/my files"),
        ("/tab\\011here", "/tab\there"),
        ("/back\\134slash", "/back\\slash"),
        ("/back\\134040", "/back\\040"),
        ("/new\\012line", "/new\nline"),
        ("/a\\040-\\040b", "/a - b"),
        ("/wide\u2028\u00a0\u001cspace", "/wide\u2028\u00a0\u001cspace"),
        ("/no\udcfftext", "/no\udcfftext"),
    ],
)
def test_a_mount_point_may_have_any_name(escaped: str, folder: str) -> None:
    assert parse_share_kind(Path(folder, "pool.sqlite"), LOCAL + mount(escaped, "cifs", source="//a/b")) == "cifs"


def test_text_that_makes_no_sense_refuses_nothing() -> None:
    for text in ("", "\n\n", "36 35", "36 35 98:0 / /", " - nfs4", "36 35 98:0 / /net rw - \n"):
        assert parse_share_kind(Path("/net/pool.sqlite"), text) is None


@pytest.mark.skipif(sys.platform != "linux", reason="by /proc")
def test_the_kernel_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda path: mount("/", "nfs4").encode())
    assert find_network_share(tmp_path) == "nfs4"


@pytest.mark.skipif(sys.platform != "linux", reason="by /proc")
def test_without_an_answer_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bytes:
        raise PermissionError("no /proc here")

    monkeypatch.setattr(Path, "read_bytes", fail)

    assert find_network_share(tmp_path) is None


@pytest.mark.parametrize(
    ("path", "unc"),
    [
        (r"\\server\share\pool.sqlite", True),
        ("//server/share/pool.sqlite", True),
        (r"\\wsl.localhost\Ubuntu\home", True),
        (r"\\?\UNC\server\share\pool.sqlite", True),
        (r"\\?\unc\server\share", True),
        (r"\\?\C:\pools\pool.sqlite", False),
        (r"\\.\C:\pools", False),
        (r"C:\pools\pool.sqlite", False),
        ("pool.sqlite", False),
    ],
)
def test_a_path_of_windows_that_names_a_server_is_known(path: str, unc: bool) -> None:
    assert is_unc(path) is unc
