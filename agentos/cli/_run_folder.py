"""The folder of a run: taken for this session alone, and told how it was started."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ._errors import Refusal

if TYPE_CHECKING:
    from ..runs.journal.owner import OwnerLock
    from ._request import Request

_LOCK_NAME = "run.lock"


def own(request: Request) -> OwnerLock:
    """Make the run's folder, or with ``--fresh`` set the old one aside, and keep all others out until it is released.

    The journal has a lock of its own; this one is taken before results are written anew. Raises ``Refusal``.
    """
    from ..errors import JournalInUse
    from ..runs.journal.owner import OwnerLock
    from ._folders import make_base

    folder = request.folder
    try:
        make_base(folder.parent.parent)
        if request.flags.fresh and folder.exists():
            _set_aside(folder, request.name)
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)  # what items print may be confidential
        lock = OwnerLock(folder / _LOCK_NAME, journal=folder, run=request.name)
    except JournalInUse as error:
        raise Refusal(str(error), "wait for it, or give this run another --name") from None
    except OSError as error:
        raise Refusal(
            f"the run's folder cannot be used: {error.strerror}: {error.filename or folder}",
            "name another place with --dir FOLDER, or AGENTOS_BASE_DIR",
        ) from None
    return lock


def _set_aside(folder: Path, name: str) -> None:
    """Keep a run that is to be started over, under the next free name."""
    from ..runs.journal.owner import OwnerLock

    lock = OwnerLock(folder / _LOCK_NAME, journal=folder, run=name)
    try:
        number = 1
        while (kept := folder.with_name(f"{folder.name}.{number}")).exists():
            number += 1
        os.rename(folder, kept)
    finally:
        lock.release()


def write_card(request: Request) -> None:
    """Write down what ``agentos show`` and ``agentos retry`` want to know of how it was started. Raises ``Refusal``."""
    try:
        _write_card(request)
    except OSError as error:
        raise Refusal(f"the run's folder cannot be written: {error.strerror}: {request.folder}") from None


def _write_card(request: Request) -> None:
    from .. import __version__
    from ..runs.reporting.card import CARD_NAME

    path, now = request.folder / CARD_NAME, time.time()
    created = now
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        created = float(json.loads(path.read_text())["created"])
    card = {
        "format": 1,
        "name": request.name,
        "created": created,
        "started": now,
        "cwd": os.getcwd(),
        "arguments": request.flags.typed.again,
        "command": None if request.command is None else list(request.command),
        "worker": request.flags.worker,
        "source": dict(request.source),
        "parallel": request.parallel,
        "engine": request.engine,
        "keys": [key.credential.name for key in request.keys],
        "agentos": __version__,
    }
    new = path.with_name(f"{CARD_NAME}.new")
    new.write_text(json.dumps(card, indent=1) + "\n")
    os.replace(new, path)
