"""Looking for secrets where they must not be: any eight characters of one in a row are a find."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path

PIECE = 8


def found(secrets: Iterable[str], places: Mapping[str, str]) -> list[str]:
    """The places in which a piece of a secret is, or of its base64."""
    finds = []
    for secret in secrets:
        forms = [secret, *(base64.b64encode(b"x" * shift + secret.encode()).decode()[4:-4] for shift in range(3))]
        for place, text in places.items():
            if any(form[at : at + PIECE] in text for form in forms for at in range(len(form) - PIECE + 1)):
                finds.append(place)
    return finds


def process_arguments() -> dict[str, str]:
    """The command lines of all processes of this machine."""
    told = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            told[f"the arguments of process {path.parent.name}"] = path.read_text(errors="replace")
        except OSError:
            continue  # it has ended
    return told


def files(folder: Path) -> dict[str, str]:
    """All files below *folder*, as text."""
    return {str(path): path.read_bytes().decode("utf-8", "replace") for path in folder.rglob("*") if path.is_file()}
