"""A function shipped to another machine keeps its identity, and its prints reach the driver."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentos.cli.session.worker_function import find_journal_name, find_worker_folder, load_worker
from agentos.cli.terminal.remote_prints import ShippedCoroutine, ShippedFunction, ship_function
from agentos.runs.output.capture import OutputCapture
from agentos.runs.remote.assignment import Assignment
from agentos.runs.remote.attempt_report import AttemptReport, LogLine, Printed
from agentos.runs.remote.pickled import pack
from agentos.runs.remote.worker_call import run_assignment
from agentos.runs.remote.worker_lease import LeaseMessage
from agentos.runs.worker import inspect_worker

from ...logged_messages import said_here

WORK = """
import asyncio, sys
from helping_{mark} import shout

def work(item, credential):
    print("half a line, ", end="")
    print(shout(item))
    print("trouble", file=sys.stderr)
    return shout(item)

async def slow(item, credential, context):
    print("one of", item)
    await asyncio.sleep(0)
    print("two of", item)
    return context.item_id

def bad(item, credential):
    print("last words")
    raise ValueError(item)

def many(item, credential):
    for number in range(3_000):
        print("line", number)

def odd(item, credential):
    sys.stdout.buffer.write(bytes(range(256)) * 40)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a worker and a module beside it; nobody else can import either."""
    mark = tmp_path.name.replace("-", "_")
    (tmp_path / "asking.py").write_text(WORK.format(mark=mark))
    (tmp_path / f"helping_{mark}.py").write_text("def shout(item):\n    return item.upper()\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "asking", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def travelling(function: str) -> ShippedFunction:
    named = f"asking.py:{function}"
    return ship_function(load_worker(named), find_journal_name(named), find_worker_folder(named))


def carried_out(function: str, item: str = "tea") -> tuple[AttemptReport, list[LeaseMessage | LogLine | Printed]]:
    """Its report, and what it sent before."""
    sent = travelling(function)
    assignment = Assignment(
        run_id="r",
        item_id=item,
        index=0,
        attempt=1,
        token=1,
        payload=pack(item, "the item"),
        wants_context=True,
    )
    parcel = pack(sent, "the worker")
    messages: list[LeaseMessage | LogLine | Printed] = []
    report = run_assignment(parcel, assignment, is_async=inspect_worker(sent).is_async, tell=messages.append)
    return report, messages


def printed(messages: list[LeaseMessage | LogLine | Printed], place: Path) -> str:
    """What the item's log has of it at home."""
    output = OutputCapture(place / "logs").open("tea", 0, 1)
    for message in messages:
        assert isinstance(message, Printed)
        output.write(message.stream, message.data)
    output.finish()
    (log,) = (place / "logs").iterdir()
    return log.read_bytes().decode("utf-8", "surrogateescape").partition("\n")[2]


def test_it_is_known_as_it_would_be_here() -> None:
    def work(item: Any, credential: Any) -> None: ...

    assert inspect_worker(ship_function(work, "some/file.py:work", None)).name == "some/file.py:work"
    assert inspect_worker(ship_function(work, None, None)).name == inspect_worker(work).name
    assert isinstance(ship_function(work, None, None), ShippedFunction)


def test_a_coroutine_function_is_one_after_the_journey(folder: Path) -> None:
    again = pickle.loads(pickle.dumps(travelling("slow")))

    assert isinstance(again, ShippedCoroutine)
    assert inspect_worker(again).is_async
    assert inspect_worker(again).name == "asking.py:slow"


def test_a_function_of_a_file_arrives_where_neither_the_file_nor_what_lies_beside_it_is(folder: Path) -> None:
    data = folder / "data"
    data.write_bytes(pickle.dumps(travelling("work")))
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))._function('tea', None))"

    told = subprocess.run(
        [sys.executable, "-c", script, str(data)], capture_output=True, text=True, cwd="/", check=True
    )

    assert told.stdout == "half a line, TEA\nTEA\n"


def test_what_it_prints_is_the_output_of_its_item_and_no_line_of_the_log(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    report, messages = carried_out("work")

    assert report.failure is None
    assert printed(messages, folder) == "half a line, TEA\ntrouble\n"
    assert capsys.readouterr() == ("", "")
    assert said_here(caplog) == []


def test_a_coroutine_prints_for_its_item(folder: Path) -> None:
    assert printed(carried_out("slow")[1], folder) == "one of tea\ntwo of tea\n"


def test_what_a_function_said_before_it_failed_comes_home(folder: Path) -> None:
    report, messages = carried_out("bad")

    assert report.failure is not None
    assert printed(messages, folder) == "last words\n"


def test_of_very_much_output_nothing_is_lost(folder: Path) -> None:
    assert printed(carried_out("many")[1], folder) == "".join(f"line {number}\n" for number in range(3_000))


def test_bytes_that_are_no_text_come_home_as_they_are(folder: Path) -> None:
    told = printed(carried_out("odd")[1], folder)

    assert told.encode("utf-8", "surrogateescape") == bytes(range(256)) * 40


def test_the_streams_are_as_they_were_when_nothing_runs(folder: Path) -> None:
    before = sys.stdout, sys.stderr

    carried_out("work")

    assert (sys.stdout, sys.stderr) == before
