"""A run as Markdown, for the summary of a CI job: at most 900 kB, whole parts left out at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .head_facts import HeadCard, HeadFacts, HeadTable

MOST: Final = 900_000  # bytes; GitHub refuses a summary of more than 1 MiB
_CAUSES: Final = 50
_LEFT_OUT: Final = "\n*The rest is left out: it would be too long here. `agentos report` has it.*\n"
_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|~&@$]|^[#+=-])")


def build_markdown(head: HeadFacts, limit: int = MOST) -> str:
    """Return the head of a run as Markdown of at most *limit* bytes. Texts of the run are escaped."""
    room = limit - len(_LEFT_OUT.encode())
    parts: list[str] = []
    for part in _list_parts(head):
        length = len(part.encode("utf-8", "replace"))
        if length > room:
            parts.append(_LEFT_OUT)
            break
        room -= length
        parts.append(part)
    return "".join(parts)


def _list_parts(head: HeadFacts) -> Iterator[str]:
    yield f"## {escape(head.name)}: {escape(head.state)}\n\n"
    if head.damage:
        yield f"**The journal is damaged: {escape(head.damage)}.** This covers only the intact entries before it.\n\n"
    yield _build_table(
        HeadTable(
            tuple(card.label for card in head.cards),
            (tuple(map(_describe_card, head.cards)),),
        )
    )
    if head.bound_note:
        yield f"What bounded the speed: {escape(head.bound_note)}\n\n"
    for note in head.notes:
        yield f"{escape(note)}\n\n"
    if head.failures:
        yield f"### {head.failed:,} failed, by cause\n\n"
        rows = tuple((f"{each.count:,}", each.cause, each.place, each.example) for each in head.failures[:_CAUSES])
        yield _build_table(HeadTable(("Items", "Cause", "Place", "For example"), rows, (0,)))
    for title, table in (("Why was it not faster?", head.bounds), ("Keys", head.keys), ("Sessions", head.sessions)):
        if table.rows:
            yield f"### {title}\n\n{_build_table(table)}"
    for each in head.failures[:_CAUSES]:
        if each.detail and each.detail != each.cause:
            summary = _escape_html(each.cause)
            yield f"<details><summary>{summary}</summary>\n\n{_build_block(each.detail)}\n</details>\n\n"


def _describe_card(card: HeadCard) -> str:
    is_unit = card.note.startswith(("of ", "in ", "items"))
    return f"{card.value} {card.note if is_unit or not card.note else f'({card.note})'}".strip()


def escape(text: str) -> str:
    """Return *text* as Markdown that shows it: no markup, no HTML, no mention of a person."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("\\<", "&lt;").replace("\\@", "&#64;")


def _build_table(table: HeadTable) -> str:
    rules = ("---:" if place in table.right else "---" for place in range(len(table.columns)))
    lines = [table.columns, None, *table.rows]
    rows = ("| " + " | ".join(map(escape, line)) + " |" if line else "|" + "|".join(rules) + "|" for line in lines)
    return "\n".join(rows) + "\n\n"


def _build_block(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _escape_html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
