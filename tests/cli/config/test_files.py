"""Configuration files and the environment: precedence, errors and their lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.cli.config.files import Settings, load_settings, user_folder
from agentos.cli.config.run_options import RUN_OPTIONS, BadValue, Option, build_variable_name, parse_flag
from agentos.cli.exit_codes import ExitCode
from agentos.cli.usage_error import UsageError

SECRET = "planted-0123456789-secret"
NO_STORE = (
    "must be sqlite, sqlite:///path, redis://host:port/db, env:NAME for a variable that has such a URL, or memory"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def write(folder: Path, text: str, name: str = "agentos.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def own(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"]) / ".config" / "agentos"


def refusal(text: str, project: Path, environ: dict[str, str], *, named: bool = False) -> UsageError:
    """Of the project's file; *named*: as if the user had chosen it with ``--config``."""
    path = write(project, text)
    with pytest.raises(UsageError) as refused:
        load_settings(path if named else None, project, environ)
    assert refused.value.code is ExitCode.USAGE
    return refused.value


def values(settings: Settings) -> dict[str, Any]:
    return {name: setting.value for name, setting in settings.run.items()}


# -- which file wins --------------------------------------------------------------------------------------------------


def test_without_any_file_nothing_is_set(project: Path, environ: dict[str, str]) -> None:
    settings = load_settings(None, project, environ)

    assert (settings.run, settings.credentials, settings.files, settings.warnings) == ({}, [], (), ())


def test_the_project_wins_over_the_user_and_says_where(project: Path, environ: dict[str, str]) -> None:
    write(own(environ), "[run]\nparallel = 2\nretries = 1\n")
    write(project, "\n[run]\nparallel = 5\n")

    settings = load_settings(None, project, environ)

    assert values(settings) == {"parallel": 5, "retries": 1}
    assert settings.run["parallel"].where == "agentos.toml, line 3"
    assert settings.run["retries"].where == f"{own(environ) / 'agentos.toml'}, line 3"


def test_credentials_of_both_files_are_joined(project: Path, environ: dict[str, str]) -> None:
    write(own(environ), '[[credentials]]\nname="a"\nenv="A"\nrpm=1\n[[credentials]]\nname="b"\nenv="B"\n')
    write(project, '[[credentials]]\nname="c"\nenv="C"\n')

    found = load_settings(None, project, environ).credentials

    assert [(entry.name, entry.place, entry.rpm) for entry in found] == [
        ("a", "A", 1),
        ("b", "B", None),
        ("c", "C", None),
    ]


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_file_that_is_named_is_the_only_one_read(project: Path, environ: dict[str, str], by: str) -> None:
    write(own(environ), "[run]\nparallel = 2\n")
    write(project, "[run]\nretries = 5\n")
    named = write(project, "[run]\ntag = true\n", "other.toml")

    if by == "flag":
        settings = load_settings(Path("other.toml"), project, environ)
    else:
        settings = load_settings(None, project, {**environ, "AGENTOS_CONFIG": "other.toml"})

    assert values(settings) == {"tag": True}
    assert settings.files == (named,)


def test_the_error_for_a_missing_file_says_where_it_was_named(project: Path, environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r'--config: "missing\.toml" cannot be read: No such file'):
        load_settings(Path("missing.toml"), project, environ)
    with pytest.raises(UsageError, match=r'AGENTOS_CONFIG: "missing\.toml" cannot be read: No such file'):
        load_settings(None, project, {**environ, "AGENTOS_CONFIG": "missing.toml"})


@pytest.mark.parametrize("pasted", [SECRET, f"/{SECRET}/{SECRET}", SECRET * 20])
def test_a_secret_in_the_place_of_the_file_is_not_shown(project: Path, environ: dict[str, str], pasted: str) -> None:
    for arguments in ((Path(pasted), environ), (None, {**environ, "AGENTOS_CONFIG": pasted})):
        with pytest.raises(UsageError, match=r"the file named there \([0-9]+ characters\) cannot be read") as refused:
            load_settings(arguments[0], project, arguments[1])

        assert SECRET not in f"{refused.value.message}{refused.value.hint}"


