"""Tables of programs that take code and of programs that run others, with the meaning of their arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .shell_words import EXPANSION, HOLE

_SHELL = re.compile(r"(?:ba|rba|da|k|lk|mk|ok|pdk|ya|z|a)?sh(?:93)?(?:-static|-?[0-9][0-9.]*)?")
_OTHER_SHELL_NAME = re.compile(r"[a-z]+sh[0-9.-]*")
_PYTHON = re.compile(r"(?:i?python|bpython|pypy)[\d.]*t?")
_VERSION = re.compile(r"(?<=[a-z])-?[\d.]+\Z")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Programs that pass the rest of their arguments as one line to a shell: options with a value, words before it.
JOINED = {
    "hyperfine": ("wmrLSnpcCu", 0),
    "mosh": ("p", 1),
    "parallel": ("jSNnLlIdaPx", 0),
    "rsh": ("l", 1),
    "ssh": ("bcDEeFIiJLlmOopQRSWw", 1),
    "watch": ("nq", 0),
}


@dataclass(frozen=True, slots=True)
class Language:
    """The ways a program takes code. Letters are short options; an exact option is compared as a whole."""

    code: str = ""  # options whose argument is code
    exact: frozenset[str] = frozenset()  # likewise
    valued: str = ""  # options whose argument is something else
    glued: str = ""  # the rest of the option is its argument
    stops: str = ""  # all that follows is not for this program
    files: str = ""  # of the valued: the code is in that file
    long_valued: Mapping[str, int] = field(default_factory=dict)  # long options, and how many arguments they take
    anywhere: bool = False  # options may follow other arguments
    operand: int | None = None  # without a code option, the operands from this index on are code
    last_operand: int | None = None  # up to this one
    sets_variables: bool = False  # NAME=VALUE is code
    code_ends_options: bool = False  # after code, all arguments go to the code
    has_harmless_options: bool = False  # no single argument can be an option with code in it


def _with_option(letters: str = "", *names: str, valued: str = "") -> Language:
    return Language(letters, frozenset(names), valued=valued)


_AWK = Language("e", frozenset({"--source"}), valued="vFfi", files="f", operand=0, last_operand=0)
_NODE = Language(
    exact=frozenset({"-e", "-p", "-pe", "--eval", "--print"}),
    valued="rC",
    long_valued={"--require": 1, "--import": 1, "--loader": 1, "--conditions": 1, "--env-file": 1},
)
_OTHER_SHELL = _with_option("c", "-Command", "-command", "--command", "--commands", valued="o")
_JQ = Language(
    valued="fL",
    files="f",
    operand=0,
    last_operand=0,
    long_valued={"--arg": 2, "--argjson": 2, "--slurpfile": 2, "--rawfile": 2, "--indent": 1, "--from-file": 1},
)
_MAKE = Language(exact=frozenset({"--eval"}), valued="CfIoW", anywhere=True, sets_variables=True)
_SED = Language("e", frozenset({"--expression"}), "fl", "iEs", files="f", anywhere=True, operand=0, last_operand=0)
_MYSQL = _with_option("e", "--execute", valued="hPuDS")
_PSQL = _with_option("c", "--command", valued="dfhpUv")
_SSH = _with_option("o", valued="bcDEeFIiJLlmOpPQRSWw")
_VIM = _with_option("c", "--cmd", valued="SsuUi")
_LANGUAGES = {
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _AWK),
    **dict.fromkeys(("bun", "node", "nodejs"), _NODE),
    **dict.fromkeys(("csh", "elvish", "fish", "nu", "osh", "powershell", "pwsh", "tcsh", "xonsh"), _OTHER_SHELL),
    **dict.fromkeys(("gojq", "jaq", "jq", "yq"), _JQ),
    **dict.fromkeys(("gmake", "make"), _MAKE),
    **dict.fromkeys(("gsed", "sed"), _SED),
    **dict.fromkeys(("mariadb", "mysql"), _MYSQL),
    **dict.fromkeys(("duckdb", "psql"), _PSQL),
    **dict.fromkeys(("scp", "sftp", "ssh"), _SSH),
    **dict.fromkeys(("ex", "gvim", "nvim", "vi", "vim"), _VIM),
    "R": _with_option("e"),
    "Rscript": _with_option("e"),
    "clojure": _with_option("e", "--eval"),
    "elixir": _with_option("e", "--eval"),
    "emacs": _with_option("", "-eval", "--eval", "-execute", "--execute"),
    "env": _with_option("S", "--split-string", valued="uC"),
    "erl": _with_option("", "-eval"),
    "expect": _with_option("c", valued="f"),
    "find": Language(exact=frozenset({"-exec", "-execdir", "-ok", "-okdir"}), anywhere=True, has_harmless_options=True),
    "flock": Language("c", frozenset({"--command"}), valued="wE", anywhere=True),
    "gdb": _with_option("", "-ex", "-iex", "-eval-command", "--eval-command", valued="xpc"),
    "ghc": _with_option("e"),
    "git": Language("c", frozenset({"--config-env"}), valued="C"),
    "gnuplot": _with_option("e"),
    "groovy": _with_option("e"),
    "guile": _with_option("c", valued="Llxe"),
    "julia": _with_option("eE", "--eval", "--print", valued="LpJ"),
    "lua": _with_option("e", valued="l"),
    "luajit": _with_option("e", valued="l"),
    "mongosh": _with_option("", "--eval"),
    "octave": _with_option("", "--eval"),
    "osascript": _with_option("e", valued="l"),
    "perl": Language("eE", valued="I", glued="CDFMVimx0"),
    "php": Language("rBRE", valued="cdzfF"),
    "python": Language("c", valued="WX", stops="m", code_ends_options=True),
    "racket": _with_option("e", "--eval"),
    "rsync": Language("e", frozenset({"--rsh", "--rsync-path"}), anywhere=True),
    "ruby": Language("e", valued="IrCE", glued="FKTWix0"),
    "runuser": Language("cs", frozenset({"--command", "--shell"}), valued="gGuw", anywhere=True),
    "sbcl": _with_option("", "--eval"),
    "scala": _with_option("e"),
    "script": Language("c", frozenset({"--command"}), valued="IOBTEmot", anywhere=True),
    "sg": Language("c", anywhere=True),
    "sqlite3": Language(long_valued={"-cmd": 1, "-init": 1, "-separator": 1}, exact=frozenset({"-cmd"}), operand=1),
    "strace": _with_option("o", "--output", valued="EIOPSUXabepsu"),  # -o '|command'
    "su": Language("cs", frozenset({"--command", "--shell"}), valued="gGw", anywhere=True),
    "tar": Language(
        "I", frozenset({"--checkpoint-action", "--to-command", "--use-compress-program"}), valued="fCTX", anywhere=True
    ),
}
_DENO_EVAL = Language(operand=1)
# Programs that take code in an option, but whose other arguments do not go to that code.
_NOT_FOR_CODE = _names(
    """
    duckdb emacs env ex find flock gdb git gmake gvim make mariadb mysql nvim psql rsync runuser scp script sftp sg
    ssh strace su tar vi vim
    """
)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The arguments of a program before the command that it runs; options in the notation of ``getopt``."""

    short: str = ""  # a letter with ":" takes an argument
    long: str = ""  # a name with "=" takes an argument
    words: int = 0  # arguments before the command
    assigns: bool = False  # NAME=VALUE before the command is a variable for it

    def option_length(self, option: str) -> int | None:
        """Return the number of words of *option* with its argument; None if the option is unknown."""
        if option.startswith("--"):
            name, has_value, _ = option[2:].partition("=")
            if f"{name}=" in self.long.split():
                return 1 if has_value else 2
            return 1 if name in self.long.split() and not has_value else None
        for place, letter in enumerate(option[1:], start=2):
            if letter not in self.short.replace(":", ""):
                return None
            if f"{letter}:" in self.short:
                rest = option[place:]
                # A placeholder or variable may be empty; then the argument is the next word.
                return None if rest.startswith((HOLE, EXPANSION)) else 1 if rest else 2
        return 1


