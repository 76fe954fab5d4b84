"""``agentos retry``: run items of a run again, with its original command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..completion import complete_run
from ..session.argv import Reopen, find_option_value
from ..session.find_run import DEFAULT_BASE, BaseFolder, base_folder, find_run, open_folder
from ..session.typed_options import RetryOptions
from ..terminal.report_text import kept_arguments, options_end
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...runs.report.run_card import RunCard

_COUNTED: Final = 1_000  # ids with the same beginning; more are many
_IN_HINT: Final = 5


def retry(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            help="The run: its name, the beginning of it, or its folder.", metavar="RUN", autocompletion=complete_run
        ),
    ],
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--items", help="Run only these items, also if they are done: --items ID ID ..., or ID,ID.", metavar="ID..."
        ),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Run only the items whose content has changed since they ran.")
    ] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
    trust: Annotated[
        bool,
        typer.Option(
            "--trust",
            help="Continue, this once, in a run folder that is not known to be yours. See agentos trust.",
        ),
    ] = False,
) -> int:
    """Run the failed and the remaining items of a run again, with the command it was started with.

    Options of agentos run replace those that it was started with: agentos retry RUN -j 20 --timeout 10m. Done items run
    again with --items or --changed; what they returned before stays in the journal.
    """
    base = base_folder(dir)
    found = find_run(base, run)
    named = found.parent.parent != base.path  # given as a path
    folder = Path(os.path.realpath(found) if named else os.path.abspath(found))
    card = _read_card(None if named else base, folder, trust=trust)
    if card is None:
        raise UsageError(
            f"how {folder.name} was started is not recorded",
            f"{folder / 'run.json'} is missing or unreadable; a run started from Python continues with the same call, "
            "with retry_failed=True",
        )
    if folder.parent.name != "runs":
        raise UsageError(
            f"{folder} is not where agentos keeps runs, so no command would find it again",
            f"move it into a folder called runs, or run the same command again: agentos run in {card.cwd}",
        )
    reopen = Reopen(_find_items(folder, items or []), changed) if items or changed else None
    arguments = retry_arguments(card, folder, () if reopen else ("--retry-failed",))
    _check(card, folder, arguments)
    try:
        os.chdir(card.cwd)
    except OSError as error:
        raise UsageError(
            f"{folder.name} was started in {card.cwd}, and that folder cannot be entered: {error.strerror}",
            "restore it, or start a new run where its items are now",
        ) from None
    from ..main import main

    end = options_end(arguments)
    typed: RetryOptions | None = context.obj
    options = arguments[:end] if typed is None else typed.replace_in(arguments[:end])
    again = ["run", *options, *(["--trust"] if trust else []), *arguments[end:]]
    return main(again) if reopen is None else main(again, reopen)


def _find_items(folder: Path, typed: list[str]) -> tuple[str, ...]:
    """Return the ids that were typed, each as a whole or as its beginning, also with commas between them."""
    from ...runs.journal.journal_files import locate_files
    from ...runs.report.item_states import find_ids

    files = locate_files(folder)
    found = []
    for beginning in (part for word in typed for part in _parted(word, lambda part: find_ids(files, part, 1))):
        ids = find_ids(files, beginning, _COUNTED)
        if len(ids) != 1:
            some = f"{', '.join(ids[:_IN_HINT])}{', ...' if len(ids) > _IN_HINT else ''}"
            hint = f"which one: {some}?" if ids else f"agentos show {folder.name} --items lists them"
            count = "many" if len(ids) == _COUNTED else len(ids) or "no"
            raise UsageError(f"{count} items of {folder.name} begin with {beginning!r}", hint)
        found += ids
    return tuple(dict.fromkeys(found))


def _parted(word: str, find: Callable[[str], list[str]]) -> list[str]:
    """Return the ids in *word*; an id may itself contain a comma."""
    return [word] if "," not in word or find(word) else [part.strip() for part in word.split(",") if part.strip()]


def _read_card(base: BaseFolder | None, folder: Path, *, trust: bool) -> RunCard | None:
    """Return how the run was started, or None if that is not recorded. *base* is None for a run given as a path.

    Raise ``UsageError`` unless the folder is known or trusted: the command recorded in it can be anything.
    """
    from ...runs.report.run_card import CARD_NAME, MAX_CARD_SIZE, parse_card
    from ...util.private_folder import PrivateFolder, UnsafePath
    from ..config.trusted_runs import TrustedRuns
    from ..session.run_folder import accept_any, build_error, require_known

    memory = TrustedRuns()
    accept = accept_any if trust else memory.accepts
    try:
        runs = PrivateFolder.at(folder.parent, accept=accept) if base is None else open_folder(base, ["runs"], accept)
        with runs, runs.enter(folder.name) as opened:
            content = opened.read(CARD_NAME, MAX_CARD_SIZE)
            if not trust:
                require_known(opened, memory)
            return parse_card(content)
    except UnsafePath as unsafe:
        raise build_error(unsafe, folder) from None
    except OSError:
        return None


def retry_arguments(card: RunCard, folder: Path, more: Sequence[str] = ("--retry-failed",)) -> list[str]:
    """Return the arguments of ``agentos run``, in the folder the run was started in, that continue this run.

    ``--name`` and ``--dir`` are added where the original arguments would lead to another run: the folder may have been
    renamed, as ``--fresh`` does, or moved. Of an option that is given twice, the last one counts.
    """
    kept = kept_arguments(card.arguments)
    end = options_end(kept)
    more = list(more)
    if find_option_value(kept[:end], "--name") != folder.name:
        more += ["--name", folder.name]
    base = folder.parent.parent
    if os.path.realpath(Path(card.cwd, find_option_value(kept[:end], "--dir") or DEFAULT_BASE)) != os.path.realpath(
        base
    ):
        more += ["--dir", str(base)]
    return [*kept[:end], *more, *kept[end:]]


def _check(card: RunCard, folder: Path, arguments: list[str]) -> None:
    from ...runs.journal.journal_files import locate_files
    from ...runs.report.status import find_owner

    owner = find_owner(locate_files(folder).lock)
    if owner is not None:
        raise UsageError(
            f"{folder.name} is still {owner}",
            "its failed items can be run again when it has ended; Ctrl-C there, or SIGTERM, ends it early",
        )
    if card.source_kind == "stdin":
        raise UsageError(
            f"the items of {folder.name} came from standard input, which cannot be read again",
            f"give them again: ... | agentos run {shlex.join(arguments)}",
        )
