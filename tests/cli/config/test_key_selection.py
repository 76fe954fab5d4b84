"""``--keys`` selects credentials and reads their secrets; errors never show a secret."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentos import Limit
from agentos.cli.config.files import load_settings
from agentos.cli.config.key_selection import SelectedKey, build_specs, load_credentials
from agentos.cli.exit_codes import ExitCode
from agentos.cli.usage_error import UsageError

ALICE, BOB, CAROL = "secret-of-alice-1", "secret-of-bob-22", "secret-of-carol-3"

CONFIG = """
[[credentials]]
name = "alice"
env = "ALICE_API_KEY"
quota = "acme"
slots = 4
rpm = 60
hosts = ["localhost:8000"]

[[credentials]]
name = "bob"
file = "bob.key"
env_key = "OPENAI_API_KEY"

[[credentials]]
name = "off"
env = "NOT_SET"
disabled = true
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "ALICE_API_KEY": ALICE, "PATH": "/usr/bin:/bin"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    keep(folder / "bob.key", f"{BOB}\n")
    (folder / "agentos.toml").write_text(CONFIG)
    return folder


def keep(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def given(project: Path, environ: dict[str, str], *keys: str) -> list[SelectedKey]:
    return load_credentials(load_settings(None, project, environ), list(keys), environ)


def refused(project: Path, environ: dict[str, str], *keys: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        given(project, environ, *keys)
    said = f"{caught.value.message}{caught.value.hint}"
    assert not any(secret in said for secret in (ALICE, BOB, CAROL))
    return caught.value


def names(found: list[SelectedKey]) -> list[str | None]:
    return [each.credential.name for each in found]


def secrets(found: list[SelectedKey]) -> list[str]:
    return [each.credential.secret.reveal() for each in found]


# -- what is chosen ---------------------------------------------------------------------------------------------------


def test_without_keys_all_of_the_configuration_are_used_but_the_disabled_ones(
    project: Path, environ: dict[str, str]
) -> None:
    alice, bob = given(project, environ)

    assert (names([alice, bob]), secrets([alice, bob])) == (["alice", "bob"], [ALICE, BOB])
    assert (alice.credential.quota, alice.credential.slots, alice.credential.limits) == (
        "acme",
        4,
        (Limit("requests", 60),),
    )
    assert alice.credential.hosts == ("localhost:8000",)
    assert (alice.where, bob.where) == ("agentos.toml, line 2", "agentos.toml, line 10")


def test_what_goes_with_a_credential_is_taken_from_a_file_that_was_named(
    project: Path, environ: dict[str, str]
) -> None:
    (project / "mine.toml").write_text(
        '[[credentials]]\nenv = "ALICE_API_KEY"\nbase_url = "https://api.example.com/v1"\nextra_env = { ORG = "o-1" }\n'
    )

    (alice,) = given(project, environ, "mine.toml")

    assert (alice.credential.base_url, alice.credential.env) == ("https://api.example.com/v1", {"ORG": "o-1"})


def test_a_credential_gets_its_provider(project: Path, environ: dict[str, str]) -> None:
    (project / "agentos.toml").write_text('[[credentials]]\nenv = "ALICE_API_KEY"\nprovider = "Azure"\n')

    (alice,) = given(project, environ)

    assert alice.credential.provider == "azure"


def test_without_any_credential_no_pool_is_wanted(tmp_path: Path, environ: dict[str, str]) -> None:
    assert given(tmp_path, environ) == []


def test_names_choose_some_in_the_order_they_are_typed(project: Path, environ: dict[str, str]) -> None:
    assert names(given(project, environ, "bob,alice")) == ["bob", "alice"]
    assert names(given(project, environ, "bob", "alice", "bob")) == ["bob", "alice"]


def test_a_variable_and_a_pattern_need_no_configuration(tmp_path: Path, environ: dict[str, str]) -> None:
    environ |= {"OPENAI_API_KEY_1": BOB, "OPENAI_API_KEY_2": CAROL}

    assert names(given(tmp_path, environ, "env:ALICE_API_KEY")) == ["alice-api-key"]
    assert names(given(tmp_path, environ, "env:OPENAI_API_KEY*,env:ALICE_API_KEY")) == [
        "openai-api-key-1",
        "openai-api-key-2",
        "alice-api-key",
    ]


def test_a_file_of_secrets_gives_one_credential_a_line(project: Path, environ: dict[str, str]) -> None:
    keep(project / "team.env", f"CAROL={CAROL}\nsecret-without-a-name\n")

    found = given(project, environ, "team.env")

    assert names(found) == ["carol", "team-2"]
    assert [each.where for each in found] == ["team.env", "team.env"]


def test_a_file_of_entries_is_read_as_a_configuration(project: Path, environ: dict[str, str]) -> None:
    (project / "more.toml").write_text('[[credentials]]\nname = "carol"\nenv = "CAROL"\nslots = 2\n')

    (carol,) = given(project, environ | {"CAROL": CAROL}, "more.toml")

    assert (carol.credential.name, carol.credential.slots, carol.where) == ("carol", 2, "more.toml, line 1")


def test_the_path_of_a_file_may_have_a_comma_and_a_tilde(project: Path, environ: dict[str, str]) -> None:
    keep(project / "a,b.txt", f"{CAROL}\n")
    Path(environ["HOME"]).mkdir()
    keep(Path(environ["HOME"]) / "k.txt", f"{BOB}\n")

    assert secrets(given(project, environ, "a,b.txt", "~/k.txt")) == [CAROL, BOB]


def test_a_configuration_may_say_which_keys_to_use(project: Path, environ: dict[str, str]) -> None:
    (project / "agentos.toml").write_text(f'[run]\nkeys = "bob"\n{CONFIG}')

    assert names(given(project, environ)) == ["bob"]
    assert names(given(project, environ, "alice")) == ["alice"]


def test_keys_in_the_users_own_file_are_beside_that_file(project: Path, environ: dict[str, str]) -> None:
    own = Path(environ["HOME"]) / ".config" / "agentos"
    own.mkdir(parents=True)
    (own / "agentos.toml").write_text('[run]\nkeys = "mine.txt"\n')
    keep(own / "mine.txt", f"{CAROL}\n")

    assert secrets(given(project, environ)) == [CAROL]


# -- where a program finds its key ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "env_key"),
    [
        ("env:OPENAI_API_KEY*", "OPENAI_API_KEY"),
        ("env:OPENAI_API_KEY_*", "OPENAI_API_KEY"),
        ("env:OPENAI_*", "OPENAI_API_KEY"),
        ("env:OPENAI_API_KEY_3", "OPENAI_API_KEY"),
        ("env:*_KEY_3", "OPENAI_API_KEY"),
        ("env:GITHUB_TOKEN", "GITHUB_TOKEN"),
        ("env:KEY_POOL_KEY_*", "KEY_POOL_KEY"),
        ("env:ACME_*", "ACME"),
        ("env:PLAIN", "PLAIN"),
        ("env:AGENTOS_ITEM", None),
        ("env:AGENTOS_IT*", None),
    ],
)
def test_the_variable_of_a_program_is_found_by_that_of_the_secret(
    tmp_path: Path, environ: dict[str, str], word: str, env_key: str | None
) -> None:
    environ |= dict.fromkeys(["OPENAI_API_KEY_3", "GITHUB_TOKEN", "KEY_POOL_KEY_1", "ACME_ALICE", "PLAIN"], BOB)
    environ["AGENTOS_ITEM"] = BOB

    assert [each.env_key for each in given(tmp_path, environ, word)] == [env_key]


def test_an_entry_may_say_where_a_program_finds_its_key(project: Path, environ: dict[str, str]) -> None:
    assert [each.env_key for each in given(project, environ)] == ["ALICE_API_KEY", "OPENAI_API_KEY"]


def test_a_secret_of_a_file_goes_to_no_variable_in_particular(project: Path, environ: dict[str, str]) -> None:
    assert given(project, environ, "bob.key")[0].env_key is None


def test_all_variables_that_hold_the_secret_are_known_so_that_no_child_inherits_them(
    project: Path, environ: dict[str, str]
) -> None:
    environ |= {"COPY": BOB, "HEADER": f"Bearer {BOB}", "OTHER": "x"}

    alice, bob = given(project, environ)

    assert (alice.sources, bob.sources) == (("ALICE_API_KEY",), ("COPY", "HEADER"))


# -- what cannot be had -----------------------------------------------------------------------------------------------


def test_a_variable_that_is_not_set_is_refused_by_file_line_and_name(project: Path, environ: dict[str, str]) -> None:
    del environ["ALICE_API_KEY"]

    error = refused(project, environ)

    assert error.message == "agentos.toml, line 2: alice: the environment variable ALICE_API_KEY is not set"
    assert error.code is ExitCode.NO_CREDENTIAL


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("env:NOT_SET", "--keys: the environment variable NOT_SET is not set"),
        ("env:NOT_SET*", "--keys: no environment variable matches NOT_SET*"),
        ("alice,env:NOT_SET", "--keys, word 2: the environment variable NOT_SET is not set"),
        ("off", "--keys: off is disabled (agentos.toml, line 15)"),
        ("empty.txt", "--keys: "),
    ],
)
def test_a_secret_that_is_not_there_ends_with_its_own_code(
    project: Path, environ: dict[str, str], word: str, message: str
) -> None:
    keep(project / "empty.txt", "")

    error = refused(project, environ, word)

    assert error.message.startswith(message)
    assert error.code is ExitCode.NO_CREDENTIAL


