"""Parse the location of a store; for a file, create it: private, on a local disk."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Final, NoReturn

from ...errors import StoreOnNetworkShare, StoreUnavailable
from ..redis.url import REDIS_URL, RedisLocation, is_redis_url, parse_redis_url
from .filesystem_check import find_network_share

_FILE_NAME: Final = "pool.sqlite"
_URL: Final = "sqlite:///"

_ALLOWED: Final = (
    "'memory', 'sqlite', 'sqlite:///relative/path', 'sqlite:////absolute/path', a path object such as pathlib.Path, "
    f"or {REDIS_URL}"
)

_making = Lock()


def parse_location(store: str | os.PathLike[str], environ: Mapping[str, str]) -> Path | RedisLocation | None:
    """Return the file or server that *store* names; None for "memory". Raises ValueError if it names none."""
    if isinstance(store, str):
        if store == "memory":
            return None
        if store == "sqlite":
            return state_folder(environ) / _FILE_NAME
        if is_redis_url(store):
            try:
                return parse_redis_url(store)
            except ValueError as error:
                scheme = store.partition("://")[0].lower()
                raise ValueError(
                    f"store must be such as {REDIS_URL}, and this {scheme}:// URL is not: {error}"
                ) from None
        path = store.removeprefix(_URL)
        # Elsewhere "?" begins options, and ":memory:" is not a file.
        if path == store or not path or "?" in path or path == ":memory:" or "\0" in path:
            _refuse(store)
        return _expanded(path, environ)
    path = os.fspath(store) if isinstance(store, os.PathLike) else None
    if not isinstance(path, str) or "\0" in path:
        _refuse(store)
    return Path(path)


def state_folder(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the folder for this user's persistent state. ``AGENTOS_HOME`` overrides it."""
    chosen = environ.get("AGENTOS_HOME")
    if chosen:
        return _expanded(chosen, environ)
    if platform == "win32":
        local = environ.get("LOCALAPPDATA")
        return (Path(local) if local else _home(environ) / "AppData" / "Local") / "agentos"
    if platform == "darwin":
        return _home(environ) / "Library" / "Application Support" / "agentos"
    state = environ.get("XDG_STATE_HOME", "")
    # The specification says to ignore a relative one: it would be another folder in each working directory.
    return (Path(state) if os.path.isabs(state) else _home(environ) / ".local" / "state") / "agentos"


def prepare_file(path: Path) -> Path:
    """Create the file at *path* and its folder, private to this user, unless they exist. Return the real path.

    Existing ones are not changed. Raises StoreUnavailable or StoreOnNetworkShare.
    """
    real = Path(os.path.realpath(path))
    try:
        other = _why_not_a_file(real)  # first, because this lets an automounter mount it
        kind = find_network_share(real)
        if kind is not None:
            raise StoreOnNetworkShare(path=str(real), kind=kind)
        if other is not None:
            raise StoreUnavailable(path=str(real), detail=other)
        _make_folder(real.parent)
        make_private(real)
    except OSError as error:
        raise StoreUnavailable(path=str(real), detail=_reason(error)) from None
    return real


def make_private(path: Path) -> None:
    """Create an empty file that only this user may read and write, unless the file exists."""
    # Closing any descriptor of a file drops all locks that SQLite has on it in this process. So no other thread may
    # find the file before this descriptor is closed, and an existing file is never opened here.
    with _making:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        os.close(descriptor)


def _why_not_a_file(real: Path) -> str | None:
    if real.is_symlink():
        return "it is a link that leads to itself"  # all other links were followed
    if real.is_dir():
        return "it is a folder"
    return "it is not a regular file" if real.exists() and not real.is_file() else None


def _make_folder(folder: Path) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)  # not parents=True: that sets the mode of the last one only


def _expanded(path: str, environ: Mapping[str, str]) -> Path:
    parts = Path(path).parts
    if parts[:1] == ("~",):
        return _home(environ).joinpath(*parts[1:])
    return Path(os.path.expanduser(path))  # "~other"; unchanged if that user is unknown


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("USERPROFILE" if os.name == "nt" else "HOME")
    if home:
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        raise ValueError(
            "store needs a home folder for its file, and this user has none: set AGENTOS_HOME, or name a file with "
            "store='sqlite:////absolute/path'"
        ) from None


def _refuse(store: object) -> NoReturn:
    # Show only the scheme of a URL, and nothing of other text: either may contain a password.
    scheme = re.match(r"([a-z][a-z0-9+.-]{0,20}):/", store, re.IGNORECASE) if isinstance(store, str) else None
    if scheme is not None:
        given = f"this {scheme[1]}:// URL"
    else:
        given = "this text" if isinstance(store, str) else f"this {type(store).__name__}"
    raise ValueError(f"store must be {_ALLOWED}, and {given} is none of these")


def _reason(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"


def _replace_lock() -> None:
    global _making
    _making = Lock()


# A child may be forked while another thread holds the lock, which then is never released in the child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_lock)