# Options that pass the command in another way (env -S, sudo -s) are left out, so that they count as unknown.
WRAPPERS = {
    "busybox": Wrapper(),
    "bwrap": Wrapper(),
    "caffeinate": Wrapper("t:w:dimsu"),
    "chronic": Wrapper("ev"),
    "chroot": Wrapper(long="groups= skip-chdir userspec=", words=1),
    "chrt": Wrapper("fr", "fifo rr", words=1),
    "doas": Wrapper("u:n"),
    "env": Wrapper("a:u:C:i0v", "argv0= chdir= debug ignore-environment null unset=", assigns=True),
    "firejail": Wrapper(long="noprofile private quiet"),
    "flock": Wrapper(
        "w:E:eFnosux",
        "close conflict-exit-code= exclusive nb no-fork nonblock shared timeout= unlock verbose wait=",
        words=1,
    ),
    "gosu": Wrapper(words=1),
    "ionice": Wrapper("c:n:t", "class= classdata= ignore"),
    "mpirun": Wrapper(),
    "nice": Wrapper("n:0123456789", "adjustment="),
    "nohup": Wrapper(),
    "nsenter": Wrapper("G:S:t:CFTUaimnpu", "all target="),
    "numactl": Wrapper("C:N:i:m:p:al", "all cpunodebind= interleave= localalloc membind= physcpubind= preferred="),
    "setsid": Wrapper("cfw", "ctty fork wait"),
    "srun": Wrapper("A:J:N:c:n:p:t:w:", "account= cpus-per-task= gres= job-name= mem= nodes= ntasks= partition= time="),
    "stdbuf": Wrapper("e:i:o:", "error= input= output="),
    "strace": Wrapper("E:I:O:P:S:U:X:a:b:e:o:p:s:u:CDFTZcdfiknqrtvwxyz", "follow-forks output= trace="),
    "sudo": Wrapper(
        "C:D:R:T:U:g:h:p:r:t:u:ABEHNPSbkn",
        "askpass background chdir= close-from= command-timeout= group= host= non-interactive preserve-env "
        "preserve-groups prompt= reset-timestamp set-home stdin user=",
        assigns=True,
    ),
    "systemd-run": Wrapper("Gdqrt", "collect pipe pty quiet same-dir scope slice= system uid= unit= user wait"),
    "taskset": Wrapper("ac", "all-tasks cpu-list", words=1),
    "time": Wrapper("f:o:apqv", "append format= output= portability quiet verbose"),
    "timeout": Wrapper("k:s:fpv", "foreground kill-after= preserve-status signal= verbose", words=1),
    "tini": Wrapper("e:p:gsvw"),
    "toybox": Wrapper(),
    "unbuffer": Wrapper("p"),
    "unshare": Wrapper("G:R:S:w:CTUcfimnpru", "fork map-current-user map-root-user mount mount-proc net pid user"),
    "xargs": Wrapper(
        "E:I:L:P:a:d:n:s:0eilroptx",
        "arg-file= delimiter= eof exit interactive max-args= max-chars= max-lines max-procs= no-run-if-empty null "
        "open-tty process-slot-var= replace verbose",
    ),
}
# Programs that run the words after their own unchanged. The start of those is known only for WRAPPERS.
RUNNERS = _names(
    """
    apptainer bwrap chroot direnv docker firejail kubectl mpirun nerdctl nix nsenter pipenv pixi podman poetry
    singularity srun systemd-run tini uv unshare
    """
)


def is_shell(name: str) -> bool:
    """Return True if that is the name of a shell whose scripts can be parsed here."""
    return _SHELL.fullmatch(name) is not None


def find_language(name: str, next_word: str = "") -> Language | None:
    """Return how the program takes code, or None if it is not known to."""
    if _PYTHON.fullmatch(name):
        return _LANGUAGES["python"]
    if name == "deno" and next_word == "eval":
        return _DENO_EVAL
    return _LANGUAGES.get(name) or _LANGUAGES.get(_VERSION.sub("", name))


def may_be_shell(name: str) -> bool:
    """Return True if the name looks like a shell's: with ``-c`` it counts as a shell of unknown language."""
    return _OTHER_SHELL_NAME.fullmatch(name) is not None


UNKNOWN_SHELL = _OTHER_SHELL


def gives_arguments_to_code(name: str, language: Language) -> bool:
    """Return True if the program's other arguments go to its code: ``python -c CODE ARGUMENT``."""
    return language.operand is None and name not in _NOT_FOR_CODE
