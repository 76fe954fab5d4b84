"""Random shell scripts with placeholders anywhere, and a way to run them that detects injected code.

They have every builtin and operator in them, and none passes an item on by itself: what a script does with a variable
that it set is its own affair.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentos.runs.commands.shell_tables import BUILTINS
from agentos.runs.commands.template import Template, TemplateError

# Not run: they stop or replace the process, or wait for a terminal.
_LEFT_OUT = {"suspend", "stop", "login", "logout", "bye", "vared", "zpty", "ztcp", "zsocket", "kill"}
_KEYWORDS = {"!", "{", "}", "[[", "]]", "case", "do", "done", "elif", "else", "end", "esac", "fi", "for", "foreach",
             "function", "if", "in", "repeat", "select", "then", "until", "while", "always", "namespace"}  # fmt: skip
_BUILTINS = [*sorted(BUILTINS - _LEFT_OUT - _KEYWORDS - {".", "source"}), ". ./none", ". {}", "source {}"]
_PROGRAMS = [
    "true", "cat", "ls", "basename", "env", "nice", "timeout 1", "sed", "awk", "sh ./none", "bash {}", "sh -c",
    "bash -c", "python ./none", "python {}", "env -S", "xargs echo", "xargs {}", "find .", "/bin/echo", "./none",
    "nohup true", "ssh", "make", "env -i", "env -u", "env --unset", "nice -n", "timeout -k1s", "timeout --signal KILL",
    "xargs -i", "stdbuf -o", "setsid", "unshare", "chroot /",
]  # fmt: skip
_COMMON = ["echo", "printf '%s\\n'", "printf", "cd", ":", "test", "[", "cat", "true", "basename", "ls -d", "env", "x.y"]
_VARIABLES = [
    "v1", "v2", "V3", "PATH", "IFS", "PS4", "OPTIND", "RANDOM", "SECONDS", "COLUMNS", "ENV", "BASH_ENV", "path",
    "LINENO", "UID", "HISTSIZE", "TMOUT", "_", "PROMPT_COMMAND", "a[0]", "a[{}]", "v1+", "LD_PRELOAD",
]  # fmt: skip
_WORDS = [
    "a", "b.c", "-n", "-e", "-c", "-v", "-a", "-p", "-f", "-i", "-A", "-u", "--", "-eq", "=", "!=", "-o", "-lt", "!",
    "]", "1", "'q r'", '"d q"', "$HOME", '"$HOME"', "${HOME}", "${x:-y}", "$1", '"$@"', "$#", "$((1+2))", "$(echo s)",
    "`echo b`", "x=1", "eval", "echo", "alias", "echo=eval", "%s", "%d", "'%s'", "\\;", "a\\ b", "~", "[a]", "x*",
    "{1..2}", "{a,b}", "<(true)", "$'a\\tb'", "=", "EXIT", "DEBUG", "2>&1", "'eval \"$1\"'", "./none",
]  # fmt: skip
_HOLES = [
    "{}", "{}", "{}", '"{}"', "'{}'", 'p"{}"', "{}.txt", "x={}", "-{}", "$HOME{}", '"a {} b"', "'it {}'", "a[{}]",
    "$(echo {})", '"$(echo {})"', '"$(basename "{}")"', "${x:-{}}", "$(({}))", "`echo {}`", "\\{}", "{a,{}}",
    "$x[{}]", "<(echo {})", "$'{}'", "~{}", "={}", "{}[1]", "$({})", "%{}", "*{}", "{}{}", "'%s'{}", "${{}}", "@({})",
]  # fmt: skip
_MILD_WORDS = [
    "a",
    "b.c",
    "-n",
    "'q r'",
    '"d q"',
    '"$HOME"',
    "$HOME",
    "${HOME}",
    "$((1+2))",
    "x=1",
    "2>&1",
    "> o",
    "$(echo s)",
]
_MILD_HOLES = [
    "{}",
    "{}",
    '"{}"',
    "'{}'",
    'p"{}"',
    "{}.txt",
    "x={}",
    "$HOME{}",
    '"a {} b"',
    "$(echo {})",
    '"$(basename "{}")"',
]
_JOINS = [
    "; ",
    "; ",
    "\n",
    " && ",
    " || ",
    " | ",
    " & ",
    " |& ",
    "\n\n",
    " # c\n",
    " # it's\n",
    ";\\\n ",
    " &! ",
    ";; ",
]
_REDIRECTIONS = [
    "> o", ">> o", "2> o", "< /dev/null", "> {}", "< {}", ">| {}", "&> {}", "2>&1", "<<< {}", "<<< a", ">& {}",
    "<> o", "> o{}", "&> o", ">! o", "<1-2> o", "<< E", "> \"o {}\"", "3> o", "> >(cat)",
]  # fmt: skip
_PIECES = [
    "'", '"', "`", "$(", ")", "(", "((", "))", "$((", "${x:-", "${", "}", "{ ", "\\", "\n", ";", " # ", "#", "<<E\n",
    "\nE\n", "[", "]", "[[ ", " ]]", "case a in a) ", ";; esac", "if ", "; then ", "; fi", "for i in ", "; do ",
    "; done", "$'", '$"', "$", "!", "=", "x=", "x[", "&", "|", "<", ">", " ", " ", "echo ", "eval ", "function f ",
    "f() ", "\\\n", "esac", "in ", "do ", "~", "*", "{a,", "time ", "! ", "$[", ";;", "\t", "\r", "é",
]  # fmt: skip


class ScriptMaker:
    """Makes scripts from a seed. Some are ordinary but for one or two places, so that they are not all refused."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._wildness = 1.0

    def script(self) -> str:
        chance = self._random.random()
        self._wildness = self._random.choice([0.03, 0.1, 0.1, 0.3, 1.0])
        if chance < 0.15:
            return "echo " + "".join(self._piece() for _ in range(self._random.randint(1, 14)))
        if chance < 0.6:
            return self._pointed()
        script = self._list(2)
        if chance < 0.7:
            script = self._damaged(script)
        return script

    def _pick(self, choices: Sequence[str]) -> str:
        return self._random.choice(choices)

    def _piece(self) -> str:
        chance = self._random.random()
        if chance < 0.2:
            return "{}"
        return self._pick(_PIECES) if chance < 0.8 else self._pick(_WORDS) + " "

    def _pointed(self) -> str:
        """A short script with one thing in it that might be dangerous."""
        hole = "{}" if self._random.random() < 0.7 else self._pick(_HOLES)
        name, builtin, variable = self._pick(_COMMON), self._pick(_BUILTINS), self._pick(_VARIABLES)
        words = " ".join(
            self._random.sample([hole, self._pick(_WORDS), self._pick(_WORDS)], self._random.randint(1, 3))
        )
        number = self._pick(["-eq", "-ne", "-lt", "-ge", "=", "-o", "-a", "-nt", "==", "\\<"])
        unary = self._pick(["-v", "-R", "-o", "-t", "-n", "-f", "! -v", "a = b -a -v", "-x"])
        plain = name.split()[0]
        return self._pick([
            *[f"{builtin} {words} {hole}"] * 6, *[f"{self._pick(_PROGRAMS)} {words} {hole}"] * 3, f"{variable}={hole}",
            f"set -x; {variable}={hole}; ls; ls", f"{variable}={hole} {name} a",
            f"for {variable} in {hole}; do ls; done",
            *[f'{plain}() {{ sh -c "$1"; }}\n{name} {hole}', f'function {plain} {{ sh -c "$1"; }}\n{name} {hole}'],
            f"alias {plain}=eval\n{name} {hole}",
            *[f"shopt -s expand_aliases\nalias {plain}=eval\n{name} {hole}"],
            *[f"{self._pick(['typeset', 'declare', 'export'])} -{self._pick(list('inaAEFT'))} v1; v1={hole}"] * 2,
            *[f"[ {hole} {number} 1 ]", f"test 1 {number} {hole}", f"[ {unary} {hole} ]", f"[[ {hole} {number} 1 ]]"],
            *[f"printf {self._pick(['%d', '%s', '%i %s', '-v', '-vx'])} {hole}", f"printf {hole} a", f"{hole} a"],
            f"{self._pick(['command', 'builtin', 'exec', 'time', 'noglob', '!', 'coproc', '-'])} {builtin} {hole}",
            *[f"echo {hole} | {self._pick(['sh', 'bash -s', 'cat', 'python3 -'])}", f"a[{hole}]=1", f"v1+={hole}"],
            *[f"set -{self._pick(list('akeu'))}; {name} v1={hole}", f"cat <<E\n{hole}\nE", f"integer v1; v1={hole}"],
        ])  # fmt: skip

    def _damaged(self, script: str) -> str:
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randint(0, len(script))
            cut = self._random.choice([0, 0, 1, 3])
            script = script[:at] + self._pick([*_PIECES, *_HOLES, ""]) + script[at + cut :]
        return script

    def _list(self, depth: int) -> str:
        parts = [self._command(depth)]
        for _ in range(self._random.choice([0, 0, 1, 1, 2])):
            parts += [self._pick(_JOINS if self._is_wild() else _JOINS[:8]), self._command(depth)]
        return "".join(parts)

    def _command(self, depth: int) -> str:
        chance = self._random.random()
        if depth == 0 or chance < 0.6:
            return self._simple()
        inner = self._list(depth - 1)
        test = self._simple()
        if not self._is_wild():
            return self._pick([
                f"( {inner} )", f"{{ {inner}; }}", f"if {test}; then {inner}; else {self._simple()}; fi", f"! {test}",
                f"while false || {test} && false; do {inner}; done", f"for v1 in {self._word()} b; do {inner}; done",
                f"case {self._word()} in {self._pattern()}) {inner};; *) {test};; esac", f"f() {{ {inner}; }}; f",
                f"echo $( {inner} )", f'echo "$({inner})" {self._word()}', f"( {inner} ) > {self._word()}",
            ])  # fmt: skip
        return self._pick([
            f"( {inner} )", f"{{ {inner}; }}", f"! {test}", f"if {test}; then {inner}; fi",
            f"if {test}; then {inner}; else {self._simple()}; fi",
            f"while false || {test} && false; do {inner}; done", f"until true || {test}; do {inner}; done",
            f"for v1 in {self._word()} b; do {inner}; done",
            f"for {self._pick(_VARIABLES)} in {self._word()}; do {inner}; done",
            f"case {self._word()} in {self._pattern()}) {inner};; *) {test};; esac",
            f"case a in ({self._pattern()}) {inner} ;; esac", f"f() {{ {inner}; }}; f {self._word()}",
            f"function g {{ {inner}; }}; g", f"{self._pick(_COMMON)}() {{ sh -c \"$1\"; }}; {inner}",
            f"alias {self._pick(_COMMON)}=eval\n{inner}", f"echo $( {inner} )", f'echo "$({inner})"',
            f"{inner} {self._pick(_REDIRECTIONS)}", f"( {inner} ) {self._pick(_REDIRECTIONS)}",
            f"[[ {self._word()} {self._pick(['=', '-eq', '<', '=~'])} {self._word()} ]] && {test}",
            f"(( {self._word()} )); {test}", f"repeat 2 {test}",
            f"select v1 in {self._word()}; do {test}; break; done", f"time {test}", f"coproc {test}", f"exec {test}",
            f"command {test}", f"builtin {test}", f"noglob {test}",
            f"set -{self._pick(list('aefkuvxBHPCTE'))}; {inner}",
            f"setopt {self._pick(['kshglob', 'shwordsplit'])}; {inner}",
            f"typeset -{self._pick(list('ianAxrEFT'))} v1 v2; {inner}", f"trap {self._word()} EXIT; {inner}",
            f"shopt -s {self._pick(['extglob', 'expand_aliases', 'nullglob'])}\n{inner}", f"x={{}} {test}",
            f"for ((i=0; i<2; i++)); do {inner}; done",
        ])  # fmt: skip

    def _pattern(self) -> str:
        patterns = ["a", "a*", "{}", '"{}"', "[a-z]", "b|c", "''", "{}*", "$(echo {})", "@(a|b)", "{}|@({})"]
        return self._pick(patterns if self._is_wild() else patterns[:8])

    def _simple(self) -> str:
        chance = self._random.random()
        if chance < 0.1:
            return self._assignment()
        if not self._is_wild():
            name = self._pick(
                [
                    "echo",
                    "echo",
                    "printf '%s\\n'",
                    "cat",
                    "cd",
                    ":",
                    "basename",
                    "ls -d",
                    "timeout 1 cat",
                    "env A=1 true",
                ]
            )
            return " ".join([name, *(self._word() for _ in range(self._random.choice([1, 1, 2, 3])))])
        name = self._pick(_COMMON if chance < 0.5 else _BUILTINS if chance < 0.85 else _PROGRAMS)
        if chance > 0.985:
            name = self._pick(
                ["{}", "$x", "\\eval", "'eval'", "ev''al", "$(echo echo)", "{eval,x}", '"$x"', "~/x", "=ls", "a=b"]
            )
        words = [self._word() for _ in range(self._random.choice([0, 1, 1, 2, 2, 3, 4]))]
        if name == "[":
            words.append("]")
        if name in ("[", "test") and self._random.random() < 0.6:
            operator = self._pick(["=", "!=", "-eq", "-nt", "-o", "==", "\\<", "-lt", "-ef"])
            words = [self._word(), operator, self._word(), *(["]"] if name == "[" else [])]
            if self._random.random() < 0.3:
                words[:2] = [self._pick(["-f", "-n", "-v", "-t", "-o", "!", "-z", "-R"])]
        text = " ".join([name, *words])
        if self._random.random() < 0.15:
            text += " " + self._pick(_REDIRECTIONS)
        if self._random.random() < 0.08:
            text = f"{self._assignment()} {text}"
        return text

    def _assignment(self) -> str:
        return f"{self._pick(_VARIABLES if self._is_wild() else _VARIABLES[:3])}={self._word()}"

    def _word(self) -> str:
        is_hole = self._random.random() < 0.45
        if self._is_wild():
            return self._pick(_HOLES if is_hole else _WORDS)
        return self._pick(_MILD_HOLES if is_hole else _MILD_WORDS)

    def _is_wild(self) -> bool:
        return self._random.random() < self._wildness


