"""Build the request of a run: flags over environment over files, checked and merged."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.files import Settings, load_settings
from ..config.run_options import HERE, RUN_OPTIONS, parse_flag
from ..usage_error import UsageError
from .agent_options import AgentChoice, AgentFlags, choose_agent
from .argv import ParsedArguments
from .find_run import BaseFolder

if TYPE_CHECKING:
    from datetime import datetime

    from ...runs.inputs import InputError, InputLocation, Items
    from ..config.key_selection import SelectedKey
    from ..config.slots_choice import SlotsChoice

_DEFAULTS: Mapping[str, Any] = {
    "tag": True,
    "group": False,
    "keep_order": False,
    "line_buffer": True,
    "progress": "auto",
    "store": "sqlite",
    "dir": ".agentos",
    "grace": 8.0,
    "kill_after": 5.0,
    "stdin": False,
    "no_wait": False,
    "no_item": False,
    "ship_secrets": False,
    "gateway": False,
}
_DEFAULT_PARALLEL = 3
_NO_KEYS = "none"  # run without credentials even if agentos.toml has some
_PATHS = ("dir", "results", "joblog", "report")
_PARK_AFTER = 600.0  # an agent that would wait longer for a key is ended, and its session resumed later


@dataclass(frozen=True, slots=True)
class Flags:
    """The typed flags. ``options`` can also be set by files and the environment; None means not typed."""

    typed: ParsedArguments
    items: tuple[str, ...]
    listed: str | None
    worker: str | None
    config: Path | None
    name: str | None
    retry_failed: bool
    fresh: bool
    new_command: bool
    force: bool
    dry_run: bool
    quiet: bool
    json: bool
    color: str
    verbose: bool
    options: Mapping[str, Any]
    trust: bool = False
    repeat: int | None = None
    allow_duplicates: bool = False
    agent: AgentFlags = AgentFlags()  # noqa: RUF009 - it is frozen
    notify: tuple[str, ...] = ()
    begun_pipe: int | None = None  # to the process that started this one with --detach


@dataclass(frozen=True, slots=True)
class RunRequest:
    """All parameters of a run. ``options`` has a value, perhaps None, for every name of ``RUN_OPTIONS``."""

    flags: Flags
    options: Mapping[str, Any]
    where: Mapping[str, str]  # where each option was set
    settings: Settings
    name: str
    base: BaseFolder
    items: Items
    source: Mapping[str, str]
    keys: tuple[SelectedKey, ...]
    deadline: datetime | None
    id_of: Callable[[Any], str]
    id_rules: int
    agent: AgentChoice | None = None

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.base.path / "runs" / self.name

    @property
    def command(self) -> tuple[str, ...] | None:
        """The command, or the agent with its options."""
        return self.agent.argv if self.agent is not None else self.flags.typed.command or None

    @property
    def total(self) -> int | None:
        """The number of items; None for standard input."""
        return len(self.items) if isinstance(self.items, Sized) else None

    def named_items(self) -> Iterator[tuple[str, Any]]:
        """Yield each item with its id."""
        ids = getattr(self.items, "ids", None)
        if ids is not None:
            return zip(ids, self.items, strict=True)
        return ((self.id_of(item), item) for item in self.items)

    @property
    def parallel(self) -> int:
        """How many items run at once: 3 by default. A typed number wins over ``max_parallel`` of a file."""
        given, most = self.options["parallel"], self.options["max_parallel"]
        if given is None and most is None and self.agent is not None and not self.keys:
            return 1  # a login is used by one agent at a time
        if given is None:
            return int(most or _DEFAULT_PARALLEL)
        typed = self.flags.options
        if most is None or (typed.get("parallel") is not None and typed.get("max_parallel") is None):
            return int(given)
        return int(min(given, most))

    @property
    def engine(self) -> str | None:
        """The cluster on which the items run; None for this machine."""
        given = self.options["engine"]
        return None if given in (None, HERE) else str(given)

    @property
    def warnings(self) -> list[str]:
        """Warnings to print before the run."""
        given = self.options["parallel"]
        warnings = list(self.settings.warnings)
        if given is not None and given > self.parallel:
            warnings.append(
                f"{given} at once ({self.where['parallel']}) is above max_parallel ({self.where['max_parallel']}): "
                f"{self.parallel} at once"
            )
        if self.where.get("store") == "--store" and not self.keys:
            warnings.append("--store has no effect without keys; give some with --keys")
        if self.where.get("provider") == "--provider" and not self.keys:
            warnings.append("--provider has no effect without keys; give some with --keys")
        if self.options["provider"] is None and not self.options["gateway"]:
            from ..config.provider_choice import find_mixed_warning

            mixed = find_mixed_warning((key.provider, str(key.credential.name)) for key in self.keys)
            warnings += [] if mixed is None else [mixed]
        return warnings

    @property
    def key_bound(self) -> str | None:
        """The line that says so if the keys, not the workers, bound how many items run at once."""
        from ..config.slots_choice import describe_key_bound

        if self.options["gateway"]:
            return None  # requests share the keys, and items do not wait for one
        most = self.parallel if self.total is None else min(self.parallel, self.total)
        slots = [key.credential.slots for key in self.keys]
        return describe_key_bound(self.parallel, most, slots, "calls" if self.command is None else "commands")

    def option(self, name: str) -> Any:
        """Return the value of an option, or its default, which may be None."""
        return self.options[name]


def build_request(flags: Flags, environ: Mapping[str, str] = os.environ) -> RunRequest:
    """Check and merge all settings. Raise ``UsageError`` before anything is written."""
    agent = choose_agent(flags.agent, flags.typed.command)
    command = flags.typed.command if agent is None else agent.identity
    if not command and flags.worker is None:
        raise UsageError(
            "there is nothing to run for the items",
            "put a command after --, as in: agentos run items.txt -- echo {}\n"
            "or name a Python function: agentos run items.jsonl --worker mymodule:myfunction",
        )
    if agent is not None and flags.worker is not None:
        raise UsageError("--worker and --agent were both given; a run has one of them")
    if command and flags.worker is not None:
        raise UsageError("--worker and a command after -- were both given; a run has one of them")
    settings = load_settings(flags.config, Path.cwd(), environ)
    options, where = _joined(flags, settings)
    _check_together(flags, options, where)
    if agent is not None:
        _set_agent_options(options, where)
    if flags.options.get("line_buffer"):
        options["group"] = options["keep_order"] = False  # typed, it wins over what a file says
    from ..config.store_url import find_passwords
    from .run_name import build_name, check_name

    typed = flags.options.get("keys") or []
    keys = []
    if options["keys"] != [_NO_KEYS]:
        keys = _load_keys(settings, typed, environ, options, where, _choose_slots(flags, settings, options))
    if agent is not None and not keys:
        options["gateway"] = False  # the program has a login of its own
    masked = _masking(keys, find_passwords(options["store"], environ))
    _refuse_typed_secrets(flags, masked)
    try:
        place = _locate_items(flags, options["format"])
        source = {"kind": place.kind, "name": shlex.join(place.words) if place.kind == "words" else place.name}
        if flags.name is not None:
            name = check_name(flags.name)
        else:
            name = build_name(command, flags.worker, source, options["id"])
        base = _base(options["dir"], flags, settings)
        id_rules = _find_id_rules(base, name, fresh=flags.fresh)
        items = _items(place, options, flags, id_rules)
    except UsageError as refusal:  # its message may quote the input
        raise UsageError(masked(refusal.message), refusal.hint, refusal.code) from None
    _check_reopen(flags, items)
    deadline = None
    if options["deadline"] is not None:
        from ..config.typed_durations import parse_deadline as read_deadline

        deadline = read_deadline(options["deadline"], option=where["deadline"])
    return RunRequest(
        flags=flags,
        options=options,
        where=where,
        settings=settings,
        name=name,
        base=base,
        items=items,
        source=source,
        keys=tuple(keys),
        deadline=deadline,
        id_of=_ids_without_secrets(items, masked),
        id_rules=id_rules,
        agent=agent,
    )


def _set_agent_options(options: dict[str, Any], where: Mapping[str, str]) -> None:
    """Set the defaults of a run with an agent, and refuse what it cannot have."""
    if options["engine"] not in (None, HERE):
        raise UsageError("--agent runs on this machine, where its sessions are; --engine runs the items on others")
    if options["stdin"]:
        raise UsageError(f"{where['stdin']}: an agent reads its prompt from standard input, and not the item as well")
    if "gateway" not in where:
        options["gateway"] = True
    if options["gateway"] and options["park_after"] is None:
        options["park_after"] = _PARK_AFTER


def _load_keys(
    settings: Settings,
    typed: list[str],
    environ: Mapping[str, str],
    options: dict[str, Any],
    where: Mapping[str, str],
    slots: SlotsChoice,
) -> list[SelectedKey]:
    """Return the keys of the run: those of one provider, or those that were named."""
    from ...providers.key_owner import ANY_PROVIDER
    from ..config.key_selection import load_credentials
    from ..config.provider_choice import require_one_provider

    if typed and where.get("provider") != "--provider":
        options["provider"] = None  # typed keys win over the provider of a file
    provider = options["provider"]
    only = None if provider == ANY_PROVIDER else provider
    keys = load_credentials(
        settings, typed, environ, provider=only, provider_from=where.get("provider", ""), slots=slots
    )
    if provider is None and options["keys"] is None and not options["gateway"]:
        require_one_provider((key.provider, str(key.credential.name)) for key in keys)
    return keys


def _choose_slots(flags: Flags, settings: Settings, options: Mapping[str, Any]) -> SlotsChoice:
    """Return what the run says of slots: for all keys by flag or environment, for those without a number by a file."""
    from ..config.slots_choice import SlotsChoice

    setting = settings.run.get("slots")
    of_file = flags.options.get("slots") is None and setting is not None and setting.folder is not None
    return SlotsChoice(
        for_all=None if of_file else options["slots"],
        otherwise=options["slots"] if of_file else None,
        makes_calls=flags.worker is not None or options["gateway"],
    )


def _check_reopen(flags: Flags, items: Items) -> None:
    reopen = flags.typed.reopen
    if reopen is None:
        return
    if flags.dry_run and reopen.changed:
        raise UsageError(
            "--dry-run does not show which items have changed", "agentos retry RUN -n shows the failed ones"
        )
    missing = set(reopen.ids) - set(getattr(items, "ids", ()))
    if missing:
        raise UsageError(f"the input has no item {min(missing)!r} any more")


def _base(path: str, flags: Flags, settings: Settings) -> BaseFolder:
    """Return the base folder. A path from a project's file, or the default, does not count as named by the user."""
    setting = settings.run.get("dir")
    if flags.options.get("dir") is not None or (setting is not None and setting.trusted):
        return BaseFolder(Path(path).absolute())
    return BaseFolder(
        Path(os.path.abspath(path)), Path.cwd() if setting is None or setting.folder is None else setting.folder
    )


