"""Providers of all kinds in virtual time: ``python bench/matrix.py [--only unknown] [--seeds even] [--no-peers]``.

A variant is a kind of limiter with a window, a style of headers, what the user knows of the limit, whether rejections
count, a latency, keys that share a quota or not, and perhaps a second client that uses a third of the limit. The
variants are pairwise covers: in the variants of each seed, each two values of two dimensions meet. The seed draws the
amounts and phases. What is tuned, is tuned with the even seeds; the odd ones are held out.

Ours is the core of the pool with ``slots="auto"``, with headers read as in production. Efficiency is the least time by
the time taken until the last success. The least time is that of a client which knows everything and calls as soon as
the limiter and 64 slots per key permit; with a second client, that one comes first. Calls arrive within 2 ms, answers
take the latency up to 5 % more or less, refusals 20 ms.

Stated limits have the form that their limiter never refuses: ``burst`` is what a bucket or GCRA holds, windows are
``window="sliding"`` or ``per="day"``. Peers are stopped when they are refused more often than ours.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from matrix_clients import AimdClient, FixedBackoff, PoolClient, Result, Started, drive, present_kit
from matrix_earlier import COMMIT
from matrix_provider import Answer, calls_until, least_time
from matrix_variants import CLASSES, Scene, Variant, chosen, matrix, sample, scene_of, variant_from

HERE = Path(__file__).parent

# By class: the least efficiency, and the most rejections per success.
TARGETS = {"exact": (0.95, 0.01), "too high": (0.92, 0.03), "unknown": (0.90, 0.05), "wrong headers": (0.90, 0.05)}
OF_THE_BEST_PEER = 0.98
PEERS = ("AIMD", "fixed backoff", COMMIT)
# Ours is stopped when it takes this many times the least time, or is refused this many times per call.
_TOO_LONG, _TOO_OFTEN = 4.0, 2.0


@dataclass(frozen=True, slots=True)
class Score:
    """How one client did in a variant."""

    efficiency: float
    rejected: float  # per success
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """How all did in a variant, and what our pool believed of its first quota at the end."""

    name: str
    family: str
    calls: int
    least: float
    ours: Score
    seconds: float  # of CPU for ours
    truth: str
    belief: dict[str, Any]
    peers: dict[str, Score] = field(default_factory=dict)

    @property
    def best_peer(self) -> tuple[str, Score] | None:
        """Return the most efficient peer of those that were rejected no more often."""
        fair = [(name, score) for name, score in self.peers.items() if not score.stopped]
        fair = [(name, score) for name, score in fair if score.rejected <= self.ours.rejected]
        return max(fair, key=lambda each: each[1].efficiency, default=None)

    @property
    def misses(self) -> list[str]:
        efficiency, rejected = TARGETS[self.family]
        found = []
        if self.ours.efficiency < efficiency:
            found.append(f"efficiency {self.ours.efficiency:.3f} < {efficiency}")
        if self.ours.rejected > rejected:
            found.append(f"rejected {self.ours.rejected:.3f} > {rejected}")
        return found

    @property
    def behind(self) -> str | None:
        best = self.best_peer
        if best is None or self.ours.efficiency >= OF_THE_BEST_PEER * best[1].efficiency:
            return None
        return f"{best[0]} {best[1].efficiency:.3f} / {best[1].rejected:.3f}"


def score_of(result: Result, scene: Scene, least: float) -> Score:
    """Return the score; of one that was stopped, as if it had gone on like that."""
    seconds = max(result.seconds, least) if result.stopped else result.seconds
    efficiency = least / seconds * result.done / scene.calls if seconds else 0.0
    return Score(efficiency, result.rejected / max(1, result.done), result.stopped)


def measure(variant: Variant, *, earlier: str | None = None, peers: bool = False) -> Record:
    scene = scene_of(variant)
    least = least_time(scene)
    began = time.process_time()
    ours = PoolClient(scene, present_kit())
    result = drive(ours, scene, until=_TOO_LONG * least + 60, most_rejected=_TOO_OFTEN * scene.calls + 100)
    took = time.process_time() - began
    found: dict[str, Score] = {}
    if peers:
        # One that takes twice our time or is refused more often cannot be the best of the fair ones.
        until, most = 2 * result.seconds, result.rejected
        for name, client in (("AIMD", AimdClient), ("fixed backoff", FixedBackoff)):
            found[name] = score_of(drive(client(scene), scene, until=until, most_rejected=most), scene, least)
    if peers and earlier is not None:
        found[COMMIT] = score_of(_earlier_pool(earlier).run(variant, until, most), scene, least)
    truth = ", ".join(f"{quota.amount} per {scene.window:g}s" for quota in scene.quotas[:1])
    if variant.algorithm == "gcra":
        truth += f", {scene.quotas[0].capacity:g} at once"
    if variant.others != "alone":
        truth += ", a third used by another"
    return Record(
        variant.name,
        variant.family,
        scene.calls,
        least,
        score_of(result, scene, least),
        took,
        truth,
        ours.belief(),
        found,
    )


# -- the earlier pool -------------------------------------------------------------------------------------------------


class EarlierPool:
    """A process with the package of the earlier commit."""

    def __init__(self, folder: str) -> None:
        command = [sys.executable, str(HERE / "matrix_earlier.py"), folder]
        environment = {**os.environ, "PYTHONPATH": folder}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, variant: Variant, until: float, most_rejected: float) -> Result:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([variant.name, until, most_rejected]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the pool of {COMMIT} ended in {variant.name}")
        return Result(**json.loads(line))


_processes: dict[str, EarlierPool] = {}


def _earlier_pool(folder: str) -> EarlierPool:
    if folder not in _processes:
        _processes[folder] = EarlierPool(folder)
    return _processes[folder]


def export_earlier(folder: str) -> str | None:
    """Export the package of the earlier commit; None where there is no such commit."""
    archive = subprocess.run(["git", "archive", COMMIT, "agentos"], cwd=HERE.parent, capture_output=True, check=False)
    if archive.returncode:
        return None
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
    return folder


# -- reports ----------------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that *share* of all are at or below."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def report(records: Sequence[Record], *, peers: bool) -> Iterator[str]:
    yield f"{'':16}{'variants':>9}  {'efficiency: median':>18}{'5 %':>7}{'worst':>7}{'target':>8}"
    yield from (_family_line(records, family, rejected=False) for family in _present(records))
    yield f"{'':16}{'':>9}  {'rejected: median':>18}{'95 %':>7}{'worst':>7}{'target':>8}"
    yield from (_family_line(records, family, rejected=True) for family in _present(records))
    for family in _present(records):
        worst = sorted((r for r in records if r.family == family), key=_badness, reverse=True)[:5]
        yield f"\nworst of {family}:"
        for record in worst:
            yield f"  {_line(record)}"
            yield f"    is: {record.truth}; {record.calls} calls, at least {record.least:.0f} s"
            yield f"    believed: {'; '.join(record.belief['limits']) or 'no limit'}; slots {record.belief['slots']}"
            yield from (f"      {entry}" for entry in record.belief["history"][-6:])
    missed = [record for record in records if record.misses]
    yield f"\n{len(missed)} of {len(records)} variants miss a target{':' if missed else '.'}"
    yield from (
        f"  {record.family:14}{record.name}: {'; '.join([*record.misses, *_room(record)])}" for record in missed
    )
    if peers:
        yield from _peer_lines(records)


def _room(record: Record) -> Iterator[str]:
    """Say how far a variant lets one be off: what its targets allow a client that has to find out the limit."""
    scene = scene_of(variant_from(record.name))
    efficiency, rejected = TARGETS[record.family]
    if record.ours.efficiency < efficiency:
        yield f"calls to spare {calls_until(scene, record.least / efficiency) - scene.calls}"
    if record.ours.rejected > rejected:
        yield f"{rejected} is {rejected * scene.calls / len(scene.quotas):.1f} refusals a quota"


def _present(records: Sequence[Record]) -> list[str]:
    return [family for family in CLASSES if any(record.family == family for record in records)]


def _badness(record: Record) -> float:
    """Return how far a variant is from its targets: from 1 on it misses one."""
    efficiency, rejected = TARGETS[record.family]
    return max((1 - record.ours.efficiency) / (1 - efficiency), record.ours.rejected / rejected)


def _line(record: Record) -> str:
    return f"{record.name}: {record.ours.efficiency:.3f} / {record.ours.rejected:.3f}{' stopped' * record.ours.stopped}"


def _family_line(records: Sequence[Record], family: str, *, rejected: bool) -> str:
    scores = [record.ours for record in records if record.family == family]
    values = [score.rejected if rejected else score.efficiency for score in scores]
    tail, worst = (percentile(values, 0.95), max(values)) if rejected else (percentile(values, 0.05), min(values))
    target = TARGETS[family][rejected]
    missed = sum(value > target if rejected else value < target for value in values)
    figures = f"{statistics.median(values):>18.3f}{tail:>7.3f}{worst:>7.3f}{target:>8.2f}"
    return f"{family:16}{len(values):>9}  {figures}{f'   {missed} miss' if missed else ''}"


def _peer_lines(records: Sequence[Record]) -> Iterator[str]:
    yield "\npeers that were rejected no more often than ours:"
    for name in PEERS:
        pairs = [
            (record.peers[name].efficiency, record.ours.efficiency)
            for record in records
            if name in record.peers
            and not record.peers[name].stopped
            and record.peers[name].rejected <= record.ours.rejected
        ]
        if pairs:
            theirs, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
            yield f"  {name:16}{len(pairs):>5} variants, median efficiency {theirs:.3f}, ours {ours:.3f}"
        else:
            yield f"  {name:16}    0 variants"
    behind = [record for record in records if record.behind]
    yield f"{len(behind)} variants below {OF_THE_BEST_PEER} of the best of them{':' if behind else '.'}"
    yield from (f"  {_line(record)}, {record.behind}" for record in behind)


def show(variant: Variant, shown: int) -> None:
    """Print what the pool believes of one quota each time that it changes, and what was done and refused until then."""
    scene = scene_of(variant)
    client = PoolClient(scene, present_kit())
    print(f"{variant.name}: {scene.calls} calls, at least {least_time(scene):.3f} s")
    print(
        "  "
        + "; ".join(f"{quota.amount} (holds {quota.capacity:g}, phase {quota.phase:.3f})" for quota in scene.quotas)
    )
    seen: dict[int, str] = {}

    def watch(now: float, done: int, refused: int, started: Started, answer: Answer) -> None:
        number = next(number for number, quota in enumerate(scene.quotas) if started.key in quota.keys)
        if number != shown:
            return
        quota = client.quota(number)
        block = quota.whole_block()
        belief = client.belief(number)
        shut = f", closed until {block.until:.3f} ({block.evidence})" if block and block.until > now else ""
        text = f"slots {belief['slots']}; {'; '.join(belief['limits'])}{shut}"
        if answer.status != 200 or seen.get(number) != text:
            seen[number] = text
            said = " ".join(f"{name}: {value}" for name, value in answer.headers)
            at = f"{now:10.3f} sent {started.handle.granted_at:.3f}"
            print(f"{at} done {done} refused {refused}: {answer.status} {said} -> {text}")

    result = drive(
        client,
        scene,
        until=_TOO_LONG * least_time(scene) + 60,
        most_rejected=_TOO_OFTEN * scene.calls + 100,
        watch=watch,
    )
    print(score_of(result, scene, least_time(scene)))
    print("\n".join(client.belief(shown)["history"]))


def run_all(variants: Sequence[Variant], work: Callable[[Variant], Record], jobs: int) -> Iterator[Record]:
    if jobs == 1:
        yield from map(work, variants)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        # The longest first, so that no process is left alone at the end.
        order = sorted(variants, key=lambda variant: scene_of(variant).calls, reverse=True)
        yield from pool.imap_unordered(work, order, chunksize=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=CLASSES, help="variants of this class")
    parser.add_argument(
        "--seeds", choices=("even", "odd", "all"), default="all", help="even: for tuning; odd: held out"
    )
    parser.add_argument("--variants", type=int, metavar="N", help="N of them, spread evenly")
    parser.add_argument("--sample", action="store_true", help="the variants of make test")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write all figures there, as JSON lines")
    parser.add_argument("--show", metavar="VARIANT", help="trace one variant: its name, as reports print it")
    parser.add_argument("--quota", type=int, default=0, metavar="N", help="with --show: which of its quotas")
    options = parser.parse_args()
    if options.show:
        show(variant_from(options.show), options.quota)
        return
    peers = not options.no_peers
    variants = sample() if options.sample else matrix()
    variants = list(chosen(variants, seeds=options.seeds, family=options.only, count=options.variants))
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        earlier = export_earlier(folder) if peers else None
        if peers and earlier is None:
            print(f"without the pool of {COMMIT}: this copy has no such commit")
        records = list(run_all(variants, partial(measure, earlier=earlier, peers=peers), options.jobs))
    records.sort(key=lambda record: record.name)
    if options.save:
        options.save.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
    print("\n".join(report(records, peers=peers)))
    calls = sum(record.calls for record in records)
    print(f"\n{len(records)} variants, {calls:,} calls, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
