"""The servers of ``bench/limiters.py``: a limiter that others wrote before a small upstream, on loopback.

Each is a process that is told what to be on its input, says its port, counts, and ends with its input: also when the
benchmark is killed. nginx cannot do that, so this file is run to hold it, with the upstream behind it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import limiters_programs
from run import Failed

EXPRESS = Path(__file__).with_name("limiters_express.cjs")
LONGEST_START = 60.0
TRIES = 3  # to start nginx on a port that was free just before
_KILLED_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class ServerPlan:
    """What a server is told. The limit is for each value of the Authorization header."""

    kind: str  # nginx, express or slowapi
    limit: int  # calls in a window; for nginx, calls a second
    window: float = 1.0  # seconds
    burst: int = 0  # nginx: how many calls may be ahead of the rate
    style: str = ""  # of the headers of express-rate-limit; empty: no limiter at all
    latencies: tuple[float, ...] = (0.0,)  # of the calls, in the order in which they are admitted


class LimiterServer:
    """One server in a process of its own. Raises Failed if it cannot be started."""

    def __init__(self, plan: ServerPlan) -> None:
        settings = dict(os.environ)
        if plan.kind == "express":
            command = [limiters_programs.node(), str(EXPRESS)]
            settings.update(NODE_PATH=str(limiters_programs.NODE_MODULES), NODE_ENV="production")
        else:
            command = [sys.executable, __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=settings
        )
        # A pipe has no deadline: a server that says nothing is ended, and then its silence is heard.
        watchdog = threading.Timer(LONGEST_START, self._process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            self.port = int(self._ask(asdict(plan))["port"])
        except BaseException:
            self.close()
            raise
        finally:
            watchdog.cancel()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> dict[str, int]:
        """How many calls were answered and how many rejected so far."""
        return self._ask("statistics")

    def _ask(self, question: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
        except OSError as error:
            raise Failed(f"the server is gone: {error}") from None
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            raise Failed(f"the server ended with {self._process.wait()}: {line.strip() or 'no word'}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise Failed(answer["failed"])
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass  # it was gone before
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- in the server's process ------------------------------------------------------------------------------------------


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


def _serve(plan: ServerPlan) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the benchmark ends its servers itself
    if plan.kind == "nginx":
        _serve_nginx(plan)
    else:
        _serve_slowapi(plan)


NGINX_CONF = """
daemon off; master_process off; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  log_format status '$status';
  access_log {folder}/access.log status;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000; keepalive_timeout 600s;
  limit_req_zone $http_authorization zone=keys:1m rate={rate}r/s;
  limit_req_status 429;
  upstream behind {{ server 127.0.0.1:{upstream}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port};
    limit_req zone=keys burst={burst} nodelay;
    location / {{ proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def _serve_nginx(plan: ServerPlan) -> None:
    signal.signal(signal.SIGTERM, _leave)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentos-limiters-")))
        upstream = stack.enter_context(LimiterServer(ServerPlan("express", 0, latencies=plan.latencies)))
        port = _start_nginx(stack, plan, folder, upstream.port)
        log = folder / "access.log"
        _say({"port": port})
        for _ in sys.stdin:
            statuses = log.read_text().split()
            _say({"ok": statuses.count("200"), "rejected": statuses.count("429")})


def _start_nginx(stack: ExitStack, plan: ServerPlan, folder: Path, upstream: int) -> int:
    """Start nginx, to be ended with the *stack*. Returns its port, which it cannot choose by itself."""
    conf, started = folder / "nginx.conf", folder / "pid"
    for _ in range(TRIES):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        conf.write_text(
            NGINX_CONF.format(folder=folder, rate=plan.limit, burst=plan.burst, port=port, upstream=upstream)
        )
        process = subprocess.Popen(
            [limiters_programs.nginx(), "-p", str(folder), "-c", str(conf)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            preexec_fn=_die_with_parent,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        while process.poll() is None:
            if started.exists():
                return port
            time.sleep(0.01)
    raise Failed(f"nginx ended with {process.returncode}")


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_KILLED_WITH_PARENT, signal.SIGKILL)


def _serve_slowapi(plan: ServerPlan) -> None:
    import uvicorn
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    counts = {"ok": 0, "rejected": 0}
    limiter = Limiter(key_func=lambda request: request.headers.get("authorization", ""), headers_enabled=True)
    latencies = iter(plan.latencies * 2)

    async def complete(request: Request) -> JSONResponse:
        await asyncio.sleep(next(latencies))
        counts["ok"] += 1
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}
        usage = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}
        answer = {"id": "chatcmpl-bench", "object": "chat.completion", "created": 0, "model": "simulated-model"}
        return JSONResponse({**answer, "choices": [choice], "usage": usage})

    def reject(request: Request, error: Exception) -> Response:
        counts["rejected"] += 1
        assert isinstance(error, RateLimitExceeded)
        return _rate_limit_exceeded_handler(request, error)

    limited = limiter.limit(f"{plan.limit}/{plan.window:g} second")(complete)
    app = Starlette(
        routes=[Route("/chat/completions", limited, methods=["POST"])],
        exception_handlers={RateLimitExceeded: reject},
    )
    app.state.limiter = limiter
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)

    def answer_questions() -> None:
        _say({"port": listening.getsockname()[1]})
        for _ in sys.stdin:
            _say(counts)
        os._exit(0)

    threading.Thread(target=answer_questions, daemon=True).start()
    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    told = json.loads(sys.stdin.readline())
    try:
        _serve(ServerPlan(**{**told, "latencies": tuple(told["latencies"])}))
    except (Failed, ImportError) as error:
        _say({"failed": str(error)})
