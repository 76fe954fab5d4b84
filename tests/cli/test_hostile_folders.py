"""Run folders from a repository: nothing in them is written through, waited for, or run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentos.cli.config.trusted_runs import TrustedRun, TrustedRuns
from agentos.cli.main import main
from agentos.util import private_folder

from ..runs.hostile_files import a_folder, a_link, a_pipe, a_second_name

RUN = ("run", "todo.jsonl", "--name", "review", "--progress", "none", "--quiet")


class Project:
    """A cloned repository, below a home folder with files that nobody but its user may change."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.precious = home / ".bashrc"
        self.precious.write_text("# mine\n")
        self.path = home / "repo"
        self.path.mkdir()
        self.base = self.path / ".agentos"
        self.folder = self.base / "runs" / "review"
        self._capfd = capfd
        (self.path / "todo.jsonl").write_text('{"id": "x", "text": "hello"}\n')

    def agentos(self, *typed: str) -> tuple[int, str]:
        """The exit code, and all that was printed."""
        self._capfd.readouterr()
        code = main(list(typed))
        out, err = self._capfd.readouterr()
        return code, out + err

    def run(self, *more: str) -> tuple[int, str]:
        return self.agentos(*RUN, *more, "--", "true", "{text}")

    def outcomes(self) -> dict[str, str]:
        lines = (self.folder / "results.jsonl").read_text().splitlines()
        return {result["id"]: result["outcome"] for result in map(json.loads, lines)}

    def bring(self, **card: Any) -> None:
        """The folder of a run comes along, with how it was started."""
        self.folder.mkdir(parents=True, mode=0o755)
        brought = {
            "name": "review",
            "cwd": str(self.path),
            "arguments": ["todo.jsonl", "--name", "review", "--progress", "none", "--", "touch", "ran-{id}"],
            "command": ["touch", "ran-{id}"],
            "source": {"kind": "file", "name": "todo.jsonl"},
            **card,
        }
        (self.folder / "run.json").write_text(json.dumps(brought))

    def is_untouched(self) -> bool:
        return self.precious.read_text() == "# mine\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Project]:
    found = Project(tmp_path, capfd)
    monkeypatch.chdir(found.path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    yield found
    assert found.is_untouched()


# -- what is known --------------------------------------------------------------------------------------------------


def test_the_first_run_in_a_folder_and_the_same_command_again_need_no_trust(project: Project) -> None:
    assert project.run() == (0, "")
    assert project.run() == (0, "")
    assert project.run("--fresh") == (0, "")
    assert project.agentos("retry", "review") == (0, "")
    assert project.agentos("retry", "review.1") == (0, "")  # set aside by ourselves

    modes = {path.name: path.stat().st_mode & 0o777 for path in project.folder.iterdir()}
    assert modes.pop("logs", 0o700) == 0o700
    assert set(modes.values()) == {0o600}


def test_a_run_folder_that_came_along_is_refused_with_the_ways_out(project: Project) -> None:
    project.bring()
    before = sorted(os.listdir(project.folder))

    for typed in ((*RUN, "--", "true", "{}"), ("retry", "review")):
        code, said = project.agentos(*typed)

        assert code == 2
        assert f"the run folder {project.folder} may not be yours" in said
        assert f"agentos trust {project.folder}" in said
        assert "--trust" in said
        assert "--fresh" in said
    assert sorted(os.listdir(project.folder)) == before
    assert not (project.path / "ran-x").exists()


def test_a_run_json_that_was_changed_is_not_run(project: Project) -> None:
    project.run()
    card = json.loads((project.folder / "run.json").read_text())
    card["arguments"][-2:] = ["touch", "ran-{id}"]
    (project.folder / "run.json").write_text(json.dumps(card))

    code, said = project.agentos("retry", "review")

    assert code == 2
    assert "its run.json, which has the command to run, is not the one that was written last" in said
    assert project.run()[0] == 2


def test_another_folder_in_the_place_of_a_known_one_is_refused(project: Project) -> None:
    project.run()
    project.folder.rename(project.path / "old")
    project.bring()

    code, said = project.run()

    assert (code, "it is not the folder that was there before" in said) == (2, True)


def test_a_run_folder_that_was_moved_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.run()
    moved = project.path.rename(project.path.with_name("moved"))
    monkeypatch.chdir(moved)

    code, said = project.run()

    assert (code, "this user has not started it" in said) == (2, True)
    monkeypatch.chdir(moved.rename(project.path))
    assert project.run()[0] == 0


def test_trust_for_one_start_makes_the_run_ones_own(project: Project) -> None:
    project.bring()

    assert project.agentos("retry", "review", "--trust")[0] == 0

    assert (project.path / "ran-x").exists()
    assert "--trust" not in json.loads((project.folder / "run.json").read_text())["arguments"]
    assert project.agentos("retry", "review")[0] == 0


def test_starting_over_sets_aside_what_came_along_without_opening_it(project: Project) -> None:
    project.bring()
    (project.folder / "run.lock").symlink_to(project.precious)
    (project.folder / "results.jsonl").symlink_to(project.precious)

    assert project.run("--fresh") == (0, "")

    assert project.outcomes() == {"x": "done"}
    assert (project.folder.with_name("review.1") / "run.lock").is_symlink()
    assert project.agentos("retry", "review.1")[0] == 2


def test_a_run_that_was_killed_while_its_card_was_written_goes_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.run()
    write = private_folder.PrivateFolder.write

    def killed(folder: private_folder.PrivateFolder, name: str, content: bytes) -> None:
        write(folder, name, content)
        if name == "run.json":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(private_folder.PrivateFolder, "write", killed)
        project.run()

    assert project.run() == (0, "")


@pytest.mark.parametrize("left", [[], ["run.lock"], ["run.lock", "run.id.new"], ["run.lock", "run.id"]])
def test_a_folder_in_which_nothing_has_begun_is_a_new_one(project: Project, left: list[str]) -> None:
    project.folder.mkdir(parents=True)
    for name in left:
        (project.folder / name).write_text("left by a start that was killed")

    assert project.run() == (0, "")
    assert project.run() == (0, "")


def test_a_run_that_starts_at_the_same_moment_is_not_taken_for_a_strange_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.run()
    find, looked = TrustedRuns.find, 0

    def before_the_other_wrote(memory: TrustedRuns, folder: Path) -> TrustedRun | None:
        nonlocal looked
        looked += 1
        found = find(memory, folder)
        return replace(found, cards=("old",)) if found is not None and looked == 1 else found

    monkeypatch.setattr(TrustedRuns, "find", before_the_other_wrote)

    assert project.run() == (0, "")


def test_without_a_state_folder_a_run_works_and_says_how_to_go_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTOS_HOME", str(project.path / "todo.jsonl" / "no"))

    code, said = project.run()

    assert (code, "cannot be recorded" in said, "--trust" in said) == (0, True, True)
    assert project.run()[0] == 2
    assert project.run("--trust")[0] == 0


# -- what lies in the place of our files ----------------------------------------------------------------------------


OURS = [
    *("run.lock", "run.json", "run.id", "results.jsonl", "events.jsonl", "journal.sqlite", "journal.sqlite-wal"),
    *("journal.sqlite-shm", "journal.sqlite-journal", "journal.sqlite.head", "journal.sqlite.lock"),
]


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        *((name, a_link) for name in OURS),
        *((name, each) for name in OURS[::3] for each in (a_second_name, a_pipe, a_folder)),
    ],
)
def test_even_a_trusted_folder_is_not_written_through_what_is_no_file_of_ours(
    project: Project, name: str, plant: Callable[[Path, Path], None]
) -> None:
    project.folder.mkdir(parents=True)
    (project.folder / "journal.sqlite.head").touch()
    (project.folder / name).unlink(missing_ok=True)
    plant(project.folder / name, project.precious)

    code, said = project.run("--trust")

    assert (code, f"review/{name} is " in said) == (2, True), said