def test_the_users_folder_is_that_of_the_desktop_specification(tmp_path: Path) -> None:
    assert user_folder({"HOME": "/h"}) == Path("/h/.config/agentos")
    assert user_folder({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}) == Path("/x/agentos")
    assert user_folder({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}) == Path("/h/.config/agentos")


def test_variables_win_over_files(project: Path, environ: dict[str, str]) -> None:
    write(project, '[run]\nparallel = 5\ntimeout = "1m"\n')

    settings = load_settings(
        None, project, {**environ, "AGENTOS_PARALLEL": "8", "AGENTOS_TAG": "yes", "AGENTOS_TIMEOUT": ""}
    )

    assert values(settings) == {"parallel": 8, "tag": True, "timeout": 60.0}
    assert settings.run["parallel"].where == "AGENTOS_PARALLEL"


def test_the_folder_of_runs_has_the_variable_it_always_had(project: Path, environ: dict[str, str]) -> None:
    assert load_settings(None, project, {**environ, "AGENTOS_BASE_DIR": "elsewhere"}).value("dir") == "elsewhere"


def test_a_variable_that_means_nothing_is_warned_of_with_the_nearest_name(
    project: Path, environ: dict[str, str]
) -> None:
    settings = load_settings(None, project, {**environ, "AGENTOS_PARALEL": "8"})

    assert settings.warnings == (
        "the environment variable AGENTOS_PARALEL means nothing to agentos; did you mean AGENTOS_PARALLEL?",
    )


def test_variables_of_running_items_and_of_the_pool_are_no_options(project: Path, environ: dict[str, str]) -> None:
    others = "RUN_ID ITEM ITEM_FILE ITEM_ID ATTEMPT SLOT CREDENTIAL_NAME WORKFLOW_DB OUTCOME CREDENTIAL"
    more = "HOME CREDENTIAL_LIMIT SIMULATE_429 DEBUG NO_COLOR"

    settings = load_settings(
        None, project, {**environ, **{f"AGENTOS_{name}": "1" for name in f"{others} {more}".split()}}
    )

    assert (settings.run, settings.warnings) == ({}, ())


# -- what [run] may say -----------------------------------------------------------------------------------------------


def test_every_option_takes_its_own_example_from_a_file(project: Path, environ: dict[str, str]) -> None:
    write(project, "[run]\n" + "".join(f"{name} = {option.example}\n" for name, option in RUN_OPTIONS.items()))

    assert list(load_settings(None, project, environ).run) == list(RUN_OPTIONS)


