"""Put the page together as HTML: the head as static text, the style, the scripts, and the data in the file itself.

Every text of a run is escaped here, and goes through ``textContent`` in the scripts. The content security policy in the
file allows this script and this style by their hashes, and nothing else: no request can be made.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

from .head_facts import FailureFacts, HeadCard, HeadFacts, HeadTable

_SCRIPTS: Final = ("text.js", "data.js", "lanes.js", "timeline.js", "table.js", "detail.js", "main.js")
_LIVE_SCRIPTS: Final = (*_SCRIPTS, "head.js", "live.js")
_NAVIGATION: Final = (
    ("timeline", "Timeline"),
    ("speed", "Why not faster"),
    ("failures", "Failures"),
    ("keys", "Keys"),
    ("items", "Items"),
    ("sessions", "Sessions"),
)
_PIECE: Final = 3 << 18  # bytes; a multiple of three
_ICON: Final = '<link rel="icon" href="data:,">'


@cache
def read_asset(name: str) -> str:
    """Return the text of a file in ``assets``."""
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def join_scripts(names: Sequence[str], start: str) -> str:
    """Return one script: the files *names* and the statement *start*, in a scope of their own."""
    parts = "\n".join(read_asset(name) for name in names)
    return f'"use strict";\n(() => {{\n{parts}\n{start}\n}})();\n'


def build_policy(script: str, style: str, *, connect: str = "'none'") -> str:
    """Return the content security policy that allows exactly this script and this style."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def build_report_page(head: HeadFacts, packed: bytes, made: str) -> Iterator[str]:
    """Yield the parts of the report's HTML; *packed* is the block of its data, *made* says when it was written."""
    script = join_scripts(_SCRIPTS, "startReport().catch(showProblem);")
    style = read_asset("page.css")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{escape(build_policy(script, style))}">'
    title = f"{head.name}: {head.state}"
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'{policy}\n<meta name="viewport" content="width=device-width, initial-scale=1">\n{_ICON}\n'
        f"<title>{_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )
    yield from build_body(head)
    yield f"<footer><p>Written by agentos, {_text(made)}. Times are local.</p></footer>\n"
    yield '<script type="application/octet-stream" id="data">\n'
    for start in range(0, len(packed), _PIECE):
        yield base64.b64encode(packed[start : start + _PIECE]).decode("ascii")
    yield f"\n</script>\n<script>{script}</script>\n</body>\n</html>\n"


@cache
def build_live_page() -> tuple[bytes, str]:
    """Return the live page, which has no data of any run, and its content security policy."""
    script = join_scripts(_LIVE_SCRIPTS, "startLive().catch(showProblem);")
    style = read_asset("page.css")
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n{_ICON}\n'
        f"<title>agentos</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<p id="no-script" class="quiet" role="status">The live page needs JavaScript.</p>\n'
        f'<div id="live"></div>\n<script>{script}</script>\n</body>\n</html>\n'
    )
    policy = build_policy(script, style, connect="'self'") + "; frame-ancestors 'none'"
    return text.encode(), policy


