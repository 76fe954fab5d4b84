"""Every predicate accepts a good history and rejects a planted fault."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from . import invariants as inv

GOOD_ENTRIES = [
    ("session", None, None),
    ("start", "a", 1),
    ("limited", "a", 1),
    ("start", "a", 2),
    ("done", "a", 2),
    ("start", "b", 3),
    ("late", "a", 1),  # evidence, with an old token
    ("failed", "b", 3),
    ("duplicate", "a", None),
    ("start", "b", 4),  # another run, asked to try failed ones again
    ("done", "b", 4),
    ("start", "c", 5),
    ("interrupted", "c", 5),
    ("note", None, None),
]

# name, what it is told, and whether that is well
CASES: list[tuple[Callable[..., str | None], tuple[Any, ...], bool]] = [
    (inv.j1_acknowledged_results_are_there, (["a", "b"], {"a": "done", "b": "failed", "c": "running"}), True),
    (inv.j1_acknowledged_results_are_there, (["a"], {}), False),
    (inv.j1_acknowledged_results_are_there, (["a"], {"a": "running"}), False),
    (inv.j1_acknowledged_results_are_there, (["a"], {"a": "interrupted"}), False),
    (inv.j2_every_item_is_in_one_state, ({"a", "b"}, {"a": "done"}), True),
    (inv.j2_every_item_is_in_one_state, ({"a"}, {"a": "done", "x": "done"}), False),
    (inv.j2_every_item_is_in_one_state, ({"a"}, {"a": "lost"}), False),
    (inv.j2_counts_add_up, (5, {"done": 3, "failed": 1, "waiting": 1}), True),
    (inv.j2_counts_add_up, (0, {}), True),
    (inv.j2_counts_add_up, (5, {"done": 3, "failed": 1}), False),
    (inv.j2_counts_add_up, (5, {"done": 5, "waiting": 1}), False),
    (inv.j3_done_items_never_run_again, ({"a": 1, "b": 3}, {"b": 2}), True),
    (inv.j3_done_items_never_run_again, ({"a": 2}, {}), False),
    (inv.j3_done_items_never_run_again, ({"a": 3}, {"a": 1}), False),
    (
        inv.j3_nothing_runs_after_its_acknowledgement,
        ([("began", "a"), ("began", "b"), ("acknowledged", "a"), ("began", "b"), ("acknowledged", "b")],),
        True,
    ),
    (inv.j3_nothing_runs_after_its_acknowledgement, ([("acknowledged", "a"), ("began", "a")],), False),
    (inv.j4_resuming_again_changes_nothing, ({"a": "done"}, {"a": "done"}), True),
    (inv.j4_resuming_again_changes_nothing, ({"a": "done"}, {"a": "failed"}), False),
    (inv.j4_resuming_again_changes_nothing, ({"a": "done"}, {}), False),
    (inv.j4_resuming_again_changes_nothing, ({}, {"a": "done"}), False),
    (inv.j5_sequence_is_contiguous, ([],), True),
    (inv.j5_sequence_is_contiguous, ([1, 2, 3],), True),
    (inv.j5_sequence_is_contiguous, ([1, 3],), False),
    (inv.j5_sequence_is_contiguous, ([2, 3],), False),
    (inv.j5_sequence_is_contiguous, ([1, 1],), False),
    (inv.j6_replay_gives_the_same, ({"a": "done"}, {"a": "done"}), True),
    (inv.j6_replay_gives_the_same, ({"a": "done"}, {"a": "failed"}), False),
    (inv.j7_nothing_is_acknowledged_while_the_disk_is_full, (5, 5, 0), True),
    (inv.j7_nothing_is_acknowledged_while_the_disk_is_full, (4, 5, 0), True),
    (inv.j7_nothing_is_acknowledged_while_the_disk_is_full, (6, 5, 0), False),
    (inv.j7_nothing_is_acknowledged_while_the_disk_is_full, (5, 5, 1), False),
    (inv.j8_acknowledged_after_its_commit, ([("committed", "a"), ("acknowledged", "a")],), True),
    (inv.j8_acknowledged_after_its_commit, ([("acknowledged", "a"), ("committed", "a")],), False),
    (inv.j8_acknowledged_after_its_commit, ([("committed", "b"), ("acknowledged", "a")],), False),
    (inv.l5_results_have_the_current_token, (GOOD_ENTRIES,), True),
    (inv.l5_results_have_the_current_token, ([("start", "a", 2), ("done", "a", 1)],), False),
    (inv.l5_results_have_the_current_token, ([("done", "a", 1), ("failed", "a", 1)],), False),
    (inv.l5_results_have_the_current_token, ([("failed", "a", 1), ("done", "a", 1)],), False),
    (inv.l5_results_have_the_current_token, ([("interrupted", "a", 1), ("done", "a", 1)],), False),
    (inv.l5_results_have_the_current_token, ([("start", "a", 3), ("start", "b", 1), ("retry", "a", 2)],), False),
    (inv.one_final_entry, (GOOD_ENTRIES,), True),
    (inv.one_final_entry, ([("done", "a", 1), ("late", "a", 1)],), True),
    (inv.one_final_entry, ([("done", "a", 1), ("done", "a", 2)],), False),
    (inv.s1_nothing_begins_after_the_signal, (10.0, []), True),
    (inv.s1_nothing_begins_after_the_signal, (10.0, [1.0, 10.05]), True),
    (inv.s1_nothing_begins_after_the_signal, (10.0, [1.0, 10.2]), False),
    (inv.s2_the_second_signal_ends_it, (0.9, 130, 2), True),
    (inv.s2_the_second_signal_ends_it, (0.9, -15, 15), True),
    (inv.s2_the_second_signal_ends_it, (1.1, 130, 2), False),
    (inv.s2_the_second_signal_ends_it, (0.1, 0, 2), False),
    (inv.s2_the_second_signal_ends_it, (0.1, 143, 2), False),
    (
        inv.s4_everything_run_is_recorded,
        ({"a", "b", "c"}, {"a": "done", "b": "failed", "c": "interrupted", "d": "pending"}),
        True,
    ),
    (inv.s4_everything_run_is_recorded, ({"a"}, {}), False),
    (inv.s4_everything_run_is_recorded, ({"a"}, {"a": "pending"}), False),
    (inv.s4_everything_run_is_recorded, ({"a"}, {"a": "parked"}), False),
    (inv.s4_everything_run_is_recorded, (set(), {"a": "done"}), False),
    (inv.s4_everything_run_is_recorded, (set(), {"a": "failed"}), False),
    (inv.s5_handlers_are_as_before, ({2: print, 15: None}, {2: print, 15: None, 3: print}), True),
    (inv.s5_handlers_are_as_before, ({2: print}, {2: len}), False),
    (inv.s5_handlers_are_as_before, ({2: print}, {}), False),
]


@pytest.mark.parametrize(
    ("predicate", "facts", "well"),
    CASES,
    ids=[f"{case[0].__name__}-{'well' if case[2] else 'fault'}-{n}" for n, case in enumerate(CASES)],
)
def test_a_predicate_accepts_what_is_well_and_says_what_is_not(
    predicate: Callable[..., str | None], facts: tuple[Any, ...], well: bool
) -> None:
    said = predicate(*facts)

    if well:
        assert said is None
    else:
        assert said


def test_every_predicate_was_shown_both() -> None:
    predicates = {
        function for name, function in inspect.getmembers(inv, inspect.isfunction) if not name.startswith("_")
    }

    assert {case[0] for case in CASES if case[2]} == predicates
    assert {case[0] for case in CASES if not case[2]} == predicates
