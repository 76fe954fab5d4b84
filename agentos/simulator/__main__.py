"""``python -m agentos.simulator``: serve a simulated provider until Ctrl-C or SIGTERM, also as a background job.

When it is ready it writes one line of JSON to standard output: its address (``"url"``) and the base URL for each SDK.
With ``--plan -`` it also ends when standard input closes, for programs that start it; else it never reads that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .plan import Latency, ProviderPlan, equal_keys
from .runner import find_base_urls
from .server import Service, listen

_VARIABLES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL", "gemini": "GOOGLE_GEMINI_BASE_URL"}
_MOST_KEYS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 for an invalid plan or port."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        plan = _build_plan(options)
        asyncio.run(_serve(plan, options.port, watches_input=options.plan == "-", shows_keys=options.plan is None))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    except KeyboardInterrupt:
        pass  # the usual way to end it by hand
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m agentos.simulator", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--plan", metavar="FILE", help="a plan as JSON; - reads it from the first line of the input")
    parser.add_argument("--port", type=int, default=0, help="default: any free port")
    same = parser.add_argument_group("instead of --plan: equal keys, each with its own quota")
    same.add_argument("--keys", type=int, metavar="N", help="default 1; they are the same every time, and are printed")
    same.add_argument("--rpm", type=float, help="requests per minute of each")
    same.add_argument("--tpm", type=float, help="tokens per minute of each")
    same.add_argument("--request-burst", type=float, metavar="N", help="requests at once; default: a window's worth")
    same.add_argument("--token-burst", type=float, metavar="N", help="tokens at once; default: a window's worth")
    same.add_argument("--concurrency", type=int, metavar="N", help="calls at once of each")
    same.add_argument("--daily-requests", type=int, metavar="N", help="requests per day of each")
    same.add_argument("--refill", choices=["continuous", "fixed", "sliding", "gcra"])
    same.add_argument("--window", type=float, metavar="SECONDS", help="of both limits; default 60")
    same.add_argument("--latency", type=float, metavar="SECONDS", help="median time an answer takes; default 0.3")
    same.add_argument("--sigma", type=float, help="spread of that time; default 0.3, 0 for none")
    same.add_argument("--style", choices=["openai", "anthropic", "gemini"])
    same.add_argument("--dialect", choices=["full", "compatible", "x-ratelimit", "ietf", "retry-after", "none"])
    same.add_argument("--retry-after", choices=["seconds", "exact"])
    same.add_argument("--count-rejections", action="store_true", default=None)
    same.add_argument("--error-rate", type=float)
    same.add_argument("--overload-rate", type=float)
    same.add_argument("--seed", type=int)
    return parser


def _build_plan(options: argparse.Namespace) -> ProviderPlan:
    given: dict[str, Any] = {name: value for name, value in vars(options).items() if value is not None}
    source, _ = given.pop("plan", None), given.pop("port")
    if source is None:
        latency = {"median": given.pop("latency", None), "sigma": given.pop("sigma", None)}
        given["latency"] = Latency(**{name: value for name, value in latency.items() if value is not None})
        return equal_keys(given.pop("keys", 1), **given)
    if given:
        raise ValueError(f"--plan cannot be combined with {', '.join(sorted(given))}")
    text = sys.stdin.buffer.readline() if source == "-" else Path(source).read_bytes()
    return ProviderPlan.from_dict(json.loads(text))


async def _serve(plan: ProviderPlan, port: int, *, watches_input: bool, shows_keys: bool) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    listening = await listen(Service(plan), port=port)
    urls = find_base_urls(listening.url)
    sys.stdout.write(json.dumps({"url": listening.url, "base_urls": urls}) + "\n")
    sys.stdout.flush()
    if watches_input:
        threading.Thread(target=_watch_input, args=(loop, ended), name="agentos-simulator-input", daemon=True).start()
    else:
        sys.stderr.write("".join(f"{line}\n" for line in _describe(urls, plan.secrets if shows_keys else ())))
    try:
        await ended.wait()
    finally:
        await listening.close()


def _describe(urls: dict[str, str], secrets: Sequence[str]) -> Iterator[str]:
    """Yield what to tell the SDKs, in lines that a shell understands."""
    yield "# a simulated provider; Ctrl-C or SIGTERM ends it"
    for sdk, variable in _VARIABLES.items():
        yield f"export {variable}={urls[sdk]}"
    yield f"# mistral: server_url={urls['mistral']!r}"
    for number, secret in enumerate(secrets[:_MOST_KEYS], start=1):
        yield f"export OPENAI_API_KEY_{number}={secret}"
    if len(secrets) > _MOST_KEYS:
        yield f"# and {len(secrets) - _MOST_KEYS} more keys"


def _watch_input(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    # Read the descriptor directly: a buffered reader that waits at exit would keep its lock, and Python would complain.
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    try:
        loop.call_soon_threadsafe(ended.set)
    except RuntimeError:
        pass  # it has already ended


if __name__ == "__main__":
    sys.exit(main())
