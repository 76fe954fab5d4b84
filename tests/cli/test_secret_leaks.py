"""No part of twenty secrets is in any file or output of runs whose workers leak them."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentos.pool.redaction import Masker

from ..page.report_reader import all_bytes
from .leaking_worker import TRICKS as WORKER_TRICKS
from .secret_canaries import CANARIES, UNUSABLE, Canary, CommandLines, Find, Hunter, User, forms_of, shown

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what other processes can see is looked up in /proc")

_HERE = Path(__file__).parent
_COMMAND = ("--env-key", "HUNTED", "--", sys.executable, "-I", "-S", str(_HERE / "leaking_command.py"), "{}")
_REPORTED = ("commands", "leak", "leak_async", "crash")
_ORDINARY = Canary("ordinary", CANARIES[0].secret)

# Enough for every key to be used, then every other trick.
_ITEMS = [
    *(f"forms.{number}" for number in range(2 * len(CANARIES))),
    *("torn.1", "torn.2", "bytes.1", "bytes.2", "long.1", "failure.1", "failure.2", "rejected.1", "limited.1"),
    *("says-failed.1", "says-odd.1", "says-nonsense.1", "says-bad-usage.1", "usage.1"),
]


@dataclass(frozen=True, slots=True)
class Story:
    """What the user did, and what could be seen of it from outside."""

    user: User
    command_lines: set[bytes]
    after_the_crash: set[Find]


@pytest.fixture(scope="module")
def hunter() -> Hunter:
    return Hunter()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, hunter: Hunter) -> Story:
    """One run after the other, of every kind; then every command that tells of them."""
    user = User(tmp_path_factory.mktemp("hunt"))
    keys = user.keep_canaries()
    with CommandLines() as command_lines, ThreadPoolExecutor(2) as both:
        _run_commands(user, keys)
        crash = both.submit(_crash_and_go_on, user, keys, hunter)
        others: list[Future[Any]] = [
            both.submit(_run_worker, user, keys, "leak"),
            both.submit(_run_on_a_terminal, user, keys),
            both.submit(_run_worker, user, keys, "leak_async"),
            *(both.submit(user.types, *typed) for typed in _asked(keys)),
        ]
        for other in others:
            other.result()
        after_the_crash = crash.result()
        user.types("retry", "commands")
        for name in _REPORTED:
            user.types("report", name, "-o", f"{name}.html")
    return Story(user, command_lines.seen, after_the_crash)


def _asked(keys: list[str]) -> Iterator[list[str]]:
    yield ["run", "items", *keys, "--dry-run", *_COMMAND]
    yield ["run", "items", *keys, "--dry-run", "--json", *_COMMAND]
    yield ["runs"]
    for more in ([], ["--json"], ["--items"], ["--failed", "--json"]):
        yield ["show", "commands", *more]
    for item in ("forms.1", "failure.1"):
        yield ["logs", "commands", item]
    for more in ([], ["--json"]):
        yield ["keys", *keys, *more]


def _run_commands(user: User, keys: list[str]) -> None:
    (user.cwd / "items").write_text("\n".join(_ITEMS))
    files = ("--results", "results.jsonl", "--joblog", "jobs.log")
    told = ("--json", "--progress", "json", "--verbose")
    user.types("run", "items", *keys, "--name", "commands", "-j", "8", *files, *told, *_COMMAND, what="commands")


def _run_worker(user: User, keys: list[str], function: str) -> None:
    items = user.cwd / f"items-of-{function}"
    items.write_text("\n".join(f"{trick}.1" for trick in WORKER_TRICKS))
    worker = ("--worker", f"{_HERE / 'leaking_worker.py'}:{function}")
    told = ("--name", function, "--retries", "1", "--verbose", "--keep-order")
    user.types("run", items.name, *keys, *told, *worker, what=function)


def _run_on_a_terminal(user: User, keys: list[str]) -> None:
    ours, theirs = pty.openpty()
    (user.cwd / "few").write_text("\n".join([*_ITEMS[:6], "failure.1", "torn.1", "bytes.1"]))
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with user.start("run", "few", *keys, "--name", "live", "--progress", "bar", *_COMMAND, **streams) as process:
        os.close(theirs)
        seen = bytearray()
        while data := _read(ours):
            seen += data
    os.close(ours)
    user.heard("a terminal", process.returncode, bytes(seen))


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""  # how a terminal says that nobody writes to it any more


def _crash_and_go_on(user: User, keys: list[str], hunter: Hunter) -> set[Find]:
    """Kill a run whose items have said all they know, look at what is left, and let the same command go on."""
    os.mkfifo(user.keeps / "here")
    os.mkfifo(user.keeps / "never")
    (user.cwd / "hangs").write_text("hangs.1\nhangs.2\nhangs.3\n")
    typed = ("run", "hangs", *keys, "--name", "crash", "--group", *_COMMAND)
    # Opened for both: who opens a pipe for each of the three again loses what comes between two of them.
    with user.start(*typed) as process, open(user.keeps / "here", "r+b", buffering=0) as here:
        heard = b""
        while len(heard) < 3:
            heard += here.read(3)
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=150)
    user.heard("a run that is killed", process.returncode, output)
    folder = user.cwd / ".agentos" / "runs" / "crash"
    # What commands wrote to AGENTOS_OUTCOME is removed by the process that outlives the run to end them.
    until = time.monotonic() + 20
    while any((folder / "checkpoints").glob(".attempts-*")) and time.monotonic() < until:
        time.sleep(0.01)
    left = hunter.in_files(folder)
    (user.keeps / "go-on").touch()
    user.types(*typed)
    return left


# -- the hunt ---------------------------------------------------------------------------------------------------------


def test_no_file_and_no_output_holds_eight_bytes_of_any_secret_in_any_form(story: Story, hunter: Hunter) -> None:
    finds = story.user.finds(hunter)

    assert not finds, shown(finds)


def test_no_report_holds_a_secret_once_it_is_decompressed(story: Story, hunter: Hunter) -> None:
    for name in _REPORTED:
        content = all_bytes(story.user.cwd / f"{name}.html")

        finds = sorted(hunter.in_bytes(content, f"{name}.html"))

        assert not finds, shown(finds)
        assert b"<secret>" in content, name


def test_no_command_line_holds_a_secret(story: Story, hunter: Hunter) -> None:
    finds = sorted(hunter.in_bytes(b"\n".join(story.command_lines), "a command line"))

    assert not finds, shown(finds)
    assert any(b"leaking_command.py" in line for line in story.command_lines)


def test_a_run_that_was_killed_leaves_no_secret_in_its_folder(story: Story) -> None:
    assert not story.after_the_crash, shown(sorted(story.after_the_crash))


def test_every_secret_was_in_the_hands_of_a_program_that_leaks_it(story: Story, hunter: Hunter) -> None:
    """Or the hunt would find nothing because there was nothing to find."""
    leaked: set[str] = set()
    for path in story.user.keeps.glob("environ.*.forms*"):
        leaked |= {find.canary for find in hunter.in_bytes(path.read_bytes(), "")}

    assert leaked == {canary.name for canary in CANARIES}


def test_what_was_taken_out_shows_where_it_was(story: Story) -> None:
    """Or the hunt would find nothing because the output was lost."""
    said = {each.what: each for each in story.user.said}

    assert {each.what: each.code for each in said.values() if each.code not in (0, 1)} == {"a run that is killed": -9}
    for what in ("commands", "leak", "leak_async", "a terminal"):
        assert said[what].output.count(b"<secret>") > 10, what
    assert b"\x1b[" in said["a terminal"].output  # the live display was there
    for name in ("forms.1", "torn.1", "bytes.1", "long.1", "failure.1"):
        assert b"<secret>" in (story.user.cwd / f".agentos/runs/commands/logs/{name}.log").read_bytes(), name


def test_a_command_finds_its_own_secret_in_its_environment_and_no_other(story: Story, hunter: Hunter) -> None:
    environments = list(story.user.keeps.glob("environ.*"))

    for path in environments:
        (own,) = {each.partition(b"=")[2] for each in path.read_bytes().split(b"\0") if each.startswith(b"HUNTED=")}
        rest = path.read_bytes().replace(b"HUNTED=" + own, b"")
        assert not hunter.in_bytes(rest, path.name), path.name
        assert own.decode() in {canary.secret for canary in CANARIES}
    assert len(environments) >= len(_ITEMS)


def test_the_process_that_starts_commands_has_no_secret_in_its_environment(story: Story, hunter: Hunter) -> None:
    environments = {path.read_bytes() for path in story.user.keeps.glob("environment-of-parent.*")}

    assert environments
    for environment in environments:
        assert b"LEAKS_TO=" in environment
        assert not hunter.in_bytes(environment, "the helper")


# -- secrets in the wrong place ---------------------------------------------------------------------------------------


@pytest.fixture
def user(tmp_path: Path) -> User:
    """With one key, in MY_KEY, and one item."""
    user = User(tmp_path)
    user.environ["MY_KEY"] = _ORDINARY.secret
    (user.cwd / "items").write_text("a\n")
    return user


def test_a_secret_typed_into_the_command_is_refused_before_anything_is_written(user: User) -> None:
    # None of those that other tests look for in all command lines at this moment.
    typed = Canary("typed", "sk-" + "".join(random.Random(42).choices("bcdfghkmnpqrstvwxz0123456789", k=40)))
    user.environ["MY_KEY"] = typed.secret
    hunter = Hunter([typed])

    said = user.types("run", "items", "--keys", "env:MY_KEY", "--", "curl", "-H", f"Bearer {typed.secret}")

    assert said.code == 2
    assert b"contains the secret of a credential" in said.output
    assert not user.finds(hunter), shown(user.finds(hunter))
    assert not (user.cwd / ".agentos").exists()


def test_a_worker_whose_import_fails_with_a_secret_in_its_words_is_refused_without_it(
    user: User, hunter: Hunter
) -> None:
    (user.cwd / "broken.py").write_text("import os\nraise ValueError('no such key: ' + os.environ['MY_KEY'])\n")

    said = user.types("run", "items", "--keys", "env:MY_KEY", "--worker", "broken:work")

    assert said.code == 2
    assert b"ValueError: no such key: sk-<secret>" in said.output
    assert not user.finds(hunter), shown(user.finds(hunter))


STORE = Canary("password of the store", "Kw9/uX4 zB7@" + "".join(random.Random(31).choices("bcdfghjkBCDFGHJK", k=12)))
STORE_URL = f"redis://hunted:{urllib.parse.quote(STORE.secret, safe='')}@127.0.0.1:1/0"

_PRINTS_THE_STORE = """
import os, urllib.parse