@pytest.mark.parametrize("word", ["", "alice,", "env:", "env:A=B", "nobody", f"{CAROL}", "a\0b", "x" * 5_000])
def test_a_word_that_names_nothing_is_wrongly_typed_and_not_shown(
    project: Path, environ: dict[str, str], word: str
) -> None:
    error = refused(project, environ, word)

    assert error.code is ExitCode.USAGE
    assert error.message.startswith("--keys")


def test_a_name_nearly_right_is_answered_with_the_right_one(project: Path, environ: dict[str, str]) -> None:
    assert refused(project, environ, "alcie").hint == "did you mean alice?"


def test_a_variable_without_env_is_answered_with_how_it_is_typed(project: Path, environ: dict[str, str]) -> None:
    environ["OPENAI_API_KEY_1"] = CAROL

    error = refused(project, environ, "OPENAI_API_KEY_1")

    assert error.hint == "did you mean env:OPENAI_API_KEY_1?"
    assert CAROL not in f"{error.message} {error.hint}"


def test_a_file_of_several_secrets_is_too_much_for_one_entry(project: Path, environ: dict[str, str]) -> None:
    keep(project / "bob.key", f"{BOB}\n{CAROL}\n")

    error = refused(project, environ)

    assert error.message == "agentos.toml, line 10: bob: the file named there holds 2 secrets, and an entry is for one"