def _masking(keys: Sequence[SelectedKey], passwords: Sequence[str]) -> Callable[[str], str]:
    if not keys and not passwords:
        return str
    from ...pool.redaction import Masker
    from ...runs.output.stream_redaction import Redaction

    return Redaction(Masker([*passwords, *(key.credential.secret.reveal() for key in keys)])).masked


def _refuse_typed_secrets(flags: Flags, masked: Callable[[str], str]) -> None:
    if any(masked(word) != word for word in flags.typed.all_arguments):
        raise UsageError(
            "what was typed contains the secret of a credential, or the store's password: every user of this machine "
            "can read it there",
            "leave it out: the command finds its credential in an environment variable (--env-key VAR)",
        )


def _ids_without_secrets(items: Items, masked: Callable[[str], str]) -> Callable[[Any], str]:
    """Return an id function without secrets in ids: they raise UsageError, or are hashed on standard input."""
    ids = getattr(items, "ids", None)
    if masked is str:
        return items.id_of
    if ids is not None:
        together = "\n".join(ids)
        if masked(together) != together:
            raise UsageError(
                "the id of an item holds the secret of a credential, or the store's password, and ids are shown "
                "everywhere",
                "take the secret out of the items, or name another field for their ids with --id FIELD",
            )
        return items.id_of

    def id_of(item: Any) -> str:
        found = items.id_of(item)
        if masked(found) == found:
            return found
        from hashlib import blake2b

        return f"item~{blake2b(found.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"

    return id_of


