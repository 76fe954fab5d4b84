"""``agentos retry``: run again what failed, with the command that the run was started with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._errors import Refusal
from ._folders import DEFAULT_BASE, base_folder, find_run

if TYPE_CHECKING:
    from ..runs.reporting.card import RunCard


def retry(
    run: Annotated[str, typer.Argument(help="The run: its name, the beginning of it, or its folder.", metavar="RUN")],
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
) -> int:
    """Run the failed items of a run again, and those that are left: the command is the one it was started with."""
    from ..runs.reporting.card import read_card

    folder = Path(os.path.abspath(find_run(base_folder(dir), run)))
    card = read_card(folder)
    if card is None:
        raise Refusal(
            f"how {folder.name} was started is not recorded",
            f"{folder / 'run.json'} is missing or unreadable; a run started from Python goes on by the same call, "
            "with retry_failed=True",
        )
    if folder.parent.name != "runs":
        raise Refusal(
            f"{folder} is not where agentos keeps runs, so that no command would find it again",
            f"move it into a folder called runs, or go on by the same command: agentos run in {card.cwd}",
        )
    arguments = retry_arguments(card, folder)
    _check(card, folder, arguments)
    try:
        os.chdir(card.cwd)
    except OSError as error:
        raise Refusal(
            f"{folder.name} was started in {card.cwd}, and that folder cannot be entered: {error.strerror}",
            "restore it, or start the run anew from where its items are now",
        ) from None
    from .main import main

    return main(["run", *arguments])


def retry_arguments(card: RunCard, folder: Path) -> list[str]:
    """What to give ``agentos run``, in the folder the run was started in, so that it goes on with this very run.

    Name and place are said again where what was typed would lead to another run: the folder may have been renamed, as
    ``--fresh`` does, or moved. Of an option that is given twice, the last one counts.
    """
    from ._report import kept_arguments, options_end

    kept = kept_arguments(card.arguments)
    end = options_end(kept)
    more = ["--retry-failed"]
    if _value(kept[:end], "--name") != folder.name:
        more += ["--name", folder.name]
    base = folder.parent.parent
    if os.path.realpath(Path(card.cwd, _value(kept[:end], "--dir") or DEFAULT_BASE)) != os.path.realpath(base):
        more += ["--dir", str(base)]
    return [*kept[:end], *more, *kept[end:]]


def _check(card: RunCard, folder: Path, arguments: list[str]) -> None:
    import shlex

    from ..runs.journal.files import files_of
    from ..runs.reporting.standing import owner_of

    owner = owner_of(files_of(folder).lock)
    if owner is not None:
        raise Refusal(
            f"{folder.name} is still {owner}",
            "its failed items can be run again when it has ended; Ctrl-C there, or SIGTERM, ends it early",
        )
    if card.source_kind == "stdin":
        raise Refusal(
            f"the items of {folder.name} came from standard input, and are not kept",
            f"give them again: ... | agentos run {shlex.join(arguments)}",
        )


def _value(options: list[str], name: str) -> str | None:
    """What was typed for an option, the last time it was."""
    found = None
    for word, following in zip(options, [*options[1:], None], strict=False):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word.removeprefix(f"{name}=")
    return found