def test_the_same_secret_under_two_names_is_refused_naming_both(project: Path, environ: dict[str, str]) -> None:
    environ["ALICE_API_KEY"] = BOB

    error = refused(project, environ)

    assert error.message == ("agentos.toml, line 10 (bob) holds the same secret as agentos.toml, line 2 (alice)")
    assert error.code is ExitCode.USAGE


def test_two_credentials_of_one_name_are_refused_naming_both(project: Path, environ: dict[str, str]) -> None:
    environ |= {"A_1": BOB, "a_1": CAROL}

    error = refused(project, environ, "env:A_1,env:a_1")

    assert error.message == "two credentials are called a-1: environment variable A_1 and environment variable a_1"


def test_credentials_that_are_all_disabled_are_not_the_same_as_none(project: Path, environ: dict[str, str]) -> None:
    (project / "agentos.toml").write_text('[[credentials]]\nname = "a"\nenv = "A"\ndisabled = true\n')

    assert refused(project, environ).code is ExitCode.NO_CREDENTIAL


def test_a_name_that_is_its_own_secret_is_refused_without_showing_it(project: Path, environ: dict[str, str]) -> None:
    (project / "agentos.toml").write_text(f'[[credentials]]\nname = "x{CAROL}"\nenv = "C"\n')

    assert "name must not hold the secret" in refused(project, environ | {"C": CAROL}).message


# -- commands ---------------------------------------------------------------------------------------------------------


def command(script: str) -> str:
    return f"[[credentials]]\nname = \"carol\"\ncommand = ['{sys.executable}', '-c', '''{script}''']\n"


def test_a_command_is_run_where_the_user_has_named_the_file(project: Path, environ: dict[str, str]) -> None:
    (project / "mine.toml").write_text(command(f'print("{CAROL}")'))

    assert secrets(given(project, environ, "mine.toml")) == [CAROL]


def test_a_command_that_fails_is_refused_by_line_and_code(project: Path, environ: dict[str, str]) -> None:
    (project / "mine.toml").write_text(command(f'print("{CAROL}"); raise SystemExit(7)'))

    error = refused(project, environ, "mine.toml")

    assert error.message == "mine.toml, line 1: carol: the command ended with exit code 7"
    assert error.code is ExitCode.NO_CREDENTIAL


