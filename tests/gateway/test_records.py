"""Requests are kept in a private file that does not grow without end; the server's own file keeps its token."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from agentos.costs.usage import Usage
from agentos.gateway.records import FILE, GatewayRequest, RequestFile
from agentos.gateway.server_file import ServerFile
from agentos.gateway.tokens import new_token
from agentos.util.private_folder import PrivateFolder


def request(number: int) -> GatewayRequest:
    return GatewayRequest(
        at=1.0,
        item=None,
        attempt=None,
        key="key-1",
        provider="openai",
        operation="generate",
        model="m",
        session=str(number),
        agent=None,
        status=200,
        outcome="done",
        waited=0.1234567,
        seconds=1.0,
        refusals=0,
        request_id="r",
        usage=Usage(1, 2),
    )


def test_requests_are_lines_of_a_private_file_that_is_set_aside_when_large(tmp_path: Path) -> None:
    with PrivateFolder.at(tmp_path) as folder:
        file = RequestFile(folder, largest=2000)
        for number in range(40):
            file.add(request(number))
        file.close()

    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [FILE, f"{FILE}.1", f"{FILE}.2", f"{FILE}.3"]
    assert {os.stat(tmp_path / name).st_mode & 0o777 for name in kept} == {0o600}
    lines = [json.loads(line) for name in kept for line in (tmp_path / name).read_text().splitlines()]
    assert max(int(line["session"]) for line in lines) == 39
    assert (lines[0]["usage"]["output"], lines[0]["waited"]) == (2, 0.123)


def test_two_gateways_that_share_the_file_set_it_aside_once(tmp_path: Path) -> None:
    with PrivateFolder.at(tmp_path) as folder:
        one, two = RequestFile(folder, largest=2000), RequestFile(folder, largest=2000)
        for number in range(9):  # more than one file holds, less than two do
            one.add(request(number))
            two.add(request(number))
        one.close()
        two.close()

    kept = sorted(path.name for path in tmp_path.iterdir())
    sizes = [os.stat(tmp_path / name).st_size for name in kept[1:]]
    assert min(sizes) > 2000
    lines = [line for name in kept for line in (tmp_path / name).read_text().splitlines()]
    assert len(lines) == 18


def test_a_file_that_cannot_be_opened_again_is_written_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor would otherwise be another file's by then."""
    with PrivateFolder.at(tmp_path) as folder:
        file = RequestFile(folder, largest=100)
        with monkeypatch.context() as patch:
            patch.setattr(PrivateFolder, "open", refuse)
            file.add(request(1))
        other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
        file.add(request(2))
        os.close(other)
        file.close()

    assert (tmp_path / "other").read_bytes() == b""
    lines = [json.loads(line) for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert [line["session"] for line in lines] == ["1", "2"]


def refuse(*_: object) -> int:
    raise OSError(errno.EMFILE, "too many open files")


def test_a_gateway_of_the_same_port_finds_its_token_again(tmp_path: Path) -> None:
    with PrivateFolder.at(tmp_path) as folder:
        file = ServerFile(folder)
        assert file.find_token(8089) is None
        token = new_token()
        file.write(url="http://127.0.0.1:8089", port=8089, token=token, socket=None)

        assert (file.find_token(8089), file.find_token(8090)) == (token, None)
        assert os.stat(tmp_path / "8089.json").st_mode & 0o777 == 0o600
        for broken in ("{broken", '{"token": 7}', '{"token": "too short"}'):
            (tmp_path / "8089.json").write_text(broken)
            assert file.find_token(8089) is None
