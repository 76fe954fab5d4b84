"""Invariants of a run as predicates: each returns None, or the violation that it found.

They check facts that a test can collect: the entries of a journal, the ids of an input, a record of executions. Tests
use them on real runs that were killed; the product itself checks ``j2_counts_add_up`` at the end of each run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from agentos.runs.execution.shutdown import j2_counts_add_up as j2_counts_add_up

FINAL_KINDS = frozenset({"done", "failed"})
STATES = frozenset({"pending", "running", "done", "failed", "interrupted", "parked"})


def j1_acknowledged_results_are_there(acknowledged: Iterable[str], states: Mapping[str, str]) -> str | None:
    """Whatever was published as done or failed is so in the journal, after any crash."""
    lost = [item for item in acknowledged if states.get(item) not in FINAL_KINDS]
    return f"acknowledged and not in the journal: {lost[:5]}" if lost else None


def j2_every_item_is_in_one_state(items: Collection[str], states: Mapping[str, str]) -> str | None:
    """The states of the journal are about items of the input, and each is one of the six words. No word is pending."""
    foreign = [item for item in states if item not in items]
    if foreign:
        return f"not in the input: {foreign[:5]}"
    wrong = [f"{item} is {state}" for item, state in states.items() if state not in STATES]
    return f"no state: {wrong[:5]}" if wrong else None


def j3_done_items_never_run_again(executions: Mapping[str, int], crashes_in_flight: Mapping[str, int]) -> str | None:
    """An item runs once, and once more for each crash that hit it while it ran."""
    often = {i: n for i, n in executions.items() if n > 1 + crashes_in_flight.get(i, 0)}
    return f"ran more often than crashes explain: {dict(list(often.items())[:5])}" if often else None


def j3_nothing_runs_after_its_acknowledgement(history: Sequence[tuple[str, str]]) -> str | None:
    """In a history of ("began" | "acknowledged", item), in order, no item begins after it was acknowledged."""
    acknowledged: set[str] = set()
    for what, item in history:
        if what == "acknowledged":
            acknowledged.add(item)
        elif item in acknowledged:
            return f"{item} began after it was acknowledged"
    return None


def j4_resuming_again_changes_nothing(first: Mapping[str, str], second: Mapping[str, str]) -> str | None:
    """A resume of a finished run finds everything as the last one left it."""
    changed = {i for i in {*first, *second} if first.get(i) != second.get(i)}
    return f"changed by a second resume: {sorted(changed)[:5]}" if changed else None


def j5_sequence_is_contiguous(numbers: Sequence[int]) -> str | None:
    """Entries are numbered from 1, with no gap."""
    for place, number in enumerate(numbers, start=1):
        if number != place:
            return f"entry {place} is numbered {number}"
    return None


def j6_replay_gives_the_same(one: object, other: object) -> str | None:
    """Reading a journal twice, in two processes, gives the same state."""
    return None if one == other else f"{one!r} and {other!r}"


def j7_nothing_is_acknowledged_while_the_disk_is_full(
    acknowledged: int, written: int, begun_while_full: int
) -> str | None:
    """With no room to record it, no result is published and no work begins."""
    if acknowledged > written:
        return f"{acknowledged} acknowledged, {written} written"
    return f"{begun_while_full} items began while nothing could be recorded" if begun_while_full else None


def j8_acknowledged_after_its_commit(events: Sequence[tuple[str, str]]) -> str | None:
    """In a history of ("committed" | "acknowledged", item), every acknowledgement comes after the commit."""
    committed: set[str] = set()
    for what, item in events:
        if what == "committed":
            committed.add(item)
        elif item not in committed:
            return f"{item} was acknowledged before its commit"
    return None


def l5_results_have_the_current_token(entries: Iterable[tuple[str, str | None, int | None]]) -> str | None:
    """In a journal's (kind, item, token), an item's tokens never go back, and nothing follows its final entry.

    A late result (kind ``late``) is evidence: its token may be an old one.
    """
    newest: dict[str, int] = {}
    final: dict[str, str] = {}
    for kind, item, token in entries:
        if item is None or token is None or kind in {"late", "note", "duplicate"}:
            continue
        if token < newest.get(item, 0):
            return f"{item}: {kind} with token {token} after token {newest[item]}"
        if token == newest.get(item) and item in final:
            return f"{item}: {kind} with token {token} after {final[item]} with the same token"
        if token > newest.get(item, 0):
            final.pop(item, None)
        newest[item] = token
        if kind in {"done", "failed", "interrupted"}:
            final[item] = kind
    return None


def one_final_entry(entries: Iterable[tuple[str, str | None, int | None]]) -> str | None:
    """No item is done twice, and none is anything else after it was done. Evidence does not count."""
    done: set[str] = set()
    for kind, item, _ in entries:
        if item is None or kind in {"late", "note", "duplicate"}:
            continue
        if item in done:
            return f"{item}: {kind} after it was done"
        if kind == "done":
            done.add(item)
    return None


def s1_nothing_begins_after_the_signal(signalled_at: float, begun_at: Iterable[float]) -> str | None:
    """No item begins later than 100 ms after the first signal."""
    late = [at for at in begun_at if at > signalled_at + 0.1]
    return f"{len(late)} items began up to {max(late) - signalled_at:.3f}s after the signal" if late else None


def s2_the_second_signal_ends_it(took: float, exit_code: int, signum: int) -> str | None:
    """Within 1 s, with the exit code a shell expects."""
    if took > 1.0:
        return f"the second signal took {took:.2f}s"
    return None if exit_code in {128 + signum, -signum} else f"exit code {exit_code} after signal {signum}"


def s4_everything_run_is_recorded(executed: Collection[str], states: Mapping[str, str]) -> str | None:
    """Nothing ran to its end and is called pending; nothing is called done or failed that did not run."""
    forgotten = [item for item in executed if states.get(item, "pending") in {"pending", "parked"}]
    if forgotten:
        return f"ran to its end, and is recorded as unfinished: {forgotten[:5]}"
    invented = [item for item, state in states.items() if state in FINAL_KINDS and item not in executed]
    return f"never ran, and is recorded as finished: {invented[:5]}" if invented else None


def s5_handlers_are_as_before(before: Mapping[int, object], after: Mapping[int, object]) -> str | None:
    """Signal handlers after the run are those of before."""
    changed = [signum for signum, handler in before.items() if after.get(signum) is not handler]
    return f"handlers changed for signals {changed}" if changed else None
