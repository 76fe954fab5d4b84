"""What a command finds in its environment: all of its user's, no secret but its own, and what it may want to know."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from .helper_process import MARK

# Linux takes no longer text than this in one variable or argument (128 KiB with its name and the end).
MAX_VARIABLE = 131_072 - 64

_OF_AN_ITEM = frozenset(
    f"AGENTOS_{name}"
    for name in (
        *("RUN_ID", "ITEM", "ITEM_FILE", "ITEM_ID", "ATTEMPT", "SLOT", "CREDENTIAL_NAME", "BASE_URL"),
        *("WORKFLOW_DB", "OUTCOME", "MARK"),
    )
)
# Where the store of the keys is, with its password. A nested agentos is told its store explicitly.
_STORE = "AGENTOS_STORE"
_LEFT_OUT = _OF_AN_ITEM | {_STORE}
# Of a script with holes (``shell``): a variable that comes with the environment stays exported.
_OF_A_SCRIPT = re.compile(r"agentos_[0-9]+")
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")


def base_environment(
    environ: Mapping[str, str], without: Collection[str], holds_secret: Callable[[str], bool]
) -> dict[str, str]:
    """The environment of all commands. A variable that holds a secret of the pool is somebody else's key: left out.

    Also left out are AGENTOS_STORE, the variables that describe an item of a run in which this one is nested, and the
    names that scripts of commands use for items, which must not be exported.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in without
        and name not in _LEFT_OUT
        and _OF_A_SCRIPT.fullmatch(name) is None
        and not holds_secret(value)
    }


class CommandEnvironment:
    """Makes what is different in each command's environment. *folder* is private to the run, and made when needed."""

    def __init__(self, run_id: str, environ: Mapping[str, str], folder: Path) -> None:
        self._run_id = run_id
        self._folder = folder
        found = _TRACEPARENT.fullmatch(environ.get("TRACEPARENT", ""))
        self._trace = found[1] if found else secrets.token_hex(16)
        self._flags = found[2] if found else "01"

    def build_variables(
        self, *, item_id: str, item: str, attempt: int, slot: int, credential: str | None, checkpoint: Path, mark: str
    ) -> dict[str, str]:
        """The variables of one attempt."""
        variables = {
            "AGENTOS_RUN_ID": self._run_id,
            "AGENTOS_ITEM_ID": item_id.replace("\0", "\\x00"),
            "AGENTOS_ATTEMPT": str(attempt),
            "AGENTOS_SLOT": str(slot),
            "AGENTOS_WORKFLOW_DB": str(checkpoint),
            MARK: mark,
            "AGENTOS_OUTCOME": str(self.outcome_file(item_id, attempt)),
            "TRACEPARENT": f"00-{self._trace}-{secrets.token_hex(8)}-{self._flags}",
        }
        if credential is not None:
            variables["AGENTOS_CREDENTIAL_NAME"] = credential
        if "\0" not in item and len(os.fsencode(item)) <= MAX_VARIABLE:
            variables["AGENTOS_ITEM"] = item
        else:
            # No variable can hold it: the command finds it in a file.
            path = self._file("item", item_id, attempt)
            path.write_text(item, encoding="utf-8", errors="surrogateescape")
            variables["AGENTOS_ITEM_FILE"] = str(path)
        return variables

    def outcome_file(self, item_id: str, attempt: int) -> Path:
        """Where the command may say how it went."""
        return self._file("outcome", item_id, attempt)

    def remove_files(self, item_id: str, attempt: int) -> None:
        """The attempt is over: remove its files."""
        for kind in ("outcome", "item"):
            try:
                self._file(kind, item_id, attempt).unlink(missing_ok=True)
            except OSError:
                pass

    def _file(self, kind: str, item_id: str, attempt: int) -> Path:
        digest = hashlib.blake2b(item_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        return self._folder / f"{kind}-{digest}-{attempt}"
