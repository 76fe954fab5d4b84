"""The npm SDKs, Node's own client and nginx work with the gateway. Run by ``make test-agents``."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentos import Credential, CredentialCoordinator
from agentos.simulator import Latency, Simulator, equal_keys
from tests.agents.real_programs import AGENTS
from tests.gateway.running import RawClient, Served, serving, wait_until

SCRIPT = """
import OpenAI from 'openai';
import Anthropic from '@anthropic-ai/sdk';
const [url, token] = process.argv.slice(2);
const messages = [{ role: 'user', content: 'hi' }];
const openai = new OpenAI({ baseURL: url + '/v1', apiKey: token });
const anthropic = new Anthropic({ baseURL: url, apiKey: token });
const said = [];
said.push((await openai.chat.completions.create({ model: 'gpt-4o', messages })).choices[0].message.content);
let text = '';
for await (const chunk of await openai.chat.completions.create({ model: 'gpt-4o', messages, stream: true }))
  text += chunk.choices[0]?.delta?.content ?? '';
said.push(text);
said.push((await openai.responses.create({ model: 'gpt-4o', input: 'hi' })).output_text);
const message = { model: 'claude-sonnet-5', max_tokens: 20, messages };
said.push((await anthropic.messages.create(message)).content[0].text);
said.push(await anthropic.messages.stream(message).finalText());
const answer = await fetch(url + '/v1/chat/completions', {
  method: 'POST', headers: { authorization: 'Bearer ' + token, 'content-type': 'application/json' },
  body: JSON.stringify({ model: 'gpt-4o', messages }) });
said.push((await answer.json()).choices[0].message.content);
console.log(JSON.stringify(said));
"""


@contextmanager
def gateway() -> Iterator[Served]:
    """A gateway over keys of OpenAI and Anthropic at the simulator."""
    plan = equal_keys(2, rpm=600, latency=Latency(0.004, 0.0))
    with Simulator(plan) as simulator:
        keys = [
            Credential(key.secret, name=provider, provider=provider, base_url=simulator.url, slots=2)
            for provider, key in zip(("openai", "anthropic"), plan.keys, strict=True)
        ]
        with CredentialCoordinator(keys) as pool, serving(pool) as served:
            yield served


def test_the_npm_sdks_and_fetch_work_unchanged(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None, "this test needs Node"
    script = AGENTS / "sdk_clients.mjs"  # beside node_modules, where Node looks for the SDKs
    script.write_text(SCRIPT)
    with gateway() as served:
        ended = subprocess.run(
            [node, str(script), served.url, served.token], capture_output=True, text=True, timeout=120, check=False
        )

    assert (ended.returncode, ended.stderr) == (0, "")
    said = json.loads(ended.stdout)
    assert len(said) == 6
    assert all(text.startswith("Simulated answer") for text in said)


@contextmanager
def nginx(folder: Path, upstream: str, *, buffering: bool) -> Iterator[int]:
    """A bare nginx before *upstream*; yields its port."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    assert program is not None, "this test needs nginx: apt-get install nginx-light"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    paths = "".join(f"{name}_temp_path {folder}/{name};" for name in ("proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/log; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; {paths}\n"
        f"upstream up {{ server {upstream.removeprefix('http://')}; keepalive 8; }}\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://up; proxy_http_version 1.1;"
        f' proxy_set_header Connection ""; proxy_set_header Host 127.0.0.1;'
        f" proxy_buffering {'on' if buffering else 'off'}; }} }} }}\n"
    )
    with subprocess.Popen([program, "-c", str(folder / "nginx.conf"), "-p", str(folder)]) as process:
        try:
            wait_until(lambda: _listens(port))
            yield port
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("buffering", [True, False])
def test_nginx_before_the_gateway_passes_answers_and_streams(tmp_path: Path, buffering: bool) -> None:
    body = {"model": "gpt-4o", "messages": []}
    with gateway() as served, nginx(tmp_path, served.url, buffering=buffering) as port:

        def ask(stream: bool) -> bytes:
            with RawClient(port) as client:
                client.send(served.request(body={**body, "stream": stream}))
                return client.answer().body

        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False) * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert b"[DONE]" in ask(stream=True)
        assert b"Simulated" in ask(stream=False)
        wait_until(lambda: len(served.records) == 10)
        assert {record.outcome for record in served.records} == {"done"}


def test_nginx_as_the_provider_passes_answers_and_streams(tmp_path: Path) -> None:
    plan = equal_keys(1, rpm=600, latency=Latency(0.004, 0.0))
    with Simulator(plan) as simulator, nginx(tmp_path, simulator.url, buffering=False) as port:
        key = Credential(plan.keys[0].secret, name="k", provider="openai", base_url=f"http://127.0.0.1:{port}", slots=2)
        with CredentialCoordinator([key]) as pool, serving(pool) as served:
            for stream in (True, False, True):
                answer = served.ask(body={"model": "gpt-4o", "stream": stream, "messages": []})
                assert answer.status == 200
                assert (b"[DONE]" in answer.body) == stream
