"""Many runs, each killed at many moments until it is complete, and checked after every life."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Lock

from .checks import Record, Violation
from .evidence import Broken, Life, journal_of
from .expected_outcomes import Script
from .processes import Hangs, Moment, live

_MOST_KILLS_AMID_A_RUN = 8


@dataclass
class Tally:
    """What the kills of a campaign hit. A campaign that never hit anything proves nothing."""

    kills: int = 0
    runs: int = 0
    sometimes: Counter[str] = field(default_factory=Counter)
    executed_again: int = 0
    most_again: int = 0
    ended_unrecorded: int = 0

    WANTED = (
        "before there was a journal, or with it empty",
        "before the first result",
        "amid the results",
        "after the last result was recorded",
        "while a resumed run was opening",
        "with items in flight",
        "with items ended and not yet recorded",
        "of a run that was complete",
    )

    @property
    def missing(self) -> list[str]:
        return [what for what in self.WANTED if not self.sometimes[what]]

    def count(self, record: Record, *, was_complete: bool) -> None:
        """Count the last life of this run, which was killed."""
        life, items = record.lives[-1], record.script.items
        again, executing = life.in_flight.total(), life.executing.total()
        opened = any(entry["kind"] == "session" for entry in record.view.entries)
        self.kills += 1
        self.executed_again += again
        self.most_again = max(self.most_again, again)
        self.ended_unrecorded += max(0, again - executing)
        seen = {
            "before there was a journal, or with it empty": not opened,
            "before the first result": opened and record.left == items,
            "amid the results": 0 < record.left < items,
            "after the last result was recorded": not record.left and not was_complete,
            "while a resumed run was opening": len(record.lives) > 1 and life.counts_of("up") and not life.executions,
            "with items in flight": again > 0,
            "with items ended and not yet recorded": again > executing,
            "of a run that was complete": was_complete,
        }
        self.sometimes.update(what for what, it_was in seen.items() if it_was)

    def report(self) -> str:
        return (
            f"{self.kills} kills of {self.runs} runs; {self.executed_again} executions again, at most "
            f"{self.most_again} after one kill, {self.ended_unrecorded} of them had ended; {dict(self.sometimes)}"
        )


class Campaign:
    """Kills runs of one script, in several lanes at once, until enough were killed and every case was hit."""

    def __init__(self, script: Script, root: Path, *, seed: int, kills: int) -> None:
        self.script = script
        self.tally = Tally()
        self._root = root
        self._seed = seed
        self._wanted = kills
        self._lock = Lock()
        self._failed = False

    def fight(self, lanes: int = 2) -> Tally:
        """Raises Violation at the first promise not kept."""
        with ThreadPoolExecutor(lanes) as pool:
            for lane in [pool.submit(self._lane, number) for number in range(lanes)]:
                lane.result()
        return self.tally

    @property
    def _enough(self) -> bool:
        tally = self.tally
        if tally.kills < self._wanted:
            return self._failed
        return self._failed or not tally.missing or tally.kills >= self._wanted + 100

    def _lane(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{self.script.way}/{number}")
        turns = count(number)
        while not self._enough:
            turn = next(turns)
            folder = self._root / f"lane-{number}-turn-{turn}"
            record = Record(self.script, folder)
            try:
                self._one_run(rng, record, turn)
            except (Violation, Broken, Hangs) as error:
                self._failed = True
                said = record.lives[-1].lines[-5:] if record.lives else []
                raise Violation(
                    f"{error}\nseed {self._seed}, {self.script}, {folder}, life {len(record.lives)} of this run, "
                    f"after {self.tally.kills} kills; the last life said {said}"
                ) from error
            with self._lock:
                self.tally.runs += 1
            shutil.rmtree(folder)

    def _one_run(self, rng: random.Random, record: Record, turn: int) -> None:
        """One run from its first life to its last."""
        for moment in self._moments(rng, record, turn):
            if self._live(record, moment).is_over:
                break
            self._count(record, was_complete=False)
        record.check_complete()
        before = record.view
        if not self._live(record, Moment("up", 1, rng.uniform(0, 0.03))).is_over:
            self._count(record, was_complete=True)
        self._live(record, None)
        record.check_complete()
        record.check_unchanged(before)

    def _live(self, record: Record, moment: Moment | None) -> Life:
        life = live(record.folder, self.script, moment)
        if not (life.was_killed or life.is_over):
            raise Violation(f"it ended by itself with {life.exit_code}: {life.stderr[-3000:]}")
        record.add(life, journal_of(record.folder))
        record.check()
        return life

    def _count(self, record: Record, *, was_complete: bool) -> None:
        with self._lock:
            self.tally.count(record, was_complete=was_complete)

    def _moments(self, rng: random.Random, record: Record, turn: int) -> Iterator[Moment | None]:
        """When to kill each life: anywhere, but oftener where little time is spent and much is decided."""
        script = self.script
        yield [
            Moment(None, 0, rng.uniform(0, 0.2) if turn else 0.0),  # once for certain before there is a journal
            Moment("began", 1, rng.uniform(0, 0.003)),
            Moment("up", 1, rng.uniform(0, 0.03)),
        ][turn % 3]
        for _ in range(rng.randint(3, _MOST_KILLS_AMID_A_RUN)):
            left = record.left
            if self._enough or not left:
                break
            match rng.choices(["opening", "anywhere", "result", "word"], [15, 40, 20, 25])[0]:
                case "opening":
                    yield Moment("up", 1, rng.uniform(0, 0.03))
                case "anywhere":
                    yield Moment("up", 1, rng.uniform(0, 0.03 + left * script.pause / script.at_once))
                case "result":
                    yield Moment("told", rng.randint(1, left), rng.uniform(0, 0.004))
                case "word":
                    yield Moment(rng.choice(["told", "told", "began", "ended"]), rng.randint(1, left), None)
        if turn % 2:
            yield Moment("told", record.left, rng.uniform(0, 0.008))
        yield None
