"""Placeholders in shell scripts: accepted ones are safe for any item, all others are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.runs.commands.environment import base_environment
from agentos.runs.commands.shell_tables import BUILTINS
from agentos.runs.commands.template import Template, TemplateError

SHELLS = [shell for shell in ("dash", "bash", "zsh", "mksh", "ksh93", "yash") if shutil.which(shell)]

# None has a "/" or a newline, so that each can be the name of a file.
NASTY: dict[str, Any] = {
    "text": "it's $(touch canary) `touch canary` \"; touch canary; '\\ *?[a] ~ #é日本",
    "file": "a b;touch canary 'f' $(touch canary)",
    "dir": 'd "q" & touch canary | $HOME `touch canary`',
    "number": 7,
    "word": "plain",
}


def filled(argv: list[str], item: Any = "item", item_id: str = "the-id", number: int = 3) -> list[str]:
    return Template(argv).fill(item, item_id, number)


def refused(script: str, *shell: str) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        Template([*(shell or ("sh", "-c")), script])
    return caught.value


# -- what is made of a script -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("echo {}", 'agentos_1=$1; shift 1; echo "$agentos_1"'),
        ('echo "a {} b"', 'agentos_1=$1; shift 1; echo "a ""$agentos_1"" b"'),
        ("echo 'a {} b'", "agentos_1=$1; shift 1; echo 'a '\"$agentos_1\"' b'"),
        ("echo {} {}", 'agentos_1=$1; shift 1; echo "$agentos_1" "$agentos_1"'),
        ("echo {} {#}\ndate", 'agentos_1=$1; shift 1; echo "$agentos_1" 3\ndate'),
        ('echo "$(cat {})"', 'agentos_1=$1; shift 1; echo "$(cat "$agentos_1")"'),
        ("echo $x{}y", 'agentos_1=$1; shift 1; echo $x"$agentos_1"y'),
    ],
)
def test_a_hole_becomes_a_quoted_variable_that_is_set_on_the_first_line(script: str, result: str) -> None:
    assert filled(["sh", "-c", script]) == ["sh", "-c", result, "sh", "item"]


def test_each_hole_has_a_variable_of_its_own() -> None:
    script = "echo {} {id} {}"

    command = filled(["sh", "-c", script])

    assert command[2:] == [
        'agentos_1=$1; agentos_2=$2; shift 2; echo "$agentos_1" "$agentos_2" "$agentos_1"',
        *["sh", "item", "the-id"],
    ]


def test_more_than_nine_holes_are_told_apart() -> None:
    fields = {f"f{number}": f"value {number}" for number in range(1, 13)}
    script = "printf '%s,'" + "".join(f" {{{name}}}" for name in fields)

    ended = subprocess.run(filled(["sh", "-c", script], fields), capture_output=True, text=True, check=True)

    assert ended.stdout == "".join(f"{value}," for value in fields.values())


@pytest.mark.parametrize(
    ("after", "result"),
    [
        ([], ["sh", "item"]),
        (["name"], ["name", "item"]),
        (["name", "one", "two"], ["name", "item", "one", "two"]),
        (["{}", "{id}"], ["item", "item", "the-id"]),
    ],
)
def test_the_item_follows_the_name_and_comes_before_other_arguments(after: list[str], result: list[str]) -> None:
    assert filled(["sh", "-c", "echo {}", *after])[3:] == result


def test_a_script_sees_only_the_arguments_that_were_given_to_it() -> None:
    argv = ["sh", "-c", 'echo "$0 $# $*" {}; f() { echo {}; }; set -- x; f y', "name", "one", "two"]

    ended = subprocess.run(filled(argv), capture_output=True, text=True, check=True)

    assert ended.stdout == "name 2 one two item\nitem\n"


def test_a_script_without_holes_stays_as_it_is() -> None:
    argv = ["bash", "-c", "cat <<E\n$(eval x)\nE", "name"]

    assert filled(argv) == argv


@pytest.mark.parametrize(
    "shell",
    [
        ["/bin/bash", "-c"],
        ["bash", "-lc"],
        ["bash", "-euo", "pipefail", "-c"],
        ["bash", "--norc", "-O", "extglob", "-ec"],
        ["bash", "--rcfile", "x", "-c"],
        ["bash", "-co", "pipefail"],
        ["bash-5.2", "-c"],
        ["dash", "-e", "-c", "--"],
        ["sh", "-c", "-e"],
        ["sh", "+x", "-c"],
        ["zsh", "+o", "nomatch", "-c"],
        ["ksh93", "-c"],
        ["busybox", "sh", "-c"],
        ["env", "A=1", "-u", "B", "sh", "-c"],
        ["timeout", "-k", "5", "30", "ksh", "-c"],
        ["nice", "-n", "5", "sudo", "-u", "bob", "sh", "-c"],
        ["docker", "run", "-v", "a:b", "image", "sh", "-c"],
        ["kubectl", "exec", "pod", "--", "sh", "-c"],
        ["bwrap", "--bind", "/", "/", "sh", "-c"],
        ["unshare", "-r", "sh", "-c"],
    ],
    ids=" ".join,
)
def test_a_shell_is_found_behind_its_options_and_behind_other_programs(shell: list[str]) -> None:
    command = filled([*shell, "echo {}"])

    name = next(
        each for each in reversed(shell) if each.rpartition("/")[2].startswith(("bash", "dash", "sh", "zsh", "ksh"))
    )
    assert command == [*shell, 'agentos_1=$1; shift 1; echo "$agentos_1"', name, "item"]


@pytest.mark.parametrize(
    ("shell", "why"),
    [
        (["sh", "-a", "-c"], "option -a"),
        (["bash", "-kc"], "option -kc"),
        (["bash", "-o", "allexport", "-c"], "option -o"),
        (["bash", "-O", "expand_aliases", "-c"], "option -O"),
        (["zsh", "--emulate", "csh", "-c"], "option --emulate"),
        (["unknown-runner", "sh", "-c"], "'unknown-runner'"),
        (["find", ".", "-exec", "sh", "-c"], "'find'"),
        (["git", "bisect", "run", "sh", "-c"], "'git'"),
        (["xargs", "sh", "-c"], "xargs puts its first argument in place of $0"),
    ],
    ids=str,
)
def test_a_shell_that_may_read_the_script_otherwise_is_refused(shell: list[str], why: str) -> None:
    assert why in str(refused("echo {}", *shell))
    assert filled([*shell, "echo $AGENTOS_ITEM"])  # without a hole it is nobody's business


def test_xargs_with_a_name_for_the_script_leaves_its_arguments_in_place() -> None:
    command = filled(["xargs", "sh", "-c", 'echo {} "$@"', "sh"])

    ended = subprocess.run(command, input="a b", capture_output=True, text=True, check=True)

    assert ended.stdout == "item a b\n"


def test_the_variable_is_not_exported_even_if_it_comes_with_the_environment() -> None:
    environment = base_environment({**os.environ, "agentos_1": "of another run"}, (), lambda _: False)
    command = filled(["sh", "-c", "env; echo {}"])

    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert "agentos_1" not in ended.stdout
    assert "agentos_1" in str(refused("echo {}; export agentos_1").hint)


# -- what is accepted ---------------------------------------------------------------------------------------------

# Scripts as people write them, and what they print: {text}, {file} and {dir} there are the item's own.
ORDINARY = [
    ("echo {text}", "{text}\n"),
    ("sleep 0; echo {text}", "{text}\n"),
    ('echo "got {text}."', "got {text}.\n"),
    ("echo 'got {text}.'", "got {text}.\n"),
    ("printf '%s\\n' {text} {file}", "{text}\n{file}\n"),
    ("printf '%s: %s\\n' {id} {text} | cat", "the-id: {text}\n"),
    ("echo {#}-{word}", "3-plain\n"),
    ("cat {file}", "content\n"),
    ("cat < {file} | tr a-z A-Z", "CONTENT\n"),
    ("cat {file} > {file}.out && cat {file}.out", "content\n"),
    ("cat {file} > out/{file}.txt 2>&1; ls out", "{file}.txt\n"),
    ("claude -p {text} > out/{id}.txt; cat out/the-id.txt", "claude<-p><{text}>\n"),
    ("cd {dir} && cat inner", "inside\n"),
    ("mkdir -p {dir}/x; cd {dir}/x; git pull", "git<pull>\n"),
    ("(cd {dir} && make); basename \"$PWD\"", "make\nwork\n"),
    ("ls {dir}/*", "{dir}/inner\n"),
    ("[ -f {file} ] && echo yes || echo no", "yes\n"),
    ("[ -d {file} ] && echo yes || echo no", "no\n"),
    ("if [ ! -e {dir}/none ]; then echo {word}; fi", "plain\n"),
    ("if [ {text} = x ]; then echo same; elif [ {word} = plain ]; then echo plain; else echo no; fi", "plain\n"),
    ("test -n {text} && test {text} != {file} && echo ok", "ok\n"),
    ("case {word} in p*) echo {text};; *) echo other;; esac", "{text}\n"),
    ("case {text} in (x) echo x ;; a|b) echo ab ;; {text}) echo itself ;; esac", "itself\n"),
    ("for x in {text} b; do echo \"<$x>\"; done", "<{text}>\n<b>\n"),
    ("for i in 1 2; do claude {text} && break; done", "claude<{text}>\n"),
    ("while read -r line; do echo \"$line!\"; done < {file}", "content!\n"),
    ("until cat {file}; do sleep 1; done", "content\n"),
    ("x={text}; echo \"$x\"", "{text}\n"),
    ("x=\"pre-{text}-post\"; echo \"$x\"", "pre-{text}-post\n"),
    ("X={text} printenv X", "{text}\n"),
    ("echo {word} | xargs -I% echo %.txt", "plain.txt\n"),
    ("echo {word} | xargs sh -c 'echo \"$1\"' sh", "plain\n"),
    ("name=$(basename {file} \"'\"); echo \"$name\"", "{file}\n"),
    ("echo \"$(cat \"{file}\")\" $(cat {file})", "content content\n"),
    ("echo \"$(basename \"$(dirname \"/{word}/y\")\")\"", "plain\n"),
    ("env A={text} printenv A", "{text}\n"),
    ("timeout 20 claude -p {text} --max 3", "claude<-p><{text}><--max><3>\n"),
    ("nice -n 1 claude {text}", "claude<{text}>\n"),
    ("nice -1 timeout --signal=TERM -k5s \"20\" claude {text}", "claude<{text}>\n"),
    ("env -u HOME A=1 =x B={text} printenv B", "{text}\n"),
    ("set -e; cd {dir}; cat inner", "inside\n"),
    ("set -eu; claude {text} | cat", "claude<{text}>\n"),
    ("export A=1; claude {text}", "claude<{text}>\n"),
    (". ./settings && claude \"$SETTING\" {text}", "claude<set><{text}>\n"),
    ("trap 'echo bye' EXIT; echo {text}", "{text}\nbye\n"),
    ("claude {text} & wait", "claude<{text}>\n"),
    ("{ echo a; echo {text}; } > log; cat log", "a\n{text}\n"),
    ("run() { claude \"$1\" {text}; }; run one", "claude<one><{text}>\n"),
    ("claude --prompt={text} --n=$((1+2)) -o\"{word}\"", "claude<--prompt={text}><--n=3><-oplain>\n"),
    ("curl -s -d \"{\\\"q\\\": \\\"{word}\\\"}\" http://x", 'curl<-s><-d><{"q": "plain"}><http://x>\n'),
    ("echo '{\"id\": \"{word}\"}' | cat", '{"id": "plain"}\n'),
    ("claude {text} \\\n  --flag", "claude<{text}><--flag>\n"),
    ("claude {text}\\\n  --flag # that's all", "claude<{text}><--flag>\n"),
    ("# it's a \"comment\n\necho {text}", "{text}\n"),
    ("! grep -q {text} {file} && echo absent", "absent\n"),
    ("echo ${HOME:+home} {word}", "home plain\n"),
    ("awk '{ print $1 }' {file}", "content\n"),
    ("sed -n 1p {file}", "content\n"),
    ("find {dir} -name 'inn*'", "{dir}/inner\n"),
    ("python3 show.py {word} x", "['show.py', 'plain', 'x']\n"),
    ("sh ./show.sh {text}", "<{text}>\n"),
    ("docker run --rm -v \"$HOME\":/w image claude {text}", "docker<run><--rm><-v></:/w><image><claude><{text}>\n"),
    ("git commit -m {text}", "git<commit><-m><{text}>\n"),
    ("git clone https://host/{word}.git", "git<clone><https://host/plain.git>\n"),
    ("rm -rf ./{dir} && ls -d {dir} 2>/dev/null || echo gone", "gone\n"),
    ("cp {file} {file}.bak; cat ./{file}.bak", "content\n"),
    ("echo {text} >> all; echo {text} >> all; cat all", "{text}\n{text}\n"),
    ("claude {text} && { echo ok; } || { echo failed; exit 1; }", "claude<{text}>\nok\n"),
    ("cd ./{dir}; pwd | tr -d '\\n' | tail -c 1", "`"),
    (": {text}; echo $?", "0\n"),
    ("echo a; (echo {text}; echo b) | sort -r | head -n 9 >/dev/null; echo z", "a\nz\n"),
    ("cat {file} | while read -r x; do echo \"$x\" {word}; done", "content plain\n"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    programs = folder / "bin"
    programs.mkdir()
    for name in ("claude", "curl", "git", "make", "docker"):
        (programs / name).write_text(f"#!/bin/sh\nprintf {name}\n[ $# = 0 ] || printf '<%s>' \"$@\"\necho\n")
        (programs / name).chmod(0o755)
    return folder


@pytest.fixture
def work(place: Path) -> Path:
    folder = place / "work"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "out").mkdir(parents=True)
    (folder / NASTY["dir"]).mkdir()
    (folder / NASTY["dir"] / "inner").write_text("inside\n")
    (folder / NASTY["file"]).write_text("content\n")
    (folder / "settings").write_text("SETTING=set\n")
    (folder / "show.sh").write_text("printf '<%s>\\n' \"$@\"\n")
    (folder / "show.py").write_text("import sys\nprint(sys.argv)\n")
    return folder


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shell in ("dash", "bash")])
@pytest.mark.parametrize(("script", "printed"), ORDINARY, ids=[script for script, _ in ORDINARY])
def test_an_ordinary_script_does_what_it_says_with_any_item(
    shell: str, script: str, printed: str, place: Path, work: Path
) -> None:
    environment = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "HOME": "/", "LANG": "C.UTF-8"}

    command = filled([shell, "-c", script], NASTY)
    ended = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=60, check=False)

    for name, value in NASTY.items():
        printed = printed.replace(f"{{{name}}}", str(value))
    assert (ended.stdout, ended.stderr) == (printed, "")
    assert not list(place.rglob("canary"))


HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
    st.lists(
        st.sampled_from(
            ["$(touch x)", "`touch x`", "';touch x;'", '";touch x;"', "\n", "\\", "'", '"', "$HOME", "#", "*", "~",
             "-n", "=", "!", "|", "&", ";", "<", ">", "(", ")", "{", "}", "é", "日本", " ", "\t", "\r", "\x81", "\x7f"]
        ),
        max_size=8,
    ).map("".join),
)  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_sees_exactly_the_item(shell: str, tmp_path: Path) -> None:
    script = (
        '# note\nx={a}; printf \'%s\\0\' {a} pre{a}post"$x" "it\'s {a} "\'"{b}"\' $(printf %s x){b}\n'
        "for y in {a} {b}; do printf '%s\\0' \"$y\"; done\n"
        "case {a} in {b}) printf same;; esac; [ {a} = {b} ] && printf same\n"
    )

    @settings(max_examples=25, deadline=None)
    @given(HOSTILE, HOSTILE)
    def check(a: str, b: str) -> None:
        argv = filled([shell, "-c", script], {"a": a, "b": b})
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        ended = subprocess.run(argv, capture_output=True, cwd=tmp_path, env=environment, timeout=60, check=False)
        words = [a, f"pre{a}post{a}", f'it\'s {a} "{b}"', f"x{b}", a, b]
        same = "samesame" if a == b else ""
        assert ended.stdout == ("".join(f"{word}\0" for word in words) + same).encode()
        assert list(tmp_path.iterdir()) == []

    check()


# -- what is refused ----------------------------------------------------------------------------------------------

REFUSED = [
    # the command's name
    ("{} x", "as the name of a command"),
    ("true; {}", "as the name of a command"),
    ("timeout 5 {}", "as the name"),
    ("xargs {}", "as the name"),
    ("$(echo {})", "as the name"),
    ("env A=1 {}", "as the name"),
    ("A=1 {}", "as the name"),
    ("$TOOL {}", "not written out"),
    ('"$TOOL" {}', "not written out"),
    ("{ev,}al {}", "not written out"),
    ("`which x` {}", "not written out"),
    ("=ls {}", "not written out"),
    ("? {}", "not written out"),
    # the program behind another one
    ("env = {}", "as the name"),
    ("env =x {}", "as the name"),
    ("env a= {}", "as the name"),
    ("env 1.2=3 {} x", "as the name"),
    ("env - {} x", "as the name"),
    ("env -i - A=1 {} x", "as the name"),
    ("env -uC {} x", "as the name"),
    ("env --unset X {}", "as the name"),
    ("busybox env = {}", "as the name"),
    ("sudo A=1 -u bob {} x", "as the name"),
    ("sudo --user bob {} x", "as the name"),
    ("nice --adjustment 5 {}", "as the name"),
    ("stdbuf --output 0 {}", "as the name"),
    ("timeout --signal KILL 5 {}", "as the name"),
    ("timeout -k5s 5 {} x", "as the name"),
    ("flock --timeout 1 lock {}", "as the name"),
    ("numactl -l {} x", "as the name"),
    ("xargs -i {} x", "as the name"),
    ("xargs --max-args 1 {}", "as the name"),
    ("chroot / {}", "as the name"),
    ("unshare -r {} x", "as the name"),
    ("nsenter -t 1 -m {} x", "as the name"),
    ("env systemd-run --user {} x", "as the name"),
    ("mpirun -np 4 {} x", "'mpirun' with an option"),
    ("bwrap --bind / / {}", "'bwrap' with an option"),
    ("nice a={}", "as the name"),
    ("env -- A=1 {}", "'env' with an option"),
    ("env --uns X {}", "'env' with an option"),
    ("env -S 'sh -c' x {}", "'env' with an option"),
    ("env -u{} X tool", "'env' with an option"),
    ("sudo -s tool {}", "'sudo' with an option"),
    ("nice timeout --new 5 tool {}", "'timeout' with an option"),
    ("env $X {}", "double quotes"),
    ("flock $LOCK tool {}", "double quotes"),
    ('env "$X" {}', "not written out"),
    ('nice "$TOOL" {}', "not written out"),
    ("env {}=1 tool", "variable whose name"),
    ("env BASH_FUNC_x%%={} tool", "variable whose name"),
    ("strace -o {} tool", "'strace'"),
    # builtins and keywords
    ("eval echo {}", "'eval'"),
    ("e\\val {}", "'eval'"),
    ("'eval' {}", "'eval'"),
    ("command eval {}", "'command'"),
    ("true && exec tool {}", "'exec'"),
    ("command tool {}", "'command'"),
    ("builtin echo {}", "'builtin'"),
    (". {}", "'.'"),
    ("source {}", "'source'"),
    ("export X={}", "'export'"),
    ("declare X={}", "'declare'"),
    ("local x={}", "'local'"),
    ("readonly x={}", "'readonly'"),
    ("unset {}", "'unset'"),
    ("read {}", "'read'"),
    ("trap {} EXIT", "'trap'"),
    ("let {}", "'let'"),
    ("getopts {} x", "'getopts'"),
    ("set -- {}", "'set'"),
    ("shift {}", "'shift'"),
    ("wait {}", "'wait'"),
    ("mapfile -C {}", "'mapfile'"),
    ("time tool {}", "'time'"),
    ("kill {}", "'kill'"),
    ("ulimit {}", "'ulimit'"),
    ("print -P {}", "'print'"),
    ("noglob tool {}", "'noglob'"),
    ("coproc tool {}", "'coproc'"),
    ("fc {}", "'fc'"),
    ("printf -v {} x", "printf"),
    ("printf {}", "printf"),
    ("printf %d {}", "printf"),
    ("printf '%*s' {} x", "printf"),
    ('printf "$f" {}', "printf"),
    ("printf '%(x)T' {}", "printf"),
    ("[ {} -eq 1 ]", "comparison"),
    ("test 1 -lt {}", "comparison"),
    ("[ -v {} ]", "comparison"),
    ("[ -t {} ]", "comparison"),
    ("[ a = b -o {} = c ]", "comparison"),
    ("[ {} {} ]", "comparison"),
    ("[ $x = {} ]", "double quotes"),
    ("[ a = {}", "no ]"),
    ("[[ {} = a ]]", "inside [[ ]]"),
    ("[[ a -eq {} ]]", "inside [[ ]]"),
    # what changes the meaning of names and of assignments
    ('echo() { eval "$1"; }\necho {}', "'eval'"),
    ('echo() { sh -c "$1"; }\necho {}', "a function of the script"),
    ('cd() { "$@"; }; cd {}', "a function of the script"),
    ('function tool { "$@"; }; tool {}', "a function of the script"),
    ("alias echo=eval\necho {}", "after 'alias'"),
    ("command alias e=eval\necho {}", "after 'alias'"),
    ("enable -f x.so echo; echo {}", "after 'enable'"),
    ("set -k; echo x={}", "option -k"),
    ("set -a; x={}", "option -a"),
    ("set -o allexport; x={}", "option -o"),
    ("declare -i x; x={}", "'declare' with '-i'"),
    ("typeset -n x; x={}", "'-n'"),
    ("integer x; x={}", "after 'integer'"),
    ("shopt -s expand_aliases; echo {}", "'shopt'"),
    ("emulate zsh; echo {}", "'emulate'"),
    ('eval "$(ssh-agent)"; tool {}', "after 'eval'"),
    ("aliases[echo]=eval\necho {}", "a subscript"),
    ("PATH={} ls", "as the value of PATH"),
    ("IFS={}", "IFS"),
    ("PS4={}; set -x", "PS4"),
    ("BASH_ENV={} bash x", "BASH_ENV"),
    ("OPTIND={}", "OPTIND"),
    ("RANDOM={}", "RANDOM"),
    ("LD_PRELOAD={} ls", "LD_PRELOAD"),
    ("env PATH={} ls", "PATH"),
    ("for PATH in {}; do ls; done", "PATH"),
    ("PROMPT_COMMAND={}", "PROMPT_COMMAND"),
    ("_={}", "value of _"),
    ("x+={}", "+="),
    ("x=({})", "in an array"),
    ("a[{}]=1", "a subscript"),
    # where the shell evaluates or does not look
    ("echo $(( {} + 1 ))", "inside arithmetic"),
    ("(( {} ))", "inside arithmetic"),
    ("echo ${x:-{}}", "inside ${...}"),
    ('echo "${x:-{}}"', "inside ${...}"),
    ("echo $'{}'", "inside $'...'"),
    ("echo `cat {}`", "inside `...`"),
    ("echo $x[{}]", "subscript"),
    ('echo "$x[{}]"', "subscript"),
    ("echo \\{}", "after a backslash"),
    ("# {}", "in a comment"),
    ("cat <<E\n{}\nE", "here-document"),
    ("cat <<'E'\nit's\nE\necho {}", "here-document"),
    ("cat <<< {}", "here-string"),
    ("echo x >&{}", "number of an open file"),
    ("echo {a,{}}", "brace expansion"),
    ("echo $[{}]", "not followed"),
    ("echo @({})", "inside a word"),
    ("for ((i={};;)); do :; done", "inside arithmetic"),
    # code for others
    ("sh -c {}", "'sh', which is given code"),
    ('sh -c "ls {}"', "given code"),
    ("bash -c 'eval \"$1\"' sh {}", "given code"),
    ("sudo sh -c 'ls '{}", "given code"),
    ("ssh host ls {}", "the code for 'ssh'"),
    ('ssh host "$(echo {})"', "the code for 'ssh'"),
    ("python3 -c \"print('{}')\"", "given code"),
    ("perl -e 1 {}", "given code"),
    ("su bob -c {}", "the code for 'su'"),
    ("su -s {} bob", "the code for 'su'"),
    ("runuser --shell={} bob", "the code for 'runuser'"),
    ("sed s/a/{}/ file", "the code for 'sed'"),
    ("sed -n -e {} file", "'sed'"),
    ("awk {} file", "'awk'"),
    ("jq .{} f", "'jq'"),
    ("xargs -n 1 sh -c {}", "given code"),
    ("find . -exec {} \\;", "'find'"),
    ("env -S {}", "'env'"),
    ("make X={}", "'make'"),
    ("git -c alias.x={} x", "'git'"),
    ('python "$MODE" {}', "known only when the script runs"),
    ("bash <(echo {})", "the file that 'bash' runs"),
    ("sh ./{}", "the file that 'sh' runs"),
    ("echo {} | sh", "standard input"),
    ("echo {} | sudo bash -e -s x", "standard input"),
    ("printf '%s' {} | python3 -", "standard input"),
    ("cat {} | exec sh", "standard input"),
    ("echo {} | exec -a x sh", "after this option"),
    ("echo {} | time -f x sh", "after this option"),
    ("echo {} | env $X sh", "standard input"),
    ("echo {} | docker run -i image sh", "standard input"),
    ("echo {} | xargs env", "standard input"),
    ("echo {} | xargs -n 1 timeout 5", "standard input"),
    ("echo {} | xargs -I% sh -c 'echo %'", "standard input"),
    ("echo {} | xargs -I% %", "standard input"),
    ("python <(echo {})", "option"),
    ("docker run image sh -c 'echo {}'", "given code"),
    ("parallel echo {}", "'parallel'"),
    ("watch ls {}", "'watch'"),
    # what shells read differently
    ("echo a &> f eval {}", "&>file"),
    ("echo a >! eval {}", "not read alike"),
    ("cat <1-2> {}", "pattern"),
    ("!(echo {})", "differs between shells"),
    ("echo $(case a in a) echo {};; esac)", "not read alike"),
    ("case a in a) echo {};& b) echo;; esac", "not read alike"),
    ("case a in a) ;& esac; echo {}", "not read alike"),
    ("echo {};& eval", "not read alike"),
    ("echo } {}", "not read alike"),
    ('echo "$(echo # )" {}\n)"', "not read alike"),
    ('echo $"{}"', "not followed"),
    ("echo $(\\\n(a {}))", "middle of a word"),
    ("echo ${x:-'}'} {}", "not followed"),
    ("echo 'a {}", "not closed"),
    ('echo "a {}', "not closed"),
    ("(echo {}", "closed"),
    ("if echo {}; fi", "closes nothing"),
    ("echo {};; eval", "does not belong"),
    ("echo {} | ", "missing"),
    ("echo {} )", "does not belong"),
    ("{ echo {} } always { eval x; }", "not read alike"),
    ("select x in {}; do :; done", "closes nothing"),
    ("repeat 3 do echo {}; done", "closes"),
    ("echo $agentos_1 {}", "reserved for placeholders"),
    ("echo {#}>{}", "open file"),
    ("f() eval {}", "body"),
    ("echo {} \\", "backslash"),
]


@pytest.mark.parametrize(("script", "why"), REFUSED, ids=[script for script, _ in REFUSED])
def test_a_hole_that_might_be_more_than_data_is_refused(script: str, why: str) -> None:
    error = refused(script)

    assert why in str(error)
    assert "AGENTOS_ITEM" in str(error.hint)


def test_a_refusal_shows_the_place_and_the_way_to_write_it() -> None:
    error = refused("set -e\nexport TOPIC={} && run")

    assert str(error) == (
        "in the shell script {} stands at 'export', which the shell runs itself: it cannot be put in safely"
    )
    assert str(error.hint).splitlines() == [
        "export TOPIC={} && run",
        "             ^^",
        "write name={}; export name",
        'use "$AGENTOS_ITEM" there, which is always set, or "$1" with the placeholder '
        "as an argument after the script: sh -c '... \"$1\" ...' sh {}",
    ]


def test_where_the_item_would_be_evaluated_anyway_no_variable_is_advised() -> None:
    for script in ("echo $(( {} + 1 ))", "let {}", "[ {} -gt 3 ]"):
        assert "check it first" in str(refused(script).hint)
        assert '"$1"' not in str(refused(script).hint)
    for script in ("eval {}", "sh -c 'ls {}'", "ssh host ls {}", "trap {} EXIT"):
        assert "from its environment" in str(refused(script).hint)
        assert '"$1"' not in str(refused(script).hint)


def test_a_long_line_is_shown_around_the_place() -> None:
    lines = str(refused("echo " + "x" * 300 + " `{}` " + "y" * 300).hint).splitlines()

    assert max(map(len, lines[:2])) < 120
    assert lines[0][lines[1].index("^") :].startswith("{}")


def test_a_script_that_is_the_item_itself_is_refused_with_the_way_to_run_items() -> None:
    assert 'eval "$AGENTOS_ITEM"' in str(refused("{}").hint)


def test_the_number_is_harmless_anywhere() -> None:
    assert filled(["sh", "-c", "echo $(({#} % 2)) '{#}' # {#}"])[2] == "echo $((3 % 2)) '3' # 3"


def test_a_field_is_looked_at_for_items_that_have_fields_and_else_is_just_text() -> None:
    template = Template(["sh", "-c", "awk '{print}' file"])

    assert template.fill("text", "id", 1)[2] == "awk '{print}' file"
    with pytest.raises(TemplateError, match="the code for 'awk'"):
        template.check({"print": "x"})
    with pytest.raises(TemplateError, match="no field 'print'"):
        template.check({"other": "x"})


@pytest.mark.parametrize("script", ["python {}", "sed -n p {}", "perl -w {}", "ssh {} uptime"])
def test_an_item_that_an_interpreter_would_take_for_an_option_fails(script: str) -> None:
    for argv in (["sh", "-c", script], script.split()):
        template = Template(argv)

        assert template.fill("file", "id", 1)
        with pytest.raises(TemplateError, match="would take it for an option"):
            template.fill("-esystem('touch canary')", "id", 1)


def test_a_deeply_nested_script_is_refused() -> None:
    assert "nested" in str(refused("( " * 5000 + "echo {}" + " )" * 5000))


LISTS_BUILTINS = {
    "bash": "compgen -bk",
    "zsh": "print -l ${(k)builtins} ${(k)reswords}",
    "ksh93": "builtin; alias | sed 's/=.*//'",
    "mksh": "alias | sed 's/=.*//'",
    "yash": "command -vb . : alias",
}


@pytest.mark.parametrize("shell", [shell for shell in LISTS_BUILTINS if shell in SHELLS])
def test_every_builtin_of_the_shells_on_this_machine_is_known(shell: str) -> None:
    ended = subprocess.run([shell, "-c", LISTS_BUILTINS[shell]], capture_output=True, text=True, check=True)
    same_as_programs = {"nohup", "sleep"}  # builtins of some shells that do what the programs do

    assert {name for name in ended.stdout.split() if "/" not in name} <= BUILTINS | same_as_programs
