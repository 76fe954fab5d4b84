"""A command as a worker: its arguments, environment and time limits."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from .template import Template

if TYPE_CHECKING:
    from ..agents.agent_protocol import AgentAdapter
    from ..agents.work_tree import WorkTrees
    from ..output.capture import OutputCapture
    from .attempt_access import AttemptAccess

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTERPRETER = re.compile(r"\w*sh|(?:python|pypy|node|ruby|perl|deno|bun)[\d.]*")
DEFAULT_ENV_KEY = "AGENTOS_CREDENTIAL"


@dataclass(frozen=True, slots=True)
class Command:
    """A worker that is a command, not a function: ``Command(["claude", "-p", "{}"], env_key="ANTHROPIC_API_KEY")``.

    In each element of *argv*, ``{}`` stands for the item, ``{id}``, ``{#}`` and ``{field}`` for its id, its number and
    its fields (see ``Template``); no shell is involved. The command gets the credential only in the environment
    variable ``env_key`` (or in one per credential, by name). With ``stdin`` it reads the item from its standard input,
    else nothing. A command that prints nothing for ``idle_timeout`` seconds is stopped like one that exceeds
    ``timeout``: its whole process group is asked to end, and killed after ``kill_after`` seconds. ``env`` is the
    environment of all commands (default: this process's own), ``without`` the names of variables to leave out of it;
    variables that hold a secret of the pool are always left out. ``run_id`` is the value of AGENTOS_RUN_ID. ``outputs``
    receives what the commands print. ``access`` gives each command a token in place of a key. ``agent`` and ``prompt``
    are set by ``Agent``, for a command that is an agent program: how it is started and read, and its prompt. Then
    ``after`` is a script that runs after its success, and ``trees`` gives each item a work tree.
    """

    argv: Sequence[str]
    _: KW_ONLY
    env_key: str | Mapping[str, str] = DEFAULT_ENV_KEY
    stdin: bool = False
    idle_timeout: float | None = None
    kill_after: float = 5.0
    cwd: str | None = None
    env: Mapping[str, str] | None = field(default=None, repr=False)
    without: Collection[str] = frozenset()
    run_id: str | None = None
    outputs: OutputCapture | None = field(default=None, compare=False, repr=False)
    agent: AgentAdapter | None = field(default=None, compare=False, repr=False)
    prompt: str = "{}"
    after: str | None = None
    trees: WorkTrees | None = None
    access: AttemptAccess | None = field(default=None, compare=False, repr=False)
    template: Template = field(init=False, compare=False, repr=False)
    after_template: Template | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        argv = self.argv
        if isinstance(argv, str) or not argv or not all(isinstance(each, str) for each in argv):
            raise ValueError("argv must be a list of words, such as ['claude', '-p', '{}']; no shell reads it")
        for variable in (self.env_key,) if isinstance(self.env_key, str) else self.env_key.values():
            if not _VARIABLE.fullmatch(variable):
                raise ValueError("env_key must be the name of an environment variable, such as OPENAI_API_KEY")
        if self.cwd is not None and not os.path.isdir(self.cwd):
            raise ValueError(f"cwd: there is no folder {self.cwd}")
        _seconds("kill_after", self.kill_after)
        if self.idle_timeout is not None:
            _seconds("idle_timeout", self.idle_timeout)
        object.__setattr__(self, "argv", tuple(argv))
        append = not self.stdin and self.agent is None
        object.__setattr__(self, "template", Template(argv, append=append))
        after = None if self.after is None else Template(["sh", "-c", self.after], append=False)
        object.__setattr__(self, "after_template", after)

    @property
    def name(self) -> str:
        """The worker's name, by which a journal recognises its results."""
        if self.agent is None:
            return f"$ {shlex.join(self.argv)}"
        return f"agent {shlex.join(self.argv)} < {self.prompt}"

    @property
    def label(self) -> str:
        """A short name for people: the program, or the script that a shell or an interpreter is given."""
        program, *others = map(os.path.basename, self.argv)
        is_script = bool(others) and _INTERPRETER.fullmatch(program) and not re.match(r"-|.*\{", self.argv[1])
        return others[0] if is_script else program

    def env_key_of(self, credential: str) -> str:
        """Return the name of the variable for that credential."""
        if isinstance(self.env_key, str):
            return self.env_key
        return self.env_key.get(credential, DEFAULT_ENV_KEY)


def _seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number of seconds above 0")