def test_every_option_takes_its_own_example_from_its_variable(project: Path, environ: dict[str, str]) -> None:
    examples = {build_variable_name(name): option.example.strip('"[]') for name, option in RUN_OPTIONS.items()}

    assert set(load_settings(None, project, {**environ, **examples}).run) == set(RUN_OPTIONS)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('parallel = "fast"', 'run.parallel must be a whole number of at least 1, not "fast"'),
        ("parallel = 0", "run.parallel must be a whole number of at least 1, not 0"),
        ("parallel = true", "run.parallel must be a whole number of at least 1, not true"),
        ("retries = -1", "run.retries must be a whole number of at least 0, not -1"),
        ("parallel = 99999999999999999999", "run.parallel must be a whole number of at least 1, not a number so large"),
        ('timeout = "soon"', 'run.timeout must be a time such as 30, "90s", "5m" or "1h30m", not "soon"'),
        ("timeout = -5", 'run.timeout must be a time such as 30, "90s", "5m" or "1h30m", not -5'),
        ("timeout = nan", 'run.timeout must be a time such as 30, "90s", "5m" or "1h30m", not nan'),
        ('tag = "yes"', 'run.tag must be true or false, not "yes"'),
        ("halt = 3", "run.halt must be text, not 3"),
        ('store = ""', "run.store must not be empty"),
        ('progress = "fancy"', 'run.progress must be one of auto, bar, plain, json, none, not "fancy"'),
        ("keys = [1]", "run.keys must be text, or a list of texts, not a list"),
        ("format = 2026-11-15", "run.format must be one of jsonl, json, csv, tsv, text, not a date or time"),
        ('env_key = "A-B"', "run.env_key must be the name of an environment variable, such as OPENAI_API_KEY"),
        (
            'env_key = "AGENTOS_ITEM_KEY"',
            "run.env_key must not begin with AGENTOS_: agentos sets such variables for each item",
        ),
        ('halt = "sometime"', 'run.halt must be never, or like "soon,fail=10%" or "now,fail=1", not "sometime"'),
        ('store = "junk"', f"run.store {NO_STORE}"),
        ('store = "sqlite:///:memory:"', f"run.store {NO_STORE}"),
        ('store = "env:A-B"', f"run.store {NO_STORE}"),
        (
            'engine = "ray://host:1"',
            "run.engine must be dask://host:port (or tcp://, tls://), the address of a Dask scheduler, or local",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_file_and_line(
    project: Path, environ: dict[str, str], line: str, message: str
) -> None:
    assert refusal(f"# first\n[run]\n\n{line}\n", project, environ).message == f"agentos.toml, line 4: {message}"


def test_a_wrong_value_in_a_variable_is_refused_by_its_name(project: Path, environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match='AGENTOS_PARALLEL must be a whole number of at least 1, not "many"'):
        load_settings(None, project, {**environ, "AGENTOS_PARALLEL": "many"})


def test_a_wrong_value_of_a_flag_is_refused_by_its_name() -> None:
    assert parse_flag("idle_timeout", "5m") == 300.0
    with pytest.raises(UsageError, match="--idle-timeout must be a time"):
        parse_flag("idle_timeout", "long")
    with pytest.raises(UsageError, match=r'^--jobs must be a whole number of at least 1, not "abc"'):
        parse_flag("parallel", "abc", "--jobs")
    with pytest.raises(UsageError, match="--store must be sqlite, sqlite:///path, "):
        parse_flag("store", "junk")


@pytest.mark.parametrize("store", ["junk", "postgres://:planted@host", "sqlite://x", "sqlite:///", "redis:///planted"])
def test_a_store_that_is_none_is_refused_by_the_variable_that_names_it_and_not_shown(
    project: Path, environ: dict[str, str], store: str
) -> None:
    with pytest.raises(UsageError) as refused:
        load_settings(None, project, {**environ, "AGENTOS_STORE": store})

    assert refused.value.message == f"AGENTOS_STORE {NO_STORE}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:planted@host:6379/0",
        "redis://planted@host",
        "rediss://me:planted@host/1?pool=a",
        "valkeys://host?password=planted",
        "unix://me:planted@/run/redis.sock",
    ],
)
def test_a_password_is_taken_from_the_environment_and_from_nowhere_else(
    project: Path, environ: dict[str, str], url: str
) -> None:
    assert load_settings(None, project, {**environ, "AGENTOS_STORE": url}).value("store") == url
    write(project, f'[run]\nstore = "{url}"\n')
    with pytest.raises(UsageError) as written:
        load_settings(project / "agentos.toml", project, environ)
    with pytest.raises(UsageError) as typed:
        parse_flag("store", url)

    problem = "holds a password, and others can read it there"
    assert (written.value.message, typed.value.message) == (
        f"agentos.toml, line 2: run.store {problem}",
        f"--store {problem}",
    )
    assert "env:NAME" in (typed.value.hint or "")


@pytest.mark.parametrize(
    "store", ["redis://host", "rediss://host:6380/2?pool=night", "unix:///run/redis.sock", "env:A"]
)
def test_a_store_on_a_server_is_the_users_to_name_and_not_a_projects(
    project: Path, environ: dict[str, str], store: str
) -> None:
    assert parse_flag("store", store) == store

    refused = refusal(f'[run]\nstore = "{store}"\n', project, environ)

    assert refused.message.startswith("agentos.toml, line 2: run.store is not used: ")
    assert load_settings(project / "agentos.toml", project, environ).value("store") == store


@pytest.mark.parametrize("line", ['engine = "dask://host:8786"', 'engine = "tls://[::1]:8786"', "ship_secrets = true"])
def test_a_cluster_is_the_users_to_name_and_not_a_projects(project: Path, environ: dict[str, str], line: str) -> None:
    name = line.partition(" ")[0]

    refused = refusal(f"[run]\n{line}\n", project, environ)

    assert refused.message.startswith(f"agentos.toml, line 2: run.{name} is not used: ")
    assert name in load_settings(project / "agentos.toml", project, environ).run


