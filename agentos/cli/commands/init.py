"""``agentos init``: write a commented configuration file with an entry for each API key in the environment."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Final

import typer

from ..config.files import FILE_NAME, current_folder, format_path
from ..config.run_options import RUN_OPTIONS, build_variable_name
from ..usage_error import UsageError

_ORDINARY: Final = re.compile(r"[A-Z0-9_]+")

_HEAD: Final = """\
# What agentos does unless told otherwise. Environment variables win over this file, and flags over both.
# No secret belongs in here: an entry says where its secret is.

[run]
# What is commented out here is an example, not always the default: see "agentos run --help".
"""

_CREDENTIALS: Final = """
# One [[credentials]] for each key. Where its secret is, one of:
#   env = "OPENAI_API_KEY"              an environment variable
#   file = "openai.key"                 a file that holds the secret alone; relative to this file
#   command = ["pass", "show", "acme"]  what a command prints (see below)
# What is known of it; all of this may be left out, and limits are then found out:
#   name = "alice"                      what it is called in displays and logs, and with --keys
#   quota = "acme"                      keys of one organisation share its limits: give them the same quota
#   slots = 4                           how many items may use it at once; "auto" finds out
#   rpm = 500                           requests a minute
#   tpm = 200_000                       tokens a minute
#   rpd = 10_000                        requests a day, from midnight UTC
#   provider = "openai"                 whose key it is, if neither its shape nor its variable tells
#   env_key = "OPENAI_API_KEY"          the variable in which a command finds it; ends in KEY, TOKEN or SECRET
#   disabled = true                     leave it out for now
# Only in your own configuration folder (~/.config/agentos/agentos.toml), or in a file named by --config, because an
# agentos.toml may come with a project of somebody else's: command, any env_key, paths outside of the folder, a store
# on a server, an engine that is not local, ship_secrets, and
#   base_url = "https://api.openai.com/v1"     where it belongs
#   hosts = ["api.openai.com"]                 the hosts it is for; a command is not held to it
#   extra_env = { OPENAI_ORG_ID = "org-1" }    variables that go with it
"""

_PROVIDER: Final = """\
provider = "{provider}"  # a run uses the keys of one provider: {groups}
"""

_EXAMPLE: Final = """
# [[credentials]]
# name = "alice"
# env = "OPENAI_API_KEY"
# rpm = 500
"""


def init(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="The file to write, or the folder to write agentos.toml in.", show_default=f"./{FILE_NAME}"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a commented agentos.toml, with an entry for each API key found in the environment, by its name only."""
    target = Path(FILE_NAME) if path is None else path
    if os.path.isdir(target):  # not Path.is_dir, which raises for a name that is too long
        target /= FILE_NAME
    cwd = current_folder()
    found = find_key_variables(os.environ)
    _write(target, build_contents(found), force=force)
    label = format_path(cwd / target, cwd)
    print(f"wrote {label}")
    for line in _next_steps(found, label, default=cwd / target == cwd / FILE_NAME):
        print(f"  {line}")


@dataclass(frozen=True, slots=True)
class FoundKey:
    """A variable that holds a key, its provider if known, and the earlier variable that has the same secret."""

    variable: str
    provider: str | None
    same_as: str | None


def find_key_variables(environ: Mapping[str, str]) -> list[FoundKey]:
    """Return the variables that hold keys of known providers, grouped by provider."""
    from ...pool.secret_sources import SecretUnavailable, find_variables, from_env
    from ...providers.key_owner import KEY_FORMS, PROVIDERS, find_key_provider

    found: dict[str, FoundKey] = {}
    secrets: dict[str, str] = {}
    for pattern in (f"{stem}_API_KEY*" for form in KEY_FORMS for stem in form.stems):
        for variable in find_variables(pattern, environ):
            if not _ORDINARY.fullmatch(variable) or variable in found:
                continue
            try:
                secret = from_env(variable, environ)
            except SecretUnavailable:
                continue
            provider = find_key_provider(secret, variable=variable)
            found[variable] = FoundKey(variable, provider, secrets.get(secret))
            secrets.setdefault(secret, variable)
    ranks = {provider: rank for rank, provider in enumerate(PROVIDERS)}
    return sorted(found.values(), key=lambda key: ranks.get(key.provider or "", len(ranks)))


