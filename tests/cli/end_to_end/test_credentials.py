"""Sources of credentials, the variable a command gets, and the effect of limits on a run and its exit code."""

from __future__ import annotations

import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from .harness import Place, wait_until

SECRETS = {"ACME_1": "sk-planted-first-key", "ACME_2": "sk-planted-second-key"}
ONE = {"ACME_1": SECRETS["ACME_1"]}


def says(what: str) -> list[str]:
    """A command that says *what* of its end where AGENTOS_OUTCOME wants it, until there is a file "healed"."""
    script = f"echo $AGENTOS_CREDENTIAL_NAME >> used; [ -e healed ] && exit 0; echo '{what}' > $AGENTOS_OUTCOME; exit 1"
    return ["--", "sh", "-c", script, ":::", "a", "b"]


def in_two_hours() -> int:
    return int(time.time()) + 7_200


def test_a_missing_key_is_refused_with_code_4_and_says_which(place: Place) -> None:
    place.write("agentos.toml", '[[credentials]]\nname = "alice"\nenv = "NOT_SET"\n')
    for flags, said in {
        ("--keys", "env:NOPE"): "NOPE",
        ("--keys", "env:NOPE_*"): "NOPE_",
        (): "agentos.toml, line 1: alice",
    }.items():
        refused = place.run("run", *flags, "--", "touch", "ran-{}", ":::", "a")

        assert refused.code == 4, refused
        assert said in refused.err, refused
    unknown = place.run("run", "--keys", "bob", "--", "true", ":::", "a")
    assert unknown.code == 2
    assert "no credential of that name, and no such file" in unknown.err
    assert not (place.cwd / ".agentos").exists()


@pytest.mark.parametrize("source", ["environment", "file", "toml", "names", "config"])
def test_each_command_finds_its_own_key_in_its_environment_and_no_other(place: Place, source: str) -> None:
    toml = "".join(f'[[credentials]]\nname = "key-{n}"\nenv = "ACME_{n}"\nenv_key = "TOKEN"\n' for n in (1, 2))
    if source in ("toml", "names"):
        place.write("agentos.toml", toml)
    elif source == "config":
        place.write("other.toml", toml)
    place.write("keys.txt", "".join(f"key-{n}={SECRETS[f'ACME_{n}']}\n" for n in (1, 2))).chmod(0o600)
    flags = {
        "environment": ["--keys", "env:ACME_*", "--env-key", "TOKEN"],
        "file": ["--keys", "keys.txt", "--env-key", "TOKEN"],
        "toml": [],
        "names": ["--keys", "key-2"],
        "config": ["--config", "other.toml"],
    }[source]
    script = "env | grep -c =sk-pl; echo $AGENTOS_CREDENTIAL_NAME $(printf %s $TOKEN | wc -c) $TOKEN"

    ended = place.run(
        *["run", *flags, "--no-tag", "-k", "-j", "1", "--", "sh", "-c", script, ":::", "a"],
        env={} if source == "file" else SECRETS,
    )

    assert ended.code == 0, ended.err
    count, line = ended.lines
    name, length, shown = line.split()
    assert count == "1", "another key is in its environment"
    assert re.fullmatch(r"key-2" if source == "names" else r"key-1|acme-1", name)
    assert int(length) == len(SECRETS["ACME_2" if source == "names" else "ACME_1"])
    assert "planted" not in shown, "what it prints is redacted"
    for path in [*place.run_folder().rglob("*"), *place.agentos_home.rglob("*")]:
        assert path.is_dir() or b"planted" not in path.read_bytes(), path


def test_a_secret_that_was_typed_is_refused(place: Place) -> None:
    refused = place.run("run", "--keys", "env:ACME_1", "--", "echo", SECRETS["ACME_1"], ":::", "a", env=ONE)

    assert refused.code == 2
    assert "contains the secret" in refused.err
    assert "planted" not in refused.out + refused.err
    assert not (place.cwd / ".agentos").exists()


def test_parked_keys_end_the_run_with_75_if_they_are_not_to_be_waited_for(place: Place) -> None:
    command = says(f'{{"park_until": {in_two_hours()}}}')
    arguments = ["run", "--name", "r", "--no-wait", "--keys", "env:ACME_1", *command]

    parked = place.run(*arguments, env=ONE)
    still = place.run(*arguments, env=ONE)

    assert (parked.code, still.code) == (75, 75)
    assert "2 items waiting for rate limits that end at" in parked.err
    assert place.lines("used") == ["acme-1"], "a parked key is not used again"
    keys = place.run("keys").out
    assert "0 of 1 available" in keys
    assert re.search(r"acme-1 +parked", keys)
    assert "parked" in place.run("show", "r").out

    assert place.run("keys", "clear", "acme-1").code == 0
    place.write("healed", "")
    done = place.run(*arguments, env=ONE)

    assert done.code == 0, done.err
    assert place.outcomes() == {"a": "done", "b": "done"}


