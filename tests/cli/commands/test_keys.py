"""``agentos keys`` shows the state of each key, and ``keys clear`` resets it, also during a run."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from agentos import Credential, CredentialCoordinator
from agentos.cli.commands import keys
from agentos.cli.exit_codes import ExitCode
from agentos.cli.terminal.key_table import KeyRow, format_until, print_keys
from agentos.cli.usage_error import UsageError
from agentos.pool.core.limits import bucket
from agentos.providers import Event, Reading, Signal

ROOT = Path(__file__).parents[3]

app = typer.Typer()
app.add_typer(keys.app, name="keys")

CONFIG = """
[[credentials]]
name = "alice"
env = "ALICE"

[[credentials]]
name = "bob"
env = "BOB"
quota = "acme"
rpm = 60

[[credentials]]
name = "carol"
env = "CAROL"
quota = "acme"
rpm = 60

[[credentials]]
name = "off"
env = "OFF"
disabled = true
"""


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "FORCE_COLOR", "AGENTOS_STORE", "AGENTOS_KEYS", "AGENTOS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")


def configure(text: str = CONFIG) -> None:
    Path("agentos.toml").write_text(text)


def typed(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["keys", *arguments])
    if isinstance(result.exception, UsageError):
        raise result.exception
    assert result.exception is None, result.output
    return result


def lines(*arguments: str) -> list[str]:
    """What is printed, blanks between columns made one."""
    return [re.sub(r" {2,}", " | ", line) for line in typed(*arguments).stdout.splitlines()]


def objects(*arguments: str) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in typed("--json", *arguments).stdout.splitlines()]
    return {row["name"]: row for row in found}


def used(*credentials: Credential, store: str = "sqlite") -> Iterator[CredentialCoordinator]:
    pool = CredentialCoordinator(credentials, store=store)
    yield pool
    pool.close()


@pytest.fixture
def pool() -> Iterator[CredentialCoordinator]:
    """The pool of a run that is on."""
    facts: dict[str, Any] = {"quota": "acme", "rpm": 60}
    yield from used(
        Credential("planted-secret-of-alice", name="alice"), Credential("planted-secret-of-bob", name="bob", **facts)
    )


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Holds alice, has bob cool for ten minutes, and waits for it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.store_user_child", "sqlite"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


# -- a table ----------------------------------------------------------------------------------------------------------


def test_before_any_run_the_keys_of_the_configuration_were_never_used(tmp_path: Path) -> None:
    configure()

    assert lines() == [
        f"no run has used a store at {tmp_path / 'state' / 'pool.sqlite'} yet",
        "3 of 3 available",
        "",
        "KEY | STATE",
        "alice | never used",
        "bob | never used",
        "carol | never used",
        "off | disabled",
    ]
    assert not (tmp_path / "state").exists()


def test_without_configuration_and_store_a_hint_is_printed(tmp_path: Path) -> None:
    assert lines() == [f"no run has used a store at {tmp_path / 'state' / 'pool.sqlite'} yet"]


def test_leases_and_states_of_another_process_are_shown_while_it_runs(
    other_process: subprocess.Popen[str],
) -> None:
    configure()

    shown = lines()

    assert shown[:3] == ["1 of 3 available", "", "KEY | STATE | IN USE | UNTIL | WHY"]
    assert shown[3] == f"alice | leased | 1/1 | every slot is leased; held by item-7 (process {other_process.pid})"
    assert re.fullmatch(r"bob \| cooling \| 0/1 \| .*\(in 10 min\) \| .*", shown[4])
    assert shown[5:-1] == [
        *("carol | never used", "off | disabled", ""),
        "QUOTA | LIMIT IN FORCE | LEFT | SOURCE | HOW SURE",
    ]
    assert re.fullmatch(r"acme \| 60 requests a minute \| \d\d \| stated \| as configured", shown[-1])


def test_each_quota_has_one_line_for_each_dimension() -> None:
    facts: dict[str, Any] = {"quota": "acme", "rpm": 600, "tpm": 9000, "rpd": 500}
    secrets = [Credential(f"planted-secret-of-{name}", name=name, **facts) for name in ("alice", "bob")]
    for pool in used(*secrets):
        for left in (59.0, 58.0):
            with pool.lease(cost={"tokens": 0}) as lease:
                reading = Reading("requests", 60.0, left, window=60.0, source="x-left")
                lease.report(Signal(Event.OK, readings=(reading,)))
    configure(
        "\n".join(
            f'[[credentials]]\nname = "{name}"\nenv = "X"\nquota = "acme"\nrpm = 600\ntpm = 9000\nrpd = 500'
            for name in ("alice", "bob")
        )
    )

    shown = lines()
    found = objects()

    at = shown.index("QUOTA | LIMIT IN FORCE | LEFT | SOURCE | HOW SURE")
    assert [line.split(" | ")[:2] + line.split(" | ")[3:4] for line in shown[at + 1 :]] == [
        ["acme", "60 requests a minute", "reported"],
        ["acme", "9,000 tokens a minute", "stated"],
        ["acme", "500 requests a day", "stated"],
    ]
    in_force = found["alice"]["limits_in_force"]
    assert in_force == found["bob"]["limits_in_force"]
    assert [(each["dimension"], each["amount"], each["per"], each["source"]) for each in in_force] == [
        ("requests", 60.0, 60.0, "reported"),
        ("tokens", 9000.0, 60.0, "stated"),
        ("requests", 500.0, "day", "stated"),
    ]
    assert sorted(each["amount"] for each in found["alice"]["limits"]) == [60.0, 500.0, 600.0, 9000.0]  # all of them


def test_estimated_slots_are_shown_as_such() -> None:
    bob = Credential("planted-secret-of-bob", name="bob")
    alice = Credential("planted-secret-of-alice", name="alice", slots="auto", labels={"key": "alice"})
    for pool in used(alice, bob):
        for _ in range(2):
            with pool.acquire(labels={"key": "alice"}) as lease:
                lease.report(Signal(Event.OK))

    assert [line for line in lines() if line.startswith(("alice", "bob"))] == [
        "alice | available | 0/4 (estimated)",
        "bob | available | 0/1",
    ]
    assert {name: (each["slots"], each["slots_source"]) for name, each in objects().items()} == {
        "alice": (4, "estimated"),
        "bob": (1, "stated"),
    }
    configure('[[credentials]]\nname = "alice"\nenv = "X"\n')
    assert objects()["alice"]["slots"] == 4
    configure('[[credentials]]\nname = "alice"\nenv = "X"\nslots = 2\n')
    assert (objects()["alice"]["slots"], objects()["alice"]["slots_source"]) == (2, "stated")
    configure('[run]\nslots = 3\n[[credentials]]\nname = "alice"\nenv = "X"\n')
    assert objects()["alice"]["slots"] == 3


def test_without_configuration_the_store_is_shown_as_it_is(pool: CredentialCoordinator) -> None:
    with pool.lease() as lease:
        lease.rejected("401 invalid_api_key")
    dead, well = (lease.name, "bob" if lease.name == "alice" else "alice")

    assert lines() == [
        "1 of 2 available",
        "",
        "KEY | STATE | IN USE | WHY",
        *sorted([f"{dead} | dead | 0/1 | 401 invalid_api_key", f"{well} | available | 0/1"]),
    ]


def test_keys_that_are_not_in_the_configuration_are_counted_and_shown_on_request(
    pool: CredentialCoordinator,
) -> None:
    configure('[[credentials]]\nname = "bob"\nenv = "B"\nquota = "acme"\n')

    assert lines()[-2:] == ["", "1 more in the store; --all shows them"]
    assert [line.split(" ")[0] for line in lines("--all")[3:]] == ["bob", "alice"]


def test_the_state_shown_is_that_of_the_secret_that_the_key_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    configure()
    for secret in ("good-secret-of-alice", "wrong-secret-of-alice"):
        for made in used(Credential(secret, name="alice")):
            with made.lease() as lease:
                if secret.startswith("wrong"):
                    lease.rejected("401")

    shown = {}
    for secret in ("good-secret-of-alice", "wrong-secret-of-alice", "new-secret-of-alice"):
        monkeypatch.setenv("ALICE", secret)
        shown[secret.partition("-")[0]] = objects()["alice"]["state"]
    monkeypatch.delenv("ALICE")

    assert shown == {"good": "available", "wrong": "dead", "new": "never used"}
    assert objects()["alice"]["state"] == "dead"  # the newest
    Path("keys.env").write_text("ALICE=good-secret-of-alice\n")
    assert objects("--keys", "keys.env")["alice"]["state"] == "available"
    Path("agentos.toml").unlink()
    assert objects()["alice"]["state"] == "dead"
    monkeypatch.setenv("ALICE", "good-secret-of-alice")
    monkeypatch.setenv("NOT_TEXT", "\udcff")
    assert objects()["alice"]["state"] == "available"


def test_some_keys_can_be_chosen_without_their_secrets(pool: CredentialCoordinator) -> None:
    configure()

    assert [line.split(" ")[0] for line in lines("--keys", "bob,env:NOT_SET")[3:5]] == ["bob", "not-set"]


def test_another_store_can_be_named_by_flag_and_by_configuration(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'project' / 'other.sqlite'}"
    for _ in used(Credential("planted-secret-of-zoe", name="zoe"), store=store):
        pass

    assert lines("--store", store)[-1] == "zoe | available | 0/1"
    configure(f'[run]\nstore = "{store}"\n')
    assert lines()[-1] == "zoe | available | 0/1"


def test_json_has_one_object_a_line_with_all_that_is_known(pool: CredentialCoordinator) -> None:
    configure()
    lease = pool.acquire_nowait("item-1")
    with pool.lease("item-2") as other:
        other.rate_limited(600)

    rows = objects()

    bob = rows["bob"]
    assert list(rows) == ["alice", "bob", "carol", "off"]
    assert {row["state"] for row in rows.values()} >= {"leased", "never used", "disabled"}
    assert (bob["quota"], bob["slots"], bob["limits"][0]["amount"]) == ("acme", 1, 60)
    assert rows[lease.name]["holders"][0].startswith("item-1 (process ")
    assert rows["off"]["available"] is False


def test_no_secret_is_shown(pool: CredentialCoordinator) -> None:
    with pool.lease("item with planted-secret-of-alice") as lease:
        lease.rejected("key planted-secret-of-alice was refused")
        assert "planted-secret" not in typed("--all").output + typed("--json").output


def test_a_rotated_secret_is_marked_only_while_the_old_one_is_in_use(pool: CredentialCoordinator) -> None:
    old = pool.acquire_nowait("old")
    while old.name != "alice":
        old = pool.acquire_nowait("old")
    for newer in used(Credential("planted-secret-of-alice-2", name="alice")):
        with newer.lease("new"):
            assert "2 secrets of this name are in use: one is shown" in lines()[3]
        old.release()
        assert "secrets" not in lines()[3]
    assert objects("--all")["alice"]["secrets"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "memory"], "a store in memory belongs to its run"),
        (["--store", "redis://user:planted@host"], "--store holds a password, and others can read it there"),
        (["--store", "env:NOWHERE"], "--store: the environment variable NOWHERE is not set"),
        (["--config", "none.toml"], '--config: "none.toml" cannot be read'),
        (["--keys", "nobody"], "--keys: no credential of that name"),
        (["--color", "pink"], "--color"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}") as refused:
        typed(*arguments)

    assert refused.value.code is ExitCode.USAGE
    assert "planted" not in refused.value.message


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no store" * 1_000)

    with pytest.raises(UsageError, match="is not the shared state of a pool"):
        typed("--store", f"sqlite:///{tmp_path / 'notes'}")


def test_a_misspelt_variable_is_warned_of_beside_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_PARALEL", "3")

    assert "did you mean AGENTOS_PARALLEL?" in typed().stderr


# -- clearing ---------------------------------------------------------------------------------------------------------


def test_clearing_frees_a_process_that_waits_for_the_key(other_process: subprocess.Popen[str]) -> None:
    configure()

    assert lines("clear", "bob") == ["cleared bob, and the quota it shares with carol"]

    assert other_process.stdout is not None
    assert other_process.stdout.readline() == "got bob\n"
    assert objects()["bob"]["state"] == "leased"
    assert objects()["alice"]["holders"] == [f"item-7 (process {other_process.pid})"]


def test_several_keys_are_cleared_when_no_run_is_on(pool: CredentialCoordinator) -> None:
    for _ in range(2):
        with pool.lease() as lease:
            lease.rejected("401")
    pool.close()
    before = [row["state"] for row in objects().values()]

    assert lines("clear", "alice", "bob") == ["cleared alice", "cleared bob"]

    assert before == ["dead", "dead"]
    assert [row["state"] for row in objects().values()] == ["available", "available"]


def test_a_store_named_before_the_verb_counts_for_it_too(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'other.sqlite'}"
    for _ in used(Credential("planted-secret-of-zoe", name="zoe"), store=store):
        pass

    assert lines("--store", store, "clear", "zoe") == ["cleared zoe"]
    assert lines("clear", "zoe", "--store", store) == ["cleared zoe"]


def test_an_unknown_key_is_refused_and_nothing_is_cleared(pool: CredentialCoordinator) -> None:
    with pool.lease() as lease:
        lease.rejected("401")

    with pytest.raises(UsageError) as refused:
        typed("clear", lease.name, "alcie")

    assert refused.value.hint == "did you mean alice?"
    assert objects()[lease.name]["state"] == "dead"


def test_without_a_store_there_is_nothing_to_clear(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run has used a store at .* yet"):
        typed("clear", "alice")

    assert not (tmp_path / "state").exists()


def test_a_key_with_an_unknown_quota_is_cleared_in_part_with_a_notice() -> None:
    credentials = [Credential(f"planted-secret-of-{name}", name=name, quota=f"org-{name}") for name in ("yan", "zoe")]
    for pool in used(*credentials):
        assert pool.get_available_count() == 2

    assert "which quota zoe belongs to is not known here" in typed("clear", "zoe").stderr


# -- how it looks -----------------------------------------------------------------------------------------------------


def test_text_of_the_store_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    row = KeyRow("wide-名前", "dead", False, None, "\x1b[2Jgone\nnext", "q", 1, 0, (), (), 1)
    print_keys([row, KeyRow("b", "available", True, None, "x", "q", 1, 0, (), (), 1)], 0, None, coloured=True)

    assert capsys.readouterr().out.splitlines() == [
        "1 of 2 available",
        "",
        "KEY        STATE      IN USE  WHY",
        "wide-名前  \x1b[31mdead     \x1b[0m  0/1     gone next",
        "b          \x1b[32mavailable\x1b[0m  0/1     x",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "in 5 s"), (240, "in 4 min"), (7_200, "in 2 h"), (3 * 86_400, "in 3 days"), (30 * 86_400, "in 30 days")],
)
def test_an_instant_to_come_is_an_hour_and_how_long_that_is(seconds: float, text: str) -> None:
    now = 1_790_000_000.0

    shown = format_until(now + seconds, now)

    assert re.fullmatch(rf".*\d\d:\d\d(:\d\d)? \({text}\)", shown)


@pytest.mark.parametrize("figure", [1e9, 1e15, 1e308])
def test_keys_are_shown_after_an_earlier_version_took_absurd_usage(
    monkeypatch: pytest.MonkeyPatch, figure: float
) -> None:
    configure(CONFIG.replace("rpm = 60", "tpm = 1000"))
    with monkeypatch.context() as patched:
        patched.setattr(bucket, "heaviest", lambda *_: float("inf"))
        with contextlib.closing(
            CredentialCoordinator([Credential("planted-secret", name="bob", quota="acme", tpm=1000)], store="sqlite")
        ) as pool:
            lease = pool.acquire_nowait()
            assert lease._grant is not None
            pool._runtime.settle(lease._grant, (None, figure, None, None))
            lease.release()

    (row,) = [row for name, row in objects("--all").items() if name == "bob"]

    assert row["state"] == "available"
    assert typed("--all").exit_code == 0


def test_an_instant_beyond_all_calendars_can_be_shown() -> None:
    assert format_until(1e18, 1.8e9).startswith("9987-")