def work(item, credential):
    url = os.environ["AGENTOS_STORE"]
    password = urllib.parse.unquote(urllib.parse.urlsplit(url).password)
    print(url, password, password.upper())
    if item == "a":
        raise ValueError(f"cannot log in with {password}")
    return {"url": url, password: 1}
"""


def test_the_password_of_the_store_is_nowhere_whatever_workers_do_with_it(user: User) -> None:
    user.environ |= {"AGENTOS_STORE": STORE_URL, "SAME_SERVER": STORE_URL}
    (user.cwd / "prints.py").write_text(_PRINTS_THE_STORE)
    (user.cwd / "items").write_text("a\nb\n")
    run = ("run", "items", "--keys", "env:MY_KEY", "--store", "sqlite", "--results", "results.jsonl", "--json")
    command = ("sh", "-c", "printenv AGENTOS_STORE; printenv SAME_SERVER; printenv SAME_SERVER >&2; exit 3")

    with ThreadPoolExecutor(2) as both:
        function = both.submit(user.types, *run, "--name", "function", "--worker", "prints:work")
        said = [user.types(*run, "--name", "command", "--", *command), function.result()]

    finds = user.finds(Hunter([STORE]))
    assert not finds, shown(finds)
    assert [each.code for each in said] == [1, 1]
    logs = [(user.cwd / f".agentos/runs/{name}/logs/b.log").read_bytes() for name in ("command", "function")]
    # Of the command only from SAME_SERVER: printed twice, and once in the line that ends its attempt.
    assert [log.count(b"redis://hunted:<secret>") for log in logs] == [3, 1]


def test_the_password_of_the_store_typed_into_the_command_is_refused(user: User) -> None:
    user.environ["MY_STORE"] = STORE_URL

    said = user.types("run", "items", "--store", "env:MY_STORE", "--", "redis-cli", "-a", STORE.secret)

    assert said.code == 2
    assert b"the store's password" in said.output
    assert not user.finds(Hunter([STORE]))


def test_a_password_is_masked_also_if_the_url_around_it_cannot_be_read(user: User) -> None:
    unreadable = f"redis://hunted:{STORE.secret.replace(' ', '')}@127.0.0.1:1/0"  # for the slash is not encoded
    user.environ |= {"AGENTOS_STORE": unreadable, "SAME_SERVER": unreadable}

    said = user.types("run", "items", "--keys", "env:MY_KEY", "--store", "memory", "--", "printenv", "SAME_SERVER")

    assert b"redis://hunted:<secret>@" in said.output


def test_a_command_does_not_find_the_variable_that_names_its_store(user: User) -> None:
    user.environ |= {"MY_STORE": "memory", "AGENTOS_STORE": "memory"}
    names = "AGENTOS_STORE MY_STORE AGENTOS_HOME"
    script = f"for name in {names}; do printenv $name >/dev/null && echo has $name; done; true"

    said = user.types("run", "items", "--keys", "env:MY_KEY", "--store", "env:MY_STORE", "--", "sh", "-c", script)

    assert said.code == 0
    assert re.findall(rb"has (\w+)", said.output) == [b"AGENTOS_HOME"]


@pytest.mark.parametrize("canary", UNUSABLE, ids=lambda canary: canary.name)
def test_what_cannot_be_a_key_is_refused_and_not_quoted(user: User, hunter: Hunter, canary: Canary) -> None:
    user.environ["ODD_KEY"] = canary.secret
    path = user.keep("odd", canary.secret)
    config = user.keep("agentos.toml", f'[[credentials]]\nname = "odd"\ncommand = ["cat", "{path}"]\n')

    ways = [["--keys", "env:ODD_KEY"], ["--keys", path], ["--config", config]]
    with ThreadPoolExecutor(2) as both:
        codes = {said.code for said in both.map(lambda way: user.types("run", "items", *way, "--", "true"), ways)}

    assert codes == {4}
    assert not user.finds(hunter), shown(user.finds(hunter))


# -- ways by which a secret was once given away -------------------------------------------------------------------

_WAYS = (
    "the name of an exception's class",
    "sixteen characters in a value",
    "a thread that prints",
    "a thread that fails",
    "a task that nobody waits for",
    "a print at the import",
    "a log line at the import",
    "an exit at the import",
    "the model in AGENTOS_OUTCOME",
    "quotes in what was typed",
    "an item that is a secret",
    "a secret with = in a file",
)

_QUOTED = ("b7q", "Xk2", "mm9", "Zt4", "w8r", "Lp3", "c5v")  # with a quote after each: no eight without one
_ASSIGNED = "zx81kqpw7722mmq=77hhdkkqq91ttw3"

_LEAKS_BY_FAULT = """
import asyncio, logging, os, threading

