"""The environment of a command."""

from __future__ import annotations

import base64
from pathlib import Path

from agentos.pool.redaction import Masker
from agentos.runs.commands.environment import MAX_VARIABLE, CommandEnvironment, base_environment

SECRET = "sk-planted-QWERTZUIOP"


def test_variables_that_hold_a_secret_of_the_pool_are_left_out() -> None:
    environ = {
        "PATH": "/bin",
        "KEY_1": SECRET,
        "AUTHORIZATION": f"Bearer {SECRET}",
        "SOURCE": "something else",
        "ENCODED": base64.b64encode(f"user:{SECRET}".encode()).decode(),
        "HOME": f"/home/{SECRET[:12]}",  # a piece may stand in many a path, and says nothing of the rest
        "AGENTOS_ITEM": "of an outer run",
    }

    left = base_environment(environ, {"SOURCE"}, Masker([SECRET]).contains_secret)

    assert left == {"PATH": "/bin", "HOME": environ["HOME"]}


def test_agentos_store_is_left_out_and_all_other_variables_stay() -> None:
    masker = Masker([SECRET])
    masker.add_password("planted-password")
    others = {
        "AGENTOS_HOME": "/state",
        "AGENTOS_BASE_DIR": "/runs",
        "REDIS_URL": "redis://:planted-password@host",  # of a program, or of an agentos that is nested
    }

    left = base_environment({"AGENTOS_STORE": "redis://host", **others}, (), masker.contains_secret)

    assert left == others


def surroundings(folder: Path, **environ: str) -> CommandEnvironment:
    return CommandEnvironment("nightly", environ, folder)


def of(around: CommandEnvironment, item: str, checkpoint: Path) -> dict[str, str]:
    return around.build_variables(
        item_id="i-7", item=item, attempt=2, slot=3, credential="alice", checkpoint=checkpoint, mark="m.1"
    )


def test_an_attempt_knows_its_run_item_number_slot_key_and_checkpoint(tmp_path: Path) -> None:
    variables = of(surroundings(tmp_path), "hello", tmp_path / "c")

    assert {name: variables[name] for name in sorted(variables) if name not in ("TRACEPARENT", "AGENTOS_OUTCOME")} == {
        "AGENTOS_ATTEMPT": "2",
        "AGENTOS_CREDENTIAL_NAME": "alice",
        "AGENTOS_ITEM": "hello",
        "AGENTOS_ITEM_ID": "i-7",
        "AGENTOS_MARK": "m.1",
        "AGENTOS_RUN_ID": "nightly",
        "AGENTOS_SLOT": "3",
        "AGENTOS_WORKFLOW_DB": str(tmp_path / "c"),
    }
    assert Path(variables["AGENTOS_OUTCOME"]).parent == tmp_path


def test_an_item_too_long_for_a_variable_is_in_a_file_until_the_attempt_is_over(tmp_path: Path) -> None:
    around = surroundings(tmp_path)
    long = "ü" * MAX_VARIABLE

    variables = of(around, long, tmp_path / "c")

    assert "AGENTOS_ITEM" not in variables
    assert Path(variables["AGENTOS_ITEM_FILE"]).read_text() == long
    around.remove_files("i-7", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_goes_on_in_each_command_with_a_span_of_its_own(tmp_path: Path) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    around = surroundings(tmp_path, TRACEPARENT=f"00-{trace}-b7ad6b7169203331-00")

    first, second = (of(around, "x", tmp_path / "c")["TRACEPARENT"] for _ in range(2))

    assert first != second
    assert {tuple(each.split("-")[i] for i in (0, 1, 3)) for each in (first, second)} == {("00", trace, "00")}
