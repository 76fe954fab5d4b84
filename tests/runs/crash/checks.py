"""What must hold of a run that was killed, after each of its lives and when it is over."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.runs.core import invariants

from ..journal.independent_reader import JournalView
from .evidence import Life
from .expected_outcomes import SECRETS, Script, number_of, outcome_of, own_retries_of, recorded_value_of


class Violation(AssertionError):
    """A promise that was not kept."""


class Record:
    """The lives of one run so far, held against what was promised. ``check`` raises Violation."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.script = script
        self.folder = folder
        self.lives: list[Life] = []
        self.view = JournalView([], {}, None)
        self.crashes_in_flight: Counter[str] = Counter()
        self.executions: Counter[str] = Counter()
        self._acknowledged: dict[str, str] = {}
        self._history: list[tuple[str, str]] = []

    @property
    def left(self) -> int:
        """How many items have no final state in the journal."""
        return self.script.items - sum(state in invariants.FINAL_KINDS for state in self.view.states.values())

    def add(self, life: Life, view: JournalView) -> None:
        """A life has ended and left the journal like this."""
        before, self.view = self.view, view
        if view.entries[: len(before.entries)] != before.entries:
            raise Violation("what an earlier life had written is not there as it was")
        life.entries = view.entries[len(before.entries) :]
        self.lives.append(life)
        self.executions += life.executions
        if life.was_killed:
            self.crashes_in_flight += life.in_flight
        for word, item, *rest in life.said("began", "ack", "told"):
            self._history.append(("began" if word == "began" else "acknowledged", item))
            if word != "began":
                self._acknowledged[item] = rest[0]

    def check(self) -> None:
        """All that holds after any crash."""
        view, life = self.view, self.lives[-1]
        triples = [(e["kind"], e["item"], e["token"]) for e in view.entries]
        own = Counter(e["item"] for e in view.entries if e["kind"] in {"retry", "limited"})
        hold(invariants.j1_acknowledged_results_are_there(self._acknowledged, view.states))
        hold(invariants.j2_every_item_is_in_one_state(set(self.script.ids), view.states))
        hold(invariants.j3_done_items_never_run_again(self.executions - own, self.crashes_in_flight))
        hold(invariants.j3_nothing_runs_after_its_acknowledgement(self._history))
        hold(invariants.j5_sequence_is_contiguous([entry["seq"] for entry in view.entries]))
        hold(invariants.l5_results_have_the_current_token(triples))
        hold(invariants.one_final_entry(triples))
        self._check_results(view)
        self._check_life(life)
        for item, times in own.items():
            require(times <= own_retries_of(number_of(item)), f"{item} was tried again {times} times for its own sake")
        self._check_secrets(life)

    def _check_results(self, view: JournalView) -> None:
        """What is recorded, and what was acknowledged, is what the workers made."""
        for item, outcome in self._acknowledged.items():
            require(view.states[item] == outcome, f"{item} was acknowledged as {outcome}, and is {view.states[item]}")
        for entry in view.of_kind("done", "failed"):
            n = number_of(entry["item"])
            require(entry["kind"] == outcome_of(n), f"{entry['item']} is {entry['kind']}")
            if entry["kind"] == "done":
                require(
                    _comparable(entry["value"], entry["detail"]) == recorded_value_of(n), f"value of {entry['item']}"
                )
        for _, item, outcome, _, value, shown in self.lives[-1].said("ack", "told"):
            expected = recorded_value_of(number_of(item))
            right = outcome == outcome_of(number_of(item)) and (self.script.bulk or (value, shown) == expected)
            require(right, f"{item} came out as {outcome}, {value}, {shown}")

    def _check_life(self, life: Life) -> None:
        """What one process may have done and left open."""
        at_once = self.script.at_once
        for word in ("ack", "told"):
            twice = [item for item, times in Counter(life.ids(word)).items() if times > 1]
            require(not twice, f"{word} more than once in one life: {twice[:5]}")
        require(not (invented := life.recorded_ends - life.executions), f"recorded, and never ran: {invented}")
        # The next attempt of an item does not wait until the last one's end is written down.
        often = {i: n for i, n in life.in_flight.items() if n > 1 + own_retries_of(number_of(i))}
        require(not often, f"ran again without a reason: {often}")
        require(life.executing.total() <= at_once, f"{life.executing.total()} ran at once, and {at_once} may")
        if not life.was_killed:
            require(not life.in_flight, f"the life ended by itself, and left {life.in_flight}")
        if self.script.start == "strict":
            starts = Counter(entry["item"] for entry in life.entries if entry["kind"] == "start")
            require(not (unrecorded := life.executions - starts), f"began before it was written down: {unrecorded}")

    def _check_secrets(self, life: Life) -> None:
        """No secret, though workers put theirs into what they raise, in what people may come to see."""
        artefacts = [("standard error", life.stderr.encode())]
        artefacts += [(file.name, file.read_bytes()) for file in self.folder.glob("journal.sqlite*") if file.is_file()]
        for name, content in artefacts:
            require(not any(secret.encode() in content for secret in SECRETS), f"a secret is in {name}")

    def check_complete(self) -> None:
        """The last life came to the end: every item has its final state, once, and it ran as often as it had to."""
        life, script = self.lives[-1], self.script
        require(life.is_over, f"it ended with {life.exit_code}: {life.stderr[-2000:]}")
        require(self.view.states == {item: outcome_of(number_of(item)) for item in script.ids}, "not all are final")
        require(sorted(life.ids("ack")) == script.ids, "the last life did not give each result once")
        hold(invariants.s4_everything_run_is_recorded(set(self.executions), self.view.states))
        failed = sum(outcome == "failed" for outcome in self.view.states.values())
        counts: dict[str, int] = life.lines[-1][1]
        expected = (script.items, script.items, script.items - failed, failed)
        found = tuple(counts[name] for name in ("total", "completed", "success_count", "failed"))
        require(found == expected, f"counted {found}, not {expected}")
        self._check_cached(life)

    def _check_cached(self, life: Life) -> None:
        """What was recorded before this life came from the journal, the rest did not; nothing cached ran."""
        earlier = {e["item"] for past in self.lives[:-1] for e in past.entries if e["kind"] in invariants.FINAL_KINDS}
        cached = {line[1] for line in life.said("ack") if line[3]}
        require(cached == earlier, f"cached, and not recorded before, or not cached: {sorted(cached ^ earlier)[:5]}")

    def check_unchanged(self, before: JournalView) -> None:
        """The last life was a resume of a complete run."""
        life = self.lives[-1]
        hold(invariants.j4_resuming_again_changes_nothing(before.states, self.view.states))
        hold(invariants.j6_replay_gives_the_same(self.view.states, {line[1]: line[2] for line in life.said("ack")}))
        require(not life.executions, f"ran again: {life.executions}")
        kinds = {entry["kind"] for entry in life.entries}
        require(kinds <= {"session", "plan", "closed"}, f"a resume of a complete run wrote {kinds}")


def hold(wrong: str | None) -> None:
    if wrong is not None:
        raise Violation(wrong)


def require(condition: object, otherwise: str) -> None:
    if not condition:
        raise Violation(otherwise)


def _comparable(value: str | None, shown: str | None) -> tuple[str | None, str | None]:
    """A recorded value without the bulk that makes some runs' entries large."""
    if value is None or '"bulk"' not in value:
        return value, shown
    fields: dict[str, Any] = json.loads(value)
    del fields["bulk"]
    return json.dumps(fields, separators=(",", ":")), shown
