"""What is forgotten of a credential when a person says so: death, coolings, money gone, use, what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..pool.core.learning.adaptive_concurrency import Width
from ..pool.core.quota_codec import forgotten
from ..pool.core.records import KeySpec
from ..pool.core.states import Life
from ..pool.store_protocol import Step
from .dump import Book, Entry


@dataclass(frozen=True, slots=True)
class Cleared:
    """What was forgotten. *quota* is None where the store does not say which one is the credential's."""

    name: str
    quota: str | None
    secrets: int


def forget(step: Step, book: Book, names: Sequence[str], specs: Mapping[str, KeySpec]) -> list[Cleared]:
    """Forget the credentials of these names, and their quotas, in one step. Leases in force stay."""
    by_name = book.by_name()
    done = []
    for name in dict.fromkeys(names):
        entries = by_name.get(name, [])
        quotas = [_forget_entry(step, book, entry, specs.get(name)) for entry in entries]
        if entries:
            done.append(Cleared(name, quotas[0], len(entries)))
    return done


def _forget_entry(step: Step, book: Book, entry: Entry, spec: KeySpec | None) -> str | None:
    step.write_life(entry.number, Life.ALIVE.value, "", step.now)
    quota = book.quota_of(entry, spec)
    if quota is None:
        return None
    number, record = book.quotas[quota]
    nothing = forgotten(record)
    if "width" in record:
        nothing["width"] = Width().pack()  # left out, processes that find it out would keep what they found
    step.write_quota(number, nothing, opened=True)
    return quota