@pytest.mark.parametrize("plant", [a_link, a_second_name, a_pipe, a_folder])
def test_looking_at_a_folder_full_of_traps_neither_waits_nor_crashes(
    project: Project, plant: Callable[[Path, Path], None]
) -> None:
    project.folder.mkdir(parents=True)
    for name in OURS:
        plant(project.folder / name, project.precious)

    for typed in (("runs",), ("show", "review"), ("show", "review", "--items"), ("logs", "review", "x")):
        code, said = project.agentos(*typed)
        assert code in (0, 2), said
        assert "# mine" not in said
    assert project.agentos("retry", "review")[0] == 2
    assert project.agentos("trust", str(project.folder))[0] == 2


@pytest.mark.parametrize("name", ["run.json.new", ".results.jsonl.new", "journal.sqlite.new", "run.id.new"])
def test_a_link_in_the_place_of_a_draft_is_removed(project: Project, name: str) -> None:
    project.folder.mkdir(parents=True)
    (project.folder / name).symlink_to(project.precious)

    assert project.run("--trust")[0] == 0
    assert project.outcomes() == {"x": "done"}


def test_the_draft_of_a_results_file_that_was_asked_for_is_not_written_through_a_link(project: Project) -> None:
    (project.path / ".out.jsonl.new").symlink_to(project.precious)

    assert project.run("--results", "out.jsonl") == (0, "")

    assert json.loads((project.path / "out.jsonl").read_text())["id"] == "x"


@pytest.mark.parametrize("name", ["logs", "checkpoints"])
def test_a_folder_behind_a_link_in_a_run_is_not_written_to(project: Project, name: str) -> None:
    elsewhere = project.path / "elsewhere"
    elsewhere.mkdir()
    project.run()
    if (project.folder / name).exists():
        os.rename(project.folder / name, elsewhere / "old")
    (project.folder / name).symlink_to(elsewhere)

    code, said = project.agentos("retry", "review")

    assert (code, f"review/{name} is a link to {elsewhere}" in said) == (2, True)
    assert project.run()[0] == 2
    assert project.agentos("trust", str(project.folder / name))[0] == 0
    assert project.run()[0] == 0


