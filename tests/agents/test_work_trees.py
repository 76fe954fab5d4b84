"""``--clone`` and ``--after``: each agent has its own clone, and the script after it runs alone when it failed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import CommandFailed
from agentos.runs.agents.work_tree import WorkTrees

from . import scripted_claude as claude
from .test_agent_command import Folder

GIT = {
    **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(folder: Path, *words: str) -> str:
    ended = subprocess.run(
        ["git", "-C", str(folder), *words], env={**os.environ, **GIT}, check=True, capture_output=True, text=True
    )
    return ended.stdout.strip()


class Project(Folder):
    """A project in a repository with an origin; its agent runs *work* in its folder before it is done."""

    def __init__(self, path: Path) -> None:
        super().__init__(path / "project")
        self.origin = path / "origin.git"
        self.environ |= GIT | {"HOME": str(path)}
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(self.origin)], check=True)
        subprocess.run(["git", "clone", "-q", str(self.origin), str(self.path)], check=True, capture_output=True)
        git(self.path, "commit", "-q", "--allow-empty", "-m", "first")
        git(self.path, "push", "-q", "origin", "HEAD:main")
        (self.path / ".git" / "info" / "exclude").write_text("bin\n.agentos\nstate\n*.txt\n")
        self.program = path / "bin"
        self.environ["PATH"] = f"{self.program}:{os.environ['PATH']}"

    def install(self, work: str = "true", *steps: list[dict[str, Any]]) -> None:
        path = claude.install(self.program, steps or [claude.done()])
        path.write_text(path.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{work}\n"))

    @property
    def trees(self) -> list[str]:
        return sorted(path.name for path in self.path.glob(".agentos/runs/*/trees/*"))

    def tree(self, name: str) -> Path:
        (path,) = self.path.glob(f".agentos/runs/*/trees/{name}")
        return path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


COMMIT = "git commit -q --allow-empty -m work"


def test_an_agent_works_in_a_clone_with_the_origin_of_its_repository(project: Project) -> None:
    project.install(COMMIT)

    project.run("run", "--agent", "claude", "--clone", ":::", "one", "two")

    assert project.trees == ["one", "two"]  # their commits are nowhere else
    assert git(project.tree("one"), "remote", "get-url", "origin") == str(project.origin)
    assert sorted(Path(start["cwd"]).name for start in project.starts) == ["one", "two"]
    assert {Path(value["tree"]).name for value in project.values()} == {"one", "two"}
    assert git(project.path, "log", "--oneline").count("work") == 0


def test_under_a_hook_of_git_an_agent_still_works_in_its_clone(project: Project) -> None:
    project.environ |= {"GIT_DIR": str(project.path / ".git"), "GIT_WORK_TREE": str(project.path)}
    project.install(COMMIT)
    after = ("--after", "git push -q origin HEAD:refs/heads/{id}")

    project.run("run", "--agent", "claude", "--clone", *after, ":::", "one")

    assert "work" not in git(project.path, "log", "--oneline")
    assert "work" in git(project.origin, "log", "--oneline", "one")
    assert project.trees == []


def test_a_program_named_by_its_place_is_found_from_the_clone(project: Project) -> None:
    project.install()

    project.run("run", "--agent", "auto", "--clone", "--keep", ":::", "one", "--", "../bin/claude", "-p", "{}")

    assert Path(project.starts[0]["cwd"]).name == "one"


def test_a_clone_pushes_where_its_repository_does(project: Project, tmp_path: Path) -> None:
    git(project.path, "remote", "set-url", "--push", "origin", "../mirror.git")
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(tmp_path / "mirror.git")], check=True)
    project.install(COMMIT)
    after = ("--after", "git push -q origin HEAD:refs/heads/{id}")

    project.run("run", "--agent", "claude", "--clone", "--keep", *after, ":::", "one")

    assert git(project.tree("one"), "remote", "get-url", "origin") == str(project.origin)
    assert git(tmp_path / "mirror.git", "branch", "--format=%(refname:short)") == "one"


def test_a_clone_whose_work_is_pushed_is_removed_and_kept_on_request(project: Project) -> None:
    project.install(COMMIT)
    words = ("run", "--agent", "claude", "--clone", "--after", "git push -q origin HEAD:refs/heads/{id}")

    project.run(*words, ":::", "one")
    assert project.trees == []
    project.run(*words, "--keep", "--fresh", ":::", "one-more")

    assert project.trees == ["one-more"]
    assert git(project.origin, "branch", "--format=%(refname:short)").splitlines() == ["main", "one", "one-more"]


@pytest.mark.parametrize("work", ["echo x > new", f"{COMMIT}", "git checkout -q --detach && " + COMMIT])
def test_a_clone_with_work_that_is_nowhere_else_stays(project: Project, work: str) -> None:
    project.install(work)

    project.run("run", "--agent", "claude", "--clone", ":::", "one")

    assert project.trees == ["one"]


def test_a_new_file_counts_as_work_also_where_settings_hide_it(project: Project, tmp_path: Path) -> None:
    (tmp_path / "gitconfig").write_text("[status]\n\tshowUntrackedFiles = no\n")
    project.environ["GIT_CONFIG_GLOBAL"] = str(tmp_path / "gitconfig")
    project.install("echo x > new")

    project.run("run", "--agent", "claude", "--clone", ":::", "one")

    assert project.trees == ["one"]


def test_a_tree_that_is_no_repository_any_more_stays(project: Project) -> None:
    project.install("rm -rf .git; echo x > new")

    project.run("run", "--agent", "claude", "--clone", ":::", "one")

    assert project.trees == ["one"]


def test_a_commit_that_the_project_never_pushed_does_not_count_as_pushed(project: Project) -> None:
    git(project.path, "commit", "-q", "--allow-empty", "-m", "not pushed")
    project.install()

    project.run("run", "--agent", "claude", "--clone", ":::", "one")

    assert project.trees == ["one"]


def test_cloning_for_one_item_leaves_the_tree_of_another_alone(project: Project) -> None:
    project.install(COMMIT)

    project.run("run", "--agent", "claude", "--clone", ":::", "movie.part", "movie")

    assert project.trees == ["movie", "movie.part"]


def test_each_item_may_name_its_repository(project: Project, tmp_path: Path) -> None:
    other = tmp_path / "other.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(other)], check=True)
    git(project.path, "push", "-q", str(other), "HEAD:main")
    (project.path / "items.jsonl").write_text(json.dumps({"id": "a", "repo": str(other), "task": "x"}) + "\n")
    project.install(COMMIT)

    project.run("run", "items.jsonl", "--agent", "claude", "--clone")

    assert git(project.tree("a"), "remote", "get-url", "origin") == str(other)


@pytest.mark.parametrize(
    ("option", "why"), [("--timeout", "timed out after 1s"), ("--idle-timeout", "--clone: silent for 1s, and stopped")]
)
def test_an_item_whose_clone_hangs_ends_as_one_that_was_stopped(project: Project, option: str, why: str) -> None:
    project.install()
    (project.program / "git").write_text(
        f'#!/bin/sh\ntest "$1" != clone || sleep 600\nexec {shutil.which("git")} "$@"\n'
    )
    (project.program / "git").chmod(0o755)

    ended = project.run("run", "--agent", "claude", "--clone", option, "1s", "--retries", "0", ":::", "one", code=1)

    assert f"failed one: {why}" in ended.stderr.replace("Transient: ", "")


def test_show_says_where_the_clone_of_a_parked_item_is(project: Project) -> None:
    project.install("true", claude.parked(time.time() + 7_200))

    project.run("run", "--agent", "claude", "--clone", "--name", "r", "--no-wait", ":::", "one", code=75)

    (told,) = json.loads(project.run("show", "r", "--json").stdout)["agents"]
    assert (told["ending"], told["tree"]) == ("parked", str(project.tree("one")))


def test_show_tells_what_an_agent_took_whose_script_failed(project: Project) -> None:
    project.install(COMMIT)

    words = ("--agent", "claude", "--clone", "--name", "r", "--retries", "0", "--after", "false")
    project.run("run", *words, ":::", "one", code=1)

    (told,) = json.loads(project.run("show", "r", "--json").stdout)["agents"]
    assert (told["ending"], told["turns"], told["tree"]) == ("failed", 2, str(project.tree("one")))


@pytest.mark.parametrize("repositories", [1, 40])
def test_forty_items_of_one_repository_or_of_forty_are_each_pushed_once(project: Project, repositories: int) -> None:
    places = [project.origin.with_name(f"other-{number}.git") for number in range(repositories)]
    for place in places:
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(place)], check=True)
        git(project.path, "push", "-q", str(place), "HEAD:main")
    lines = [{"id": f"item-{number}", "repo": str(places[number % repositories])} for number in range(40)]
    (project.path / "items.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    project.install(COMMIT)

    after = ("--after", "git push -q origin HEAD:refs/heads/{id}")
    project.run("run", "items.jsonl", "--agent", "claude", "--clone", *after, "-j", "8")

    branches = [name for place in places for name in git(place, "branch", "--format=%(refname:short)").splitlines()]
    assert sorted(branches) == sorted([*(["main"] * repositories), *(str(line["id"]) for line in lines)])
    assert project.trees == []


def test_after_a_failure_the_clone_stays_and_the_next_attempt_begins_beside_it(project: Project) -> None:
    project.install("echo x > new", claude.failed("invalid_request", 400))
    words = ("run", "--agent", "claude", "--clone", "--name", "r")

    project.run(*words, ":::", "one", code=1)
    project.install("true", [], claude.done())
    project.run(*words, "--retry-failed", ":::", "one")

    assert project.trees == ["one.1"]
    assert (project.tree("one.1") / "new").exists()


def test_the_script_after_it_is_retried_alone_and_the_agent_is_not_run_again(project: Project) -> None:
    project.install(COMMIT)
    words = ("run", "--agent", "claude", "--clone", "--name", "r", "--retries", "0")
    after = ("--after", "test -e ../../../../../allowed.txt && git push -q origin HEAD:refs/heads/{id}")

    failed = project.run(*words, *after, ":::", "one", code=1)
    (project.path / "allowed.txt").write_text("")
    project.run(*words, *after, "--retry-failed", ":::", "one")

    assert "--after: exit 1" in failed.stderr
    assert len(project.starts) == 1
    assert project.values()[0]["answer"] == "the answer"
    assert "one" in git(project.origin, "branch", "--format=%(refname:short)").splitlines()


def test_an_agent_that_is_done_is_not_run_again_when_its_failed_push_is_left_out(project: Project) -> None:
    project.install(COMMIT)
    words = ("run", "--agent", "claude", "--clone", "--name", "r", "--retries", "0")

    project.run(*words, "--after", "false", ":::", "one", code=1)
    project.run(*words, "--retry-failed", ":::", "one")

    assert len(project.starts) == 1
    assert project.values()[0]["answer"] == "the answer"
    assert project.trees == ["one"]


@pytest.mark.parametrize(("task", "how", "starts"), [("first", ("--items", "one"), 1), ("second", ("--changed",), 2)])
def test_after_a_failed_push_an_item_that_is_named_runs_again_only_if_it_changed(
    project: Project, task: str, how: Sequence[str], starts: int
) -> None:
    project.install(COMMIT)
    items, line = project.path / "items.jsonl", '{{"id": "one", "task": "{}"}}\n'
    items.write_text(line.format("first"))
    after = ("--after", "test -e ../../../../../allowed.txt")
    project.run("run", str(items), "--agent", "claude", "--clone", "--name", "r", "--retries", "0", *after, code=1)
    (project.path / "allowed.txt").write_text("")
    items.write_text(line.format(task))

    project.run("retry", "r", *how)

    assert len(project.starts) == starts
    assert task in project.starts[-1]["stdin"]


@pytest.mark.parametrize("access", ["--gateway", "--no-gateway"])
def test_the_script_after_it_has_neither_key_nor_token(project: Project, access: str) -> None:
    project.environ["ANTHROPIC_API_KEY"] = secret = "sk-ant-planted-QWERTZUIOPASDFGHJKLYXCVBNM"
    project.install()

    project.run(
        *("run", "--agent", "claude", "--keys", "env:ANTHROPIC_API_KEY", access, "--after", "env > env.txt"),
        ":::",
        "one",
    )

    told = (project.path / "env.txt").read_text()
    assert secret not in told
    assert "AGENTOS_ITEM_ID=one" in told
    assert "GATEWAY" not in told
    assert "ANTHROPIC" not in told


def test_an_item_is_data_in_the_script_after_it(project: Project) -> None:
    project.install()

    project.run("run", "--agent", "claude", "--after", "printf %s {} > got.txt", ":::", "$(touch x.txt); 'a")

    assert (project.path / "got.txt").read_text() == "$(touch x.txt); 'a"
    assert not (project.path / "x.txt").exists()


@pytest.mark.parametrize("repo", ["--upload-pack=touch x", "", 5, "a\0b"])
def test_a_repository_that_is_no_name_is_refused(tmp_path: Path, repo: object) -> None:
    with pytest.raises(CommandFailed, match="cannot be the name of a repository"):
        WorkTrees(tmp_path, None).find_repository({"repo": repo})


def test_a_repository_whose_name_is_a_command_is_not_run(project: Project) -> None:
    (project.path / "items.jsonl").write_text(json.dumps({"id": "a", "repo": "ext::sh -c touch% x.txt"}) + "\n")
    project.install()

    ended = project.run("run", "items.jsonl", "--agent", "claude", "--clone", "--retries", "0", code=1)

    assert "transport 'ext' not allowed" in ended.stderr
    assert not list(project.path.rglob("x.txt"))


def test_an_item_without_a_repository_fails_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="names no repo, and this folder is not in a repository"):
        WorkTrees(tmp_path, None).find_repository("item")
