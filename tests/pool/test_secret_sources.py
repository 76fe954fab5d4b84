"""Secrets are read from variables, files and commands; errors name the source and never its content."""

from __future__ import annotations

import logging
import os
import pickle
import select
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.pool.secret_sources import (
    SecretUnavailable,
    derive_name,
    from_command,
    from_env,
    from_env_pattern,
    from_file,
    require_distinct,
)

SECRET = "planted-0123456789-secret"
PRINT = [sys.executable, "-c", "import sys; sys.stdout.write(sys.argv[1])"]


def written(folder: Path, text: str, name: str = "keys.txt") -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return path


# -- environment ------------------------------------------------------------------------------------------------------


def test_a_variable_gives_its_secret_without_the_blanks_around_it() -> None:
    assert from_env("ACME_KEY", {"ACME_KEY": f" {SECRET}\n"}) == SECRET


@pytest.mark.parametrize(
    ("environ", "problem"), [({}, "ACME_KEY is not set"), ({"ACME_KEY": "  "}, "ACME_KEY is empty")]
)
def test_a_variable_that_holds_nothing_is_named(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(SecretUnavailable, match=problem):
        from_env("ACME_KEY", environ)


@pytest.mark.parametrize("pasted", [SECRET, "AIzaSyPlanted0123456789abcdef", "sk_live_planted", ""])
def test_a_secret_in_the_place_of_a_variable_is_not_shown(pasted: str) -> None:
    with pytest.raises(SecretUnavailable) as refused:
        from_env(pasted, {})

    assert not pasted or pasted not in str(refused.value)


def test_a_pattern_gives_all_that_match_in_the_order_of_their_numbers() -> None:
    environ = {
        "K_10": "ten-secret",
        "K_9": "nine-secret",
        "K_A": "a-secret",
        "K": "plain-secret",
        "OTHER": "x",
        "K_E": "",
    }

    assert list(from_env_pattern("K*", environ)) == ["K", "K_9", "K_10", "K_A"]


def test_a_pattern_that_nothing_matches_is_refused_by_name() -> None:
    with pytest.raises(SecretUnavailable, match=r"no environment variable matches ACME_\*"):
        from_env_pattern("ACME_*", {"OTHER": SECRET})


def test_a_pattern_that_also_finds_an_address_is_refused_naming_the_variable() -> None:
    environ = {"ACME_KEY": SECRET, "ACME_URL": "https://example.com/v1"}

    with pytest.raises(SecretUnavailable, match="ACME_URL is no secret: it is an address"):
        from_env_pattern("ACME_*", environ)


def test_the_same_secret_in_two_variables_is_refused_naming_both() -> None:
    with pytest.raises(SecretUnavailable) as refused:
        from_env_pattern("K*", {"K_1": SECRET, "K_2": SECRET})

    assert "K_1" in str(refused.value)
    assert "K_2" in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_credential_is_named_after_its_variable() -> None:
    assert derive_name("OPENAI_API_KEY_1") == "openai-api-key-1"
    assert derive_name("__") == "key"


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_gives_a_secret_a_line_named_or_numbered(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "# mine\n\nplain-secret-1\nALICE=secret-of-alice\nexport BOB_KEY = 'secret-of-bob'\n\"quoted-secret\"\n",
    )

    assert from_file(path) == {
        "keys-1": "plain-secret-1",
        "alice": "secret-of-alice",
        "bob-key": "secret-of-bob",
        "keys-4": "quoted-secret",
    }


@pytest.mark.parametrize("line", ["c2VjcmV0IHdpdGggcGFkZGluZw==", "c2VjcmV0IHdpdGggcGFkZGlu="])
def test_the_padding_of_base64_makes_no_name_of_the_secret_before_it(tmp_path: Path, line: str) -> None:
    assert from_file(written(tmp_path, line)) == {"keys-1": line}


def test_a_file_of_windows_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.env"
    path.write_bytes("\ufeffALICE=secret-of-alice\r\nBOB=secret-of-bob\r\n".encode())
    path.chmod(0o600)

    assert from_file(path) == {"alice": "secret-of-alice", "bob": "secret-of-bob"}


@pytest.mark.parametrize(
    "bad",
    [
        "two words",
        "OPENAI_KEY=",
        "{",
        "secr\x00et-with-nul",
        "\u201cpretty-quotes-0123\u201d",
        "NAME=https://example.com",
        "\x1b[31mred-secret",
    ],
)
def test_a_line_that_is_no_secret_is_refused_by_its_number(tmp_path: Path, bad: str) -> None:
    path = written(tmp_path, f"{SECRET}\n{bad}\n")

    with pytest.raises(SecretUnavailable, match=r"keys\.txt, line 2,") as refused:
        from_file(path)

    assert SECRET not in str(refused.value)
    assert bad not in str(refused.value) or bad == "{"


@pytest.mark.parametrize("second", [f"B={SECRET}", SECRET])
def test_the_same_secret_in_two_lines_is_refused_naming_both(tmp_path: Path, second: str) -> None:
    with pytest.raises(SecretUnavailable, match=r"line 2 holds the same secret as .*line 1"):
        from_file(written(tmp_path, f"A={SECRET}\n{second}\n"))


def test_the_same_name_in_two_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecretUnavailable, match="line 2, gives the same name as line 1"):
        from_file(written(tmp_path, "A=secret-number-1\na=secret-number-2\n"))


def test_a_file_without_a_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecretUnavailable, match="holds no secret"):
        from_file(written(tmp_path, "# nothing yet\n"))


