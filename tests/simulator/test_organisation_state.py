"""State of one organisation is refused from the keys of another, as a real provider does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping

import pytest

from agentos.simulator import Simulator, organisations
from agentos.simulator.organisation_state import TURN_STATE, encrypted_content, file_id


def post(
    url: str, key: str, body: Mapping[str, object], **headers: str
) -> tuple[int, dict[str, str], dict[str, object]]:
    request = urllib.request.Request(
        f"{url}/v1/responses",
        json.dumps({"model": "m", "input": "x", **body}).encode(),
        {"authorization": f"Bearer {key}", "content-type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.load(error)


@pytest.mark.parametrize("kind", ["previous_response_id", "encrypted_content", TURN_STATE, "file_id"])
def test_state_is_good_for_its_own_organisation_only(kind: str) -> None:
    plan = organisations({"acme": 1, "beta": 1})
    with Simulator(plan) as running:
        own, other = plan.keys
        include = {"include": ["reasoning.encrypted_content"]}
        status, headers, first = post(running.url, own.secret, include)
        assert status == 200
        body: dict[str, object] = {}
        sent: dict[str, str] = {}
        if kind == "previous_response_id":
            body = {kind: first["id"]}
        elif kind == "encrypted_content":
            assert first["output"][1][kind] == encrypted_content(own.quota, 1)  # type: ignore[index]
            body = {"input": first["output"]}
        elif kind == "file_id":
            body = {"input": [{"type": "input_file", "file_id": file_id(own.quota, 7)}]}
        else:
            sent = {TURN_STATE: headers[TURN_STATE]}

        assert post(running.url, own.secret, body, **sent)[0] == 200
        assert post(running.url, other.secret, body, **sent)[0] == 400
