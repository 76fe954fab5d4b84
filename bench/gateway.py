"""Costs of a request through the gateway, beside nginx and LiteLLM as proxies: ``python bench/gateway.py [--quick]``.

``--only PART`` measures one part: proxies, memory, opens or held.

A provider (1 KB answers, or a stream of 50 events 5 ms apart, each with the instant at which it was sent) and each
proxy are processes of their own, on loopback; the contenders take turns. *Added* is what a proxy adds to the direct way
in the same round, at 100 requests a second. CPU is that of the proxy's processes. nginx and the proxy of LiteLLM are
those of ``bench/gateway_programs.py``; ``LITELLM`` may name another program. Whatever is missing is said. Nothing here
fails a build; the last lines say which targets were missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentos import Credential, CredentialCoordinator
from agentos.util.startup_objects import exempt_startup_objects

KEY = "sk-proj-Benchmark0123456789abcdefghij"
ANSWER = json.dumps(
    {"id": "x", "object": "chat.completion", "choices": [], "usage": {"prompt_tokens": 1}, "p": "x" * 900}
)
PROMPT = "x" * 2900
EVENTS = 50
MODEL = "gpt-4o"


# -- the provider ---------------------------------------------------------------------------------------------------


class Provider(asyncio.Protocol):
    """Answers at once; a stream has an event every 5 ms."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.buffer = b""
        self.left: list[int] = []

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            if b'"stream": true' in body or b'"stream":true' in body:
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                self.event(1 if b'"max_tokens": 1' in body else EVENTS)
            else:
                text = ANSWER.replace('"id": "x"', f'"id": "{time.monotonic_ns()}"').encode()
                self.transport.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(text), text)
                )

    def event(self, left: int) -> None:
        if self.transport.is_closing():
            return
        if not left:
            self.transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            return
        choice = {"index": 0, "delta": {"content": f"@{time.monotonic_ns()}@"}, "finish_reason": None}
        event = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}
        text = b"data: %b\n\n" % json.dumps(event).encode()
        self.transport.write(b"%x\r\n%b\r\n" % (len(text), text))
        asyncio.get_running_loop().call_later(0.005, self.event, left - 1)


async def serve_provider() -> None:
    server = await asyncio.get_running_loop().create_server(Provider, "127.0.0.1", 0, backlog=2048)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await asyncio.sleep(86_400)


async def serve_gateway(url: str, keys: int, store: str) -> None:
    credentials = [
        Credential(f"{KEY}{number}", name=f"key-{number}", provider="openai", base_url=url, slots=64)
        for number in range(keys)
    ]
    pool = CredentialCoordinator(credentials, store=store)
    async with pool.gateway() as gateway:
        exempt_startup_objects()  # as the command does
        print(json.dumps({"url": gateway.url, "token": gateway.token, "pid": os.getpid()}), flush=True)
        await asyncio.sleep(86_400)


@contextmanager
def child(*words: str) -> Iterator[dict[str, Any]]:
    """A process of this file, and what it says of itself."""
    with subprocess.Popen([sys.executable, __file__, "--child", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield {**json.loads(process.stdout.readline()), "pid": process.pid}
        finally:
            process.kill()


# -- a light client -------------------------------------------------------------------------------------------------


class Client:
    """One connection that is kept."""

    def __init__(self, url: str, token: str) -> None:
        self.host, self.port = url.removeprefix("http://").split(":")
        self.token = token

    async def open(self) -> Client:
        self.reader, self.writer = await asyncio.open_connection(self.host, int(self.port), limit=2**20)
        return self

    def send(self, *, stream: bool, agent: str = "bench", **more: Any) -> None:
        asked = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": PROMPT}], **more}
        body = json.dumps(asked).encode()
        head = f"host: {self.host}:{self.port}\r\nauthorization: Bearer {self.token}\r\nuser-agent: {agent}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def pieces(self) -> AsyncIterator[bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        if b"content-length:" in head:
            yield await self.reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
            return
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    async def ask(self) -> bytes:
        self.send(stream=False)
        return b"".join([piece async for piece in self.pieces()])


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def at_rate(url: str, token: str, rate: float, seconds: float) -> list[float]:
    """Latencies in ms of requests that start at a fixed rate, whatever the earlier ones do."""
    idle = [await Client(url, token).open() for _ in range(16)]
    took: list[float] = []

    async def one() -> None:
        client = idle.pop() if idle else await Client(url, token).open()
        began = time.perf_counter()
        await client.ask()
        took.append(1e3 * (time.perf_counter() - began))
        idle.append(client)

    tasks = []
    start = time.perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    for client in idle:
        client.writer.close()
    return took


async def flat_out(url: str, token: str, requests: int, at_once: int = 16) -> float:
    """Requests a second of a closed loop."""
    left = requests

    async def one() -> None:
        nonlocal left
        client = await Client(url, token).open()
        while left > 0:
            left -= 1
            await client.ask()
        client.writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(at_once)))
    return requests / (time.perf_counter() - began)


