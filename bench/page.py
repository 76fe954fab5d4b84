"""What the page costs: ``python bench/page.py [--quick] [--only report browser watch notify]`` (`make bench-page`).

The report is written by the installed command in a process of its own, of journals of 100,000 and a million items that
``page_runs.py`` writes; the browser is a real one. ``watch`` is measured against a run that goes on, ``notify`` with a
receiver on this machine. Nothing here fails a build: each line has its target beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the browser and the receiver of the tests

from page_runs import write_run

from agentos.runs.journal import Journal, encode_row
from tests.browser.programs import BROWSER_OPTIONS, find_browser
from tests.notify.receiver import Receiver

AGENTOS = str(Path(sys.executable).with_name("agentos"))
SIZES = {100_000: (3.0, None, 2.5, 1.0), 1_000_000: (40.0, 400, 15.0, 3.0)}  # seconds, MB of memory, MB, s to open


def say(what: str, figure: str, target: str = "") -> None:
    print(f"  {what:<58} {figure:>16}  {target and f'target {target}'}", flush=True)


def run(*words: str, cwd: Path | None = None) -> tuple[float, float]:
    """Seconds and megabytes of a command. Raises if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(words, cwd=cwd, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[round((len(values) - 1) * share)]


# -- the report and the browser -----------------------------------------------------------------------------------


def measure_report(base: Path, sizes: Sequence[int], *, in_browser: bool) -> None:
    for items in sizes:
        folder = base / "runs" / f"n{items}"
        if not folder.exists():
            write_run(folder, items)
        seconds, memory, largest, open_in = SIZES.get(items, (None, None, None, None))
        page = base / f"{items}.html"
        print(f"report of {items:,} items (load {os.getloadavg()[0]:.1f})")
        taken = [run(AGENTOS, "report", folder.name, "--dir", str(base), "-o", str(page)) for _ in range(3)]
        say("written, best of three", f"{min(each[0] for each in taken):.2f} s", f"{seconds} s")
        say("memory of the command", f"{max(each[1] for each in taken):.0f} MB", f"{memory} MB" if memory else "")
        say("the file", f"{page.stat().st_size / 1e6:.2f} MB", f"{largest} MB")
        if in_browser:
            measure_browser(page, open_in)


REDRAWS = """() => {
  const {timeline, data, table} = agentosPage, times = (count, act) => Array.from({length: count}, (_, i) => {
    const began = performance.now(); act(i); return performance.now() - began; });
  const redraw = [...times(20, () => timeline.zoom(0.85, 0.3)), ...times(20, () => timeline.pan(0.1)),
    ...times(20, () => timeline.setView(0, timeline.span))];
  data.search("warm up");
  const words = ["item-0000123", "item-00", "field3", "document", "key-2", "zzz"];
  const search = times(words.length, (i) => { table.filter.text = words[i]; table.update(); });
  return {redraw, search, heap: performance.memory.usedJSHeapSize};
}"""


def measure_browser(page: Path, open_in: float | None) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(BROWSER_OPTIONS))
        opened, figures = [], {}
        for _ in range(3):
            tab = browser.new_page(viewport={"width": 1360, "height": 900})
            began = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]", timeout=120_000)
            opened.append(time.perf_counter() - began)
            figures = tab.evaluate(REDRAWS)
            tab.close()
        browser.close()
    say("usable after opening, best of three", f"{min(opened):.2f} s", f"{open_in} s")
    mean, worst = statistics.mean(figures["redraw"]), max(figures["redraw"])
    say("redraw while zooming and panning, mean (worst)", f"{mean:.1f} ({worst:.0f}) ms", "16 ms mean at 100,000")
    say("search, with the table, worst of six words", f"{max(figures['search']):.0f} ms", "50 ms at 100,000")
    say("memory of the scripts", f"{figures['heap'] / 1e6:.0f} MB")


# -- the live page ------------------------------------------------------------------------------------------------