@pytest.mark.parametrize("name", ["halt", "store", "engine", "progress", "env_key", "timeout"])
def test_a_secret_pasted_after_a_flag_is_not_shown(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_flag(name, SECRET)

    assert refused.value.message.startswith(f"--{name.replace('_', '-')} must ")
    assert SECRET not in f"{refused.value.message}{refused.value.hint}"


def test_a_long_text_in_the_wrong_place_is_not_shown(project: Path, environ: dict[str, str]) -> None:
    assert SECRET not in refusal(f'[run]\nparallel = "{SECRET}"\n', project, environ).message


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[run]\nparalel = 3\n", "agentos.toml, line 2: run.paralel is not known", "did you mean parallel?"),
        (
            "[run]\nmax-parallel = 3\n",
            "agentos.toml, line 2: run.max-parallel is not known",
            "did you mean max_parallel?",
        ),
        ("\nparallel = 3\n", "agentos.toml, line 2: parallel is not known", "did you mean parallel, under [run]?"),
        ("[credential]\n", "agentos.toml, line 1: credential is not known", "did you mean credentials?"),
        ("run = 3\n", "agentos.toml, line 1: run must be a table", "begin it with a line [run]"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    project: Path, environ: dict[str, str], text: str, message: str, hint: str
) -> None:
    refused = refusal(text, project, environ)

    assert (refused.message, refused.hint) == (message, hint)


@pytest.mark.parametrize(
    ("text", "line"),
    [("[run]\nparallel = \n", 2), ("[run\n", 1), ('[run]\nname = "open\n', 2), ("a = 1\na = 2\n", 2), ("a = [1,\n", 2)],
)
def test_what_is_no_toml_is_refused_by_its_line(project: Path, environ: dict[str, str], text: str, line: int) -> None:
    assert refusal(text, project, environ).message.startswith(f"agentos.toml, line {line}: ")


def test_what_is_no_utf8_is_refused_by_its_line(project: Path, environ: dict[str, str]) -> None:
    (project / "agentos.toml").write_bytes(b'[run]\nhalt = "\xff"\n')

    with pytest.raises(UsageError, match=r"agentos\.toml, line 2: not UTF-8"):
        load_settings(None, project, environ)


def test_a_file_nested_without_end_is_refused(project: Path, environ: dict[str, str]) -> None:
    refusal("a = " + "[" * 100_000 + "]" * 100_000, project, environ)


def test_a_folder_in_the_place_of_the_file_is_refused(project: Path, environ: dict[str, str]) -> None:
    (project / "agentos.toml").mkdir()

    with pytest.raises(UsageError, match=r"agentos\.toml cannot be read: Is a directory"):
        load_settings(None, project, environ)


@given(st.text(max_size=60))
def test_no_value_makes_a_check_fail_in_another_way_than_it_should(text: str) -> None:
    values: list[Any] = [text, [text], {text: text}, len(text) - 1, len(text) * -0.5]

    problems = [problem(option, value) for option in RUN_OPTIONS.values() for value in values]

    assert [said for said in problems if not said.startswith(("good", "must "))] == []


def problem(option: Option, value: Any) -> str:
    try:
        option.kind(value, isinstance(value, str))
    except BadValue as error:
        return str(error)
    return "good"


# -- what [[credentials]] may say -------------------------------------------------------------------------------------


def test_an_entry_may_state_everything_a_credential_has(project: Path, environ: dict[str, str]) -> None:
    named = write(
        project,
        """
[[credentials]]
name = "alice"
env = "ALICE_KEY"
env_key = "OPENAI_API_KEY"
quota = "acme"
slots = "auto"
rpm = 60
tpm = 1_000.5
rpd = 9
base_url = "https://api.example.com/v1"
hosts = ["API.example.com"]
provider = "OpenAI"
extra_env = { ORG = "o-1" }
disabled = true
""",
    )

    (entry,) = load_settings(named, project, environ).credentials

    assert (entry.name, entry.source, entry.place, entry.env_key) == ("alice", "env", "ALICE_KEY", "OPENAI_API_KEY")
    assert (entry.quota, entry.slots, entry.rpm, entry.tpm, entry.rpd) == ("acme", "auto", 60, 1_000.5, 9)
    assert (entry.base_url, entry.hosts) == ("https://api.example.com/v1", ("API.example.com",))
    assert entry.provider == "OpenAI"
    assert (entry.extra_env, entry.disabled, entry.where) == ({"ORG": "o-1"}, True, "agentos.toml, line 2")


def test_env_as_a_table_is_the_variables_that_go_with_the_credential(project: Path, environ: dict[str, str]) -> None:
    named = write(project, '[[credentials]]\nname = "a"\nfile = "a.key"\n[credentials.env]\nORG = "o-1"\n')

    (entry,) = load_settings(named, project, environ).credentials

    assert (entry.source, entry.place, entry.extra_env) == ("file", "a.key", {"ORG": "o-1"})


def test_an_entry_without_a_name_is_called_after_its_variable(project: Path, environ: dict[str, str]) -> None:
    write(project, '[[credentials]]\nenv = "OPENAI_API_KEY_2"\n')

    assert load_settings(None, project, environ).credentials[0].name == "openai-api-key-2"


GOOD = '[[credentials]]\nname = "good"\nenv = "GOOD"\n\n[[credentials]]\nname = "bad"\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('env = "A"\nrpm = "fast"', '8: credentials[2].rpm must be a number above zero, not "fast"'),
        ('env = "A"\nrpm = 0', "8: credentials[2].rpm must be a number above zero, not 0"),
        ('env = "A"\nrpm = inf', "8: credentials[2].rpm must be a number above zero, not inf"),
        ('env = "A"\nrpm = 0.5', "8: credentials[2].rpm must be at least 1 for requests"),
        ('env = "A"\nslots = 0', '8: credentials[2].slots must be a whole number of at least 1, or "auto", not 0'),
        ('env = "A"\nbase_url = "ftp://x"', "8: credentials[2].base_url must be an http:// or https:// address"),
        ('env = "A"\nbase_url = "https://u:p@x"', "8: credentials[2].base_url must not carry a user or password"),
        ('env = "A"\nhosts = ["a/b"]', "8: credentials[2].hosts must be host names"),
        ('env = "A"\nhosts = 3', "8: credentials[2].hosts must be a list of host names"),
        ('env = "A"\nhosts = ["a.*.com"]', "8: credentials[2].hosts must be host names"),
        ('env = "A"\nprovider = "opnai"', "8: credentials[2].provider must be one of openai, azure, anthropic, "),
        ('env = "A"\nprovider = 3', "8: credentials[2].provider must be text, not 3"),
        ('env = "A"\nquota = " "', '8: credentials[2].quota must be text, not " "'),
        ('env = "A"\nextra_env = { "A B" = "c" }', "8: credentials[2].extra_env must be the name of an environment"),
        ('env = "A"\nextra_env = { A = 1 }', "8: credentials[2].extra_env must map names of variables to text"),
        ('env = "A"\nextra_env = { AGENTOS_ITEM = "x" }', "8: credentials[2].extra_env must not set AGENTOS_"),
        ('env = "A"\nenv_key = "AGENTOS_RUN_ID"', "8: credentials[2].env_key must not begin with AGENTOS_"),
        ('file = "f"\n\n[credentials.env]\nA = 1', "9: credentials[2].extra_env must map names of variables to text"),
        ('env = "A"\ndisabled = "no"', '8: credentials[2].disabled must be true or false, not "no"'),
        ('env = "A"\nrmp = 3', "8: credentials[2].rmp is not known"),
        ('env = "not a name"', "7: credentials[2].env must be the name of an environment variable"),
        ("env = 3", "7: credentials[2].env must be the name of an environment variable"),
        ('file = ""', "7: credentials[2].file must be the path of a file"),
        ('env = "A"\nfile = "b"', "5: credentials[2] names two secrets, by env and by file"),
        ("rpm = 3", "5: credentials[2] does not say where the secret is"),
    ],
)
def test_a_wrong_entry_is_refused_by_file_line_and_field(
    project: Path, environ: dict[str, str], line: str, message: str
) -> None:
    refused = refusal(f"{GOOD}{line}\n", project, environ, named=True)

    assert refused.message.startswith(f"agentos.toml, line {message}")