secrets = dict(line.split("=", 1) for line in os.environ["ALL_OF_THEM"].splitlines())
print(secrets["a print at the import"])
logging.getLogger("agentos.mine").warning(secrets["a log line at the import"])

async def work(item, credential):
    secret = secrets[item]
    if item.startswith("the name"):
        raise type(secret, (Exception,), {})
    if item.startswith("sixteen"):
        return secret[:16]
    if item.startswith("a thread"):
        target = (lambda: print(secret)) if item.endswith("prints") else (lambda: {}[secret])
        thread = threading.Thread(target=target)
        thread.start()
        await asyncio.to_thread(thread.join)
    if item.startswith("a task"):
        async def fail():
            raise ValueError(secret)
        asyncio.create_task(fail())
        await asyncio.sleep(0)
"""


def _secret_for(fault: str) -> str:
    return "".join(random.Random(fault).choices("bcdfghkmnpqrstvwxzBCDFGHKMNPQRSTVWXZ23456789", k=28))


@pytest.fixture(scope="module")
def given_away(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The faults by which a secret, one for each, was found."""
    canaries = {fault: Canary(fault, _secret_for(fault)) for fault in _WAYS}
    for fault, secret in (("quotes in what was typed", "'".join(_QUOTED)), ("a secret with = in a file", _ASSIGNED)):
        canaries[fault] = Canary(fault, secret)
    secrets = {fault: canary.secret for fault, canary in canaries.items()}
    user = User(tmp_path_factory.mktemp("faults"))
    user.environ |= {f"MY_KEY_{number}": secret for number, secret in enumerate(secrets.values())}
    user.environ["ALL_OF_THEM"] = "\n".join(f"{fault}={secret}" for fault, secret in secrets.items())
    run = ("run", "--keys", "env:MY_KEY_*", "--env-key", "HUNTED")
    (user.cwd / "faulty.py").write_text(_LEAKS_BY_FAULT)
    (user.cwd / "faults").write_text("\n".join(_WAYS[:5]))
    (user.cwd / "leaves.py").write_text(
        "import os, sys\nsys.exit(os.environ['ALL_OF_THEM'].partition('an exit at the import=')[2].split()[0])\n"
    )
    model = [*secrets].index("the model in AGENTOS_OUTCOME")
    items = user.keep("items", secrets["an item that is a secret"])
    keys = user.keep("keys", secrets["a secret with = in a file"])
    with ThreadPoolExecutor(2) as both:
        for done in [
            both.submit(user.types, *typed)
            for typed in (
                (*run, "faults", "--worker", "faulty:work"),
                (*run, "faults", "--worker", "leaves:work"),
                ("run", "--keys", f"env:MY_KEY_{model}", *_COMMAND, ":::", "model.1"),
                (*run, "faults", "--", "echo", f"Bearer {secrets['quotes in what was typed']}"),
                (*run, items, "--", "true"),
                ("run", "faults", "--keys", keys, "--", "true"),
            )
        ]:
            done.result()
    return {find.canary for find in user.finds(Hunter(canaries.values()))}