@contextmanager
def watching(base: Path, *more: str) -> Iterator[tuple[str, int]]:
    """The address and the process of an ``agentos watch``."""
    process = subprocess.Popen(
        [AGENTOS, "watch", *more, "--dir", str(base)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


def read_peak(pid: int) -> float:
    """The most memory that a process has had, in megabytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def measure_watch(base: Path, *, million: bool, items: int) -> None:
    from playwright.sync_api import sync_playwright

    print(f"live page (load {os.getloadavg()[0]:.1f})")
    folder = base / "runs" / "lively"
    folder.mkdir(parents=True)
    journal = Journal.open(folder, worker="bench", total=items)
    writer = journal.writer(on_committed=ignore, on_trouble=ignore, on_lost=ignore)
    writer.put(encode_row(time.time(), "done", "first", 1, 1, "key-1", 0.2))
    writer.flush(60)
    delays = []
    with watching(base, "lively") as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(BROWSER_OPTIONS))
        tab = browser.new_page(viewport={"width": 1360, "height": 900})
        tab.goto(address)
        tab.wait_for_selector("html[data-ready=true]")
        for number in range(items):
            writer.put(encode_row(time.time(), "done", f"item-{number}", number + 2, 1, "key-1", 0.2))
            began = time.perf_counter()
            tab.wait_for_function(f"() => document.documentElement.dataset.items === '{number + 2}'", polling=20)
            delays.append(time.perf_counter() - began)
        browser.close()
    journal.close(60)
    say(f"an item ends, and is on the page: p50, p95 of {items}",
        f"{percentile(delays, 0.5):.2f}, {percentile(delays, 0.95):.2f} s", "1 s p95")  # fmt: skip
    measure_watched_run(base)
    if million:
        with watching(base, "n1000000") as (address, pid):
            fetch_data(address, "n1000000")
            say("memory of watch at a million items, peak", f"{read_peak(pid):.0f} MB", "150 MB")


def fetch_data(address: str, name: str) -> None:
    import http.client
    from urllib.parse import urlsplit

    parts = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=600)
    headers = {"x-agentos-token": parts.fragment.removeprefix("token=")}
    connection.request("GET", f"/api/runs/{name}/data", headers=headers)
    connection.getresponse().read()
    connection.close()


WORKER = """
import asyncio

async def work(item, credential):
    await asyncio.sleep(0.05)
    return {"answer": item}
"""


def measure_watched_run(base: Path) -> None:
    """The throughput of a run of 400 tasks a second, in turns without and with three watchers, each with a viewer."""
    place = base / "throughput"
    place.mkdir()
    (place / "work.py").write_text(WORKER)
    (place / "items.txt").write_text("".join(f"{number}\n" for number in range(4_000)))
    taken: dict[bool, list[float]] = {False: [], True: []}
    for number in range(3):
        for watched in (False, True):
            taken[watched].append(time_run(base, place, f"run-{number}-{watched}", watched=watched))
    alone, watched_by = min(taken[False]), min(taken[True])
    say("4,000 items: seconds alone, with three watchers", f"{alone:.2f}, {watched_by:.2f} s")
    say("throughput with three watchers, best of three turns", f"{100 * alone / watched_by:.1f} %", "99 %")


def time_run(base: Path, place: Path, name: str, *, watched: bool) -> float:
    words = [AGENTOS, "run", "items.txt", "--worker", "work.py:work", "-j", "20", "--max-parallel", "20"]
    words += ["--name", name, "--dir", str(base), "--progress", "none"]
    with subprocess.Popen(words, cwd=place, stdout=subprocess.DEVNULL) as driver:
        stops: list[Callable[[], object]] = []
        if watched:
            while not (base / "runs" / name / "journal.sqlite.head").exists():
                time.sleep(0.01)
            stops = [follow(base, name) for _ in range(3)]
        driver.wait(600)
        for stop in stops:
            stop()
    events = (json.loads(line) for line in (base / "runs" / name / "results.jsonl").read_text().splitlines())
    ended = [event["finished_at"] for event in events]
    return float(max(ended) - min(ended))


def follow(base: Path, name: str) -> Callable[[], object]:
    """A watch with one viewer of its own, on a thread; returns what ends both."""
    import http.client
    import socket
    from urllib.parse import urlsplit

    begun = threading.Event()
    sockets: list[socket.socket] = []

    def view() -> None:
        with watching(base, name) as (address, _):
            parts = urlsplit(address)
            connection = http.client.HTTPConnection("127.0.0.1", parts.port or 0, timeout=600)
            headers = {"x-agentos-token": parts.fragment.removeprefix("token=")}
            connection.request("GET", f"/api/runs/{name}/events?after=0", headers=headers)
            sockets.append(connection.sock)
            answer = connection.getresponse()
            begun.set()
            while answer.fp is not None and answer.fp.readline():
                pass
            connection.close()

    thread = threading.Thread(target=view, daemon=True)
    thread.start()
    begun.wait(60)

    def stop() -> None:
        sockets[0].shutdown(socket.SHUT_RDWR)
        thread.join(60)

    return stop


# -- messages -----------------------------------------------------------------------------------------------------


def measure_notify(base: Path, runs: int) -> None:
    print(f"messages (load {os.getloadavg()[0]:.1f})")
    ends, kills = [], []
    for number in range(runs):
        with Receiver() as receiver:
            environ = {**os.environ, "HOOK": receiver.url}
            words = [AGENTOS, "run", "--dir", str(base), "--progress", "none", "--notify", "json:env:HOOK"]
            subprocess.run([*words, "--name", f"end-{number}", "--", "true", ":::", "a"], env=environ, check=True)
            message = receiver.received.get(timeout=60)
            received = time.time()
            journal = json.loads((base / "runs" / f"end-{number}" / "results.jsonl").read_text())
            ends.append(received - journal["finished_at"])
            assert message["event"] == "ended"
        with Receiver() as receiver:
            environ = {**os.environ, "HOOK": receiver.url}
            process = subprocess.Popen(
                [*words, "--name", f"kill-{number}", "--", "sh", "-c", "exec sleep 600", ":::", "a"], env=environ
            )
            while not list((base / "runs" / f"kill-{number}").glob("events.jsonl")):
                time.sleep(0.01)
            time.sleep(0.5)
            process.kill()
            began = time.perf_counter()
            process.wait()
            assert receiver.received.get(timeout=60)["event"] == "crashed"
            kills.append(time.perf_counter() - began)
    say(f"the last item ended, and the receiver knows: p95 of {runs}", f"{percentile(ends, 0.95):.2f} s", "2 s p95")
    say(f"kill -9, and the receiver knows: p95 of {runs}", f"{percentile(kills, 0.95):.2f} s", "10 s")
    with Receiver(hangs=True) as receiver:
        environ = {**os.environ, "HOOK": receiver.url}
        plain = [AGENTOS, "run", "--dir", str(base), "--progress", "none", "--name"]
        took = {}
        for what, more in (("without", []), ("hanging", ["--notify", "json:env:HOOK"])):
            best = []
            for number in range(3):
                began = time.perf_counter()
                words = [*plain, f"{what}-{number}", *more, "--", "true", ":::", "a"]
                subprocess.run(words, env=environ, check=True)
                best.append(time.perf_counter() - began)
            took[what] = min(best)
    say("a run without messages, and with a receiver that hangs",
        f"{took['without']:.2f}, {took['hanging']:.2f} s", "no delay")  # fmt: skip


def ignore(_: Any) -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100,000 items only, and fewer rounds")
    parser.add_argument("--only", nargs="*", default=["report", "browser", "watch", "notify"])
    parser.add_argument("--keep", type=Path, help="keep the journals in this folder, and use those that are there")
    chosen = parser.parse_args()
    sizes = [100_000] if chosen.quick else list(SIZES)
    with tempfile.TemporaryDirectory(prefix="agentos-page-") as made:
        base = chosen.keep or Path(made)
        if "report" in chosen.only or "browser" in chosen.only:
            measure_report(base, sizes, in_browser="browser" in chosen.only)
        live = Path(made) / "live"
        if "watch" in chosen.only:
            if not chosen.quick:
                live.mkdir()
                (live / "runs").mkdir()
                million = base / "runs" / "n1000000"
                if not million.exists():
                    write_run(million, 1_000_000)
                million.rename(live / "runs" / "n1000000")
            measure_watch(live, million=not chosen.quick, items=20 if chosen.quick else 50)
            if not chosen.quick:
                (live / "runs" / "n1000000").rename(base / "runs" / "n1000000")
        if "notify" in chosen.only:
            measure_notify(Path(made) / "notify", 3 if chosen.quick else 10)


if __name__ == "__main__":
    main()