def test_a_limit_that_lasts_beyond_the_deadline_is_not_waited_for(place: Place) -> None:
    command = says(f'{{"park_until": {in_two_hours()}}}')

    parked = place.run("run", "--deadline", "1h", "--keys", "env:ACME_1", *command, env=ONE)

    assert parked.code == 75
    assert place.lines("used") == ["acme-1"]


def test_a_key_that_is_parked_for_years_is_not_tried_again_in_a_minute(place: Place) -> None:
    command = says('{"park_until": "2037-01-01T00:00:00+00:00"}')
    place.start("run", "--no-wait", "--keys", "env:ACME_1", *command, env=ONE)
    place.wait_for_lines("used", 1)
    wait_until(lambda: "0 of 1 available" in place.run("keys").out, "the key rests")

    (key,) = place.run("keys", "--json").objects

    assert key["until"] > time.time() + 7 * 86_400, key


def test_clearing_a_key_wakes_the_run_that_waits_for_it(place: Place) -> None:
    command = says(f'{{"park_until": {in_two_hours()}}}')
    program = place.start("run", "--name", "r", "--keys", "env:ACME_1", *command, env=ONE)
    place.wait_for_lines("used", 1)
    wait_until(lambda: "parked" in place.run("keys").out, "the key is parked")
    assert place.run("show", "r").code == 0

    place.write("healed", "")
    assert place.run("keys", "clear", "acme-1").code == 0

    assert program.ended().code == 0
    assert place.lines("used") == ["acme-1"] * 3
    assert place.outcomes() == {"a": "done", "b": "done"}


@pytest.mark.parametrize("what", ["rejected", "spent"])
def test_without_a_usable_key_it_ends_with_4(place: Place, what: str) -> None:
    arguments = ["run", "--name", "r", "--keys", "env:ACME_1", *says(f'{{"{what}": "no more"}}')]

    ended = place.run(*arguments, env=ONE)
    again = place.run(*arguments, env=ONE)

    assert (ended.code, again.code) == (4, 4)
    assert "no more" in ended.err
    assert place.lines("used") == ["acme-1"]
    assert "agentos keys" in ended.err
    assert "rate-limited" not in ended.err, "nobody spoke of a rate"


def test_a_rejected_key_does_not_cool_another_of_the_same_quota(place: Place) -> None:
    place.write(
        "agentos.toml",
        "".join(f'[[credentials]]\nname = "key-{n}"\nenv = "ACME_{n}"\nquota = "acme"\n' for n in (1, 2)),
    )
    script = "[ $AGENTOS_CREDENTIAL_NAME = key-2 ] || { echo '{\"rejected\": true}' > $AGENTOS_OUTCOME; exit 1; }"

    ended = place.run("run", "--no-wait", "--deadline", "30s", "--", "sh", "-c", script, ":::", *"abcd", env=SECRETS)

    assert ended.code == 0, ended.err
    assert place.outcomes() == dict.fromkeys("abcd", "done")


def test_two_runs_at_once_never_use_one_key_at_the_same_time(place: Place) -> None:
    script = "mkdir held || echo $AGENTOS_ITEM >> overlaps; sleep 0.02; echo $AGENTOS_ITEM >> used; rmdir held"
    place.asked_for("overlaps")
    arguments = ["--keys", "env:ACME_1", "--", "sh", "-c", script, ":::", *"abcdef"]

    programs = [place.start("run", "--name", name, *arguments, env=ONE) for name in ("one", "two")]

    assert [program.ended().code for program in programs] == [0, 0]
    assert place.lines("overlaps") == []
    assert sorted(place.lines("used")) == sorted("abcdef" * 2)