@pytest.mark.parametrize("field", ["secret", "key", "api_key", "apikey", "token", "password", "openai_api_key"])
def test_a_secret_in_clear_is_refused_with_what_to_do_instead(
    project: Path, environ: dict[str, str], field: str
) -> None:
    refused = refusal(f'[[credentials]]\nname = "a"\n{field} = "{SECRET}"\n', project, environ)

    assert refused.message.startswith(f"agentos.toml, line 3: credentials[1].{field} holds a secret in clear")
    assert 'env = "OPENAI_API_KEY"' in (refused.hint or "")
    assert SECRET not in f"{refused.message}{refused.hint}"


def test_a_secret_in_clear_among_the_extra_variables_is_refused(project: Path, environ: dict[str, str]) -> None:
    text = f'[[credentials]]\nname = "a"\nenv = "A"\nextra_env = {{ OPENAI_API_KEY = "{SECRET}" }}\n'

    refused = refusal(text, project, environ)

    assert (
        refused.message == "agentos.toml, line 4: credentials[1].extra_env holds a secret in clear, as OPENAI_API_KEY"
    )


@pytest.mark.parametrize(
    "field", ["name", "env_key", "base_url", "hosts", "provider", "slots", "rpm", "extra_env", "disabled"]
)
def test_a_secret_pasted_into_any_field_is_not_shown(project: Path, environ: dict[str, str], field: str) -> None:
    pasted = "sk live/planted 0123456789"

    refused = refusal(f'[[credentials]]\nenv = "A"\n{field} = "{pasted}"\n', project, environ)

    assert refused.message.startswith(f"agentos.toml, line 3: credentials[1].{field} ")
    assert pasted not in f"{refused.message}{refused.hint}"


