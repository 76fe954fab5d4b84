"""Closed pipes, closed descriptors and full disks do not stop a run or look like an internal error."""

from __future__ import annotations

import pytest

from .harness import Place


@pytest.mark.parametrize("closed", ["head", "stdin", "stdout", "stderr", "all three"])
def test_a_closed_stream_does_not_stop_the_run(place: Place, closed: str) -> None:
    place.asked_for("ran")
    script = {
        "head": '{ "$@"; echo $? > code; } | head -n 1',
        "stdin": '"$@" <&-; echo $? > code',
        "stdout": '"$@" >&-; echo $? > code',
        "stderr": '"$@" 2>&-; echo $? > code',
        "all three": '"$@" <&- >&- 2>&-; echo $? > code',
    }[closed]
    one = ["sh", "-c", "echo $AGENTOS_ITEM; echo $AGENTOS_ITEM >> ran; yes | head -n 1000"]

    ended = place.start(
        "run", "--name", "r", "-j", "1", "--", *one, ":::", *"abcdef", wrapped_in=["sh", "-c", script, "sh"]
    ).ended()

    assert place.lines("code") == ["0"], ended
    assert "Traceback" not in ended.err
    assert "fault" not in ended.err
    assert place.lines("ran") == list("abcdef")
    assert place.outcomes() == dict.fromkeys("abcdef", "done")
    if closed == "head":
        assert ended.out == "[a] a\n"


def test_looking_at_it_through_head_or_on_a_full_disk_is_no_fault(place: Place) -> None:
    place.write("items.txt", "".join(f"{number}\n" for number in range(10_000)))
    place.write("work.py", "def work(item, credential): ...\n")
    assert place.run("run", "items.txt", "--name", "big", "--worker", "work.py:work", "--progress", "none").code == 0
    assert place.run("run", "--name", "r", "-q", "--", "sh", "-c", "seq 100000", ":::", "a").code == 0
    dry: tuple[str, ...] = ("run", "-n", "items.txt", "--", "echo")
    for look in (("show", "big", "--items"), ("show", "big", "--items", "--json"), ("logs", "r", "a"), dry):
        ended = place.start(*look, wrapped_in=["sh", "-c", '{ "$@"; echo $? >&3; } 3>code | head -n 1', "sh"]).ended()

        assert ended.err.count("\n") <= (4 if look is dry else 0), (look, ended)
        assert place.lines("code") in (["0"], ["141"]), (look, ended)
    looks: list[tuple[str, ...]] = [("show", "big"), ("runs",), ("logs", "r", "a"), ("run", "--help")]
    for look in looks:
        full = place.start(*look, wrapped_in=["sh", "-c", '"$@" > /dev/full', "sh"]).ended()

        assert "No space left on device" in full.err, (look, full)
        assert "internal error of agentos" not in full.err, (look, full)
        assert full.code not in (0, 70), (look, full)


def test_what_the_locale_cannot_encode_is_escaped(place: Place) -> None:
    ascii_only = {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    assert place.run("run", "--name", "r", "--", "true", ":::", "caf\u00e9").code == 0

    listed = place.run("show", "--items", env=ascii_only)

    assert (listed.code, listed.out, listed.err) == (0, "done\tcaf\\xe9\n", "")