@pytest.mark.parametrize("fault", _WAYS)
def test_a_secret_is_not_given_away_by(given_away: set[str], fault: str) -> None:
    assert fault not in given_away


_SLASHED = "b7/q+X/k=2/m+m/9=Z/t+4/w=8r/L+p/3=c"
_BY_OTHER_PROGRAMS = {
    "the path of a URL": (_SLASHED, urllib.parse.quote(_SLASHED)),
    "a URL in small letters": (_SLASHED, re.sub("%..", lambda found: found[0].lower(), urllib.parse.quote(_SLASHED))),
    "the repr of Python": ("'".join(_QUOTED) + '"', repr("'".join(_QUOTED) + '"')),
}


@pytest.mark.parametrize(("secret", "text"), _BY_OTHER_PROGRAMS.values(), ids=_BY_OTHER_PROGRAMS)
def test_a_secret_is_masked_as_other_programs_write_it(secret: str, text: str) -> None:
    """Of secrets in which no eight characters in a row are as they were."""
    masked = Masker([secret]).mask(text)

    # Twelve, for half of them may be marks.
    assert not any(text[start : start + 12] in masked for start in range(len(text) - 11))


# -- the hunter itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("canary", [*CANARIES, *UNUSABLE], ids=lambda canary: canary.name)
def test_the_hunter_finds_a_window_of_every_form(hunter: Hunter, canary: Canary) -> None:
    for form, text in forms_of(canary.secret):
        length = min(len(text), 10)
        for start in (0, (len(text) - length) // 2, len(text) - length):
            found = hunter.in_bytes(b"\0\xff<" + text[start : start + length] + b">\n", "here")
            assert Find("here", canary.name, form) in found, (form, start)


def test_the_hunter_finds_nothing_where_there_is_less_than_a_window(hunter: Hunter) -> None:
    for canary in CANARIES:
        assert not hunter.in_bytes(canary.secret[:7].encode() + b"<secret>", "here")


def _in_a_file(folder: Path, text: str) -> None:
    (folder / "log").write_bytes(b"\xff" * 5_000 + text.encode())


def _in_a_name(folder: Path, text: str) -> None:
    (folder / f"{text}.log").touch()


def _in_a_link(folder: Path, text: str) -> None:
    (folder / "link").symlink_to(text)


def _in_a_row(folder: Path, text: str) -> None:
    with sqlite3.connect(folder / "db") as database:
        database.execute("create table facts(fact)")
        database.execute("insert into facts values(?)", (text,))
    database.close()


def _in_a_page_that_was_freed(folder: Path, text: str) -> None:
    _in_a_row(folder, text)
    database = sqlite3.connect(folder / "db")
    database.execute("pragma secure_delete = off")
    database.execute("drop table facts")
    database.commit()
    database.close()


def _in_a_log_of_writes(folder: Path, text: str) -> None:
    program = (
        "import os, sqlite3, sys; d = sqlite3.connect('db'); d.execute('pragma journal_mode = wal');"
        "d.execute('create table facts(fact)'); d.execute('insert into facts values(?)', (sys.stdin.read(),));"
        "d.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-I", "-c", program], cwd=folder, input=text, text=True, check=True)
    assert (folder / "db-wal").stat().st_size


