"""`agentos trust` shows a run folder that was not started here, and then trusts it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.cli.config import trusted_runs
from agentos.cli.config.trusted_runs import TrustedRun, TrustedRuns
from agentos.cli.main import main
from agentos.util.private_folder import UnsafePath

OLD = Path(__file__).parent / "folders" / "run_of_0_1_0.tar.gz"

Agentos = Callable[..., tuple[int, str]]


@pytest.fixture
def agentos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Agentos:
    """Types a command in a project's folder; its exit code, and all that it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def typed(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return code, out + err

    return typed


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder that version 0.1.0 made: two items of three are done."""
    runs = tmp_path / ".agentos" / "runs"
    runs.mkdir(parents=True)
    with tarfile.open(OLD) as archive:
        archive.extractall(runs, filter="data")
    card = json.loads((runs / "old" / "run.json").read_text())
    (runs / "old" / "run.json").write_text(json.dumps({**card, "cwd": str(tmp_path)}))
    (tmp_path / "items.txt").write_text("a\nb\nbad\n")
    return runs / "old"


def test_a_run_of_an_earlier_version_is_read_at_once_and_goes_on_when_it_is_trusted(
    agentos: Agentos, old: Path
) -> None:
    for command, told in (
        (("runs",), "finished"),
        (("show", "old"), "2 of 3 done, 1 failed"),
        (("show", "old", "--failed"), "bad"),
        (("logs", "old", "a"), "done a"),
    ):
        code, said = agentos(*command)
        assert (code, told in said) == (0, True), said
    assert agentos("retry", "old")[0] == 2
    before = (old / "journal.sqlite").read_bytes()

    code, said = agentos("trust", "old")

    assert code == 0
    assert "agentos run items.txt --name old --progress none -- sh -c" in said
    assert "trusted" in said
    assert (old / "journal.sqlite").read_bytes() == before
    assert agentos("retry", "old")[0] == 1  # it still fails
    card = json.loads((old / "run.json").read_text())
    assert agentos("run", *card["arguments"])[0] == 1
    outcomes = [json.loads(line)["outcome"] for line in (old / "results.jsonl").read_text().splitlines()]
    assert sorted(outcomes) == ["done", "done", "failed"]


def test_what_would_run_is_shown_with_the_commands_of_its_configuration(
    agentos: Agentos, old: Path, tmp_path: Path
) -> None:
    (tmp_path / "evil.toml").write_text('[[credentials]]\nname = "k"\ncommand = ["curl", "evil.example"]\n')
    card = json.loads((old / "run.json").read_text())
    card["arguments"] = ["items.txt", "--config", "evil.toml", "--", "echo", "\x1b]0;hidden\x07{}"]
    card["command"] = card["arguments"][-2:]
    (old / "run.json").write_text(json.dumps(card))

    code, said = agentos("trust", "--dry-run", str(old))

    assert code == 0
    assert f"in       {tmp_path}" in said
    assert "runs     agentos run items.txt --config evil.toml -- echo" in said
    assert f"config   {tmp_path / 'evil.toml'}" in said
    assert "runs for the key k: curl evil.example" in said
    assert "\x1b" not in said
    assert "trusted" not in said
    assert agentos("retry", "old")[0] == 2  # it was only shown


def test_trust_ends_when_what_would_run_changes(agentos: Agentos, old: Path) -> None:
    assert agentos("trust", "old")[0] == 0
    card = json.loads((old / "run.json").read_text())
    (old / "run.json").write_text(json.dumps({**card, "arguments": ["items.txt", "--", "rm", "{}"]}))

    assert agentos("retry", "old")[0] == 2


def test_a_folder_without_run_json_can_be_trusted_for_a_typed_command(agentos: Agentos, old: Path) -> None:
    card = json.loads((old / "run.json").read_text())
    (old / "run.json").unlink()

    code, said = agentos("trust", "old")

    assert (code, "nothing: how it was started" in said) == (0, True)
    assert agentos("run", "--retry-failed", *card["arguments"])[0] == 1


def test_a_folder_that_needs_no_trust_is_reported_as_such(agentos: Agentos, old: Path) -> None:
    code, said = agentos("trust", ".agentos")

    assert (code, "nothing to trust" in said) == (0, True)


def test_a_run_that_is_not_there_is_refused(agentos: Agentos, old: Path) -> None:
    code, said = agentos("trust", "new")

    assert (code, "no run is called 'new'" in said) == (2, True)


# -- what is remembered ---------------------------------------------------------------------------------------------


@pytest.fixture
def memory(tmp_path: Path) -> TrustedRuns:
    return TrustedRuns({"AGENTOS_HOME": str(tmp_path / "state")})


def test_a_run_is_known_by_where_it_really_is(memory: TrustedRuns, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    known = TrustedRun(str(tmp_path / "run"), "an id", ("a", "b"), any_owner=True)

    memory.record(known)

    assert memory.find(tmp_path / "run") == memory.find(tmp_path / "link") == known
    assert memory.find(tmp_path / "other") is None


def test_the_memory_is_private(memory: TrustedRuns, tmp_path: Path) -> None:
    memory.record(TrustedRun(str(tmp_path), "an id"))

    (file,) = (tmp_path / "state" / "known-runs").iterdir()
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "state", file.parent, file)] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"path": 1}', "{" * 100_000])
def test_what_cannot_be_read_is_not_known(memory: TrustedRuns, tmp_path: Path, content: str) -> None:
    memory.record(TrustedRun(str(tmp_path), "an id"))
    (file,) = (tmp_path / "state" / "known-runs").iterdir()
    file.write_text(content)

    assert memory.find(tmp_path) is None


def test_a_folder_is_accepted_only_for_the_problem_that_was_shown(memory: TrustedRuns) -> None:
    memory.accept(UnsafePath("/p/.agentos", "is a link to /q"))
    memory.accept(UnsafePath("/p/.agentos", "may be written by other users"))

    assert memory.accepts(UnsafePath("/p/.agentos", "is a link to /q"))
    assert memory.accepts(UnsafePath("/p/.agentos", "may be written by other users"))
    assert not memory.accepts(UnsafePath("/p/.agentos", "is a link to /r"))
    assert not memory.accepts(UnsafePath("/p/other", "is a link to /q"))


def test_folders_that_are_gone_are_forgotten(
    memory: TrustedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted_runs, "_TIDY_EVERY", 2)
    memory.record(TrustedRun(str(tmp_path), "here"))
    memory.record(TrustedRun(str(tmp_path / "gone"), "gone"))

    memory.record(TrustedRun(str(tmp_path / "new"), "new"))

    assert memory.find(tmp_path / "gone") is None
    assert memory.find(tmp_path) is not None
    assert memory.find(tmp_path / "new") is not None