async def event_delays(url: str, token: str, streams: int) -> list[float]:
    """Ms from the instant at which the provider sent an event to that at which it was read."""
    delays: list[float] = []

    async def one() -> None:
        client = await Client(url, token).open()
        for _ in range(streams // 4):
            client.send(stream=True)
            async for piece in client.pieces():
                now = time.monotonic_ns()
                delays.extend((now - int(stamp)) / 1e6 for stamp in piece.split(b"@")[1::2])
        client.writer.close()

    await asyncio.gather(*(one() for _ in range(4)))
    return delays


# -- contenders -----------------------------------------------------------------------------------------------------


def cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [pid, *(each for child_pid in found for each in children_of(int(child_pid)))]


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def wait_for(url: str, seconds: float = 90.0) -> None:
    import socket

    host, port = url.removeprefix("http://").split(":")
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def start_nginx(ends: ExitStack, provider: str) -> dict[str, Any] | None:
    import limiters_programs  # here: it would count as memory of the gateway's process
    from run import Failed

    try:
        program = limiters_programs.nginx()
    except Failed as why:
        print(f"nginx is left out: {why}")
        return None
    folder, port = ends.enter_context(tempfile.TemporaryDirectory()), free_port()
    config = Path(folder, "nginx.conf")
    config.write_text(
        f"worker_processes 1; daemon off; pid {folder}/pid; error_log /dev/null;\n"
        f"events {{ worker_connections 4096; }}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;\n"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"upstream up {{ server {provider.removeprefix('http://')}; keepalive 64; }}\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://up; proxy_http_version 1.1;"
        f' proxy_set_header Connection ""; proxy_buffering off; }} }} }}\n'
    )
    process = ends.enter_context(
        subprocess.Popen([program, "-c", str(config), "-p", folder], stderr=subprocess.DEVNULL)
    )
    ends.callback(process.terminate)
    wait_for(f"http://127.0.0.1:{port}")
    return {"url": f"http://127.0.0.1:{port}", "token": "x", "pid": process.pid}


def start_litellm(ends: ExitStack, provider: str) -> dict[str, Any] | None:
    import gateway_programs
    from run import Failed

    try:
        program = os.environ.get("LITELLM") or gateway_programs.litellm()
    except Failed as why:
        print(f"LiteLLM is left out: {why}")
        return None
    folder, port = ends.enter_context(tempfile.TemporaryDirectory()), free_port()
    config = Path(folder, "config.yaml")
    config.write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n"
        f"      api_base: {provider}/v1\n      api_key: x\ngeneral_settings:\n  master_key: {KEY}\n"
    )
    environ = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    process = ends.enter_context(
        subprocess.Popen(
            [program, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    )
    ends.callback(lambda: os.killpg(process.pid, 9))
    try:
        wait_for(f"http://127.0.0.1:{port}")
    except OSError:
        print("LiteLLM: it does not listen, left out")
        return None
    return {"url": f"http://127.0.0.1:{port}", "token": KEY, "pid": process.pid}


# -- measurements ---------------------------------------------------------------------------------------------------


async def compare(contenders: dict[str, dict[str, Any]], rounds: int, seconds: float, requests: int) -> dict[str, Any]:
    """Latency, CPU, throughput and delay of events; each is the median of the rounds."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}

    def note(name: str, what: str, value: float) -> None:
        found[name].setdefault(what, []).append(value)

    for name, at in contenders.items():
        await flat_out(at["url"], at["token"], 300)  # warm
        if name != "direct":
            note(name, "idle MB", memory_mb(at["pid"]))
    for _ in range(rounds):
        for name, at in contenders.items():
            took = await at_rate(at["url"], at["token"], 100, seconds)
            note(name, "p50", percentile(took, 0.5))
            note(name, "p99", percentile(took, 0.99))
            pids = children_of(at["pid"]) if name != "direct" else []
            count = requests // 8 if name == "LiteLLM" else requests  # it takes more than ten times as long
            before = cpu_seconds(pids)
            note(name, "requests/s", await flat_out(at["url"], at["token"], count))
            note(name, "CPU ms", 1e3 * (cpu_seconds(pids) - before) / count)
            delays = await event_delays(at["url"], at["token"], 20)
            note(name, "event p99", percentile(delays, 0.99))
    medians = {name: {what: statistics.median(all_) for what, all_ in each.items()} for name, each in found.items()}
    for name, each in found.items():
        if name != "direct":
            for what in ("p50", "p99", "event p99"):
                pairs = zip(each[what], found["direct"][what], strict=True)
                medians[name][f"added {what}"] = statistics.median([value - direct for value, direct in pairs])
    return medians


async def opening_delays(provider: str, store: str, times: int) -> list[float]:
    """Ms from the instant at which a key opens to that at which the provider has the request of the first waiter."""
    with CredentialCoordinator([Credential(KEY, name="k", provider="openai", base_url=provider)], store=store) as pool:
        async with pool.gateway() as gateway:
            exempt_startup_objects()
            client = await Client(gateway.url, gateway.token).open()
            await client.ask()
            delays = []
            for _ in range(times):
                lease = pool.acquire_nowait()
                client.send(stream=False, agent="codex_bench")
                while not gateway.waiting_requests:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.01)
                opened = time.monotonic_ns()
                lease.release()
                body = b"".join([piece async for piece in client.pieces()])
                delays.append((int(json.loads(body)["id"]) - opened) / 1e6)
            client.writer.close()
            return delays


async def hold(at: dict[str, Any], count: int, agent: str, seconds: float) -> tuple[float, float, int]:
    """KiB of each held request besides its body, CPU percent meanwhile, and how many are served before an earlier one.

    The gateway has one key, which is in use until the figures are taken.
    """
    before = memory_mb(at["pid"])
    clients = []
    for number in range(count):
        client = await Client(at["url"], at["token"]).open()
        client.send(stream=True, agent=agent, max_tokens=1)
        clients.append(client)
        if number % 100 == 0:
            await asyncio.sleep(0.01)
    await asyncio.sleep(30 if agent == "bench" else 3)
    each = 1024 * (memory_mb(at["pid"]) - before) / count - (len(PROMPT) + 110) / 1024
    began, cpu = time.monotonic(), cpu_seconds([at["pid"]])
    await asyncio.sleep(seconds)
    used = 100 * (cpu_seconds([at["pid"]]) - cpu) / (time.monotonic() - began)
    os.kill(at["pid"], signal.SIGUSR1)
    served = []
    for client in clients:
        answer = b"".join([piece async for piece in client.pieces()])
        assert answer.startswith(b":\n\n" if agent == "bench" else b"data: "), answer[:50]
        served.append(int(answer.split(b"@")[1]))
        client.writer.close()
    return each, used, sum(first > second for first, second in pairwise(served))


async def serve_held(url: str) -> None:
    """A gateway whose only key is in use until a signal."""
    pool = CredentialCoordinator([Credential(KEY, name="k", provider="openai", base_url=url)])
    lease = pool.acquire()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lease.release)
    async with pool.gateway() as gateway:
        print(json.dumps({"url": gateway.url, "token": gateway.token}), flush=True)
        await asyncio.sleep(86_400)


TARGETS = {
    "added p50": 2.0,
    "added p99": 8.0,
    "CPU ms": 1.2,
    "added event p99": 1.0,
    "idle MB": 45.0,
}


def measure_costs(provider: str, quick: bool) -> list[str]:
    """Latency, CPU, throughput and delay of events, beside the others; return the targets missed."""
    with ExitStack() as ends:
        contenders: dict[str, Any] = {"direct": {"url": provider, "token": "x", "pid": 0}}
        contenders["agentos"] = ends.enter_context(child("gateway", provider, "3", "memory"))
        for name, start in (("nginx", start_nginx), ("LiteLLM", start_litellm)):
            found = start(ends, provider)
            if found is not None:
                contenders[name] = found
        rounds, seconds, requests = (1, 4.0, 1500) if quick else (3, 10.0, 4000)
        table = asyncio.run(compare(contenders, rounds, seconds, requests))
    for name, figures in table.items():
        print(f"{name:8}", "  ".join(f"{what} {value:.2f}" for what, value in figures.items()))
    ours = table["agentos"]
    missed = [f"{what} {ours[what]:.2f} > {most}" for what, most in TARGETS.items() if ours[what] > most]
    return missed + ([f"requests/s {ours['requests/s']:.0f} < 700"] if ours["requests/s"] < 700 else [])


def measure_memory(provider: str, quick: bool) -> list[str]:
    """Memory after many requests; return the targets missed."""
    many = 10_000 if quick else 100_000
    with child("gateway", provider, "3", "memory") as at:
        asyncio.run(flat_out(at["url"], at["token"], 2_000))
        before = memory_mb(at["pid"])
        asyncio.run(flat_out(at["url"], at["token"], many))
        grown = memory_mb(at["pid"]) - before
    print(f"memory: {before:.1f} MB, after {many:,} requests {grown:+.1f} MB", flush=True)
    return [f"memory grew by {grown:.1f} MB"] if grown > 5.0 else []


def measure_opening(provider: str, quick: bool) -> list[str]:
    """The delay from a key that opens to the request that leaves; return the targets missed."""
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for store, most in (("memory", 5.0), (f"sqlite:///{folder}/pool.sqlite", 50.0)):
            delays = asyncio.run(opening_delays(provider, store, 300 if quick else 1000))
            p50, p99 = percentile(delays, 0.5), percentile(delays, 0.99)
            figures = f"p50 {p50:.2f}, p99 {p99:.2f}, max {max(delays):.2f} ms"
            print(f"key opens -> request is there, {store[:6]}: {figures}", flush=True)
            missed += [f"key opens, {store[:6]}: p99 {p99:.1f} ms > {most}"] if p99 > most else []
    return missed


def measure_held(provider: str, quick: bool) -> list[str]:
    """Memory, CPU and order of requests that wait; return the targets missed."""
    count, missed = 2_000 if quick else 10_000, []
    for agent, most in (("codex_bench", 1.0), ("bench", 5.0)):
        with child("held", provider) as held:
            each, used, overtaken = asyncio.run(hold(held, count, agent, 20.0))
        how = "withheld" if agent != "bench" else "with keep-alives"
        found = f"{each:.1f} KiB each besides the body, CPU {used:.2f} %, {overtaken} served before an earlier one"
        print(f"{count:,} held, {how}: {found}", flush=True)
        missed += [f"held, {how}: {found}"] if each > 8.0 or used > most or overtaken else []
    return missed


PARTS = {"proxies": measure_costs, "memory": measure_memory, "opens": measure_opening, "held": measure_held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter, and less to be relied on")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument("--child", nargs="+")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.child:
        what, *words = options.child
        started = {"provider": serve_provider, "gateway": serve_gateway, "held": serve_held}[what]
        asyncio.run(started(*[int(word) if word.isdecimal() else word for word in words]))  # type: ignore[operator]
        return
    missed: list[str] = []
    with ExitStack() as ends:
        provider = ends.enter_context(child("provider"))["url"]
        for name, part in PARTS.items():
            if options.only in (None, name):
                missed += part(provider, options.quick)
    print("targets missed: " + ("; ".join(missed) or "none"))


if __name__ == "__main__":
    main()