@pytest.mark.parametrize(
    "plant", [_in_a_file, _in_a_name, _in_a_link, _in_a_row, _in_a_page_that_was_freed, _in_a_log_of_writes]
)
def test_the_hunter_finds_a_window_in_every_kind_of_file(
    tmp_path: Path, hunter: Hunter, plant: Callable[[Path, str], None]
) -> None:
    plant(tmp_path, _ORDINARY.secret[20:28])

    assert {find.canary for find in hunter.in_files(tmp_path)} == {"ordinary"}


@pytest.mark.parametrize("folder", ["work", "home", "state", "tmp", "config"])
def test_the_search_covers_every_folder_and_all_output(user: User, hunter: Hunter, folder: str) -> None:
    assert not user.finds(hunter)

    user.heard("something", 0, _ORDINARY.secret[8:16].encode())
    _in_a_file(user.ground / folder, CANARIES[1].secret[8:16])

    assert {(find.canary, find.place) for find in user.finds(hunter) if find.form == "raw"} == {
        ("ordinary", "output of something"),
        ("long", f"{folder}/log"),
    }


def test_a_find_does_not_show_what_was_found(tmp_path: Path, hunter: Hunter) -> None:
    _in_a_name(tmp_path, _ORDINARY.secret)

    finds = sorted(hunter.in_files(tmp_path))

    assert finds
    assert not hunter.in_bytes(f"{finds} {shown(finds)} {_ORDINARY}".encode(), "the message")


def test_command_lines_of_other_processes_are_seen() -> None:
    program = "import sys; print('here', flush=True); sys.stdin.read()"
    canary = Canary("of this test", "".join(random.Random(41).choices("bcdfghkmnpqrstvwxz", k=8)))
    argv = [sys.executable, "-c", program, canary.secret]  # none of those that other tests look for at this moment
    with (
        CommandLines() as lines,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()  # it may have no command line before
        lines.look()
        process.communicate()

    assert Hunter([canary]).in_bytes(b"\n".join(lines.seen), "a command line")
