"""Program: the table of one agent program, which says how it is pointed at a provider's address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .reading import EventReader


@dataclass(frozen=True, slots=True)
class SettingsFolder:
    """A folder of settings that a program needs, because no variable or flag sets the same.

    *variable* names the folder that the program takes for its home; in it, *folder* is the program's own and *file* the
    settings. ``write_settings`` makes it from the user's, with *values* in place of the same settings there. The
    entries in *private* stay behind: logins, which must not reach an agent, and sessions.
    """

    variable: str
    folder: str
    file: str
    values: Mapping[str, Any]
    private: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """How one program is pointed at an address. In its texts ``{url}`` and ``{token}`` stand for address and token.

    The address is that of the gateway itself, ``http://127.0.0.1:PORT``; each table adds the path that its program
    expects. ``patience`` has the variables that raise the program's own timeouts, so that it waits for a key as long as
    the gateway does. ``unset`` are variables that would make it ignore the others. ``traps`` are for people. What is
    stated of its requests was recorded from the program itself (tests/agents/recorded). ``start`` and ``resume`` are
    for a program that reads its prompt from standard input, where nothing in it can be taken for an option.
    """

    name: str
    executables: tuple[str, ...]
    provider: str  # the dialect that it speaks unless it is configured otherwise
    variables: Mapping[str, str] = field(default_factory=dict)
    patience: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # inserted after the program's name
    settings: SettingsFolder | None = None
    unset: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()
    user_agents: tuple[str, ...] = ()  # how the User-Agent of its requests begins
    session_headers: tuple[str, ...] = ()  # headers of its requests that name its session
    repeats_429: bool = False  # it comes again after a 429 even if it is told not to
    leaves_after: float | None = None  # seconds without an answer's headers, with its patience; None: it stays
    start: tuple[str, ...] = ()  # the words that begin a session without a person; ``{options}``: the user's own
    resume: tuple[str, ...] = ()  # the words that resume one; empty: it cannot
    picks_session: bool = False  # ``{session}`` of a new one is chosen by us
    key_variables: Mapping[str, str] = field(default_factory=dict)  # where it finds a key, by provider
    key_reference: str | None = None  # how its settings name a variable, here NAME, that has the key
    reader: type[EventReader] | None = None
    own_words: Mapping[str, int] = field(default_factory=dict)  # words that ``start`` stands for: values after each
    prompt_words: tuple[str, ...] = ()  # of them, those that a prompt may follow, as in ``--prompt=TEXT``
    headless: tuple[str, ...] = ()  # words of which a command without a person has one

    def environment(self, base_url: str, token: str) -> dict[str, str]:
        """Return the variables that the program needs to use that address with that token."""
        given = {**self.variables, **self.patience}
        return {name: _fill(text, base_url, token) for name, text in given.items()}

    def arguments(self, base_url: str, token: str) -> list[str]:
        """Return the arguments that follow the program's name, for a program that is configured by flags."""
        return [_fill(text, base_url, token) for text in self.flags]

    def recognises(self, argv0: str) -> bool:
        """True if the first word of a command is this program."""
        return os.path.basename(argv0) in self.executables


def _fill(text: str, base_url: str, token: str) -> str:
    return text.replace("{url}", base_url.rstrip("/")).replace("{token}", token)