def build_body(head: HeadFacts) -> Iterator[str]:
    """Yield the page without its data: what can be read without scripts, and the places that scripts fill."""
    yield '<header class="top"><div class="top-inner">\n<div class="title">'
    yield f'<h1><bdi>{_text(head.name)}</bdi></h1> <span class="badge badge-{_text(head.word.replace(" ", "-"))}">'
    yield f"{_text(head.state)}</span></div>\n"
    yield f'<p class="when">{_text(head.when)}</p>\n'
    if head.command:
        yield f"<p><code>{_text(head.command)}</code></p>\n"
    if head.damage:
        yield f'<p class="alert" role="alert">The journal is damaged: {_text(head.damage)}. '
        yield "This page covers only the intact entries before the damage.</p>\n"
    yield '<dl class="cards">' + "".join(map(_build_card, head.cards)) + "</dl>\n"
    if head.bound_note:
        yield f"<p>What bounded the speed: {_text(head.bound_note)}</p>\n"
    yield "".join(f"<p>{_text(note)}</p>\n" for note in head.notes)
    yield "</div></header>\n<nav aria-label='Sections'><div class='inner'>"
    yield "".join(f'<a href="#{name}">{title}</a>' for name, title in _NAVIGATION)
    yield "</div></nav>\n<main>\n"
    yield '<p id="no-script" class="quiet">The timeline and the table of items need JavaScript.</p>\n'
    yield '<section id="timeline" data-needs-script hidden><h2>Timeline</h2><div id="timeline-host"></div></section>\n'
    yield from _build_speed(head)
    yield from _build_failures(head)
    yield '<section id="keys"><h2>Keys</h2>'
    yield build_table(head.keys) if head.keys.rows else "<p>The run used no keys.</p>"
    yield "</section>\n"
    yield '<section id="items" data-needs-script hidden><h2>Items</h2><div id="items-host"></div></section>\n'
    yield f'<section id="sessions"><h2>Sessions</h2>{build_table(head.sessions)}</section>\n</main>\n'


def build_table(table: HeadTable) -> str:
    """Return a small table as HTML."""

    def cell(tag: str, place: int, text: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        right = ' class="right"' if place in table.right else ""
        return f"<{tag}{scope}{right}><bdi>{_text(text)}</bdi></{tag}>"

    heads = "".join(cell("th", place, text) for place, text in enumerate(table.columns))
    rows = "".join(
        "<tr>" + "".join(cell("td", place, text) for place, text in enumerate(row)) + "</tr>" for row in table.rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _build_card(card: HeadCard) -> str:
    tone = f" tone-{card.tone}" if card.tone else ""
    return (
        f'<div class="card{tone}"><dt>{_text(card.label)}</dt><dd><div class="value">{_text(card.value)}</div>'
        f'<div class="note">{_text(card.note)}</div></dd></div>'
    )


def _build_speed(head: HeadFacts) -> Iterator[str]:
    yield '<section id="speed"><h2>Why was it not faster?</h2>'
    if not head.bounds.rows:
        yield "<p>Nothing was recorded about it: only <code>agentos run</code> records what bounds a run.</p>"
    else:
        yield (
            '<p class="quiet">What bounded the run, second by second. Lost: by how much it would have been shorter, '
            "had no worker been idle for this reason.</p>"
        )
        yield f'<div class="two">{build_table(head.bounds)}'
        yield f"{build_table(head.quota_keys) if head.quota_keys.rows else '<div></div>'}</div>"
    yield "</section>\n"


def _build_failures(head: HeadFacts) -> Iterator[str]:
    yield '<section id="failures"><h2>Failures by cause</h2>'
    if not head.failures:
        yield "<p>No item has failed.</p>"
    yield "".join(_build_failure(each, number) for number, each in enumerate(head.failures, 1))
    listed = sum(each.count for each in head.failures)
    if listed < head.failed:
        yield f"<p>{head.failed - listed:,} failures of other causes</p>"
    yield "</section>\n"


def _build_failure(failure: FailureFacts, number: int) -> str:
    where = f"{failure.place} · " if failure.place else ""
    detail = ""
    if failure.detail and failure.detail != failure.cause:
        detail = f'<details><summary>Details of one</summary><pre tabindex="0">{_text(failure.detail)}</pre></details>'
    return (
        f'<div class="failure"><div class="failure-head"><span class="count">{failure.count:,}</span>'
        f'<span class="cause"><bdi>{_text(failure.cause)}</bdi></span>'
        f'<button type="button" data-cause="{number}" hidden>Show items</button></div>'
        f'<div class="failure-more">{_text(where)}e.g. <bdi>{_text(failure.example)}</bdi>{detail}</div></div>'
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _text(text: str) -> str:
    return escape(text)
