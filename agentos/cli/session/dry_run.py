"""``agentos run --dry-run``: print the commands, the keys and a forecast."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import AgentOSError
from ...runs.journal.journal_files import locate_files
from ...runs.report.journal_access import query_rows
from ...runs.report.run_card import read_card
from ...util.durations import format_duration
from ..usage_error import UsageError
from .argv import split_arguments
from .find_run import list_runs, require_no_link
from .item_worker import build_command, find_missing_package_error, load_function
from .run_pool import build_pool, list_variables

if TYPE_CHECKING:
    from ...pool.protocols import PoolInterface
    from ...workflows.parallel import CredentialCoordinator
    from .request import RunRequest

_SHOWN_ON_A_TERMINAL = 20
_SUPPOSED_SECONDS = 10.0
_MOST_RUNS = 50  # that are looked at for the durations of items
_DURATIONS = "select duration from entries where kind = 'done' and duration is not null order by seq desc limit 1000"


def print_dry_run(request: RunRequest) -> None:
    """Print the dry run as text or JSON lines. Raise UsageError for what a run would refuse."""
    pool = build_pool(request, read_only=True)
    try:
        if build_command(request) is None:
            from ...runs.output.stream_redaction import Redaction

            inside = _runtime(pool)
            redactors = None if inside is None else Redaction(inside.masker, inside.get_secret).stream
            load_function(request, redactors, str if inside is None else inside.masked)
        _print_json(request, pool) if request.flags.json else _print(request, pool)
    finally:
        if pool is not None:
            pool.close()


def _runtime(pool: CredentialCoordinator | None) -> PoolInterface | None:
    from ...pool.protocols import runtime_of

    return None if pool is None else runtime_of(pool)


@dataclass(slots=True)
class _Counts:
    """Counts of items that would run, and of those that are done or failed already."""

    to_run: int = 0
    done: int = 0
    failed: int = 0
    not_chosen: int = 0

    @property
    def already(self) -> str:
        """A text on items that would not run; empty if all would."""
        of = self.to_run + self.done + self.failed + self.not_chosen
        parts = [f"{self.done} of {of} are done already"] if self.done else []
        if self.failed:
            parts.append(f"{self.failed} of {of} failed, and run again with --retry-failed")
        if self.not_chosen:
            parts.append(f"{self.not_chosen} of {of} were not named by --items")
        return ", ".join(parts)


def _commands(request: RunRequest, pool: CredentialCoordinator | None, counts: _Counts) -> Iterator[dict[str, Any]]:
    """Yield what would run, item by item, and count all items."""
    from ...runs.commands.template import Template, TemplateError, fill_text

    inside = _runtime(pool)
    reopen = request.flags.typed.reopen
    chosen = None if reopen is None else frozenset(reopen.ids)
    is_done, has_failed = _results(request)
    template = None if request.command is None else _template(request)
    for number, (item_id, item) in enumerate(request.named_items(), start=1):
        row: dict[str, Any] = {"id": item_id}
        if chosen is not None and item_id not in chosen:
            counts.not_chosen += 1
            continue
        if is_done(row["id"]):
            counts.done += 1
            continue
        if has_failed(row["id"]):
            counts.failed += 1
            continue
        counts.to_run += 1
        if isinstance(template, Template):
            try:
                argv = template.fill(item, row["id"], number)
                if request.agent is not None:
                    argv += ["<", fill_text(request.agent.prompt, item, row["id"], number)]
                row["command"] = argv if inside is None else [inside.masked(each) for each in argv]
            except TemplateError as error:
                row["error"] = str(error)
        yield row


def _results(request: RunRequest) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """Return two predicates on ids: whether an item is done, and whether it failed and would not run again."""
    from ...runs.report.item_states import build_end_check

    def of_none(_: str) -> bool:
        return False

    if request.flags.fresh or request.flags.typed.reopen is not None:
        return of_none, of_none
    require_no_link(request.base, request.folder)
    files = locate_files(request.folder)
    return build_end_check(files, "done"), of_none if request.flags.retry_failed else build_end_check(files, "failed")


def _template(request: RunRequest) -> object:
    from ...runs.commands.template import Template, TemplateError

    try:
        return Template(request.command or (), append=request.agent is None)
    except TemplateError as error:
        raise UsageError(str(error), error.hint) from None


def _on_one_line(text: str) -> str:
    """Return *text* without control sequences and line breaks."""
    if sys.stdout.isatty():
        from ...util.sanitize import make_printable

        return make_printable(text, tabs=False)
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _print_json(request: RunRequest, pool: CredentialCoordinator | None) -> None:
    counts = _Counts()
    for row in _commands(request, pool, counts):
        print(json.dumps(row))
    print(json.dumps(_summary(request, pool, counts)))


def _summary(request: RunRequest, pool: CredentialCoordinator | None, counts: _Counts) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "run": request.name,
        "folder": str(request.folder),
        "exists": request.folder.exists(),
        "items": counts.to_run,
        "done": counts.done,
        "failed": counts.failed,
        "engine": request.engine,
        "engine_is_installed": find_missing_package_error(request) is None,
        "keys": [],
    }
    if pool is not None:
        where = list_variables(request)
        summary["keys"] = [
            {"name": row.name, "quota": row.quota, "state": row.state, "why": row.why, "variable": where[row.name]}
            for row in pool.snapshot()
        ]
        duration, earlier = _find_duration(request)
        seconds = pool.forecast(counts.to_run, duration=duration, parallel=request.parallel).seconds
        summary |= {"item_seconds": duration, "item_seconds_of": earlier}
        summary["forecast_seconds"] = seconds if seconds < float("inf") else None
    return summary


def _print(request: RunRequest, pool: CredentialCoordinator | None) -> None:
    flags = request.flags
    most = _SHOWN_ON_A_TERMINAL if sys.stdout.isatty() else None
    counts = _Counts()
    for row in _commands(request, pool, counts):
        if most is None or counts.to_run <= most:
            what = row.get("error") or (shlex.join(row["command"]) if "command" in row else flags.worker)
            print(f"{_on_one_line(row['id'])}\t{_on_one_line(str(what))}")
    count = counts.to_run
    if most is not None and count > most:
        print(f"... and {count - most} more (all of them: {_again(request)} | cat)")
    lines = [f"dry run: {count} items, {request.parallel} at once; nothing was run"]
    state = "goes on with" if request.folder.exists() else "would be"
    if flags.fresh and request.folder.exists():
        state = "would start over, the old one being kept under another name:"
    lines.append(f"run      {state} {request.name} in {request.folder}")
    if counts.already:
        lines.append(f"         {counts.already}")
    if request.engine is not None:
        lines.append(f"engine   {request.engine}")
        if (refusal := find_missing_package_error(request)) is not None:
            lines.append(f"         {refusal.message}, which is not installed: {refusal.hint}")
    if pool is None:
        lines.append("keys     none: the items run without a credential")
    else:
        where = list_variables(request)
        for row_ in pool.snapshot():
            why = f" ({row_.why})" if row_.why else ""
            given = f", in ${where[row_.name]}" if request.command else ""
            lines.append(f"key      {row_.name}: {row_.state}{why}{given}")
        if count:
            lines.append(f"forecast {_forecast_text(request, pool, count)}")
    print(*lines, sep="\n", file=sys.stderr)


def _forecast_text(request: RunRequest, pool: CredentialCoordinator, count: int) -> str:
    duration, earlier = _find_duration(request)
    found = pool.forecast(count, duration=duration, parallel=request.parallel)
    source = "no earlier run says how long" if earlier is None else f"as in {earlier}"
    return f"if an item takes {format_duration(duration)} ({source}): " + str(found).replace("\n", "\n        ")


def _find_duration(request: RunRequest) -> tuple[float, str | None]:
    """Return how long an item takes, and the earlier run that says so: this one, or the newest of the same worker."""
    try:
        others = list_runs(request.base)[:_MOST_RUNS]
    except UsageError:
        others = []
    for folder in (request.folder, *others):
        if folder != request.folder and (folder.is_symlink() or not _has_same_worker(request, folder)):
            continue
        try:
            durations = [seconds for (seconds,) in query_rows(locate_files(folder), _DURATIONS)]
        except (AgentOSError, OSError):
            continue  # it has no journal, or one that cannot be read
        if durations:
            return sum(durations) / len(durations), folder.name
    return _SUPPOSED_SECONDS, None


def _has_same_worker(request: RunRequest, folder: Path) -> bool:
    card = read_card(folder)
    if card is None:
        return False
    typed = split_arguments(card.arguments)
    named = [each.removeprefix("--worker=") for each in typed.options]
    return typed.command == request.command if request.command else request.flags.worker in named


def _again(request: RunRequest) -> str:
    return "agentos run " + shlex.join(request.flags.typed.all_arguments)