def hostile_items() -> list[str]:
    """Items of which each runs the program ``pwn``, if a shell reads it as code in one way or another."""
    run = "pwn x"
    return [
        f"$({run})", f"`{run}`", f"; {run};", f"'; {run}; '", f'"; {run}; "', f"\n{run}\n", run,
        f"a[$({run})]", f"a[$({run})]=1", f"x=1;{run}", f"|{run}", f"& {run} &", f"); {run}; (",
        f"}}; {run}; {{", "-v", "-eq", "-o", "-c", "pwn", "./pwn", "eval pwn", "*", "~", "%d", "--", "!", "(", "[",
        "]]", "-esystem('pwn')", f"${{x:-$({run})}}", f"$(({run}))", f"$((a[$({run})]))", f"<({run})",
        f"<<E\n$({run})\nE\n", f"\\$({run})", f"-i a[$({run})]", f"v1=a[$({run})]", f"%s$({run})",
        f"1e {run}", f'BEGIN{{system("{run}")}}', "é日本\t\\", f"--eval=$(shell {run})", f"X=$(shell {run})",
        f"-S{run}", f"import os; os.system('{run}')", f"-oProxyCommand={run}",
        f"$({run})\"'`$({run})`'\"; {run}\n{run}",
    ]  # fmt: skip


