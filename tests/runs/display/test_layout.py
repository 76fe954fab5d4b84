"""The layout of the live display at any size."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.pool.core.credential_report import Headroom
from agentos.pool.snapshot import CredentialState
from agentos.runs.display.event_state import FailedItem
from agentos.runs.display.key_table import ASCII_GLYPHS, STYLES, UNICODE_GLYPHS, render_key_rows
from agentos.runs.display.layout import DisplayState, RunningItem, render
from agentos.runs.results import ProgressStats
from agentos.util.text_width import display_width

NOW = 1_763_220_600.0  # 15:30 UTC


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


STATS = ProgressStats(total=300, completed=150, failed=3, success_count=147, retried=2, start_time=0.0, end_time=134.0)


def key(
    name: str, state: str = "available", rests: float = 0.0, why: str = "", *, slots: int = 1, leases: int = 0
) -> CredentialState:
    until = NOW + rests if rests else 0.0
    return CredentialState(name, state=state, rate_limited_until=until, why=why, slots=slots, leases=leases)


def limited_by(name: str, left: float, amount: float = 100.0, dimension: str = "requests") -> CredentialState:
    return CredentialState(name, limits=(Headroom(dimension, amount, left, None, False),))


SCENE = DisplayState(
    stats=STATS,
    now=NOW,
    name="night",
    seconds_left=743.0,
    keys=[key("alice", "leased", slots=4, leases=3), key("bob", "cooling", 240.0, "429, retry-after 240")],
    running=[RunningItem("doc-7", NOW - 74.0, "Reading chapter 3"), RunningItem("doc-8", NOW - 14.0)],
    failures=[FailedItem("doc-2", "exit 3: no such file")],
)


def lines(scene: DisplayState, width: int = 81, height: int = 40) -> list[str]:
    return ["".join(text for text, _ in row).rstrip() for row in render(scene, width, height)]


def test_everything_has_its_place() -> None:
    assert lines(SCENE) == [
        "night",
        "━━━━━━━━━━━━━━━━━━━━━━━━━━━╸──────────────────────────  150/300 (50.0%)  0:02:14",
        "done 147, failed 3, retried 2, running 2       about 0:12:30 left, done at 15:42",
        "keys     alice  leased     ━━━━━━──  3 of 4 slots in use",
        "         bob    cooling    ────────  until 15:34 (4 min): 429, retry-after 240",
        "running  doc-7  1:14  Reading chapter 3",
        "         doc-8  0:14",
        "failed   doc-2: exit 3: no such file",
    ]


def test_without_anything_to_tell_there_are_the_bar_and_the_counts() -> None:
    scene = DisplayState(ProgressStats(total=10, start_time=0.0, end_time=1.0), NOW)

    assert [line.split("  ")[0] for line in lines(scene)] == ["─" * 58, "done 0, failed 0"]


def test_an_input_of_unknown_length_has_a_bar_that_moves_but_no_end() -> None:
    endless = replace(STATS, total=None)

    first, second = (lines(DisplayState(replace(endless, end_time=end), NOW))[0] for end in (10.0, 11.0))

    assert (first.split("  ")[1:], second.split("  ")[1:]) == (["150", "0:00:10"], ["150", "0:00:11"])
    assert (first.index("━"), second.index("━")) == (40, 44)
    assert lines(DisplayState(endless, NOW))[1].endswith("time left not known")


def test_a_run_that_is_through_has_a_full_bar_and_no_time_left() -> None:
    through = replace(STATS, completed=300, success_count=297)

    bar, counts = lines(DisplayState(through, NOW, seconds_left=0.0))

    assert set(bar.split("  ")[0]) == {"━"}
    assert "left" not in counts


def test_a_run_that_stops_is_not_said_to_have_time_left() -> None:
    assert "left" not in " ".join(lines(replace(SCENE, stopping=True)))


def test_failures_are_red_in_the_bar() -> None:
    row = render(DisplayState(STATS, NOW), 81, 40)[0]

    assert [(style, set(text)) for text, style in row][:2] == [("red", {"━"}), ("green", {"━"})]


def test_the_speed_and_what_bounds_it_have_a_row_of_their_own() -> None:
    scene = replace(SCENE, speed=["12 items/s", "bound by: -j 8 (all workers busy)"])

    assert lines(scene)[3] == "12 items/s, bound by: -j 8 (all workers busy)"
    assert lines(scene, 40)[4] == "bound by: -j 8 (all workers busy)"
    assert lines(replace(scene, speed=["12 items/s"]))[3] == "12 items/s"


def test_only_cooldowns_of_all_keys_stand_out() -> None:
    def style(bound: str) -> str:
        return render(replace(SCENE, speed=[bound]), 81, 40)[3][0][1]

    assert style("bound by: cooldowns (all 3 keys)") == "yellow"
    assert style("bound by: key limits (3 keys at their limit)") == ""


def test_that_no_key_is_usable_goes_before_the_speed() -> None:
    scene = replace(SCENE, keys=[key("a", "dead"), key("b", "spent")], speed=["1.0 items/s"])

    assert "no usable key left: 1 dead, 1 spent" in lines(scene)
    assert "1.0 items/s" not in lines(scene)


# -- keys -----------------------------------------------------------------------------------------------------


def shown_keys(*keys: CredentialState, width: int = 80, most: int = 12) -> list[str]:
    rows = render_key_rows(keys, width=width, most=most, now=NOW, clean=str)
    return ["".join(text for text, _ in row).rstrip() for row in rows]


def test_the_bar_of_a_key_is_what_is_left_of_its_tightest_limit() -> None:
    both = CredentialState(
        "k",
        limits=(
            Headroom("requests", 100.0, 90.0, None, False),
            Headroom("input_tokens", 1_000.0, 250.0, None, False),
            Headroom("output_tokens", 1_000.0, 0.0, None, True),  # set aside: it says nothing
        ),
    )

    assert shown_keys(both) == ["k  available  ━━──────  25% of its input tokens left"]


@pytest.mark.parametrize(
    ("left", "bar"),
    [(0.0, "────────"), (0.4, "━───────"), (100.0, "━━━━━━━━"), (140.0, "━━━━━━━━"), (-5.0, "────────")],
)
def test_a_bar_is_empty_only_when_nothing_is_left(left: float, bar: str) -> None:
    assert bar in shown_keys(limited_by("k", left))[0]


@pytest.mark.parametrize("state", ["limited", "leased"])
def test_a_key_at_its_limit_is_no_trouble(state: str) -> None:
    headroom = (Headroom("requests", 120.0, 0.3, None, False),)
    why = "at its limit (120/min)" if state == "limited" else "every slot is leased"
    at_limit = CredentialState("k", state=state, rate_limited_until=NOW + 1.0, why=why, limits=headroom)

    (row,) = render_key_rows([at_limit], width=60, most=3, now=NOW, clean=str)

    assert "".join(text for text, _ in row) == f"k  {state:<9}  ━───────  at its limit (120/min)"
    assert {style for _, style in row} <= {"", "cyan", "dim"}


def test_a_key_whose_limit_is_used_up_for_long_says_until_when() -> None:
    used_up = key("k", "limited", 7_200.0, "at its limit (1,000/day)")

    assert shown_keys(used_up) == ["k  limited    ────────  until 17:30 (2 h): at its limit (1,000/day)"]


def test_a_key_that_no_one_can_use_has_a_reason_and_no_bar() -> None:
    assert shown_keys(key("a"), key("b", "dead", why="401: invalid x-api-key")) == [
        "a  available  ────────",
        "b  dead                 401: invalid x-api-key",
    ]


def test_keys_keep_their_places_while_all_can_be_shown() -> None:
    shown = shown_keys(key("a"), key("b", "dead"), key("c"), most=3)

    assert [line.split()[0] for line in shown] == ["a", "b", "c"]


def test_of_too_many_keys_those_in_trouble_are_shown_and_the_others_counted() -> None:
    states = ["available"] * 30 + ["leased", "cooling", "dead", "limited", "parked", "spent", "retired"]
    keys = [key(f"k{number}", state, 100.0) for number, state in enumerate(states)]

    shown = shown_keys(*keys, most=7)

    assert [line.split()[1] for line in shown[:6]] == ["dead", "spent", "parked", "cooling", "limited", "leased"]
    assert shown[6] == "... and 30 more available, 1 retired"


def test_in_one_row_there_is_a_tally_of_the_keys() -> None:
    assert shown_keys(key("a"), key("b", "dead"), key("c"), most=1) == ["2 available, 1 dead"]


def test_a_narrow_terminal_keeps_names_states_and_times() -> None:
    shown = shown_keys(key("alice", "cooling", 240.0, "429 with retry-after 240"), width=36)

    assert shown == ["alice  cooling    until 15:34"]


def test_every_state_has_its_colour() -> None:
    for state, style in STYLES.items():
        (row,) = render_key_rows([key("k", state)], width=80, most=1, now=NOW, clean=str)
        assert (state.ljust(9), style) in row


# -- running items --------------------------------------------------------------------------------------------


def running(count: int, last_line: str = "") -> list[RunningItem]:
    return [RunningItem(f"doc-{number}", NOW - 60.0, last_line) for number in range(count)]


def test_items_that_print_nothing_stand_side_by_side() -> None:
    shown = lines(DisplayState(STATS, NOW, running=running(7)))[2:]

    assert shown == [
        "running  doc-0 1:00  doc-1 1:00  doc-2 1:00  doc-3 1:00  doc-4 1:00  doc-5 1:00",
        "         doc-6 1:00",
    ]


@pytest.mark.parametrize("last_line", ["", "words"])
@pytest.mark.parametrize("count", [1, 2, 8, 9, 39, 40, 41, 100])
@pytest.mark.parametrize("height", [4, 6, 9, 40])
def test_each_running_item_is_shown_or_counted(count: int, last_line: str, height: int) -> None:
    shown = "\n".join(lines(DisplayState(STATS, NOW, running=running(count, last_line)), height=height)[2:])

    _, _, more = shown.rpartition("and ")
    hidden = int(more.split()[0]) if "more" in more else 0
    assert shown.count("doc-") + hidden == count


# -- the notice -----------------------------------------------------------------------------------------------

STOPPING = (
    "Stopping because of SIGINT: nothing more starts; waiting for 40 running items: "
    + ", ".join(f"doc-{number:04d}" for number in range(20))
    + " ... (once more to stop at once: they are then interrupted, and run again next time)"
)


@pytest.mark.parametrize(("width", "height"), [(160, 50), (100, 30), (80, 24), (60, 16), (40, 24), (40, 12)])
def test_what_a_second_ctrl_c_will_lose_is_seen_on_every_terminal(width: int, height: int) -> None:
    shown = " ".join(lines(replace(SCENE, notice=STOPPING), width, height))

    assert "Stopping because of SIGINT: nothing" in shown
    assert "(once more to stop at once: they are then interrupted, and run again next time)" in shown


def test_a_notice_is_the_last_thing_and_stands_out() -> None:
    row = render(replace(SCENE, notice="the disk is full"), 81, 24)[-1]

    assert row == [("the disk is full".ljust(80), "bold black on yellow")]


# -- any size -------------------------------------------------------------------------------------------------

WORDS = st.text(st.sampled_from("ab -文é🙂"), max_size=60)
KEYS = st.builds(
    lambda name, state, rests, why, left: CredentialState(
        name or "k",
        state=state,
        rate_limited_until=NOW + rests,
        why=why,
        limits=(Headroom("requests", 10.0, left, None, False),) if left >= 0 else (),
    ),
    WORDS,
    st.sampled_from([*STYLES, "a state of tomorrow"]),
    st.floats(-10.0, 1e7),
    WORDS,
    st.floats(-5.0, 15.0),
)
SCENES = st.builds(
    DisplayState,
    stats=st.builds(
        lambda total, completed, failed: ProgressStats(
            total=None if total is None else max(total, completed),
            completed=completed,
            failed=min(failed, completed),
            success_count=completed - min(failed, completed),
            start_time=0.0,
            end_time=99.0,
        ),
        st.none() | st.integers(0, 10**7),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
    ),
    now=st.just(NOW),
    name=WORDS,
    seconds_left=st.none() | st.floats(0.0, 1e7),
    keys=st.lists(KEYS, max_size=20),
    running=st.lists(st.builds(RunningItem, WORDS, st.floats(NOW - 1e6, NOW + 5), WORDS), max_size=50),
    failures=st.lists(st.builds(FailedItem, WORDS, WORDS), max_size=5),
    notice=st.just("") | st.just(STOPPING) | WORDS,
    stopping=st.booleans(),
)


@given(SCENES, st.integers(1, 200), st.integers(1, 60), st.booleans())
@settings(max_examples=300, deadline=None)
def test_the_picture_is_never_wider_nor_taller_than_the_terminal(
    scene: DisplayState, width: int, height: int, plain: bool
) -> None:
    rows = render(scene, width, height, glyphs=ASCII_GLYPHS if plain else UNICODE_GLYPHS)

    assert 1 <= len(rows) <= max(1, height - 1)
    assert all(sum(display_width(text) for text, _ in row) <= max(1, width - 1) for row in rows)
    assert not any("\n" in text for row in rows for text, _ in row)
