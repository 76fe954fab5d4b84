"""Messages: what is news, how it is said in each form, and how often."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentos.notify.channels import NotSent, build_body, send
from agentos.notify.notifier import LOG_NAME, Notifier
from agentos.notify.rules import QUIET, RunWatch, name_end
from agentos.notify.targets import KINDS, NotifyTarget

from .receiver import Receiver

COMMANDS = {name: f"agentos {name}" for name in ("resume", "retry", "results", "keys", "show")}


def facts(done: int = 1, *, keys: int = 2, usable: int = 2, resting: int = 0, **more: Any) -> dict[str, Any]:
    return {"done": done, "failed": 0, "left": 5, "keys": keys, "usable": usable, "resting": resting, **more}


class Told(list[dict[str, Any]]):
    def __call__(self, target: NotifyTarget, message: Mapping[str, Any]) -> None:
        self.append(dict(message))

    @property
    def kinds(self) -> list[str]:
        return [message["event"] for message in self]


class Wall:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def wall() -> Wall:
    return Wall()


def make(folder: Path, told: Told, wall: Wall, **more: Any) -> Notifier:
    target = NotifyTarget(("true",), **more).to_json()
    hello = {"run": "night", "folder": str(folder), "commands": COMMANDS, "targets": [target]}
    return Notifier(hello, send_to=told, wall=wall)


def finish(notifier: Notifier) -> None:
    for thread in notifier.threads:
        thread.join(60)


# -- what is news -----------------------------------------------------------------------------------------------------


def test_dead_keys_are_told_once_until_one_lives_again() -> None:
    watch = RunWatch(60.0, 60.0)

    assert watch.observe(facts(1), 0.0, 0.0) == []
    assert watch.observe(facts(2, usable=0), 1.0, 1.0) == ["keys"]
    assert watch.observe(facts(3, usable=0), 2.0, 2.0) == []
    assert watch.observe(facts(4), 3.0, 3.0) == []
    assert watch.observe(facts(5, usable=0), 4.0, 4.0) == ["keys"]


def test_a_run_without_keys_has_no_dead_ones() -> None:
    assert RunWatch(60.0, 60.0).observe(facts(keys=0, usable=0), 0.0, 0.0) == []


def test_keys_that_will_cool_for_long_are_told_at_once() -> None:
    watch = RunWatch(60.0, 600.0)

    assert watch.observe(facts(resting=2, next_at=1_030.0), 0.0, 1_000.0) == []
    assert watch.observe(facts(resting=2, next_at=1_100.0), 1.0, 1_001.0) == ["cooling"]


def test_keys_that_have_cooled_for_long_are_told() -> None:
    watch = RunWatch(60.0, 600.0)

    assert watch.observe(facts(resting=2), 0.0, 0.0) == []
    assert watch.observe(facts(resting=1), 30.0, 30.0) == []
    assert watch.observe(facts(resting=2), 40.0, 40.0) == []
    assert watch.observe(facts(resting=2), 101.0, 101.0) == ["cooling"]


def test_no_progress_is_told_once_also_if_the_driver_is_silent() -> None:
    watch = RunWatch(60.0, 60.0)
    watch.observe(facts(1), 0.0, 0.0)

    assert watch.look(60.0) == []
    assert watch.look(61.0) == ["stuck"]
    assert watch.look(62.0) == []
    watch.observe(facts(2), 70.0, 70.0)
    assert watch.look(131.0) == ["stuck"]


def test_keys_that_cool_down_are_not_called_stuck() -> None:
    watch = RunWatch(600.0, 60.0)
    watch.observe(facts(1, resting=2), 0.0, 0.0)

    assert watch.look(100.0) == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (0, "ended"),
        (1, "ended"),
        (3, "halted"),
        (4, "keys"),
        (75, "cooling"),
        (130, "stopped"),
        (143, "stopped"),
        (70, "halted"),
    ],
)
def test_each_exit_code_has_its_kind(code: int, kind: str) -> None:
    assert name_end({"code": code}, None) == kind
    assert kind in KINDS


def test_a_driver_that_is_gone_has_crashed_unless_it_was_stopping() -> None:
    assert name_end(None, None) == "crashed"
    assert name_end(None, "SIGINT") == "stopped"


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_the_end_is_told_with_counts_and_the_command_to_type(tmp_path: Path, told: Told, wall: Wall) -> None:
    notifier = make(tmp_path, told, wall)
    notifier.take({"facts": facts(3)}, 0.0)
    wall.now += 90
    notifier.take({"end": {"code": 1, "why": None, "facts": {"done": 8, "failed": 2, "left": 0, "total": 10}}}, 1.0)

    notifier.close()
    finish(notifier)

    (message,) = told
    assert message["text"] == "night ended. 8 of 10 done, 2 failed, after 1 min 30 s.\nNext: agentos retry"
    assert (message["event"], message["exit"], message["next"]) == ("ended", 1, "agentos retry")


def test_a_crash_is_told_with_the_command_that_resumes(tmp_path: Path, told: Told, wall: Wall) -> None:
    notifier = make(tmp_path, told, wall)
    notifier.take({"facts": facts(3)}, 0.0)

    notifier.close()
    finish(notifier)

    assert told.kinds == ["crashed"]
    assert told[0]["next"] == "agentos resume"
    assert told[0]["exit"] is None


def test_each_kind_is_told_once_in_half_an_hour_over_restarts(tmp_path: Path, told: Told, wall: Wall) -> None:
    for pause in (0.0, 60.0, QUIET):
        wall.now += pause
        notifier = make(tmp_path, told, wall)
        notifier.close()
        finish(notifier)

    assert told.kinds == ["crashed", "crashed"]


def test_a_target_gets_the_kinds_that_it_wants(tmp_path: Path, told: Told, wall: Wall) -> None:
    notifier = make(tmp_path, told, wall, on=("keys",))
    notifier.take({"facts": facts(3, usable=0)}, 0.0)
    notifier.close()
    finish(notifier)

    assert told.kinds == ["keys"]


def test_a_failure_is_logged_without_the_address(tmp_path: Path, wall: Wall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.notify.notifier._PAUSES", (0.0, 0.0))
    with Receiver(status=500) as receiver:
        target = NotifyTarget(url=receiver.url).to_json()
        hello = {"run": "night", "folder": str(tmp_path), "commands": COMMANDS, "targets": [target]}
        notifier = Notifier(hello, wall=wall)
        notifier.close()
        finish(notifier)
        tries = receiver.received.qsize()

    log = (tmp_path / LOG_NAME).read_text()
    assert tries == 3
    assert "crashed to json webhook, try 3: it answered 500" in log
    assert "SECRET" not in log


# -- channels ---------------------------------------------------------------------------------------------------------


def test_a_webhook_gets_the_facts_as_json() -> None:
    with Receiver() as receiver:
        send(NotifyTarget(url=receiver.url), {"text": "done", "event": "ended"})

        assert receiver.received.get(timeout=60) == {"text": "done", "event": "ended"}


def test_each_service_gets_its_form_and_nobody_is_called_by_a_name() -> None:
    text = {"text": "<!channel> & @everyone"}

    assert json.loads(build_body("slack", text)) == {"text": "&lt;!channel&gt; &amp; @everyone"}
    assert json.loads(build_body("discord", text)) == {"content": text["text"], "allowed_mentions": {"parse": []}}
    teams = json.loads(build_body("teams", text))
    assert teams["attachments"][0]["content"]["body"][0]["text"] == text["text"]


@pytest.mark.parametrize("status", [301, 307, 404, 500])
def test_errors_and_redirects_are_failures_that_do_not_show_the_address(status: int) -> None:
    with Receiver(status=status) as receiver, pytest.raises(NotSent) as failed:
        send(NotifyTarget(url=receiver.url), {"text": "x"})

    assert str(status) in str(failed.value)
    assert "SECRET" not in str(failed.value)


def test_a_receiver_that_hangs_is_given_up() -> None:
    with Receiver(hangs=True) as receiver, pytest.raises(NotSent, match="cannot be reached"):
        send(NotifyTarget(url=receiver.url), {"text": "x"}, timeout=0.2)


def test_only_http_addresses_are_posted_to(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(NotSent, match="not an http"):
        send(NotifyTarget(url=(tmp_path / "x").as_uri()), {"text": "x"})


def test_a_command_gets_the_facts_on_its_input_and_no_shell(tmp_path: Path) -> None:
    keep = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"

    send(NotifyTarget((sys.executable, "-c", keep, f"{tmp_path}/$HOME;x")), {"text": "é"})

    assert json.loads((tmp_path / "$HOME;x").read_text()) == {"text": "é"} if os.sep == "/" else True


def test_a_command_that_fails_or_hangs_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(NotSent, match="exit code 3"):
        send(NotifyTarget((sys.executable, "-c", "raise SystemExit(3)")), {"text": "x"})
    with pytest.raises(NotSent, match="cannot be started"):
        send(NotifyTarget((str(tmp_path / "none"),)), {"text": "x"})
    with pytest.raises(NotSent, match="longer than"):
        send(NotifyTarget((sys.executable, "-c", "import time; time.sleep(600)")), {"text": "x"}, timeout=0.2)


def test_a_target_does_not_show_its_address() -> None:
    assert "SECRET" not in repr(NotifyTarget(url="https://hooks.example/SECRET"))
