"""The journal: the run's SQLite file and the authority on its state. Acknowledged entries survive any crash."""

from .entry_kinds import RecordedState
from .entry_text import StateRow, encode_row, replace_surrogates
from .journal import Journal
from .journal_files import JournalFiles, locate_files
from .known_items import KnownItems
from .writer import JournalWriter, PendingStart

__all__ = [
    "Journal",
    "JournalFiles",
    "JournalWriter",
    "KnownItems",
    "PendingStart",
    "RecordedState",
    "StateRow",
    "encode_row",
    "locate_files",
    "replace_surrogates",
]
