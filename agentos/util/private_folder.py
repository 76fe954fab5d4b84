"""A folder of agentos files, each opened relative to the folder's descriptor and never through a link.

A run folder may come with a cloned repository or an archive. Then anything may have the names that agentos uses: links
to other files, hard links, pipes, folders. A file is read only if it is a regular file; it is written only if it also
has a single name and, where the caller gives expected owners, one of them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# Windows has neither; there a file is checked before it is opened by path.
_RELATIVE: Final = os.open in os.supports_dir_fd
_OPEN_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
# Non-blocking, so that opening a pipe does not wait for its other end. It does not affect regular files.
_OPEN_FILE: Final = _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_WRITING: Final = os.O_WRONLY | os.O_RDWR
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class UnsafePath(OSError):
    """The path could lead agentos to a file that is not its own. ``what`` is the problem."""

    def __init__(self, path: str | os.PathLike[str], what: str, *, is_link: bool = False) -> None:
        super().__init__(errno.EPERM, what, os.fspath(path))
        self.what = what
        self.is_link = is_link

    def __str__(self) -> str:
        return f"{self.filename} {self.what}"


# Return whether to use a folder in spite of the problem.
Accept = Callable[[UnsafePath], bool]


def unless_link(unsafe: UnsafePath) -> bool:
    """Accept any folder that is not a link: the user who named it is responsible for its owner."""
    return not unsafe.is_link


def current_user() -> int:
    """Return the id of the user that owns new files of this process; 0 where there are no such ids."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