def test_a_checkpoint_that_is_a_link_fails_its_item(project: Project) -> None:
    project.bring()
    (project.folder / "checkpoints").mkdir()
    (project.folder / "checkpoints" / "x").symlink_to(project.precious)

    code, _ = project.agentos(*RUN, "--trust", "--", "sh", "-c", "echo hello > $AGENTOS_WORKFLOW_DB")

    assert code == 1
    assert project.outcomes() == {"x": "failed"}


def test_a_log_that_is_a_link_is_neither_written_nor_shown(project: Project) -> None:
    project.bring()
    (project.folder / "logs").mkdir()
    (project.folder / "logs" / "x.log").symlink_to(project.precious)

    assert project.agentos(*RUN, "--trust", "--", "echo", "{text}")[0] == 0
    code, said = project.agentos("logs", "review", "x")

    assert "# mine" not in said
    assert (code != 0, "x.log is a link" in said) == (True, True)


# -- the way to it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", [".agentos", ".agentos/runs", ".agentos/runs/review"])
def test_a_link_on_the_way_is_followed_only_if_it_was_trusted(project: Project, link: str) -> None:
    elsewhere = project.path.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    (project.path / link).parent.mkdir(parents=True, exist_ok=True)
    (project.path / link).symlink_to(elsewhere)

    code, said = project.run()

    assert (code, f"{project.path / link} is a link to {elsewhere}" in said) == (2, True)
    assert f"agentos trust {project.path / link}" in said
    assert list(elsewhere.iterdir()) == []
    assert "link" in project.agentos("runs")[1]
    assert project.agentos("show", "review")[0] == 2

    assert project.run("--trust")[0] == 0  # this once
    assert project.run()[0] == 2
    assert project.agentos("trust", link)[0] == 0
    assert project.run() == (0, "")
    assert project.agentos("show", "review")[0] == 0

    (project.path / link).unlink()
    (project.path / link).symlink_to(project.path.with_name("third"))
    project.path.with_name("third").mkdir(mode=0o700)
    assert project.run()[0] == 2  # another one than was trusted


@pytest.mark.parametrize("how", ["--dir", "AGENTOS_BASE_DIR"])
def test_a_link_that_the_user_named_is_followed(project: Project, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    elsewhere = project.path.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    project.base.symlink_to(elsewhere)
    more = []
    if how == "--dir":
        more = ["--dir", ".agentos"]
    else:
        monkeypatch.setenv("AGENTOS_BASE_DIR", ".agentos")

    assert project.run(*more) == (0, "")
    assert (elsewhere / "runs" / "review" / "results.jsonl").exists()
    assert project.agentos("show", "review", *more)[0] == 0
    assert project.agentos("retry", "review", *more)[0] == 0


def test_a_link_that_a_projects_configuration_names_is_not_followed(project: Project) -> None:
    (project.path / "inside").mkdir(mode=0o700)
    (project.path / "kept").symlink_to("inside")
    (project.path / "agentos.toml").write_text('[run]\ndir = "kept/here"\n')

    code, said = project.run()

    assert (code, f"{project.path}/kept is a link to" in said) == (2, True)


@pytest.mark.parametrize(
    ("place", "mode"), [(".agentos", 0o775), (".agentos/runs", 0o757), (".agentos/runs/review", 0o775)]
)
def test_a_folder_that_others_may_write_is_refused_until_it_is_closed_or_trusted(
    project: Project, place: str, mode: int
) -> None:
    project.run()
    (project.path / place).chmod(mode)

    code, said = project.run()

    assert code == 2
    assert f"{project.path / place} may be written by other users" in said
    assert f"chmod go-w {project.path / place}" in said
    assert project.agentos("show", "review")[0] == 0

    assert project.agentos("trust", place)[0] == 0
    assert project.run() == (0, "")


def test_a_folder_of_another_user_is_refused_until_it_is_trusted(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is for root in a container that has a user's folder mounted."""
    # A function: for a command, folders are made, and they would be the old user's.
    (project.path / "work.py").write_text("def work(item, credential):\n    return 1\n")
    run = (*RUN, "--worker", "work.py:work")
    assert project.agentos(*run) == (0, "")
    monkeypatch.setattr(private_folder, "current_user", lambda: os.geteuid() + 1)

    code, said = project.agentos(*run)

    assert code == 2
    assert f"{project.base} belongs to user {os.geteuid()}" in said
    assert "--trust" in said
    assert "agentos trust" in said
    assert project.agentos(*run, "--trust")[0] == 0
    assert project.agentos("trust", str(project.folder))[0] == 0
    assert project.agentos(*run) == (0, "")


def test_runs_of_a_user_with_an_open_umask_are_private_and_go_on(project: Project) -> None:
    before = os.umask(0o002)
    try:
        assert project.run() == (0, "")
        assert project.run() == (0, "")
    finally:
        os.umask(before)

    places = (project.base, project.base / "runs", project.folder)
    assert [place.stat().st_mode & 0o777 for place in places] == [0o700] * 3