def test_settings_come_from_file_environment_and_flags_in_that_order(place: Place) -> None:
    place.write("agentos.toml", '[run]\nparallel = 2\ntag = false\nkeep_order = true\ndir = "elsewhere"\n')
    place.asked_for("elsewhere")
    script = "echo $AGENTOS_SLOT"

    from_file = place.run("run", "--name", "r", "--", "sh", "-c", script, ":::", "a")
    from_environment = place.run(
        "run", "--fresh", "--name", "r", "--", "sh", "-c", script, ":::", "a", env={"AGENTOS_TAG": "yes"}
    )
    from_flags = place.run(
        "run",
        "--fresh",
        "--name",
        "r",
        "--no-tag",
        "-j5",
        "--",
        "sh",
        "-c",
        script,
        ":::",
        "a",
        env={"AGENTOS_TAG": "yes"},
    )

    assert (from_file.lines, from_environment.lines, from_flags.lines) == (["1"], ["[a] 1"], ["1"])
    assert "with 2 workers" in from_environment.err
    assert "with 5 workers" in from_flags.err
    assert sorted(path.name for path in (place.cwd / "elsewhere" / "runs").iterdir()) == ["r", "r.1", "r.2"]
    wrong = place.run("run", "--", "true", ":::", "a", env={"AGENTOS_PARALLEL": "many"})
    assert (wrong.code, "AGENTOS_PARALLEL" in wrong.err) == (2, True)
    place.write("agentos.toml", "[run]\nparallel = 2\nretrys = 3\n")
    wrong = place.run("run", "--", "true", ":::", "a")
    assert (wrong.code, "agentos.toml, line 3" in wrong.err) == (2, True)


def test_init_writes_a_file_that_works_as_it_is(place: Place) -> None:
    place.asked_for("agentos.toml")
    env = {"OPENAI_API_KEY": "sk-planted-openai-key"}

    written = place.run("init", env=env)
    again = place.run("init", env=env)

    assert written.code == 0
    assert again.code == 2
    assert "--force" in again.err
    assert "planted" not in (place.cwd / "agentos.toml").read_text()
    ended = place.run(
        "run",
        "--no-tag",
        "--",
        "sh",
        "-c",
        'test -n "$OPENAI_API_KEY" && echo $AGENTOS_CREDENTIAL_NAME',
        ":::",
        "a",
        env=env,
    )
    assert ended.code == 0, ended.err
    assert len(ended.lines) == 1
    assert "1 of 1 available" in place.run("keys", env=env).out


def test_a_command_that_tells_absurd_usage_spoils_no_key_for_others(place: Place) -> None:
    place.write("agentos.toml", '[[credentials]]\nname = "alice"\nenv = "ACME_1"\ntpm = 1000\n')
    usage = '{"usage": {"input_tokens": 1e15, "output_tokens": 1}}'
    script = f"echo '{usage}' > $AGENTOS_OUTCOME"

    told = place.run("run", "--name", "r", "--", "sh", "-c", script, ":::", "a", env=ONE)
    shown, after = place.run("keys", env=ONE), place.run("run", "--no-wait", "--", "true", ":::", "a", "b", env=ONE)

    assert (told.code, shown.code, after.code) == (0, 0, 0), (told, shown, after)
    assert "ignored usage with a figure below zero, not finite or above 1e+09" in told.err
    assert place.outcomes("r") == {"a": "done"}


# -- keys of several providers ----------------------------------------------------------------------------------------

THREE_PROVIDERS = {
    "OPENAI_API_KEY": "sk-proj-planted-openai",
    "ANTHROPIC_API_KEY": "sk-ant-planted-anthropic",
    "GEMINI_API_KEY": "AIza-planted-gemini",
}
ASK = """
import os, urllib.request

def ask(item, key):
    headers = {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/models", headers=headers)
    return urllib.request.urlopen(request).status
"""


class _Provider(BaseHTTPRequestHandler):
    """Stands in for OpenAI, and records the keys that are sent to it."""

    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
        pass


def test_with_keys_of_three_providers_only_those_of_the_chosen_one_are_sent(place: Place) -> None:
    place.write("ask.py", ASK)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Provider) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {**THREE_PROVIDERS, "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1"}
        typed = ["run", "--worker", "ask.py:ask", ":::", *"abcdef"]

        written = place.run("init", env=env)
        ended = place.run(*typed, env=env)
        by_choice = list(_Provider.seen)
        settings = (place.cwd / "agentos.toml").read_text().replace('\nprovider = "openai"  # a run', "\n# a run")
        place.write("agentos.toml", settings)
        refused = place.run(*typed, "g", env=env)
        server.shutdown()

    assert (written.code, ended.code) == (0, 0), written.err + ended.err
    assert 'now it is openai: change provider = "openai" under [run], or type --provider anthropic' in written.out
    assert by_choice == [f"Bearer {THREE_PROVIDERS['OPENAI_API_KEY']}"] * 6
    assert refused.code == 2, refused
    assert "--provider openai or --provider anthropic or --provider gemini" in refused.err
    assert by_choice == _Provider.seen, "a refused run has sent a key"
