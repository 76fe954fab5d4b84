"""``agentos keys``: print the state of each key from the store; and ``agentos keys clear NAME``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from ..completion import complete_key, complete_keys
from ..config.files import Settings, current_folder, load_settings
from ..config.run_options import parse_flag
from ..usage_error import UsageError

if TYPE_CHECKING:
    from ...pool.requests import KeySpec
    from ...stores.dump import CredentialRow
    from ...stores.redis.url import RedisLocation
    from ...util.clock import Clock

T = TypeVar("T")

app = typer.Typer(help="Show each key: its state, until when, why; and the limits in force. Works during runs.")

_StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Where the state of the keys is kept: sqlite (your own file), sqlite:///path, redis://host:port/db, or "
        "env:NAME for a variable that has such a URL.",
    ),
]
_ConfigOption = Annotated[Path | None, typer.Option(help="Read this file instead of ./agentos.toml.", metavar="FILE")]


@dataclass(frozen=True, slots=True)
class _KeyOptions:
    """The parsed options of both commands."""

    settings: Settings
    place: Path | RedisLocation
    label: str  # the location in messages
    specs: list[KeySpec]
    secrets: dict[str, str] = field(repr=False)  # by name, those that are available here


@app.callback(invoke_without_command=True)
def keys(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each key.")] = False,
    all: Annotated[  # noqa: A002 - it is the option's name
        bool, typer.Option("--all", help="Also keys that are in the store but not in agentos.toml.")
    ] = False,
    store: _StoreOption = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these: names, env:NAME, 'env:NAME*' or a file, as for agentos run.",
            metavar="SOURCE",
            autocompletion=complete_keys,
        ),
    ] = None,
    config: _ConfigOption = None,
    color: Annotated[str, typer.Option(help="auto, always or never.", metavar="WHEN")] = "auto",
) -> None:
    """Show each key: its state, until when and why. Works during runs, and needs no secret.

    Of each quota it shows the limits in force: what is left of them, whether they are stated, reported by the provider
    or estimated, and how sure that is.
    """
    context.obj = (store, config)
    if context.invoked_subcommand is not None:
        return
    from ...stores.admin import read_pause
    from ..terminal.key_table import build_rows, mark_paused, print_keys

    options = _parse_options(store, config, keys or [])
    seen = _read_store(options, options.secrets)
    rows, more = build_rows(
        seen or [], options.specs, _disabled(options, keys or []), everything=all or not options.specs
    )
    pause = _query_store(lambda clock: read_pause(options.place, clock))
    if pause is not None:
        rows = mark_paused(rows, pause, time.time())
    if json:
        import json as encoder

        for row in rows:
            print(encoder.dumps(row.as_json(), ensure_ascii=False))
        return
    from ..terminal.color import use_color

    missing = None if seen is not None else options.label
    print_keys(rows, more, missing, pause=pause, coloured=use_color(sys.stdout, os.environ, color))


@app.command()
def clear(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(help="The keys, by name.", metavar="NAME...", show_default=False, autocompletion=complete_key),
    ],
    store: _StoreOption = None,
    config: _ConfigOption = None,
) -> None:
    """Forget that a key is dead, cooling, parked or out of money, and what was learned of its limits.

    Use it after a bill was paid or a key was restored. Active runs notice it. The state of a quota is reset for all
    keys that share it.
    """
    outer_store, outer_config = context.obj or (None, None)
    options = _parse_options(store or outer_store, config or outer_config, [])
    seen = _read_store(options, {})  # every secret of a name is cleared
    if seen is None:
        raise UsageError(f"no run has used a store at {options.label} yet: there is nothing to clear", _OTHER_STORE)
    known = {each.state.name for each in seen}
    for name in names:
        if name not in known:
            raise UsageError(f"the store at {options.label} has no such key", _hint(name, known))
    from ...stores.admin import reset_credentials as forget

    done = _query_store(lambda clock: forget(options.place, names, options.specs, clock))
    shared = {spec.name: spec.quota for spec in options.specs}
    for each in done:
        quota = shared.get(each.name)
        others = [name for name, its in shared.items() if quota is not None and its == quota and name != each.name]
        too = f", and the quota it shares with {', '.join(others)}" if others else ""
        print(f"cleared {each.name}{too}")
        if each.quota is None:
            print(
                f"  which quota {each.name} belongs to is not known here, so limits and coolings stay: "
                "state it in agentos.toml, and clear it again",
                file=sys.stderr,
            )


# -- what is asked ----------------------------------------------------------------------------------------------------

_OTHER_STORE: Final = "if runs use another, name it with --store"


def _parse_options(store: str | None, config: Path | None, keys: list[str]) -> _KeyOptions:
    from ...pool.secret_sources import derive_name
    from ...stores.admin import format_location
    from ...stores.sqlite.location import parse_location
    from ..config.key_selection import build_specs
    from ..config.store_url import resolve_address

    environ = os.environ
    settings = load_settings(config, current_folder(), environ)
    for warning in settings.warnings:
        print(f"agentos: {warning}", file=sys.stderr)
    store_text, where = (parse_flag("store", store), "--store") if store else _find_configured_store(settings)
    try:
        place = parse_location(resolve_address(store_text, environ, where=where), environ)
    except ValueError as error:
        raise UsageError(f"{where} {str(error).removeprefix('store ')}") from None
    if place is None:
        raise UsageError(
            "a store in memory belongs to its run, and no other process can read it",
            "use --store sqlite, the default of runs",
        )
    specs, secrets = build_specs(settings, keys, environ)
    if not specs:  # the names in the store may be those of variables
        secrets = {
            derive_name(variable): value.strip() for variable, value in environ.items() if value.strip().isprintable()
        }
    return _KeyOptions(settings, place, format_location(place), specs, secrets)


def _find_configured_store(settings: Settings) -> tuple[str, str]:
    """Return the store of the configuration, and where it is set."""
    setting = settings.run.get("store")
    return ("sqlite", "store") if setting is None else (setting.value, setting.where)


def _read_store(options: _KeyOptions, secrets: dict[str, str]) -> list[CredentialRow] | None:
    from ...stores.admin import read_store

    return _query_store(lambda clock: read_store(options.place, options.specs, clock, secrets))


def _query_store(read: Callable[[Clock], T]) -> T:
    """Return the result of *read*. Raise UsageError if the store cannot be read."""
    from ...errors import StoreError
    from ...util.clock import SystemClock
    from ..config.store_url import build_missing_package_error, build_store_error

    try:
        return read(SystemClock())
    except StoreError as error:
        raise build_store_error(error, _OTHER_STORE) from None
    except ImportError as error:
        raise build_missing_package_error(error) from None


def _disabled(options: _KeyOptions, keys: list[str]) -> list[str]:
    return [] if keys else [entry.name for entry in options.settings.credentials if entry.disabled]


def _hint(name: str, known: set[str]) -> str:
    near = get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]}?"
    return f"it has {', '.join(sorted(known)[:20])}" if known else _OTHER_STORE
