"""How many items run at once, and how many of them use one key: what was typed counts, and the first line says it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.cli.main import main
from agentos.cli.session import run_session
from agentos.cli.session.request import RunRequest

OPENAI = "sk-proj-parallelism-0123456789"
Typed = Callable[..., RunRequest]
WORKER = ("--worker", "work.py:call")


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "AGENTOS_STORE", "AGENTOS_KEYS", "AGENTOS_CONFIG", "AGENTOS_SLOTS"):
        monkeypatch.delenv(name, raising=False)
    for number in (1, 2, 3):
        monkeypatch.setenv(f"OPENAI_API_KEY_{number}", f"{OPENAI}{number}")
    monkeypatch.setenv("ACME_TOKEN", "a-token-of-nobody-known-1")


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Return what a command line asks for, without running it."""

    def ask(*arguments: str) -> RunRequest:
        found: list[RunRequest] = []

        def keep(request: RunRequest) -> int:
            found.append(request)
            return 0

        monkeypatch.setattr(run_session, "run_session", keep)
        assert main(["run", *arguments]) == 0
        return found[0]

    return ask


def configure(text: str) -> None:
    Path("agentos.toml").write_text(text)


def slots(request: RunRequest) -> list[object]:
    return [key.credential.slots for key in request.keys]


# -- workers ------------------------------------------------------------------------------------------------------


def test_a_typed_number_of_workers_wins_over_the_most_of_a_file(typed: Typed) -> None:
    configure("[run]\nmax_parallel = 5\n")

    request = typed("-j", "50", "--", "true", ":::", "a")

    assert request.parallel == 50
    assert request.warnings == []


def test_a_number_of_workers_in_a_file_needs_no_second_one(typed: Typed) -> None:
    configure("[run]\nparallel = 50\n")

    assert typed("--", "true", ":::", "a").parallel == 50


@pytest.mark.parametrize(
    ("file", "flags", "where"),
    [
        (
            "[run]\nparallel = 50\nmax_parallel = 5\n",
            (),
            "agentos.toml, line 2) is above max_parallel (agentos.toml, line 3)",
        ),
        ("", ("-j", "50", "--max-parallel", "5"), "-j) is above max_parallel (--max-parallel)"),
    ],
)
def test_the_most_counts_where_both_were_said_in_one_place(
    typed: Typed, file: str, flags: tuple[str, ...], where: str
) -> None:
    configure(file)

    request = typed(*flags, "--", "true", ":::", "a")

    assert request.parallel == 5
    assert request.warnings == [f"50 at once ({where}: 5 at once"]


# -- slots --------------------------------------------------------------------------------------------------------


def test_functions_find_out_the_slots_of_keys_of_a_known_provider(typed: Typed) -> None:
    assert slots(typed(*WORKER, "--keys", "env:OPENAI_API_KEY_*", ":::", "a")) == ["auto"] * 3


def test_functions_keep_one_slot_for_keys_of_an_unknown_provider(typed: Typed) -> None:
    assert slots(typed(*WORKER, "--keys", "env:ACME_TOKEN", ":::", "a")) == [1]


def test_commands_have_a_key_for_themselves(typed: Typed) -> None:
    assert slots(typed("--keys", "env:OPENAI_API_KEY_*", "--", "true", ":::", "a")) == [1] * 3


@pytest.mark.parametrize(("flag", "expected"), [("auto", "auto"), ("7", 7)])
@pytest.mark.parametrize("what", [(*WORKER, ":::", "a"), ("--", "true", ":::", "a")])
def test_typed_slots_are_those_of_all_keys(typed: Typed, what: tuple[str, ...], flag: str, expected: object) -> None:
    configure('[[credentials]]\nenv = "OPENAI_API_KEY_1"\nslots = 2\n[[credentials]]\nenv = "OPENAI_API_KEY_2"\n')

    assert slots(typed("--slots", flag, *what)) == [expected] * 2


def test_slots_in_the_environment_count_as_typed(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    configure('[[credentials]]\nenv = "OPENAI_API_KEY_1"\nslots = 2\n')
    monkeypatch.setenv("AGENTOS_SLOTS", "9")

    assert slots(typed("--", "true", ":::", "a")) == [9]


def test_slots_of_a_file_win_over_the_default_and_those_of_a_key_over_those_of_its_run(typed: Typed) -> None:
    keys = '[[credentials]]\nenv = "OPENAI_API_KEY_1"\nslots = 2\n[[credentials]]\nenv = "OPENAI_API_KEY_2"\n'
    configure(keys)
    assert slots(typed(*WORKER, ":::", "a")) == [2, "auto"]
    configure(f"[run]\nslots = 5\n{keys}")
    assert slots(typed(*WORKER, ":::", "a")) == [2, 5]


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5", ""])
def test_slots_that_are_no_number_are_refused(capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    assert main(["run", f"--slots={wrong}", "--", "true", ":::", "a"]) == 2

    assert '--slots must be a whole number of at least 1, or "auto", not' in capsys.readouterr().err


# -- the first line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("-j", "60", "--slots", "1", *WORKER),
            "60 workers, 3 keys x 1 slot: 3 at once; --slots auto lets calls share a key",
        ),
        (
            ("-j", "60", "--slots", "2", "--", "true"),
            "60 workers, 3 keys x 2 slots: 6 at once",  # commands share a key already
        ),
        (("-j", "60", *WORKER), None),  # auto
        (("-j", "3", "--", "true"), None),
        (("-j", "60", "--slots", "20", "--", "true"), None),
    ],
)
def test_the_first_line_says_that_the_keys_bound_the_workers(
    typed: Typed, arguments: tuple[str, ...], line: str | None
) -> None:
    request = typed("--keys", "env:OPENAI_API_KEY_*", *arguments, ":::", *(f"item-{number}" for number in range(60)))

    assert request.key_bound == line


def test_the_line_counts_the_slots_of_keys_that_differ(typed: Typed) -> None:
    configure('[[credentials]]\nenv = "OPENAI_API_KEY_1"\nslots = 2\n[[credentials]]\nenv = "OPENAI_API_KEY_2"\n')

    request = typed("-j", "60", "--", "true", ":::", *(f"item-{number}" for number in range(60)))

    assert request.key_bound == "60 workers, 2 keys: 3 at once; --slots auto lets commands share a key"


def test_nothing_is_said_where_there_are_no_more_items_than_slots(typed: Typed) -> None:
    assert typed("-j", "60", "--keys", "env:OPENAI_API_KEY_*", "--", "true", ":::", "a", "b").key_bound is None
    assert typed("-j", "60", "--", "true", ":::", "a", "b").key_bound is None  # no keys


def test_a_run_begins_with_that_line_unless_it_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["run", "-n", "-j", "4", "--keys", "env:OPENAI_API_KEY_1"]

    assert main([*typed, "--", "true", ":::", "a", "b"]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert main([*typed, "--progress", "none", "--", "true", ":::", "a", "b"]) == 0

    assert first == "4 workers, 1 key x 1 slot: 1 at once; --slots auto lets commands share a key"
    assert "share a key" not in capsys.readouterr().err
