"""Options for clusters and servers are checked before any connection."""

from __future__ import annotations

import pytest

from .harness import Place

DASK = "dask://127.0.0.1:1"


def test_a_dry_run_names_the_cluster_without_connecting_to_it(place: Place) -> None:
    ended = place.run("run", "--dry-run", "--engine", DASK, "--", "no-such-command-here", "{}", ":::", "a", "b")
    told = place.run("run", "--dry-run", "--json", "--engine", DASK, "--", "no-such-command-here", ":::", "a")

    assert ended.code == told.code == 0, ended.err + told.err
    assert f"engine   {DASK}" in ended.err.splitlines()
    assert told.objects[-1]["engine"] == DASK


def test_local_overrules_what_the_environment_says(place: Place) -> None:
    ended = place.run("run", "--engine", "local", "--", "true", ":::", "a", env={"AGENTOS_ENGINE": DASK})

    assert ended.code == 0, ended.err
    assert place.results()[0]["outcome"] == "done"


def test_a_scheduler_that_is_away_does_not_hide_what_was_done_before_it_went(place: Place) -> None:
    there = ("run", "--name", "r", "--json", "--engine", DASK, "--", "true", ":::")
    place.run("run", "--name", "r", "--", "true", ":::", "a", "b")

    away = place.run(*there, "a", "b", "c")
    nothing_left = place.run(*there, "a", "b")

    assert (away.code, nothing_left.code) == (70, 0), away.err + nothing_left.err
    assert [each["event"] for each in away.objects] == ["start", "item", "item", "done"]
    assert {name: away.objects[-1][name] for name in ("exit", "done", "left")} == {"exit": 70, "done": 2, "left": 1}
    assert nothing_left.objects[-1]["done"] == 2


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--engine", "planted-secret-typed-here"), "--engine must be dask://host:port"),
        (("--ship-secrets",), "--ship-secrets is for a cluster, and the items run on this machine"),
        (("--store", "redis://:planted-secret@host"), "--store holds a password, and others can read it there"),
        (("--store", "env:NOWHERE", "--keys", "env:ACME_KEY"), "--store: the environment variable NOWHERE is not set"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_begun(place: Place, typed: tuple[str, ...], said: str) -> None:
    ended = place.run("run", *typed, "--", "true", ":::", "a", env={"ACME_KEY": "sk-planted-for-a-key"})

    assert ended.code == 2
    assert f"agentos: {said}" in ended.err
    assert "planted" not in ended.err
    assert not (place.cwd / ".agentos").exists()
