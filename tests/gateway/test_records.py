"""Requests are kept in a private file that does not grow without end; the server's own file keeps its token."""

from __future__ import annotations

import json
import os
from pathlib import Path

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