@pytest.mark.parametrize("pasted", [SECRET, "sk live planted 0123456789"])
def test_a_secret_in_the_place_of_its_variable_is_not_shown(
    project: Path, environ: dict[str, str], pasted: str
) -> None:
    refused = refusal(f'[[credentials]]\nenv = "{pasted}"\n', project, environ)

    assert pasted not in f"{refused.message}{refused.hint}"


@pytest.mark.parametrize("text", ['"{0}" = 1', '[run]\n"{0}" = 1', '[[credentials]]\n"{0}" = 1'])
def test_a_secret_in_the_place_of_a_key_is_not_shown(project: Path, environ: dict[str, str], text: str) -> None:
    refused = refusal(text.format(SECRET), project, environ)

    assert "a key of this name is not known" in refused.message
    assert SECRET not in f"{refused.message}{refused.hint}"


def test_two_entries_of_one_name_are_refused_naming_both_lines(project: Path, environ: dict[str, str]) -> None:
    refused = refusal('[[credentials]]\nname="a"\nenv="A"\n\n[[credentials]]\nname="a"\nenv="B"\n', project, environ)

    assert refused.message == "agentos.toml, line 5: the name a is taken by agentos.toml, line 1"


def test_credentials_of_one_quota_state_the_same_limits(project: Path, environ: dict[str, str]) -> None:
    entry = '[[credentials]]\nname="{0}"\nenv="{0}"\nquota="acme"\nrpm={1}\n'

    refused = refusal(entry.format("a", 60) + entry.format("b", 30), project, environ)

    assert refused.message.startswith(
        "agentos.toml, line 6: the limits of b are not those of a (agentos.toml, line 1), with which it shares"
    )


def test_a_single_bracket_is_explained(project: Path, environ: dict[str, str]) -> None:
    refused = refusal('[credentials]\nname = "a"\n', project, environ)

    assert refused.message == "agentos.toml, line 1: credentials must be a list of tables"


# -- who may have a command run ---------------------------------------------------------------------------------------

COMMAND = '[[credentials]]\nname = "a"\ncommand = ["pass", "show", "acme"]\n'


