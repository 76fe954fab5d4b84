"""The table of options for ``[run]`` in ``agentos.toml`` and for the environment, with their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...util.durations import LONGEST_DURATION
from ..usage_error import UsageError

PROGRESS: Final = ("auto", "bar", "plain", "json", "none")
FORMATS: Final = ("jsonl", "json", "csv", "tsv", "text")
# The tables of agentos.agents, which --help must not import.
PROGRAM_NAMES: Final = ("claude", "codex", "gemini", "opencode", "aider", "goose", "qwen", "openai", "anthropic")
AGENT_NAMES: Final = (*PROGRAM_NAMES[:7], "auto")

_LONGEST_SHOWN: Final = 16
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STORE: Final = re.compile(
    r"sqlite|memory|sqlite:///(?!:memory:$)[^?]+|(?:rediss?|valkeys?)://[^\s/]\S*|unix://\S+|env:[A-Za-z_][A-Za-z0-9_]*"
)
_WITH_PASSWORD: Final = re.compile(r"(?:rediss?|valkeys?|unix)://(?:[^/?#]*@|\S*password)", re.IGNORECASE)
_CLUSTER: Final = re.compile(r"(?:dask|tcp|tls)://[^\s/@?#]+:\d{1,5}")

HERE: Final = "local"  # the engine that needs no other machine
OURS: Final = "AGENTOS_"  # prefix of the variables that are set for an item
_DEFAULT: Final = "AGENTOS_CREDENTIAL"  # the variable of the key, by default


class BadValue(ValueError):
    """Says what a value must be: "must be a whole number of at least 1, not 0"."""


# A check gets the value and whether it is text of the environment; values of a file have a type.
Kind = Callable[[Any, bool], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of ``agentos run``: its check, an example as TOML, and its help."""

    kind: Kind
    example: str
    help: str
    variable: str = ""  # its environment variable, if not AGENTOS_ and its name


def shown(value: object) -> str:
    """Return a value as an error may show it: a long text may be a misplaced secret."""
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= _LONGEST_SHOWN and value.isprintable() else f"{len(value)} characters"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) or abs(value) < 10**_LONGEST_SHOWN else "a number so large"
    return "a table" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a date or time"


def unknown(name: str, table: str = "") -> str:
    """Return a message for an unknown key, without its name if that is as long as a secret."""
    short = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,19}", name) is not None
    return f"{table}{name} is not known" if short else "a key of this name is not known"


def whole(least: int) -> Kind:
    """Check for a whole number of at least *least*."""

    def check(value: Any, from_text: bool) -> int:
        if from_text and re.fullmatch(r"[0-9]{1,9}", value.strip()):
            value = int(value.strip())  # int() does not strip "\x1f" and the like
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 10**9:
            raise BadValue(f"must be a whole number of at least {least}, not {shown(value)}")
        return value

    return check


def flag(value: Any, from_text: bool) -> bool:
    """Check for a boolean."""
    if from_text and value.strip().lower() in (*_YES, *_NO):
        return value.strip().lower() in _YES
    if not isinstance(value, bool):
        raise BadValue(f"must be true or false, not {shown(value)}")
    return value