@pytest.mark.parametrize("typed", [(), ("mine.toml",)])
def test_a_project_cannot_have_a_command_run_by_way_of_another_file(
    project: Path, environ: dict[str, str], typed: tuple[str, ...]
) -> None:
    """Also if the words of the project's file are handed on as if they had been typed."""
    (project / "agentos.toml").write_text('[run]\nkeys = ["mine.toml"]\n')
    (project / "mine.toml").write_text(command(f'open("{project}/ran", "w").close(); print("{CAROL}")'))

    error = refused(project, environ, *typed)

    assert "command is not run" in error.message
    assert not (project / "ran").exists()


@pytest.mark.parametrize("word", ["theirs.toml", "theirs.txt"])
def test_a_project_cannot_replace_a_key_of_the_user_through_another_file(
    project: Path, environ: dict[str, str], word: str
) -> None:
    own = Path(environ["HOME"]) / ".config" / "agentos"
    own.mkdir(parents=True)
    (own / "agentos.toml").write_text('[[credentials]]\nname = "carol"\nenv = "ALICE_API_KEY"\n')
    (project / "agentos.toml").write_text(f'[run]\nkeys = ["{word}"]\n')
    (project / "theirs.toml").write_text('[[credentials]]\nname = "carol"\nfile = "bob.key"\n')
    keep(project / "theirs.txt", f"CAROL={BOB}\n")

    assert f"the name carol is taken by {own / 'agentos.toml'}, line 1" in refused(project, environ).message
    (project / "agentos.toml").unlink()
    assert secrets(given(project, environ, word)) == [BOB]


def test_a_variable_cannot_have_a_command_run_and_the_same_typed_can(project: Path, environ: dict[str, str]) -> None:
    (project / "mine.toml").write_text(command(f'print("{CAROL}")'))

    environ["AGENTOS_KEYS"] = "mine.toml"

    error = refused(project, environ)

    assert error.message.startswith("mine.toml, line 3: credentials[1].command is not run")
    assert secrets(given(project, environ, "mine.toml")) == [CAROL]


# -- pipes ------------------------------------------------------------------------------------------------------------


def test_a_pipe_is_read_where_it_was_typed(project: Path, environ: dict[str, str]) -> None:
    """As a shell hands it over: ``--keys <(pass show acme)``."""
    reading, writing = os.pipe()
    try:
        os.write(writing, f"CAROL={CAROL}\n".encode())
        os.close(writing)

        found = given(project, environ, f"/dev/fd/{reading}")
    finally:
        os.close(reading)

    assert (names(found), secrets(found)) == (["carol"], [CAROL])


@pytest.mark.parametrize("by", ["file", "keys", "variable"])
def test_a_pipe_that_was_not_typed_is_refused_and_not_waited_for(
    project: Path, environ: dict[str, str], by: str
) -> None:
    os.mkfifo(project / "pipe")
    text = '[[credentials]]\nname = "a"\nfile = "pipe"\n' if by == "file" else '[run]\nkeys = "pipe"\n'
    (project / "agentos.toml").write_text(text if by != "variable" else "")

    error = refused(project, environ | ({"AGENTOS_KEYS": "pipe"} if by == "variable" else {}))

    assert "is not a regular file" in error.message
    assert error.code is ExitCode.NO_CREDENTIAL


# -- without secrets --------------------------------------------------------------------------------------------------


def test_what_is_stated_is_known_without_any_secret(project: Path, environ: dict[str, str]) -> None:
    del environ["ALICE_API_KEY"]
    (project / "bob.key").unlink()
    settings = load_settings(None, project, environ)

    alice, bob = build_specs(settings, [], environ)[0]

    assert (alice.name, alice.slots, alice.quota, alice.limits) == ("alice", 4, "acme", (Limit("requests", 60),))
    assert (bob.name, bob.slots, bob.auto) == ("bob", 1, True)  # not stated: a run may have estimated it
    assert [spec.name for spec in build_specs(settings, ["env:NOT_SET", "env:NONE*", "off"], environ)[0]] == ["not-set"]


def test_an_entry_is_also_known_by_its_variable(project: Path, environ: dict[str, str]) -> None:
    assert names(given(project, environ, "ALICE_API_KEY")) == ["alice"]


def test_a_line_that_names_a_variable_says_where_a_command_looks_for_it(project: Path, environ: dict[str, str]) -> None:
    keep(project / "my.env", f"OPENAI_API_KEY_1={BOB}\ncarol={CAROL}\n")

    assert [each.env_key for each in given(project, environ, "my.env")] == ["OPENAI_API_KEY", None]