class PrivateFolder(os.PathLike[str]):
    """An open folder. *owners* are the users whose files are used, None: any; *accept* decides about unsafe folders.

    Every method takes the name of a file in the folder, not a path. Errors of the system contain the whole path.
    """

    __slots__ = ("_descriptor", "accept", "owners", "path")

    def __init__(
        self,
        path: Path,
        descriptor: int | None,
        *,
        owners: frozenset[int] | None = None,
        accept: Accept = unless_link,
    ) -> None:
        self.path = path
        self.owners = owners
        self.accept = accept
        self._descriptor = descriptor

    @classmethod
    def at(cls, path: str | os.PathLike[str], *, accept: Accept = unless_link) -> PrivateFolder:
        """Open the folder at a path that the caller or the user chose; links are followed."""
        return cls(Path(path), os.open(path, _OPEN_FOLDER) if _RELATIVE else None, accept=accept)

    def __fspath__(self) -> str:
        return str(self.path)

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    # -- files --------------------------------------------------------------------------------------------------

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a file and return its descriptor. Raises UnsafePath unless it is a regular file of ours.

        *flags* must not truncate: the file is checked before it is changed.
        """
        target, folder = self._resolve(name)
        try:
            if not _NO_LINK:
                self.check(name)
            file = os.open(target, flags | _OPEN_FILE, mode, dir_fd=folder)
        except OSError as error:
            raise self._explain(name, error) from None
        try:
            self._require_own(name, os.fstat(file), to_write=bool(flags & _WRITING))
        except BaseException:
            os.close(file)
            raise
        return file

    def create(self, name: str, mode: int = 0o600) -> int:
        """Create an empty file, replacing anything of that name, and open it."""
        self.unlink(name)
        return self.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file of at most *most* bytes. Raises UnsafePath for a longer one."""
        file = self.open(name, os.O_RDONLY)
        with os.fdopen(file, "rb") as reader:
            content = reader.read(most + 1)
        if len(content) > most:
            raise UnsafePath(self.path / name, f"is longer than {most:,} bytes")
        return content

    def write(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Replace a file atomically. If *durable*, it survives a power failure."""
        draft = f"{name}.new"
        file = self.create(draft)
        try:
            with os.fdopen(file, "wb") as writing:
                writing.write(content)
                writing.flush()
                if durable:
                    os.fsync(writing.fileno())
            self.replace(draft, name)
        except BaseException:
            self.unlink(draft)
            raise
        if durable:
            self.sync()

    def find(self, name: str) -> os.stat_result | None:
        """Return the status of the entry *name* without following links; None if there is none."""
        target, folder = self._resolve(name)
        try:
            return os.stat(target, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._explain(name, error) from None

    def check(self, *names: str, to_write: bool = True) -> None:
        """Raise UnsafePath for the first of these names that exists and is not a regular file of ours."""
        for name in names:
            found = self.find(name)
            if found is not None:
                self._require_own(name, found, to_write=to_write)

    def names(self) -> list[str]:
        """Return the names of all entries."""
        return os.listdir(self.path if self._descriptor is None else self._descriptor)

    def replace(self, name: str, by: str) -> None:
        """Rename the file *name* to *by*, replacing the file of that name."""
        (old, folder), (new, _) = self._resolve(name), self._resolve(by)
        try:
            os.replace(old, new, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise self._explain(by, error) from None

    def unlink(self, name: str) -> None:
        """Remove a file or a link, if it exists."""
        target, folder = self._resolve(name)
        try:
            os.unlink(target, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._explain(name, error) from None

    def sync(self) -> None:
        """Make renames in this folder durable (Windows does so by itself)."""
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    # -- folders ------------------------------------------------------------------------------------------------

    def make(self, name: str) -> bool:
        """Create a folder for this user only; return False if the name is taken."""
        target, folder = self._resolve(name)
        try:
            os.mkdir(target, 0o700, dir_fd=folder)
        except FileExistsError:
            return False
        except OSError as error:
            raise self._explain(name, error) from None
        return True

    def remove_folder(self, name: str) -> bool:
        """Remove an empty folder; return False if there is none, it is not empty, or it is something else."""
        target, folder = self._resolve(name)
        try:
            os.rmdir(target, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                return False
            raise self._explain(name, error) from None
        return True

    def enter(self, name: str) -> PrivateFolder:
        """Open a subfolder. Raises UnsafePath for a link, a folder of another user, and one that others may write.

        ``accept`` may allow it all the same.
        """
        found = self.find(name)
        path = self.path / name
        is_link = found is not None and stat.S_ISLNK(found.st_mode)
        if is_link:
            self._refuse(UnsafePath(path, f"is a link to {os.path.realpath(path)}", is_link=True))
        target, folder = self._resolve(name)
        flags = _OPEN_FOLDER if is_link else _OPEN_FOLDER | _NO_LINK
        try:
            if found is not None and not is_link and not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            descriptor = os.open(target, flags, dir_fd=folder) if _RELATIVE else None
        except OSError as error:
            raise self._explain(name, error) from None
        entered = PrivateFolder(path, descriptor, owners=self.owners, accept=self.accept)
        try:
            entered.require_own()
        except BaseException:
            entered.close()
            raise
        return entered

    def owner(self) -> int:
        """Return the id of the folder's owner."""
        return self._status().st_uid

    def require_own(self, *, chosen: bool = False) -> None:
        """Raise UnsafePath unless this user owns the folder and no other may write to it, or ``accept`` allows it.

        One that the user has *chosen* by name may belong to the system, or be like /tmp, where users cannot remove each
        other's files.
        """
        found = self._status()
        owners = {current_user(), 0} if chosen else {current_user()}
        if found.st_uid not in owners and os.name == "posix":
            self._refuse(UnsafePath(self.path, f"belongs to user {found.st_uid}, not to user {current_user()}"))
        is_open = bool(found.st_mode & _WRITABLE_BY_OTHERS) and not (chosen and found.st_mode & stat.S_ISVTX)
        if is_open and os.name == "posix":
            self._refuse(UnsafePath(self.path, "may be written by other users"))

    # -- helpers -------------------------------------------------------------------------------------------------

    def _status(self) -> os.stat_result:
        return os.stat(self.path if self._descriptor is None else self._descriptor)

    def _refuse(self, unsafe: UnsafePath) -> None:
        if not self.accept(unsafe):
            raise unsafe

    def _resolve(self, name: str) -> tuple[str, int | None]:
        if not _RELATIVE:
            return str(self.path / name), None
        if self._descriptor is None:
            raise OSError(errno.EBADF, "the folder is closed", str(self.path))
        return name, self._descriptor

    def _require_own(self, name: str, found: os.stat_result, *, to_write: bool) -> None:
        path = self.path / name
        if not stat.S_ISREG(found.st_mode):
            is_link = stat.S_ISLNK(found.st_mode)
            raise UnsafePath(path, f"is {_describe_kind(found.st_mode)}, not an ordinary file", is_link=is_link)
        if to_write and found.st_nlink > 1:
            raise UnsafePath(path, f"is one of {found.st_nlink} names of the same file")
        if self.owners is not None and found.st_uid not in self.owners:
            raise UnsafePath(path, f"belongs to user {found.st_uid}, not to user {current_user()}")

    def _explain(self, name: str, error: OSError) -> OSError:
        """Return *error* with the whole path, or UnsafePath if the entry itself is the reason."""
        if isinstance(error, (UnsafePath, FileNotFoundError, FileExistsError, NotADirectoryError)):
            if error.filename is None or not os.path.isabs(str(error.filename)):
                error.filename = str(self.path / name)
            return error
        target, folder = self._resolve(name)
        try:
            found = os.stat(target, dir_fd=folder, follow_symlinks=False)
            self._require_own(name, found, to_write=False)
        except UnsafePath as unsafe:
            return unsafe
        except OSError:
            pass
        return OSError(error.errno, error.strerror, str(self.path / name))


def make_folders(path: Path) -> None:
    """Create *path* and its missing parents, for this user only. Raises OSError."""
    missing: list[Path] = []
    for each in (path, *path.parents):
        if each.exists():
            break
        missing.append(each)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)  # not parents=True: that applies the mode to the last one only


@contextmanager
def folder_of(path: Path, folder: PrivateFolder | None = None) -> Iterator[PrivateFolder]:
    """Yield the folder of the file *path*: *folder* if the caller has it open, else opened for the block."""
    if folder is not None:
        yield folder
        return
    with PrivateFolder.at(path.parent) as opened:
        yield opened


def _describe_kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
