"""Records of trusted run folders in the user's state folder: those that were started or trusted here.

A run folder may come with a cloned repository: results, a journal, the command that ``agentos retry`` would run. So a
run continues only in a folder that is recorded here, by three facts that a repository cannot contain: its location, a
random id, and a digest of its ``run.json``. There is one small file per folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from ...runs.report.run_card import CARD_NAME, MAX_CARD_SIZE
from ...util.private_folder import PrivateFolder, UnsafePath, make_folders

ID_NAME: Final = "run.id"

_FOLDER: Final = "known-runs"
_LONGEST: Final = 64 * 1024
_TIDY_EVERY: Final = 256  # new folders
_NO_CARD: Final = ""


@dataclass(frozen=True, slots=True)
class TrustedRun:
    """The recorded state of a run folder. ``cards`` are the digests its run.json may have: two while it is written.

    ``any_owner``: it contains files of other users, and was trusted with them.
    """

    path: str
    id: str
    cards: tuple[str, ...] = (_NO_CARD,)
    any_owner: bool = False


class TrustedRuns:
    """The records of the current user. An unreadable record counts as missing."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    def find(self, folder: Path) -> TrustedRun | None:
        """Return the record of the run in *folder*, or None."""
        path = os.path.realpath(folder)
        found = self._read(_name("run", path))
        try:
            known = TrustedRun(found["path"], found["id"], tuple(found["cards"]), bool(found["any_owner"]))
        except (KeyError, TypeError):
            return None
        return known if known.path == path else None

    def record(self, known: TrustedRun, *, durable: bool = True) -> None:
        """Record a run folder as it is now. Raise OSError, or ValueError if the user has no state folder."""
        content = {"path": known.path, "id": known.id, "cards": list(known.cards), "any_owner": known.any_owner}
        self._write(_name("run", known.path), content, durable=durable)

    def move(self, folder: Path, to: Path) -> None:
        """Move the record of a renamed run folder, if there is one."""
        known = self.find(folder)
        if known is not None:
            self.record(replace(known, path=os.path.join(os.path.realpath(folder.parent), to.name)))

    def forget(self, folder: Path) -> None:
        """Remove the record of a run folder, if there is one and it can be changed."""
        with contextlib.suppress(OSError, ValueError), PrivateFolder.at(self._folder()) as records:
            records.unlink(_name("run", os.path.realpath(folder)))

    def accepts(self, unsafe: UnsafePath) -> bool:
        """Return whether the user has accepted this problem of this folder."""
        return unsafe.what in self._read(_name("folder", str(unsafe.filename))).get("accepted", [])

    def accept(self, unsafe: UnsafePath) -> None:
        """Record that the user accepts this problem of this folder. Raise as `record` does."""
        name = _name("folder", str(unsafe.filename))
        accepted = self._read(name).get("accepted", [])
        self._write(name, {"path": unsafe.filename, "accepted": [*accepted, unsafe.what]})

    # -- files --------------------------------------------------------------------------------------------------

    def _folder(self) -> Path:
        from ...stores.sqlite.location import state_folder

        return state_folder(self._environ) / _FOLDER

    def _read(self, name: str) -> dict[str, Any]:
        try:
            with PrivateFolder.at(self._folder()) as folder:
                found = json.loads(folder.read(name, _LONGEST))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, content: Mapping[str, Any], *, durable: bool = True) -> None:
        path = self._folder()
        make_folders(path)
        with PrivateFolder.at(path) as folder:
            if folder.find(name) is None:
                _tidy(folder)
            folder.write(name, f"{json.dumps(content)}\n".encode(), durable=durable)


def new_id() -> str:
    """Return a random id for a run folder."""
    return secrets.token_hex(16)


def read_digest(folder: PrivateFolder) -> str:
    """Return the digest of run.json in *folder*. Raise OSError if it is not a regular file."""
    try:
        return digest(folder.read(CARD_NAME, MAX_CARD_SIZE))
    except FileNotFoundError:
        return _NO_CARD


def digest(card: bytes) -> str:
    """Return the digest by which a run.json is recognised."""
    return blake2b(card, digest_size=32).hexdigest()


def read_id(folder: PrivateFolder) -> str | None:
    """Return the id that is stored in the folder, or None."""
    try:
        return folder.read(ID_NAME, 1024).decode("ascii").strip()
    except (FileNotFoundError, ValueError):
        return None


def _name(kind: str, path: str) -> str:
    return f"{kind}-{blake2b(os.fsencode(path), digest_size=16).hexdigest()}.json"


def _tidy(folder: PrivateFolder) -> None:
    """Periodically delete records of folders that no longer exist."""
    names = folder.names()
    if not names or len(names) % _TIDY_EVERY:
        return
    for name in names:
        try:
            path = json.loads(folder.read(name, _LONGEST))["path"]
            if not os.path.lexists(path):
                folder.unlink(name)
        except (OSError, ValueError, KeyError, TypeError):
            continue