def build_contents(found: Sequence[FoundKey]) -> str:
    """Return the text of the file, with an entry for each key of *found*."""
    from ...pool.secret_sources import derive_name

    text = [_HEAD]
    groups = _count_by_provider(found)
    width = max(len(f"{name} = {option.example}") for name, option in RUN_OPTIONS.items())
    for name, option in RUN_OPTIONS.items():
        if name == "provider" and len(groups) > 1:
            text.append(_PROVIDER.format(provider=_choose_provider(groups), groups=_format_groups(groups)))
        else:
            text.append(f"# {f'{name} = {option.example}':<{width}}  # {option.help} ({build_variable_name(name)})\n")
    text.append(_CREDENTIALS)
    for provider, keys in groupby(found, key=lambda key: key.provider):
        text.append(f"\n# -- {provider or 'unknown provider'} --\n")
        for key in keys:
            if key.same_as is not None:
                text.append(f"\n# {key.variable} holds the same secret as {key.same_as}.\n")
                continue
            text.append(f'\n[[credentials]]\nname = "{derive_name(key.variable)}"\nenv = "{key.variable}"\n')
            text.append("" if provider is None else f'provider = "{provider}"\n')
    if not found:
        text.append(_EXAMPLE)
    return "".join(text)


def _count_by_provider(found: Iterable[FoundKey]) -> dict[str, int]:
    return Counter(key.provider or "unknown" for key in found if key.same_as is None)


def _choose_provider(groups: Mapping[str, int]) -> str:
    """Return the known provider with the most keys; of several the first."""
    return max((name for name in groups if name != "unknown"), key=groups.__getitem__)


def _format_groups(groups: Mapping[str, int]) -> str:
    return ", ".join(f"{provider} ({count} key{'s' if count > 1 else ''})" for provider, count in groups.items())


def _next_steps(found: Sequence[FoundKey], label: str, *, default: bool) -> Iterable[str]:
    entries = [key.variable for key in found if key.same_as is None]
    if entries:
        yield f"it has {len(entries)} credential{'s' if len(entries) > 1 else ''}, by name: {', '.join(entries)}"
        groups = _count_by_provider(found)
        if len(groups) > 1:
            chosen = _choose_provider(groups)
            other = next(provider for provider in groups if provider != chosen)
            yield f"of several providers: {_format_groups(groups)}; a run uses those of one"
            yield f'now it is {chosen}: change provider = "{chosen}" under [run], or type --provider {other}'
        if len(entries) > 1:
            yield 'if some belong to one organisation, give them the same quota = "..."'
    else:
        yield "no API key was found in the environment: add a [[credentials]] for each of yours"
    config = "" if default else f" --config {label}"
    yield f"then: agentos keys{config}"
    yield f"      agentos run items.jsonl{config} -- your-command {{}}"


def _write(target: Path, text: str, *, force: bool) -> None:
    """Write the file atomically. An existing file is kept unless *force*."""
    if not force and os.path.lexists(target):
        raise _exists(target)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        try:
            with open(draft, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _put(draft, target, force=force)
        finally:
            draft.unlink(missing_ok=True)
    except FileExistsError:
        raise _exists(target) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise UsageError(f"{target} cannot be written: {reason}", "name another place: agentos init PATH") from None


def _put(draft: Path, target: Path, *, force: bool) -> None:
    if force:
        os.replace(draft, target)
        return
    try:
        os.link(draft, target)  # unlike a rename, it fails if the file was made in the meantime
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        if os.path.lexists(target):
            raise FileExistsError from None
        os.rename(draft, target)


def _exists(target: Path) -> UsageError:
    return UsageError(
        f"{target} is there already, and was left as it is", "write another: agentos init PATH; or --force"
    )