def test_a_command_in_the_file_of_a_project_is_refused(project: Path, environ: dict[str, str]) -> None:
    refused = refusal(COMMAND, project, environ)

    assert refused.message.startswith("agentos.toml, line 3: credentials[1].command is not run")
    assert "--config" in (refused.hint or "")


def test_a_command_in_the_users_own_file_or_in_one_that_was_named_is_taken(
    project: Path, environ: dict[str, str]
) -> None:
    write(own(environ), COMMAND)
    named = write(project, COMMAND, "mine.toml")

    assert load_settings(None, project, environ).credentials[0].place == ["pass", "show", "acme"]
    assert load_settings(named, project, environ).credentials[0].source == "command"


def test_the_users_own_folder_as_current_folder_stays_trusted_and_is_read_once(
    project: Path, environ: dict[str, str]
) -> None:
    write(own(environ), COMMAND)

    settings = load_settings(None, own(environ), environ)

    assert [entry.source for entry in settings.credentials] == ["command"]
    assert len(settings.files) == 1


def test_a_link_in_a_project_to_another_file_is_not_trusted(project: Path, environ: dict[str, str]) -> None:
    target = write(project / "deep", COMMAND, "real.toml")
    (project / "agentos.toml").symlink_to(target)

    with pytest.raises(UsageError, match="is not run"):
        load_settings(None, project, environ)


# -- what else a file that came with a project may not do -------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('extra_env = { ORG = "o-1" }', "credentials[1].extra_env is not set: "),
        ('extra_env = { BASH_ENV = "evil.sh" }', "credentials[1].extra_env is not set: "),
        ('env = { PATH = "evil" }', "credentials[1].extra_env is not set: "),
        ('base_url = "https://evil.example"', "credentials[1].base_url is not used: "),
        ('hosts = ["evil.example"]', "credentials[1].hosts is not used: "),
        ('hosts = ["localhost", "localhost.evil.example"]', "credentials[1].hosts is not used: "),
        ('env_key = "BASH_ENV"', "credentials[1].env_key must end in KEY, TOKEN or SECRET here: "),
        ('env_key = "KEYS_PATH"', "credentials[1].env_key must end in KEY, TOKEN or SECRET here: "),
        ('env_key = "GIT_CONFIG_KEY_0"', "credentials[1].env_key must end in KEY, TOKEN or SECRET here: "),
    ],
)
@pytest.mark.parametrize("more", ["", "disabled = true\n"])
def test_a_project_cannot_set_variables_or_send_keys_elsewhere_but_the_user_can(
    project: Path, environ: dict[str, str], line: str, message: str, more: str
) -> None:
    text = f'[[credentials]]\nname = "a"\nfile = "a.key"\n{line}\n{more}'

    refused = refusal(text, project, environ)

    assert refused.message.startswith(f"agentos.toml, line 4: {message}")
    assert "your own configuration folder" in (refused.hint or "")
    assert "--config" in (refused.hint or "")
    write(own(environ), text)
    (project / "agentos.toml").unlink()
    assert len(load_settings(None, project, environ).credentials) == 1


@pytest.mark.parametrize("place", ["{outside}/key", "../outside/key", "~/key", "link/key"])
@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('[[credentials]]\nname = "a"\nfile = "{place}"\n', "line 3: credentials[1].file"),
        ('[run]\nkeys = ["env:A", "{place}"]\n', "line 2: run.keys"),
    ],
)
def test_a_project_cannot_have_files_outside_of_its_folder_sent_as_keys_but_the_user_can(
    project: Path, environ: dict[str, str], text: str, field: str, place: str
) -> None:
    outside = project.parent / "outside"
    outside.mkdir()
    (project / "link").symlink_to(outside)
    text = text.format(place=place.format(outside=outside))

    refused = refusal(text, project, environ)

    assert refused.message.startswith(f"agentos.toml, {field} leads out of the folder of this file: ")
    assert "your own configuration folder" in (refused.hint or "")
    write(own(environ), text)
    (project / "agentos.toml").unlink()
    load_settings(None, project, environ)


