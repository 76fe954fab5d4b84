"""Splitting the arguments of ``agentos run``."""

from __future__ import annotations

import pytest

from agentos.cli.session.argv import split_arguments


@pytest.mark.parametrize(
    ("typed", "options", "words", "command"),
    [
        ("items.txt -j 4 -- echo {}", "items.txt -j 4", None, "echo {}"),
        ("-- echo {} ::: a b", "", "a b", "echo {}"),
        ("-j 2 ::: a b -- echo {}", "-j 2", "a b", "echo {}"),
        ("items.txt --worker m:f", "items.txt --worker m:f", None, None),
        ("::: a b", "", "a b", None),
        ("items.txt -- sh -c x -- y", "items.txt", None, "sh -c x -- y"),
        ("items.txt --", "items.txt", None, ""),
        ("x ::: a ::: b -- echo", "x", "a ::: b", "echo"),
        ("-- echo --fresh", "", None, "echo --fresh"),
    ],
)
def test_what_was_typed_is_taken_apart(typed: str, options: str, words: str | None, command: str | None) -> None:
    def split(text: str | None) -> tuple[str, ...] | None:
        return None if text is None else tuple(text.split())

    found = split_arguments(typed.split())

    assert (found.options, found.words, found.command) == (split(options) or (), split(words), split(command))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--parallel -- true", "--parallel 3"),
        ("--parallel 7 -- true", "--parallel 7"),
        ("--parallel --fresh -- true", "--parallel 3 --fresh"),
        ("--parallel items.txt -- true", "--parallel 3 items.txt"),
        ("--parallel -1 -- true", "--parallel -1"),
        ("--parallel=5 -- true", "--parallel=5"),
    ],
)
def test_parallel_without_a_number_is_three(typed: str, meant: str) -> None:
    assert split_arguments(typed.split()).options == tuple(meant.split())


def test_what_to_type_to_go_on_leaves_out_what_was_meant_once() -> None:
    typed = split_arguments(["items.txt", "--fresh", "-j", "4", "--retry-failed", "--", "echo", "--fresh", "{}"])

    assert typed.resume_arguments == ["items.txt", "-j", "4", "--", "echo", "--fresh", "{}"]
    assert typed.resume_arguments_with("--retry-failed") == [
        *typed.resume_arguments[:3],
        "--retry-failed",
        *typed.resume_arguments[3:],
    ]
    assert typed.all_arguments == ["items.txt", "--fresh", "-j", "4", "--retry-failed", "--", "echo", "--fresh", "{}"]


@pytest.mark.parametrize("typed", [["--", "echo", "{}", ":::", "a", "b c"], [":::", "a", "b c", "--", "echo", "{}"]])
def test_words_are_typed_again_as_words_and_where_they_stood(typed: list[str]) -> None:
    assert split_arguments(typed).resume_arguments == typed


@pytest.mark.parametrize(
    ("typed", "blamed"),
    [
        ("--jobs=abc", "--jobs"),
        ("--jobs abc", "--jobs"),
        ("-j abc", "-j"),
        ("-jabc", "-j"),
        ("--parallel=abc", "--parallel"),
        ("-j 2 --jobs=abc", "--jobs"),
        ("--joblog x", "--parallel"),
    ],
)
def test_an_option_is_named_as_it_was_typed(typed: str, blamed: str) -> None:
    assert split_arguments(typed.split()).spelling("parallel") == blamed