class Arena:
    """Runs commands in a folder of its own and tells whether an item was executed."""

    def __init__(self, folder: Path) -> None:
        self.canary = folder / "canary"
        items = hostile_items()
        many = len(items)  # these two are executed nearly wherever an item is: as code, or as a command's name
        self.items = [*items, *["a[$(pwn x)]"] * many, *["pwn"] * (many // 3)]
        self._work = folder / "work"
        programs = folder / "bin"
        programs.mkdir()
        self._pwn = programs / "pwn"
        self._pwn.write_text(f"#!/bin/sh\ntouch {self.canary}\n")
        self._pwn.chmod(0o755)
        (programs / "ssh").symlink_to("/bin/true")
        self._environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(self._work),
            "LANG": "C.UTF-8",
            "EDITOR": "true",
            "FCEDIT": "true",
        }

    def breaches(self, commands: Sequence[list[str]]) -> Iterator[list[str]]:
        """Run all of them; those by which an item was executed."""
        self._run(commands)
        if not self.canary.exists():
            return
        for command in commands:
            self.canary.unlink(missing_ok=True)
            self._run([command])
            if self.canary.exists():
                yield command
        self.canary.unlink(missing_ok=True)

    def _run(self, commands: Sequence[list[str]], at_once: int = 4, patience: float = 5.0) -> None:
        shutil.rmtree(self._work, ignore_errors=True)  # a file that a script wrote is not for another one to run
        self._work.mkdir()
        shutil.copy(self._pwn, self._work)
        waiting = list(commands)
        while waiting:
            batch, waiting = waiting[:at_once], waiting[at_once:]
            self._wait([self._spawn(command) for command in batch], patience)

    def _spawn(self, command: list[str]) -> int:
        nothing = os.open(os.devnull, os.O_RDWR)
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                os.chdir(self._work)
                for number in (0, 1, 2):
                    os.dup2(nothing, number)
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.execvpe(command[0], command, self._environment)
            finally:
                os._exit(127)
        os.close(nothing)
        return pid

    @staticmethod
    def _wait(pids: list[int], patience: float) -> None:
        for pid in pids:
            descriptor = os.pidfd_open(pid)
            ended, _, _ = select.select([descriptor], [], [], patience)
            os.close(descriptor)
            if not ended:
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            try:
                os.killpg(pid, signal.SIGKILL)  # what it left in the background
            except (ProcessLookupError, PermissionError):
                pass


def accepted(shell: str, script: str, item: str) -> list[str] | None:
    """The command for *item*, or None if the script, or the item in it, is refused."""
    try:
        return Template([shell, "-c", script, shell, "first", "second"]).fill(item, "id", 1)
    except TemplateError:
        return None
