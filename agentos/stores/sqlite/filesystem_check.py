"""Detect whether a file would be on a network share, as far as the operating system shows it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

# These types mean that the files are kept by another machine, or by the host of this virtual machine. Whether processes
# there see our locks and share memory mapped from a file depends on versions and mount options that cannot be queried
# from here; and where they do not, two processes write at once without an error. So all of these are refused, including
# those that might work.
_NETWORK: Final = (
    # file servers
    "nfs nfs4 cifs smb2 smb3 smbfs ncpfs ncp afs coda davfs "
    # cluster file systems
    "ceph lustre beegfs gpfs glusterfs orangefs pvfs2 panfs wekafs ocfs2 gfs2 "
    # folders of the host in a virtual machine: QEMU, WSL 2, VirtualBox, VMware, Parallels, Docker Desktop
    "9p virtiofs vboxsf vmhgfs prl_fs fakeowner"
)

# FUSE means only that a program keeps the files, and many of these are local: ntfs-3g, encryption, fuse-overlayfs in
# containers. So the names of network ones are listed, and unknown ones are allowed.
_NETWORK_FUSE: Final = (
    "sshfs glusterfs ceph ceph-fuse juicefs seaweedfs mfs moosefs lizardfs saunafs quobyte alluxio-fuse beegfs "
    "davfs davfs2 davfs-fuse smbnetfs fusesmb curlftpfs gvfsd-fuse kio-fuse "
    "s3fs goofys mountpoint-s3 geesefs tigrisfs gcsfuse blobfuse blobfuse2 rclone "
    "google-drive-ocamlfuse onedriver dbxfs "
    "vmhgfs-fuse grpcfuse osxfs 9pfuse"
)

_REMOTE_DRIVE: Final = 4  # DRIVE_REMOTE of Windows


def parse_share_kind(path: Path, mountinfo: str) -> str | None:
    """Return the type of the network file system that *path* is on, from ``/proc/self/mountinfo``; else None.

    *path* is absolute and without links; it need not exist. The nearest mount point above it counts, and of two on one
    folder the later one, which hides the other.
    """
    longest, found = 0, None
    above = {str(path), *map(str, path.parents)}
    # Not splitlines() or split(): names may contain other characters that count as line ends or spaces.
    for line in mountinfo.split("\n"):
        mount, _, file_system = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) > 4 and file_system:
            point = _unescaped(fields[4])
            if point in above and len(point) >= longest:
                longest, found = len(point), file_system.split(" ")[0]
    return found if found is not None and _is_network(found.lower()) else None


def is_unc(path: str) -> bool:
    r"""Return whether this Windows path begins with a server name: ``\\server\share\...``."""
    path = path.replace("/", "\\")
    if path.startswith(("\\\\?\\", "\\\\.\\")):  # extended-length or device path
        return path[4:8].upper() == "UNC\\"
    return path.startswith("\\\\")


def find_network_share(path: Path) -> str | None:
    """Return the kind of network share that *path* is on; None if it is local or unknown."""
    if sys.platform == "linux":
        try:
            mountinfo = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
        except OSError:
            return None
        return parse_share_kind(path, mountinfo)
    elif sys.platform == "win32":
        import ctypes

        if is_unc(str(path)):
            return "UNC"
        is_remote = ctypes.windll.kernel32.GetDriveTypeW(f"{path.drive}\\") == _REMOTE_DRIVE
        return "network drive" if is_remote else None
    else:
        # The standard library offers no check here (macOS: statfs), so nothing is refused.
        return None


def _is_network(kind: str) -> bool:
    program = kind.removeprefix("fuse.")
    return kind in _NETWORK.split() if program == kind else program in _NETWORK_FUSE.split()


def _unescaped(text: str) -> str:
    r"""Decode the kernel's escapes: ``\040`` for a space; also tabs, newlines and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)
