"""Plant something hostile at the path of one of our files: each function takes that path and a file to protect."""

from __future__ import annotations

import os
from pathlib import Path


def a_link(path: Path, precious: Path) -> None:
    path.symlink_to(precious)


def a_link_to_nothing(path: Path, precious: Path) -> None:
    path.symlink_to(precious.with_name("new"))


def a_second_name(path: Path, precious: Path) -> None:
    os.link(precious, path)


def a_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path, _: Path) -> None:
    path.mkdir()
