"""``agentos results``: the results of a run, as a table, CSV or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ..completion import complete_run
from ..exit_codes import ExitCode
from ..session.find_run import base_folder, find_run, require_begun
from ..usage_error import UsageError

_IN_TABLE: Final = ("id", "outcome", "attempts", "key", "duration", "tokens")
_IN_HINT: Final = 10  # names
_TOGETHER: Final = 500  # rows that are aligned with each other


def results(
    run: Annotated[
        str | None,
        typer.Argument(
            help="The run: its name, the beginning of it, or its folder. Else the newest.",
            metavar="RUN",
            autocompletion=complete_run,
        ),
    ] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="A table for spreadsheets: UTF-8, a column for each field.")
    ] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="One JSON object a line, as in results.jsonl; the default in a pipe.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
    fields: Annotated[
        str | None,
        typer.Option(
            help="Only these, with commas between them: id, item, value, outcome, error, attempts, key, duration, "
            "tokens, usage, finished_at, ...; item.NAME and value.NAME are fields of items and values.",
            metavar="LIST",
        ),
    ] = None,
    requests: Annotated[
        bool,
        typer.Option(
            "--requests", help="Instead, each request of the run through the gateway, one JSON object a line."
        ),
    ] = False,
    dir: Annotated[  # noqa: A002 - it is the option's name
        str | None, typer.Option(help="The folder in which runs are kept: .agentos.", metavar="FOLDER")
    ] = None,
) -> int:
    """Print the result of every item that is done or failed, with the item beside its value.

    In the order of the input, or of their ends if that was standard input. On a terminal it is a table with shortened
    cells. It works during the run, and after a crash.
    """
    from ...runs.exports.result_fields import NAMES, find_unknown

    if csv + jsonl + json > 1:
        raise UsageError("--csv, --jsonl and --json were given together", "give one of them")
    chosen = None if fields is None else [field.strip() for field in fields.split(",") if field.strip()]
    if chosen is not None and (not chosen or find_unknown(chosen) is not None):
        unknown = find_unknown(chosen)
        what = "--fields names none" if unknown is None else f"a result has no field {unknown!r}"
        raise UsageError(what, f"there is: {', '.join(NAMES)}; item.NAME and value.NAME for fields of these")
    folder = find_run(base_folder(dir), run)
    require_begun(folder)
    if requests:
        if csv or json or fields is not None:
            raise UsageError("--requests prints JSON lines", "leave --csv, --json and --fields out")
        _print_requests(folder)
        return ExitCode.OK
    if chosen is not None:
        _require_there(folder, chosen)
    if csv:
        _print_csv(folder, chosen)
    elif json:
        _print_array(folder, chosen)
    elif jsonl or not sys.stdout.isatty():
        for line in _json_lines(folder, chosen):
            sys.stdout.write(f"{line}\n")
    else:
        _print_table(folder, chosen)
    return ExitCode.OK


def _print_requests(folder: Path) -> None:
    from ...runs.journal.journal_files import locate_files
    from ...runs.report.gateway_requests import request_lines

    for line in request_lines(locate_files(folder)):
        sys.stdout.write(f"{line}\n")


def _lines(folder: Path) -> Iterator[str]:
    from ...runs.exports.item_codec import LONGEST_IN_JOURNAL
    from ...runs.exports.result_line import result_lines
    from ...runs.journal.journal_files import locate_files

    return result_lines(locate_files(folder), LONGEST_IN_JOURNAL, as_listed=True)


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    import json

    return map(json.loads, _lines(folder))


def _json_lines(folder: Path, fields: list[str] | None) -> Iterator[str]:
    if fields is None:
        yield from _lines(folder)
        return
    import json

    for values in _select(folder, fields):
        yield json.dumps(dict(zip(fields, values, strict=True)))


def _require_there(folder: Path, fields: list[str]) -> None:
    """Raise UsageError for a path that no result has: it may be a typing error."""
    from ...runs.exports.result_fields import find_columns, find_missing

    missing = find_missing(_records(folder), fields)
    if missing is None:
        return
    beginning = f"{missing.partition('.')[0]}."
    names = [name for name in map(".".join, find_columns(_records(folder))) if name.startswith(beginning)]
    there = f"there is: {', '.join(names[:_IN_HINT])}{', ...' if len(names) > _IN_HINT else ''}"
    raise UsageError(f"no result has {missing}", there if names else "agentos results --jsonl shows what there is")


def _select(folder: Path, fields: list[str]) -> Iterator[list[Any]]:
    from ...runs.exports.result_fields import select_typed

    return ([select_typed(record, field) for field in fields] for record in _records(folder))


def _print_array(folder: Path, fields: list[str] | None) -> None:
    before = "[\n"
    for line in _json_lines(folder, fields):
        sys.stdout.write(before + line)
        before = ",\n"
    sys.stdout.write("[]\n" if before == "[\n" else "\n]\n")


def _print_csv(folder: Path, fields: list[str] | None) -> None:
    import csv

    from ...runs.exports.result_fields import find_columns, format_row, select

    rows: Iterable[list[Any]]
    if fields is None:
        columns = find_columns(_records(folder))
        names = [".".join(path) for path in columns]
        rows = ([select(record, path) for path in columns] for record in _records(folder))
    else:
        names, rows = fields, _select(folder, fields)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", errors="backslashreplace", newline="")  # whatever the locale is
    writer = csv.writer(sys.stdout, lineterminator="\r\n")
    writer.writerow(format_row(names, names))
    for row in rows:
        writer.writerow(format_row(names, row))


def _print_table(folder: Path, fields: list[str] | None) -> None:
    from ...runs.exports.result_fields import select
    from ..terminal.results_table import format_results, shown_item, shown_result

    rows: Iterable[list[Any]]
    if fields is None:
        names = [*_IN_TABLE, "item", "result"]
        rows = (
            [*(select(record, (name,)) for name in _IN_TABLE), shown_item(record), shown_result(record)]
            for record in _records(folder)
        )
    else:
        names, rows = fields, _select(folder, fields)
    for line in format_results(names, rows, _TOGETHER):
        print(line)
