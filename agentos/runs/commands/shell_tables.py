"""Names with a meaning to a shell: builtins, keywords, variables and options of all shells that ``sh`` may be."""

from __future__ import annotations

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Builtins, keywords and predefined aliases of dash, bash, zsh, ksh93, mksh, yash and busybox's ash. The shell itself
# may run such a name, and its use of the arguments is unknown: many builtins evaluate them.
BUILTINS = _names(
    """
    ! - . : [ [[ ]] { } alias always autoload bg bind bindkey break builtin bye caller case cd chdir command compadd
    comparguments compcall compctl compdescribe compfiles compgen compgroups complete compopt compound compquote
    compset comptags comptry compvalues continue coproc declare dirs disable disown do done echo echotc echoti elif
    else emulate enable end enum esac eval exec exit export false fc fg fi float for foreach function functions
    getln getopts global hash help hist history if in integer jobs kill let limit local log login logout mapfile
    nameref namespace nocorrect noglob popd print printf private pushd pushln pwd r read readarray readonly redirect
    rehash repeat return sched select set setopt shift shopt source stop suspend test then time times trap true
    ttyctl type typeset ulimit umask unalias unfunction unhash unlimit unset unsetopt until vared wait whence where
    which while zcompile zformat zftp zle zmodload zparseopts zprof zpty zregexparse zsocket zstat zstyle ztcp
    """
)

# Builtins that accept a placeholder, in the arguments that the rule of each allows.
BUILTINS_FOR_DATA = frozenset({"echo", "printf", "cd", ":", "test", "["})

# Commands after which the shell may read the rest of the script differently than our parser, or run something else
# under a name.
CHANGES_READING = _names(
    """
    alias autoload bind compound disable emulate enable enum eval float functions global hash integer nameref
    namespace private unalias zmodload
    """
)
DECLARES = frozenset({"declare", "local", "typeset"})
EXPORTS = frozenset({"export", "readonly"})
RUNS_NEXT_WORD = frozenset({"-", "builtin", "command", "coproc", "exec", "nocorrect", "noglob", "redirect", "time"})

# Options under which every shell reads scripts as our parser does. Not -a, which would export the items, and not -k.
OPTION_LETTERS = frozenset("Cefhilmnpuvx")
OPTION_NAMES = _names(
    """
    errexit errtrace extglob failglob functrace globstar monitor noclobber noexec noglob nomatch nounset nullglob
    pipefail unset verbose xtrace
    """
)

_VARIABLES = _names(
    """
    _ ARGC CDPATH COLUMNS CPUTYPE DIRSTACK DISPLAY EDITOR EGID EMACS ENV EPOCHREALTIME EPOCHSECONDS ERRNO EUID
    EXECIGNORE FCEDIT FIGNORE FPATH FUNCNAME FUNCNEST GID GLOBIGNORE GLOBSORT GROUPS HOME HOSTFILE IFS IGNOREEOF
    INPUTRC INSIDE_EMACS JOBMAX KEYBOARD_HACK KEYTIMEOUT LANG LANGUAGE LESSCLOSE LESSOPEN LINENO LINES LISTMAX
    LOCPATH LOGCHECK MAIL MAILCHECK MAILPATH MANPATH MAPFILE MODULE_PATH NLSPATH NULLCMD OLDPWD OPTARG OPTERR OPTIND
    PAGER PATH PATHSEP PERIOD PGRP PIPESTATUS POSIXLY_CORRECT PPID PS1 PS2 PS3 PS4 PSVAR PWD RANDOM READNULLCMD
    REPLY RPROMPT RPS1 RPS2 SAVEHIST SECONDS SHELL SHELLOPTS SHLVL SPROMPT SRANDOM TIMEFMT TMOUT TMPPREFIX TTY
    TTYIDLE UID USERNAME USER_ID VISUAL WATCH WATCHFMT WORDCHARS aliases argv builtins cdpath commands dirstack
    fignore fpath funcfiletrace funcsourcetrace funcstack functions functions_source functrace galiases histchars
    history historywords jobdirs jobstates jobtexts keymaps mailpath manpath module_path modules nameddirs options
    parameters patchars path pipestatus psvar reswords saliases signals status termcap terminfo watch userdirs
    usergroups widgets
    """
)
_VARIABLE_PATTERNS = re.compile(
    r"(?:BASH|COMP_|COMPREPLY|DYLD_|GCONV_|GLIBC_|HIST|JAVA_TOOL_|JDK_JAVA_|KSH|LC_|LD_|MALLOC_|NODE_|PERL5|PERLLIB|PROMPT_|"
    r"PYTHON|READLINE_|RUBY|TRY_BLOCK|YASH|ZDOTDIR|ZLE|ZSH|dis_|zsh_).*|PROMPT\d|"
    r"GIT_(?:CONFIG.*|EXEC_PATH|EXTERNAL_DIFF|SSH|.*(?:ASKPASS|COMMAND|EDITOR|PAGER))|\.sh\b.*"
)


def is_special_variable(name: str) -> bool:
    """Return True if a shell, the loader or an interpreter reads that variable: as a number, a path or code."""
    return name in _VARIABLES or _VARIABLE_PATTERNS.fullmatch(name) is not None
