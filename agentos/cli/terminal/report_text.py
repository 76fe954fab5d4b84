"""Format a run's report for people: the most important first, and at the end the commands to type next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...util.durations import format_duration
from ..session.argv import ONCE, find_option_value
from ..session.exit_summary import describe_retry
from ..session.find_run import DEFAULT_BASE
from .phrases import BOLD, CYAN, DIM, GREEN, RED, YELLOW, Paint, format_ago, format_count
from .table import format_table

if TYPE_CHECKING:
    from ...runs.report.failure_causes import FailureGroup
    from ...runs.report.gateway_requests import RequestTotals
    from ...runs.report.run_card import RunCard
    from ...runs.report.run_report import RunReport

_CAUSES: Final = 10
_IDS: Final = 6
_AGENTS: Final = 40
_SHORTEST_WAIT: Final = 0.1  # seconds
_LONGEST_CAUSE: Final = 100
_LONGEST_ID: Final = 60
_LONGEST_REASON: Final = 2_000  # its end says what to do
_COLOURS: Final = {"finished": GREEN, "running": CYAN, "crashed": RED, "unreadable": RED}


def format_report(
    report: RunReport, *, now: float, paint: Paint, cwd: str, base: str | None = None, width: int | None = None
) -> Iterator[str]:
    """Yield the lines of the report. Its commands work in *cwd*; *base* is the value of ``--dir``, if any.

    *width* is that of the terminal; None for a pipe or a file.
    """
    yield from _headline(report, now, paint)
    if report.damage is not None:
        yield paint(f"  the journal is damaged: {clean(report.damage, 300)}", RED)
        yield paint("  this report covers only the intact entries before the damage", RED)
    yield from _failures(report, paint)
    yield from _agents(report, paint, width)
    yield from _keys(report, paint, width)
    yield from _unfinished(report, paint)
    yield from _next(report, paint, cwd, base, width)


def _agents(report: RunReport, paint: Paint, width: int | None) -> Iterator[str]:
    """Yield a row for each agent: first those that need a look, then those that waited the longest."""
    if not report.agents:
        return
    yield ""
    yield paint("agents", BOLD)
    shown = sorted(report.agents, key=lambda agent: (agent.ending == "done", -agent.waited))[:_AGENTS]
    rows = [
        [
            clean(agent.id, _LONGEST_ID),
            agent.ending,
            str(agent.resumes or ""),
            str(agent.turns or ""),
            "" if agent.usage is None else f"{agent.usage.total:,}",
            "" if agent.cost is None else f"{agent.cost:.4f}",
            format_duration(agent.waited) if agent.waited >= _SHORTEST_WAIT else "",
            "" if agent.tree is None else clean(agent.tree, _LONGEST_REASON),
        ]
        for agent in shown
    ]
    headings = ("item", "ended", "resumes", "turns", "tokens", "cost $", "waited", "clone")
    coloured = paint("x", GREEN) != "x"
    colours = [GREEN if agent.ending == "done" else YELLOW for agent in shown] if coloured else []
    for line in format_table(headings, rows, colours, coloured_column=1, right=(2, 3, 4, 5, 6), width=width):
        yield f"  {line}"
    if len(report.agents) > len(shown):
        yield paint(f"  and {len(report.agents) - len(shown)} more, all with --json", DIM)
    for agent in report.agents:
        if agent.disagreement is not None:
            yield paint(f"  {clean(agent.id, _LONGEST_ID)}: {clean(agent.disagreement, _LONGEST_REASON)}", YELLOW)


def clean(text: str, longest: int = _LONGEST_CAUSE) -> str:
    """Return untrusted *text* on one line: no control characters, not too long."""
    from ...util.sanitize import make_printable, shorten

    return shorten(make_printable(text[: 10 * longest]), longest)


def find_color(word: str) -> str:
    """Return the color of the state that *word* names."""
    return _COLOURS.get(word, YELLOW)


def _headline(report: RunReport, now: float, paint: Paint) -> Iterator[str]:
    reason, *advice = clean(str(report.state), _LONGEST_REASON).split("; ")
    state = paint(reason, find_color(report.state.word))
    last = report.sessions[-1] if report.sessions else None
    since = "" if last is None else f", {format_ago(last.started_at if last.ended_at is None else last.ended_at, now)}"
    if last is not None and last.ended_at is None:
        since = f", for {format_duration(now - last.started_at)}"
    yield f"{paint(clean(report.name, _LONGEST_ID), BOLD)}: {state}{since}"
    yield from (f"  {each}" for each in advice)
    if report.results is not None:
        yield f"  results: {clean(shlex.quote(report.results), _LONGEST_REASON)}"
    yield f"  {_counts(report, paint)}"
    yield from (f"  {line}" for line in _speed(report))


def _describe_requests(requests: RequestTotals) -> str:
    parts = [f"{requests.requests:,} requests through the gateway"]
    if requests.longest >= 0.1:
        parts.append(
            f"waited {format_duration(requests.waited)} for keys, at most {format_duration(requests.longest)} each"
        )
    if requests.refusals:
        parts.append(f"{requests.refusals:,} refusals of keys that no program saw")
    if requests.refused:
        parts.append(f"{requests.refused:,} ended with an error")
    if requests.left:
        parts.append(f"{requests.left:,} left by their program")
    return "; ".join(parts)


def _counts(report: RunReport, paint: Paint) -> str:
    counts = report.counts
    of = "" if report.total is None else f" of {report.total:,}"
    parts = [paint(f"{counts['done']:,}{of} done", GREEN)]
    if counts["failed"]:
        parts.append(paint(f"{counts['failed']:,} failed", RED))
    if report.left:
        states = {"running" if report.state.word == "running" else "were running": counts["running"]}
        states |= {name: counts[name] for name in ("interrupted", "parked")}
        states["waiting to be retried"] = counts["pending"] - report.not_begun
        states["not begun"] = report.not_begun
        kinds = ", ".join(f"{number:,} {name}" for name, number in states.items() if number > 0)
        parts.append(paint(f"{report.left:,} left", YELLOW) + f" ({kinds})")
    if report.total is None:
        parts.append("total not known yet")
    return ", ".join(parts)


def _speed(report: RunReport) -> Iterator[str]:
    if not report.sessions:
        return
    sessions = len(report.sessions)
    on = f"ran for {format_duration(report.wall)}" + (f" in {sessions} sessions" if sessions > 1 else "")
    if report.rate is not None:
        rate = report.rate
        on += f", {rate:,.{0 if rate >= 100 else 1}f} items/s" if rate >= 0.5 else f", {rate * 60:.2g} items/min"
    if report.card is not None and report.card.engine is not None:
        on += f", on {clean(report.card.engine)}"
    yield on
    if report.durations is not None:
        times = report.durations
        yield (
            f"item duration p50 {format_duration(times.p50)}, p95 {format_duration(times.p95)}, "
            f"max {format_duration(times.longest)}"
        )
    if report.usage:
        yield f"used {report.usage}"
    if report.requests.requests:
        yield _describe_requests(report.requests)
    if report.redacted or report.not_json:
        from ...runs.display.phrases import describe_changed_values

        yield from describe_changed_values(report.redacted, report.not_json)
    why = report.retry_cause
    reason = "" if why is None else clean(_describe_cause(why))
    mostly = "" if why is None or why.count == report.retried else "most often: "
    counts = {
        "retried after an error" + (f" ({mostly}{reason})" if reason else ""): report.retried,
        "rate-limited": report.limited,
        "rejected (401, 402, 403)": report.rejected,
        "without an answer": report.unreachable,
        "interrupted": report.interrupted,
    }
    if any(counts.values()):
        stopped = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        yield f"{format_count(report.attempts, 'attempt')}: {stopped}"


def _failures(report: RunReport, paint: Paint) -> Iterator[str]:
    if not report.failures:
        return
    failed = report.counts["failed"]
    yield ""
    yield paint(f"{format_count(failed, 'failure')}, by cause", BOLD)
    shown = report.failures[:_CAUSES]
    number = max(len(f"{each.count:,}") for each in shown)
    for each in shown:
        yield f"  {paint(f'{each.count:,}'.rjust(number), RED)}  {clean(_describe_cause(each), _LONGEST_CAUSE)}"
        where = f"{each.place}, " if each.place else ""
        yield f"  {' ' * number}  {paint(clean(f'{where}e.g. {each.example}'), DIM)}"
    rest = sum(each.count for each in report.failures[_CAUSES:]) + report.other_failures
    if rest:
        yield f"  {rest:,} of other causes: agentos show {shlex.quote(report.name)} --failed"


def _describe_cause(group: FailureGroup) -> str:
    from ...runs.failures import describe_failure

    # Of one item the message is exact; of several, it is when they all have the same.
    return describe_failure(group.text if group.place or group.same_text else group.cause, group.error_type)


def _keys(report: RunReport, paint: Paint, width: int | None) -> Iterator[str]:
    lines = list(_describe_key_time(report))
    if lines or report.keys:
        yield ""
        yield paint("keys", BOLD)
    yield from (f"  {clean(line, _LONGEST_REASON)}" for line in lines)
    if report.keys:
        tokens = ("tokens",) if report.usage else ()
        head = ("key", "done", "failed", "rate-limited", "rejected", "no answer", "used", "cooling", *tokens)
        rows = [
            (
                clean(key.name, 40),
                f"{key.done:,}",
                f"{key.failed:,}",
                f"{key.limited:,}",
                f"{key.rejected:,}",
                f"{key.unreachable:,}",
                format_duration(key.seconds),
                format_duration(key.cooling) if key.cooling else "-",
                *((f"{key.usage.total:,}",) if report.usage else ()),
            )
            for key in report.keys
        ]
        heading, *lines = format_table(head, rows, right=range(1, len(head)), width=width and width - 2)
        yield f"  {paint(heading, DIM)}"
        yield from (f"  {line}" for line in lines)


def _describe_key_time(report: RunReport) -> Iterator[str]:
    spent = report.key_time
    if spent.unreachable_since is not None:
        from ...runs.failures import describe_unreachable

        yield describe_unreachable(spent.unreachable_since, spent.unreachable_why)
    yield from spent.describe()
    waiting = report.waiting
    busy = waiting.by_key.get("", 0.0) * 2 > max(waiting.seconds, 2.0)  # workers waited while all keys were in use
    if busy and report.unanswered * 2 <= report.attempts:  # else the keys were busy because nobody answered
        yield "workers waited for busy keys: more keys, or more slots, would help; a larger -j would not"


def _unfinished(report: RunReport, paint: Paint) -> Iterator[str]:
    if not report.unfinished:
        return
    yield ""
    yield paint("unfinished", BOLD)
    width = max(map(len, report.unfinished))
    for state, ids in report.unfinished.items():
        more = report.counts[state] - len(ids[:_IDS])
        listed = ", ".join(clean(each, _LONGEST_ID) for each in ids[:_IDS]) + (f" and {more:,} more" if more else "")
        yield f"  {state.ljust(width)}  {listed}"


def _next(report: RunReport, paint: Paint, cwd: str, base: str | None, columns: int | None) -> Iterator[str]:
    from ...util.sanitize import make_printable

    rows = list(_commands(report, cwd, "" if base is None else f" --dir {shlex.quote(base)}"))
    if rows:
        yield ""
        yield paint("next:", BOLD)
        width = min(60, max(len(command) for command, _ in rows))
        for command, what in rows:
            command = "\n".join(map(make_printable, command.split("\n")))  # it may come from an untrusted repository
            if columns is None or max(width, len(command)) + len(what) + 6 <= columns:
                yield f"  {command.ljust(width)}  {paint(f'# {what}', DIM)}"
            else:
                yield f"  {paint(f'# {what}', DIM)}"
                yield f"  {command}"


def _commands(report: RunReport, cwd: str, base: str) -> Iterator[tuple[str, str]]:
    """Yield the commands to type next, each with its purpose."""
    name = shlex.quote(report.name)
    running = report.state.word == "running"
    if running:
        for item_id in filter(_can_be_typed, report.unfinished.get("running", ())[:1]):
            yield f"agentos logs {name} {shlex.quote(item_id)} -f{base}", "follow the output of a running item"
    card = report.card
    if card is not None and not running and _is_replaced(report, card):
        yield f"agentos show {shlex.quote(card.name)}{base}", "the run that replaced this one, by --fresh"
    elif card is not None and not running and Path(report.folder).parent.name == "runs":
        yield from _continuations(report, card, cwd, base)
    for cluster in report.failures[:1]:
        ran = cluster.error_type is not None  # else it was refused: a log under its id belongs to another item
        if ran and _can_be_typed(cluster.example):
            yield f"agentos logs {name} {shlex.quote(cluster.example)}{base}", "the output of a failed item"


def _continuations(report: RunReport, card: RunCard, cwd: str, base: str) -> Iterator[tuple[str, str]]:
    """Yield the commands that run what is left or failed; never one that would run again what is done."""
    name, failed = shlex.quote(report.name), report.counts["failed"]
    place = _location_options(report, card)
    unfinished = bool(report.left) or report.total is None
    if unfinished:
        what = f"resume with {format_count(report.left, 'item')}" if report.left else "resume"
        yield run_command(card, cwd, *place), what
    if failed:
        from_stdin = card.source_kind == "stdin"
        typed = run_command(card, cwd, "--retry-failed", *place) if from_stdin else f"agentos retry {name}{base}"
        yield typed, describe_retry(report.left, failed)
    elif not unfinished:
        yield f"agentos results {name}{base}", f"all {report.counts['done']:,} done"


def _is_replaced(report: RunReport, card: RunCard) -> bool:
    """Return whether ``--fresh`` set this run aside: what is left or failed in it may be done in the other by now."""
    aside = report.name.removeprefix(f"{card.name}.")
    return aside != report.name and aside.isdigit() and os.path.lexists(Path(report.folder).parent / card.name)


def _location_options(report: RunReport, card: RunCard) -> list[str]:
    """Return ``--name`` and ``--dir`` where the original arguments would lead to another run, and do all again."""
    more = [] if card.name == report.name else ["--name", report.name]
    options = card.arguments[: options_end(card.arguments)]
    base = os.path.realpath(Path(report.folder).parent.parent)
    if os.path.realpath(Path(card.cwd, find_option_value(options, "--dir") or DEFAULT_BASE)) != base:
        more += ["--dir", base]
    return more


def run_command(card: RunCard, cwd: str, *more: str) -> str:
    """Return the command that starts the run again from *cwd* as it was started, with *more* options."""
    kept = kept_arguments(card.arguments)
    end = options_end(kept)
    command = f"agentos run {shlex.join([*kept[:end], *more, *kept[end:]])}"
    if card.source_kind == "stdin":
        command = f"... | {command}"
    return command if card.cwd == cwd else f"cd {shlex.quote(card.cwd)} && {command}"


def _can_be_typed(item_id: str) -> bool:
    return clean(item_id, 200) == item_id


def kept_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without one-time options: a recorded --fresh would start over again."""
    end = options_end(arguments)
    return [*(word for word in arguments[:end] if word not in ONCE), *arguments[end:]]


def options_end(arguments: Sequence[str]) -> int:
    """Return the index where the options of ``agentos run`` end, and the command or the words begin."""
    return next((place for place, word in enumerate(arguments) if word in ("--", ":::")), len(arguments))