def _joined(flags: Flags, settings: Settings) -> tuple[dict[str, Any], dict[str, str]]:
    options: dict[str, Any] = {}
    where: dict[str, str] = {}
    for name in RUN_OPTIONS:
        typed = flags.options.get(name)
        setting = settings.run.get(name)
        if typed is not None:
            where[name] = flags.typed.spelling(name)
            options[name] = parse_flag(name, typed, where[name])
        elif setting is not None:
            options[name], where[name] = setting.value, setting.where
        else:
            options[name] = _DEFAULTS.get(name)
        if name in _PATHS and options[name] is not None:
            folder = setting.folder if typed is None and setting is not None and setting.folder is not None else Path()
            options[name] = str(folder / Path(options[name]).expanduser())
    return options, where


def _check_together(flags: Flags, options: Mapping[str, Any], where: Mapping[str, str]) -> None:
    if flags.color not in ("auto", "always", "never"):
        raise UsageError(f"--color must be auto, always or never, not {flags.color!r}")
    if flags.worker is not None:
        for name in ("idle_timeout", "stdin"):
            if options[name] and flags.options.get(name):
                raise UsageError(f"--{name.replace('_', '-')} is for commands; not for a Python function")
    if flags.options.get("ship_secrets") and options["engine"] in (None, HERE):
        raise UsageError(
            "--ship-secrets is for a cluster, and the items run on this machine", "name one: --engine WHERE"
        )
    for name in ("timeout", "idle_timeout", "kill_after"):
        if options[name] == 0:
            raise UsageError(f"{where[name]}: {name} must be above 0")
    from ...runs.options import parse_halt

    try:
        parse_halt(options["halt"])
    except ValueError as error:
        raise UsageError(f"{where['halt']}: {error}") from None


