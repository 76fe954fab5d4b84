"""The protocol by which a run knows an agent program: how it is started, resumed and read.

The run gets an object of this kind with its command, and never imports one; ``agentos.agents`` has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ...costs.usage import Usage


class Ending(StrEnum):
    """How an agent's work on an item ended."""

    DONE = "done"
    LIMITED = "rate-limited"
    PARKED = "parked"  # a usage limit with a reset
    SPENT = "out of credit"
    REJECTED = "key rejected"
    OVERLOADED = "provider overloaded"
    CONTEXT = "context too long"
    STOPPED = "turn or budget limit"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What a program's own structured output says; nothing in it is read from prose or from what the model wrote."""

    ending: Ending | None = None  # None: the program did not say
    reason: str = ""  # the program's own words, for people
    until: float | None = None  # when a limit ends, by the wall clock
    answer: str | None = None
    session: str | None = None
    turns: int | None = None
    usage: Usage | None = None
    usage_is_total: bool = False  # usage, cost and turns are those of the whole session, not of this process
    cost: float | None = None  # in US dollars, as the program reckons it
    model: str | None = None
    resume_refused: bool = False  # the session that it was to resume is not there


class AgentReader(Protocol):
    """Reads the standard output of one process of the program, line by line."""

    @property
    def session(self) -> str | None:
        """The session, as soon as the program has named it."""
        ...

    def feed(self, line: str) -> Sequence[str]:
        """Read one line, and return what to show of it: a few short lines, or none."""
        ...

    def finish(self, code: int | None) -> AgentReport:
        """Return the report after the end of the process. *code* is its exit code, negative for a signal."""
        ...


@dataclass(frozen=True, slots=True)
class AgentKey:
    """The key that a process gets: its provider and address, where they are known; never its secret."""

    provider: str | None
    base_url: str | None


@dataclass(frozen=True, slots=True)
class AgentStart:
    """One process to start: its arguments, what it reads from standard input, and its variables."""

    argv: tuple[str, ...]
    stdin: str | None
    variables: Mapping[str, str]
    secret_variable: str | None  # in which it finds the secret of its key


class AgentAdapter(Protocol):
    """One program, with the options of its commands."""

    name: str
    resume_prompt: str
    most_resumes: int  # of one session; 0: none is resumed

    def new_session(self) -> str | None:
        """Return the id of a session to begin; None if the program chooses ids itself."""
        ...

    def build_start(
        self,
        words: Sequence[str],
        prompt: str,
        session: str | None,
        *,
        resume: bool,
        key: AgentKey | None,
        environ: Mapping[str, str],
    ) -> AgentStart:
        """Build the process that begins *session*, or resumes it. *words* are the program and the user's options."""
        ...

    def open_reader(self, environ: Mapping[str, str], resumed: str | None) -> AgentReader:
        """Return the reader for one process with that environment. *resumed* is the session that it resumes."""
        ...
