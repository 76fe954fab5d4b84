"""Options typed after `agentos retry` replace those that the run was started with."""

from __future__ import annotations

import pytest

from agentos.cli.main import _run_options
from agentos.cli.session.typed_options import RetryOptions, split_retry
from agentos.cli.usage_error import UsageError

TABLE = _run_options()


def typed(*words: str) -> tuple[list[str], RetryOptions]:
    return split_retry(words, TABLE)


def test_options_of_the_run_are_told_from_those_of_retry() -> None:
    own, run = typed("--dir", "d", "-j", "20", "night", "--trust", "--timeout=5m", "--tag", "-j5")

    assert own == ["--dir", "d", "night", "--trust"]
    assert [option.words for option in run.options] == [("-j", "20"), ("--timeout=5m",), ("--tag",), ("-j5",)]
    assert [option.name for option in run.options] == ["parallel", "timeout", "tag", "parallel"]


def test_ids_follow_items_up_to_the_next_option() -> None:
    own, run = typed("night", "--items", "a", "b c", "--changed", "--items=-odd", "-q")

    assert own == ["night", "--items", "a", "--items", "b c", "--changed", "--items=-odd"]
    assert [option.words for option in run.options] == [("-q",)]
    assert typed("night", "--items")[0] == ["night", "--items"]  # which the parser refuses


def test_what_nobody_knows_is_left_to_the_parser() -> None:
    assert typed("night", "--never-heard-of", "-j")[0] == ["night", "--never-heard-of"]


@pytest.mark.parametrize("words", [("--name", "x"), ("--worker=a:b",), ("--fresh",), ("-a", "f"), ("--id", "x")])
def test_an_option_that_makes_it_another_run_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="would make it another run"):
        typed("night", *words)


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        (["i", "-j", "3", "--tag"], ["--jobs=20"], ["i", "--tag", "--jobs=20"]),
        (["--keys", "a", "i", "--keys", "b"], ["--keys", "c", "--keys", "d"], ["i", "--keys", "c", "--keys", "d"]),
        (["--max-failures", "3", "i"], ["--halt", "never"], ["i", "--halt", "never"]),
        (["--bar", "-k", "i"], ["--progress", "none", "--group"], ["i", "--progress", "none", "--group"]),
        (["--no-tag", "i"], ["--tag"], ["i", "--tag"]),
        (["i", "--name", "-j"], ["-q"], ["i", "--name", "-j", "-q"]),  # the value of an option is not an option
        (["i"], [], ["i"]),
    ],
)
def test_an_option_replaces_the_same_and_what_excludes_it(
    before: list[str], given: list[str], after: list[str]
) -> None:
    assert typed("night", *given)[1].replace_in(before) == after