def _find_id_rules(base: BaseFolder, name: str, *, fresh: bool) -> int:
    """Return the version of the rules for ids: that of the run so far, which must recognise its own items."""
    from ...runs.inputs.item_ids import CURRENT_ID_RULES
    from ...runs.report.run_card import read_card

    card = None if fresh else read_card(base.path / "runs" / name)
    return CURRENT_ID_RULES if card is None else card.id_rules


def _locate_items(flags: Flags, named_format: str | None) -> InputLocation:
    """Return the location of the items."""
    from ...runs.inputs import InputError, locate_files, locate_input, split_words

    words, given = flags.typed.words, shlex.join(flags.items) if flags.items else None
    if flags.listed is not None:
        if words is not None:
            raise UsageError("items were given twice: by --items and after :::")
        words = tuple(split_words(flags.listed))
    if words is not None and given is not None:
        raise UsageError(f"items were given twice: {given} and the words after :::")
    if words is None and given is None:
        raise UsageError(
            "no items were given",
            "name a file, a glob or a folder, read standard input with -, or put words after :::, as in:\n"
            "agentos run -- echo {} ::: a b c",
        )
    try:
        if len(flags.items) > 1:
            return locate_files(flags.items, named_format=named_format is not None)
        return locate_input(flags.items[0] if flags.items else words or ())
    except InputError as error:
        raise _refused(error) from None


def _items(place: InputLocation, options: Mapping[str, Any], flags: Flags, id_rules: int) -> Items:
    from ...runs.inputs import InputError, open_items

    try:
        return open_items(
            place,
            id_field=options["id"],
            format=options["format"],
            repeat=flags.repeat,
            allow_duplicates=flags.allow_duplicates,
            id_rules=id_rules,
        )
    except InputError as error:
        raise _refused(error) from None


def _refused(error: InputError) -> UsageError:
    return UsageError(str(error), error.hint)