def text(value: Any, _from_text: bool = False) -> str:
    """Check for printable text."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise BadValue(f"must be text, not {shown(value)}" if value != "" else "must not be empty")
    return value


def one_of(words: tuple[str, ...]) -> Kind:
    """Check for one of some words."""

    def check(value: Any, _from_text: bool) -> str:
        if value not in words:
            raise BadValue(f"must be one of {', '.join(words)}, not {shown(value)}")
        return str(value)

    return check


def duration(value: Any, _from_text: bool) -> float:
    """Check for a duration: seconds, or ``"90s"``, ``"5m"``, ``"1h30m"``."""
    from .typed_durations import parse_duration

    problem = f'must be a time such as 30, "90s", "5m" or "1h30m", not {shown(value)}'
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise BadValue(problem)
    if not isinstance(value, str):
        if not 0 <= value <= LONGEST_DURATION:
            raise BadValue(problem)
        return float(value)
    try:
        return parse_duration(value)
    except UsageError:
        raise BadValue(problem) from None


def moment(value: Any, from_text: bool) -> str:
    """Check for a deadline: a duration or a time of day, resolved when the run starts."""
    if not isinstance(value, str):
        return f"{duration(value, from_text):g}"
    return text(value)


def variable(value: Any, _from_text: bool = False) -> str:
    """Check for the name of an environment variable."""
    if not isinstance(value, str) or not _VARIABLE.fullmatch(value):
        raise BadValue("must be the name of an environment variable, such as OPENAI_API_KEY")
    return value


def key_variable(value: Any, _from_text: bool = False) -> str:
    """Check for the name of an environment variable that may hold a secret."""
    name = variable(value)
    if name.startswith(OURS) and name != _DEFAULT:
        raise BadValue(f"must not begin with {OURS}: agentos sets such variables for each item")
    return name


def provider_name(value: Any, _from_text: bool = False) -> str:
    """Check for the name of a provider, or ``any``."""
    from ...providers.key_owner import ANY_PROVIDER, PROVIDERS

    found = value.strip().lower() if isinstance(value, str) else ""
    if found not in (*PROVIDERS, ANY_PROVIDER):
        raise BadValue(f"must be one of {', '.join(PROVIDERS)}, or {ANY_PROVIDER}, not {shown(value)}")
    return found


def halt_clause(value: Any, _from_text: bool = False) -> str:
    """Check for a ``--halt`` clause of GNU parallel."""
    from ...runs.options import parse_halt

    clause = text(value)
    try:
        parse_halt(clause)
    except ValueError:
        problem = f'must be never, or like "soon,fail=10%" or "now,fail=1", not {shown(clause)}'
        raise BadValue(problem) from None
    return clause


def store_place(value: Any, _from_text: bool = False) -> str:
    """Check for a store. A bad value is not shown: a URL may hold a password."""
    place = text(value)
    if not _STORE.fullmatch(place):
        raise BadValue(
            "must be sqlite, sqlite:///path, redis://host:port/db, env:NAME for a variable that has such a URL, "
            "or memory"
        )
    return place


def slots_number(value: Any, from_text: bool = False) -> int | str:
    """Check for a number of slots, or auto."""
    if value == "auto":
        return "auto"
    try:
        return int(whole(1)(value, from_text))
    except BadValue:
        raise BadValue(f'must be a whole number of at least 1, or "auto", not {shown(value)}') from None


def engine_place(value: Any, _from_text: bool = False) -> str:
    """Check for an engine. A bad value is not shown, as with a store."""
    place = text(value)
    if place != HERE and not (_CLUSTER.fullmatch(place) and 0 < int(place.rpartition(":")[2]) < 65_536):
        raise BadValue(f"must be dask://host:port (or tcp://, tls://), the address of a Dask scheduler, or {HERE}")
    return place


def find_exposure(name: str, value: Any) -> str | None:
    """Return why a value must not be where others can read it, as in a process list; None if it may."""
    if name != "store" or not _WITH_PASSWORD.match(value):
        return None
    return "holds a password, and others can read it there"


PASSWORDS_ELSEWHERE: Final = (
    "put the whole URL into an environment variable: AGENTOS_STORE, or another that you name with --store env:NAME"
)


def words(value: Any, from_text: bool) -> list[str]:
    """Check for several words: a list, or text with commas."""
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise BadValue(f"must be text, or a list of texts, not {shown(value)}")
    return [text(word.strip(), from_text) for word in found]


RUN_OPTIONS: Final[Mapping[str, Option]] = {
    "parallel": Option(whole(1), "3", "how many items run at once"),
    "max_parallel": Option(whole(1), "10", "the most that parallel may be"),
    "retries": Option(whole(0), "2", "how often an item with a transient failure is retried"),
    "timeout": Option(duration, '"10m"', "an item that runs longer is ended"),
    "idle_timeout": Option(duration, '"5m"', "an item that prints nothing for this long is ended"),
    "halt": Option(halt_clause, '"soon,fail=10%"', "when to stop the run early"),
    "deadline": Option(moment, '"07:00"', "when to stop: a time of day, or a duration from the start"),
    "grace": Option(duration, '"8s"', "how long running items may continue after a signal"),
    "kill_after": Option(duration, '"5s"', "time from SIGTERM to SIGKILL of a command"),
    "no_wait": Option(flag, "false", "end with exit code 75 instead of waiting for parked keys"),
    "keys": Option(words, '["env:OPENAI_API_KEY*"]', "which credentials to use; left out: all of this file"),
    "provider": Option(provider_name, '"openai"', "use the keys of this provider only; any: of all, mixed"),
    "slots": Option(slots_number, '"auto"', "how many items may use a key at once, if its entry does not say"),
    "env_key": Option(key_variable, '"OPENAI_API_KEY"', "the variable in which a command finds its credential"),
    "store": Option(store_place, '"sqlite"', "where the keys' state is: sqlite, sqlite:///path, redis://..., memory"),
    "engine": Option(engine_place, '"local"', "where the items run: local, or dask://host:port, a Dask scheduler"),
    "ship_secrets": Option(flag, "false", "send the secrets to a cluster; else workers find them by name"),
    "gateway": Option(flag, "false", "give commands a token of a local gateway; its requests share the keys"),
    "max_wait": Option(duration, '"1h"', "the longest wait of one request through the gateway; left out: no end"),
    "park_after": Option(duration, '"10m"', "a request is refused if its key opens only after this; left out: never"),
    "id": Option(text, '"id"', "the field of an item that is its id; left out: a hash of the item"),
    "format": Option(one_of(FORMATS), '"jsonl"', "how to read the items; left out: by the name of the file"),
    "stdin": Option(flag, "false", "give each command its item on standard input as well"),
    "tag": Option(flag, "true", "put [id] before each line of output"),
    "group": Option(flag, "false", "show the output of an item when it has ended"),
    "keep_order": Option(flag, "false", "show output in the order of the items"),
    "line_buffer": Option(flag, "true", "show output line by line"),
    "progress": Option(one_of(PROGRESS), '"auto"', "auto, bar, plain, json or none"),
    "results": Option(text, '"results.jsonl"', "also write the results to this file"),
    "no_item": Option(flag, "false", "leave the items out of the results, which have ids and values"),
    "joblog": Option(text, '"jobs.log"', "also write a table of what ran, as GNU parallel does"),
    "report": Option(text, '"report.html"', "at the end write the run as one HTML file to look at"),
    "dir": Option(text, '".agentos"', "the folder in which runs are kept", "AGENTOS_BASE_DIR"),
}


def build_variable_name(name: str) -> str:
    """Return the environment variable of this option."""
    return RUN_OPTIONS[name].variable or f"AGENTOS_{name.upper()}"


def parse_flag(name: str, given: Any, spelling: str = "") -> Any:
    """Return the checked value of a typed option. Raise UsageError, which names the flag as it was typed."""
    try:
        value = RUN_OPTIONS[name].kind(given, isinstance(given, str))
    except BadValue as error:
        raise UsageError(f"{spelling or '--' + name.replace('_', '-')} {error}") from None
    problem = find_exposure(name, value)
    if problem is not None:
        raise UsageError(f"--{name} {problem}", PASSWORDS_ELSEWHERE)
    return value