def test_a_path_that_leads_to_no_file_is_not_shown_for_it_may_be_a_secret(tmp_path: Path) -> None:
    for path in (Path(SECRET), Path(f"{SECRET}\0"), tmp_path / ("x" * 5_000)):
        with pytest.raises(SecretUnavailable) as refused:
            from_file(path)
        assert str(path) not in str(refused.value)


def test_a_folder_and_a_file_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SecretUnavailable, match="is a folder"):
        from_file(tmp_path)
    with pytest.raises(SecretUnavailable, match="larger than 1 MiB"):
        from_file(written(tmp_path, "x" * (1024 * 1024 + 1)))


@pytest.mark.skipif(os.name != "posix", reason="file modes")
@pytest.mark.parametrize("pipes", [False, True])
def test_a_device_is_no_file_of_secrets(pipes: bool) -> None:
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(SecretUnavailable, match="is not a regular file"):
            from_file(Path(device), pipes=pipes)


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(SecretUnavailable, match="is not a regular file"):
        from_file(tmp_path / "pipe")


def test_a_pipe_is_read_to_its_end_where_pipes_are_welcome(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write_in_pieces() -> None:
        with open(path, "w") as file:
            for piece in ("A=", SECRET, "\n", "B=another-secret"):
                file.write(piece)
                file.flush()

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write_in_pieces)
        found = from_file(path, pipes=True)
        writing.result()

    assert found == {"a": SECRET, "b": "another-secret"}


def test_a_pipe_that_never_ends_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    kept_open = os.open(path, os.O_RDWR)
    try:
        os.write(kept_open, SECRET.encode())

        with pytest.raises(SecretUnavailable, match=r"did not end within 0\.05s") as refused:
            from_file(path, pipes=True, timeout=0.05)
    finally:
        os.close(kept_open)

    assert SECRET not in str(refused.value)


def test_a_pipe_with_too_much_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write_without_end() -> None:
        with suppress(BrokenPipeError), open(path, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 65_536)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write_without_end)
        with pytest.raises(SecretUnavailable, match="is larger than 1 MiB"):
            from_file(path, pipes=True)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_file_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    path = written(tmp_path, SECRET)
    path.chmod(mode)

    with caplog.at_level(logging.WARNING, "agentos"):
        from_file(path)

    assert ("chmod 600" in caplog.text) == warned
    assert SECRET not in caplog.text


@given(st.text(max_size=200))
def test_whatever_is_in_a_file_it_is_read_or_refused_by_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "keys.txt"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    path.chmod(0o600)

    try:
        found = from_file(path)
    except SecretUnavailable:
        return

    assert all(secret and secret.isascii() and not any(c.isspace() for c in secret) for secret in found.values())
    assert len(set(found.values())) == len(found)


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_command_gives_what_it_prints_without_the_line_break(ending: str) -> None:
    assert from_command([*PRINT, SECRET + ending], os.environ) == SECRET


def test_a_command_as_text_is_split_into_words_and_not_given_to_a_shell() -> None:
    assert from_command("printf '%s' '$HOME;exit'", os.environ) == "$HOME;exit"


def test_a_command_sees_the_environment_it_is_given() -> None:
    script = "import os; print(os.environ['PLANTED'])"

    assert from_command([sys.executable, "-c", script], {**os.environ, "PLANTED": SECRET}) == SECRET


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f"print('{SECRET}'); raise SystemExit(3)", "exit code 3"),
        (f"print('{SECRET}', flush=True); import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        (f"print('{SECRET} and more')", "a space or a line break"),
        (f"print('{SECRET}'); print('more')", "a space or a line break"),
        ("pass", "holds nothing"),
        ("import sys; sys.stdout.buffer.write(b'\\xff' * 20)", "a character"),
        ("print('x' * 100_000)", "more than 64 KiB"),
    ],
)
def test_a_command_that_does_not_print_a_secret_is_refused_without_its_output(script: str, problem: str) -> None:
    with pytest.raises(SecretUnavailable, match=problem) as refused:
        from_command([sys.executable, "-c", script], os.environ)

    assert SECRET not in str(refused.value)
    assert script not in str(refused.value)


@pytest.mark.parametrize("command", ["", "un'closed", [], [f"/nowhere/{SECRET}"], ["a\0b"]])
def test_a_command_that_cannot_be_started_is_refused_and_not_shown(command: str | list[str]) -> None:
    with pytest.raises(SecretUnavailable) as refused:
        from_command(command, os.environ)

    assert SECRET not in str(refused.value)


def test_a_command_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(SecretUnavailable, match=r"did not end within 0\.05s"):
        from_command([sys.executable, "-c", "import threading; threading.Event().wait()"], os.environ, timeout=0.05)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs to wait for a process that is not a child")
def test_a_command_that_is_given_up_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        "import pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "print('x' * 100_000)\n"
    )

    with pytest.raises(SecretUnavailable):
        from_command([sys.executable, "-c", script], os.environ)

    try:
        descriptor = os.pidfd_open(int(pid_file.read_text()))
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 20)[0], "it is still running"
    finally:
        os.close(descriptor)


def test_a_command_cannot_wait_for_an_answer() -> None:
    script = "import sys; print('got-' + str(len(sys.stdin.read())))"

    assert from_command([sys.executable, "-c", script], os.environ) == "got-0"


# -- all of them ------------------------------------------------------------------------------------------------------


def test_one_source_named_twice_is_still_two() -> None:
    with pytest.raises(SecretUnavailable):
        require_distinct([("here", SECRET), ("there", SECRET)])


def test_the_error_survives_a_journey_to_another_process() -> None:
    error = SecretUnavailable(source="the file", problem="is gone", advice="make it")

    again = pickle.loads(pickle.dumps(error))

    assert (again.source, again.problem, again.advice, str(again)) == ("the file", "is gone", "make it", str(error))
