"""Worker functions that fork, start threads, or are not workers."""

from __future__ import annotations

from collections import Counter

import pytest

from .harness import Place, flowing

FORKING = """
import multiprocessing, os, sys

def speak(item):
    print("child of", item)
    print("its error", item, file=sys.stderr)
    sys.stdout.write(f"last words of {item}")  # without an end

def by_multiprocessing(item, credential):
    print(f"begun {item} ", end="")
    child = multiprocessing.get_context("fork").Process(target=speak, args=(item,))
    child.start()
    child.join()
    while child.exitcode is None:  # another thread of multiprocessing's has reaped it, and not yet said so
        child.join(0.01)
    print("ended")
    return child.exitcode

def by_hand(item, credential):
    print(f"begun {item} ", end="")
    child = os.fork()
    if child == 0:
        print("child of", item)
        print("its error", item, file=sys.stderr)
        os._exit(0)
    print("ended")
    return os.waitpid(child, 0)[1]
"""

SECRET = "planted-for-the-children"

STRAY = """
import sys, threading
print("at import")
def say(item):
    print("stray", item)
    sys.stdout.buffer.write(b"bytes\\n")
    print("\\x1b]0;title\\x07\\x1b[2Jharmless")
def work(item, credential):
    thread = threading.Thread(target=say, args=(item,))
    thread.start()
    thread.join()
    print("of", item)
"""


@pytest.mark.parametrize("keys", [(), ("--keys", "env:ACME_KEY")])
@pytest.mark.parametrize("function", ["by_multiprocessing", "by_hand"])
def test_children_that_a_worker_forks_print_and_end_and_say_nothing_twice(
    place: Place, function: str, keys: tuple[str, ...]
) -> None:
    """Other threads print at that very moment: a child has the locks that they hold, and nobody to let go of them."""
    place.write("work.py", FORKING)
    items = [f"i{number}" for number in range(40)]
    place.write("items.txt", "\n".join(items))
    arguments = ["run", "items.txt", "--name", "r", "-j8", "--worker", f"work.py:{function}", *keys]

    ended = place.run(*arguments, "--progress", "none", env={"ACME_KEY": SECRET})

    assert ended.code == 0, ended.err
    assert {result["value"] for result in place.results("r")} == {0}
    for item in items:
        assert ended.out.count(f"[{item}] begun {item} ended\n") == 1
        assert ended.out.count(f"child of {item}\n") == 1
    assert ended.out.count("begun") == 40
    assert ended.out.count("last words of") == (40 if function == "by_multiprocessing" else 0)
    assert Counter(ended.err.splitlines()) == Counter(f"its error {item}" for item in items)


def test_what_a_forked_child_prints_has_no_secret_in_it(place: Place) -> None:
    place.write(
        "work.py",
        "import multiprocessing, sys\n"
        "def tell(key):\n"
        "    print('key', key)\n"
        "    sys.stderr.write(key[:9])\n"
        "    sys.stderr.flush()\n"
        "    sys.stderr.write(key[9:])\n"
        "    raise SystemExit(key)\n"
        "def work(item, key):\n"
        "    child = multiprocessing.get_context('fork').Process(target=tell, args=(key,))\n"
        "    child.start()\n"
        "    child.join()\n",
    )

    ended = place.run(
        *["run", "--keys", "env:ACME_KEY", "--progress", "none", "--worker", "work.py:work", ":::", "a"],
        env={"ACME_KEY": SECRET},
    )

    assert ended.code == 0, ended.err
    assert ended.out == "key <secret>\n"
    assert "<secret>" in ended.err
    assert not any(SECRET[at : at + 8] in ended.err for at in range(len(SECRET) - 7))


@pytest.mark.parametrize("keys", [(), ("--keys", "env:ACME_KEY")])
def test_with_json_nothing_that_a_worker_prints_in_passing_is_on_standard_output(
    place: Place, keys: tuple[str, ...]
) -> None:
    place.write("work.py", STRAY)

    ended = place.run("run", "--json", *keys, "--worker", "work.py:work", ":::", "a", env={"ACME_KEY": SECRET})

    assert ended.code == 0, ended.err
    assert [each["event"] for each in ended.objects] == ["start", "item", "done"]
    for text in ("at import", "stray a", "bytes", "[a] of a"):
        assert text in ended.err.splitlines()


@pytest.mark.parametrize("progress", ["bar", "plain"])
def test_on_a_terminal_what_threads_of_a_worker_print_is_harmless(place: Place, progress: str) -> None:
    place.write("work.py", STRAY)

    # one at a time: the pieces of two threads' lines may alternate
    typed = ["run", "-j1", "--progress", progress, "--worker", "work.py:work", ":::", "a", "b"]
    ended = place.terminal(*typed).ended()

    assert ended.code == 0
    assert "\x1b]0;" not in ended.out
    assert "\x1b[2J" not in ended.out
    shown = flowing(ended.out)
    for text in ("stray a", "stray b", "harmless", "[a] of a"):
        assert text in shown


@pytest.mark.parametrize(
    "source",
    [
        "def work(item, key):\n    yield item\n",
        "async def work(item, key):\n    yield item\n",
        "def work(item):\n    pass\n",
    ],
)
def test_what_cannot_be_a_worker_is_refused_before_anything_is_touched(place: Place, source: str) -> None:
    place.write("work.py", source)

    refused = place.run("run", "--worker", "work.py:work", ":::", "a")

    assert refused.code == 2
    assert "work.py:work" in refused.err
    assert "def work(item, credential)" in refused.err
    assert not (place.cwd / ".agentos").exists()


def test_functions_of_two_files_with_the_same_name_are_two_workers(place: Place) -> None:
    for folder in ("one", "two"):
        place.write(f"{folder}/w.py", "import util\ndef f(item, key):\n    return util.NAME\n")
        place.write(f"{folder}/util.py", f"NAME = {folder!r}\n")
    items = (":::", "a")

    first = place.run("run", "--name", "r", "--worker", "one/w.py:f", *items)
    again = place.run("run", "--name", "r", "--worker", "./one/w.py:f", *items)
    other = place.run("run", "--name", "r", "--worker", "two/w.py:f", *items)

    assert (first.code, again.code, other.code) == (0, 0, 2), (first, again, other)
    assert [result["value"] for result in place.results("r")] == ["one"]
    assert "one/w.py:f" in other.err