def test_a_project_may_have_its_keys_sent_to_this_machine(project: Path, environ: dict[str, str]) -> None:
    write(project, '[[credentials]]\nname = "a"\nenv = "A"\nhosts = ["127.0.0.1:8000", "localhost"]\n')

    assert load_settings(None, project, environ).credentials[0].hosts == ("127.0.0.1:8000", "localhost")


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "TOKEN", "CLIENT_SECRET", "OPENAI_API_KEY_3", "KEY2"])
def test_a_project_may_name_a_variable_that_is_for_keys(project: Path, environ: dict[str, str], name: str) -> None:
    write(project, f'[run]\nenv_key = "{name}"\n[[credentials]]\nname = "a"\nenv = "A"\nenv_key = "{name}"\n')

    settings = load_settings(None, project, environ)

    assert (settings.value("env_key"), settings.credentials[0].env_key) == (name, name)


def test_a_project_cannot_put_a_key_in_the_place_of_one_of_the_users(project: Path, environ: dict[str, str]) -> None:
    write(own(environ), '\n[[credentials]]\nname = "alice"\nenv = "MINE"\n')

    refused = refusal('[[credentials]]\nname = "alice"\nfile = "theirs"\n', project, environ)

    assert refused.message == (
        f"agentos.toml, line 1: the name alice is taken by {own(environ) / 'agentos.toml'}, line 2"
    )


@pytest.mark.parametrize(
    "line",
    [
        'dir = "{outside}"',
        'dir = ".."',
        'dir = "~/runs"',
        'dir = "link/runs"',
        'results = "{outside}/r.jsonl"',
        'results = "../r.jsonl"',
        'joblog = "a/../../jobs.log"',
        'joblog = "~root/jobs.log"',
        'store = "sqlite:///{outside}/pool.sqlite"',
        'store = "sqlite:///~/pool.sqlite"',
        'store = "sqlite:///../pool.sqlite"',
    ],
)
def test_a_project_cannot_have_files_written_outside_of_its_folder_but_the_user_can(
    project: Path, environ: dict[str, str], line: str
) -> None:
    outside = project.parent / "outside"
    outside.mkdir()
    (project / "link").symlink_to(outside)
    name = line.partition(" ")[0]
    text = f"[run]\n{line.format(outside=outside)}\n"

    refused = refusal(text, project, environ)

    assert refused.message.startswith(f"agentos.toml, line 2: run.{name} leads out of the folder of this file")
    assert "--config" in (refused.hint or "")
    assert name in load_settings(project / "agentos.toml", project, environ).run


def test_a_project_may_say_where_in_its_folder_files_are_written(project: Path, environ: dict[str, str]) -> None:
    write(
        project,
        f'[run]\ndir = "{project}/out"\nresults = "a/../r.jsonl"\njoblog = "./~odd"\nstore = "sqlite:///pool"\n',
    )

    assert set(load_settings(None, project, environ).run) == {"dir", "results", "joblog", "store"}


def test_a_project_cannot_choose_any_variable_for_all_keys(project: Path, environ: dict[str, str]) -> None:
    refused = refusal('[run]\nenv_key = "LD_PRELOAD"\n', project, environ)

    assert refused.message.startswith("agentos.toml, line 2: run.env_key must end in KEY, TOKEN or SECRET here: ")
    assert load_settings(project / "agentos.toml", project, environ).value("env_key") == "LD_PRELOAD"


def test_a_file_of_a_project_that_is_a_pipe_or_a_device_is_refused_and_not_waited_for(
    project: Path, environ: dict[str, str]
) -> None:
    path = project / "agentos.toml"
    os.mkfifo(path)
    with pytest.raises(UsageError, match=r"agentos\.toml cannot be read: it is not a regular file"):
        load_settings(None, project, environ)

    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"agentos\.toml cannot be read: it is not a regular file"):
        load_settings(None, project, environ)


def test_the_variable_that_names_a_file_is_as_good_as_the_flag(project: Path, environ: dict[str, str]) -> None:
    write(project, COMMAND, "mine.toml")

    found = load_settings(None, project, {**environ, "AGENTOS_CONFIG": "mine.toml"}).credentials

    assert [entry.source for entry in found] == ["command"]
